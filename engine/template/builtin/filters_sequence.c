/* Filters on sequences and mappings. */
#include <string.h>

#include "engine/template/builtin/filters.h"
#include "engine/template/builtin/sequence.h"
#include "engine/template/builtin/text_ops.h"
#include "engine/template/operators.h"
#include "engine/template/parse/ast.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"
#include "engine/template/value/value.h"

typedef const struct args *args_in;

static struct value as_list(enum value_type type, struct list *list)
{
    return list ? value_list(type, list) : value_of_type(VALUE_UNSET);
}

/* `path` is "a.b.0", an integer, or not given. */
struct value sequence_attribute(struct interp *in, struct value item, struct value path)
{
    if (path.type == VALUE_UNSET || path.type == VALUE_NONE)
        return item;
    if (path.type != VALUE_STRING)
        return operator_getitem(in, item, path);
    const struct text *text = path.u.text;
    if (!interp_step(in, text->n_bytes / 64))
        return item;
    for (size_t i = 0; i <= text->n_bytes && interp_ok(in);) {
        const char *dot = memchr(text->data + i, '.', text->n_bytes - i);
        size_t end = dot ? (size_t)(dot - text->data) : text->n_bytes;
        struct value key = text_part(in, text, i, end);
        int64_t number = 0;
        bool digits = end > i && end - i < 18;
        for (size_t j = i; j < end && digits; j++) {
            digits = text->data[j] >= '0' && text->data[j] <= '9';
            number = number * 10 + (text->data[j] - '0');
        }
        item = operator_getitem(in, item, digits ? value_int(number) : key);
        i = end + 1;
    }
    return item;
}

static struct value fold_case(struct interp *in, struct value v, bool case_sensitive)
{
    if (v.type == VALUE_STRING && !case_sensitive)
        return text_case(in, v.u.text, UNICODE_LOWER);
    return v;
}

/* Sort key of an item: an attribute, or a list of the attributes in "a,b". */
static struct value sort_key(struct interp *in, struct value item, struct value path,
                             bool case_sensitive)
{
    if (path.type != VALUE_STRING || !memchr(path.u.text->data, ',', path.u.text->n_bytes))
        return fold_case(in, sequence_attribute(in, item, path), case_sensitive);
    const struct text *text = path.u.text;
    struct list *keys = list_new(in, 0);
    for (size_t i = 0; i <= text->n_bytes && interp_ok(in);) {
        const char *comma = memchr(text->data + i, ',', text->n_bytes - i);
        size_t end = comma ? (size_t)(comma - text->data) : text->n_bytes;
        struct value part = text_part(in, text, i, end);
        struct value key = in->failed ? part : sequence_attribute(in, item, part);
        list_add(in, keys, fold_case(in, key, case_sensitive));
        i = end + 1;
    }
    return as_list(VALUE_LIST, keys);
}

struct keyed {
    struct value key, item;
};

/* Stable merge of a[0, n_left) and a[n_left, n), using tmp. */
static void merge(struct interp *in, struct keyed *a, struct keyed *tmp, size_t n_left, size_t n,
                  bool reverse)
{
    size_t i = 0, j = n_left, k = 0;
    while (i < n_left && j < n) {
        int order = 0;
        if (!value_order(in, a[j].key, a[i].key, &order))
            return;
        bool take_right = reverse ? order == 1 : order == -1;
        tmp[k++] = take_right ? a[j++] : a[i++];
    }
    while (i < n_left)
        tmp[k++] = a[i++];
    while (j < n)
        tmp[k++] = a[j++];
    memcpy(a, tmp, n * sizeof(*a));
}

static void sort_keyed(struct interp *in, struct keyed *a, struct keyed *tmp, size_t n,
                       bool reverse)
{
    for (size_t width = 1; width < n && interp_ok(in); width *= 2)
        for (size_t i = 0; i + width < n && interp_ok(in); i += 2 * width)
            merge(in, a + i, tmp, width, n - i < 2 * width ? n - i : 2 * width, reverse);
}

static struct list *sorted(struct interp *in, const struct list *items, struct value path,
                           bool case_sensitive, bool reverse)
{
    size_t n = items->n;
    struct keyed *a = interp_alloc(in, n + 1, sizeof(*a));
    struct keyed *tmp = interp_alloc(in, n + 1, sizeof(*tmp));
    struct list *list = list_new(in, n);
    if (!a || !tmp || !list)
        return NULL;
    for (size_t i = 0; i < n && interp_ok(in); i++)
        a[i] = (struct keyed){sort_key(in, items->items[i], path, case_sensitive), items->items[i]};
    sort_keyed(in, a, tmp, n, reverse);
    for (size_t i = 0; i < n && interp_ok(in); i++)
        list_add(in, list, a[i].item);
    return interp_ok(in) ? list : NULL;
}

static struct value filter_sort(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)args;
    struct list *items = value_to_list(in, self);
    return items ? as_list(VALUE_LIST,
                           sorted(in, items, argv[2], value_truth(argv[1]), value_truth(argv[0])))
                 : self;
}

static struct list *dict_pairs(struct interp *in, struct value v)
{
    if (v.type != VALUE_DICT) {
        interp_fail(in, "needs a mapping, not '%s'", value_type_name(v));
        return NULL;
    }
    struct list *pairs = list_new(in, v.u.dict->n);
    for (size_t i = 0; pairs && i < v.u.dict->n; i++)
        list_add(in, pairs, list_pair(in, v.u.dict->entries[i].key, v.u.dict->entries[i].value));
    return interp_ok(in) ? pairs : NULL;
}

static struct value filter_dictsort(struct interp *in, struct value self, const struct value *argv,
                                    args_in args)
{
    (void)args;
    const struct text *by = builtin_arg_text(in, argv[1], "by");
    if (by && !text_equal_str(by, "key") && !text_equal_str(by, "value"))
        return interp_fail(in, "by must be \"key\" or \"value\"");
    struct list *pairs = in->failed ? NULL : dict_pairs(in, self);
    if (!pairs)
        return self;
    struct value path = value_int(by && text_equal_str(by, "value"));
    return as_list(VALUE_LIST, sorted(in, pairs, path, value_truth(argv[0]), value_truth(argv[2])));
}

static struct value filter_items(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv, (void)args;
    if (value_is_undefined(self))
        return as_list(VALUE_ITERATOR, list_new(in, 0));
    return as_list(VALUE_ITERATOR, dict_pairs(in, self));
}

static struct value filter_list(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)argv, (void)args;
    return as_list(VALUE_LIST, value_to_list(in, self));
}

struct value sequence_length(struct interp *in, struct value v)
{
    switch ((enum value_type)v.type) {
    case VALUE_STRING:
        return value_int((int64_t)v.u.text->n_chars);
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return value_int((int64_t)v.u.list->n);
    case VALUE_RANGE:
        return value_int((int64_t)v.u.range->n);
    case VALUE_DICT:
        return value_int((int64_t)v.u.dict->n);
    case VALUE_UNDEFINED:
        return value_int(0);
    default:
        return interp_fail(in, "object of type '%s' has no length", value_type_name(v));
    }
}

static struct value filter_length(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)argv, (void)args;
    return sequence_length(in, self);
}

static struct value filter_first(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)argv, (void)args;
    struct cursor cursor;
    struct value item;
    if (!cursor_open(in, self, &cursor) || !cursor_next(in, &cursor, &item))
        return value_undefined(NULL, 0);
    return item;
}

static struct value filter_last(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)argv, (void)args;
    if (self.type == VALUE_ITERATOR)
        return interp_fail(in, "'generator' object is not reversible");
    if (self.type == VALUE_STRING || self.type == VALUE_RANGE)
        return operator_getitem(in, self, value_int(-1));
    struct list *items = value_to_list(in, self);
    return items && items->n ? items->items[items->n - 1] : value_undefined(NULL, 0);
}

static struct value filter_reverse(struct interp *in, struct value self, const struct value *argv,
                                   args_in args)
{
    (void)argv, (void)args;
    if (self.type == VALUE_STRING)
        return operator_slice(in, self, value_none(), value_none(), value_int(-1));
    struct list *items = value_to_list(in, self);
    for (size_t i = 0; items && i < items->n / 2; i++) {
        struct value swap = items->items[i];
        items->items[i] = items->items[items->n - 1 - i];
        items->items[items->n - 1 - i] = swap;
    }
    /* a generator cannot be reversed, so Jinja makes a list of it */
    return as_list(self.type == VALUE_ITERATOR ? VALUE_LIST : VALUE_ITERATOR, items);
}

static struct value filter_join(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)args;
    struct cursor cursor;
    struct value item;
    const struct text *separator = value_to_text(in, argv[0]);
    if (!cursor_open(in, self, &cursor))
        return self;
    size_t mark = interp_capture_begin(in), n = 0;
    while (cursor_next(in, &cursor, &item)) {
        if (n++)
            interp_write(in, separator->data, separator->n_bytes);
        value_write(in, sequence_attribute(in, item, argv[1]));
    }
    return interp_capture_end(in, mark);
}

static struct value filter_sum(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    struct cursor cursor;
    struct value item, total = argv[1].type == VALUE_UNSET ? value_int(0) : argv[1];
    if (!cursor_open(in, self, &cursor))
        return self;
    while (cursor_next(in, &cursor, &item))
        total = operator_binary(in, OP_ADD, total, sequence_attribute(in, item, argv[0]));
    return total;
}

static struct value extreme(struct interp *in, struct value self, const struct value *argv,
                            int sign)
{
    struct cursor cursor;
    struct value item, best = value_undefined(NULL, 0), best_key = best;
    bool any = false, case_sensitive = value_truth(argv[0]);
    if (!cursor_open(in, self, &cursor))
        return self;
    while (cursor_next(in, &cursor, &item)) {
        struct value key = fold_case(in, sequence_attribute(in, item, argv[1]), case_sensitive);
        int order = 0;
        if (in->failed || (any && !value_order(in, key, best_key, &order)))
            return best;
        if (!any || order == sign) {
            best = item;
            best_key = key;
        }
        any = true;
    }
    return best;
}

static struct value filter_min(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    return extreme(in, self, argv, -1);
}

static struct value filter_max(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    return extreme(in, self, argv, 1);
}

static struct value filter_unique(struct interp *in, struct value self, const struct value *argv,
                                  args_in args)
{
    (void)args;
    struct cursor cursor;
    struct value item;
    struct dict *seen = dict_new(in);
    struct list *list = list_new(in, 0);
    if (!cursor_open(in, self, &cursor))
        return self;
    while (cursor_next(in, &cursor, &item)) {
        struct value key =
            fold_case(in, sequence_attribute(in, item, argv[1]), value_truth(argv[0]));
        bool known = dict_get(in, seen, key, NULL) != NULL;
        if (!known && (!dict_set(in, seen, key, value_none()) || !list_add(in, list, item)))
            break;
    }
    return as_list(VALUE_ITERATOR, list);
}

static struct value filter_batch(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)args;
    struct cursor cursor;
    struct value item;
    int64_t size = builtin_arg_integer(in, argv[0], 0, "linecount");
    struct list *batches = list_new(in, 0), *batch = NULL;
    if (in->failed || !cursor_open(in, self, &cursor))
        return self;
    if (size < 1)
        return interp_fail(in, "linecount must be at least 1");
    while (cursor_next(in, &cursor, &item)) {
        if (!batch || batch->n == (size_t)size) {
            batch = list_new(in, 0);
            if (!batch || !list_add(in, batches, value_list(VALUE_LIST, batch)))
                return self;
        }
        list_add(in, batch, item);
    }
    bool fill = argv[1].type != VALUE_UNSET && argv[1].type != VALUE_NONE;
    while (fill && batch && batch->n < (size_t)size && list_add(in, batch, argv[1]))
        ;
    return as_list(VALUE_ITERATOR, batches);
}

static struct value filter_slice(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)args;
    int64_t n_slices = builtin_arg_integer(in, argv[0], 0, "slices");
    struct list *items = value_to_list(in, self), *slices = list_new(in, 0);
    if (in->failed)
        return self;
    if (n_slices < 1)
        return interp_fail(in, "slices must be at least 1");
    size_t per = items->n / (size_t)n_slices, extra = items->n % (size_t)n_slices, at = 0;
    bool fill = argv[1].type != VALUE_UNSET && argv[1].type != VALUE_NONE;
    for (size_t i = 0; i < (size_t)n_slices && interp_ok(in); i++) {
        struct list *slice = list_new(in, 0);
        size_t n = per + (i < extra);
        for (size_t j = 0; j < n; j++)
            list_add(in, slice, items->items[at++]);
        if (fill && i >= extra)
            list_add(in, slice, argv[1]);
        if (slice)
            list_add(in, slices, value_list(VALUE_LIST, slice));
    }
    return as_list(VALUE_ITERATOR, slices);
}

static struct value filter_groupby(struct interp *in, struct value self, const struct value *argv,
                                   args_in args)
{
    (void)args;
    bool case_sensitive = value_truth(argv[2]);
    struct list *items = value_to_list(in, self), *groups = list_new(in, 0), *group = NULL;
    items = items ? sorted(in, items, argv[0], case_sensitive, false) : NULL;
    struct value last = value_none();
    for (size_t i = 0; items && i < items->n && interp_ok(in); i++) {
        struct value raw = sequence_attribute(in, items->items[i], argv[0]);
        if (value_is_undefined(raw) && argv[1].type != VALUE_UNSET)
            raw = argv[1];
        struct value key = fold_case(in, raw, case_sensitive);
        if (!group || !value_equal(in, key, last)) {
            group = list_new(in, 0);
            struct value pair = list_pair(in, raw, value_list(VALUE_LIST, group));
            pair.aux = 'g';
            list_add(in, groups, pair);
            last = key;
        }
        list_add(in, group, items->items[i]);
    }
    return as_list(VALUE_LIST, in->failed ? NULL : groups);
}

const struct builtin sequence_filters[] = {
    {"sort", filter_sort, "reverse,case_sensitive,attribute", 0},
    {"dictsort", filter_dictsort, "case_sensitive,by,reverse", 0},
    {"items", filter_items, "", 0},
    {"list", filter_list, "", 0},
    {"length", filter_length, "", 0},
    {"count", filter_length, "", 0},
    {"first", filter_first, "", 0},
    {"last", filter_last, "", 0},
    {"reverse", filter_reverse, "", 0},
    {"join", filter_join, "d,attribute", 0},
    {"sum", filter_sum, "attribute,start", 0},
    {"min", filter_min, "case_sensitive,attribute", 0},
    {"max", filter_max, "case_sensitive,attribute", 0},
    {"unique", filter_unique, "case_sensitive,attribute", 0},
    {"batch", filter_batch, "linecount,fill_with", 1},
    {"slice", filter_slice, "slices,fill_with", 1},
    {"groupby", filter_groupby, "attribute,default,case_sensitive", 1},
    {NULL, NULL, NULL, 0},
};
