#include "engine/template/value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash_map.h"
#include "base/utf8.h"
#include "engine/template/builtin/unicode.h"
#include "engine/template/chat_template.h"
#include "engine/template/interp.h"

enum { FLOAT_DIGITS_BYTES = 320 }; /* the largest double has 309 digits */
enum { SMALL_DICT = 8 };           /* entries searched in order, without slots */

const char *value_type_name(struct value v)
{
    static const char *const names[] = {
        [VALUE_UNSET] = "Undefined",
        [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_BIG] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",
        [VALUE_VIEW] = "dict view",
        [VALUE_ITERATOR] = "generator",
        [VALUE_RANGE] = "range",
        [VALUE_DICT] = "dict",
        [VALUE_NAMESPACE] = "Namespace",
        [VALUE_LOOP] = "LoopContext",
        [VALUE_BUILTIN] = "function",
        [VALUE_METHOD] = "method",
        [VALUE_MACRO] = "Macro",
        [VALUE_CYCLER] = "Cycler",
        [VALUE_JOINER] = "Joiner",
    };
    return names[v.type];
}

struct value value_undefined(const struct text *name, uint8_t owner)
{
    return (struct value){.type = VALUE_UNDEFINED, .aux = owner, .u.text = name};
}

static struct value text_wrap(struct interp *in, const char *data, size_t n_bytes,
                              struct text_room *room)
{
    struct text *text = interp_alloc(in, 1, sizeof(*text));
    if (!text || !interp_step(in, n_bytes / 64))
        return value_of_type(VALUE_UNSET);
    *text = (struct text){data, n_bytes, unicode_count(data, n_bytes), room};
    return value_text(text);
}

struct value text_new(struct interp *in, const char *data, size_t n_bytes)
{
    char *copy = interp_alloc(in, n_bytes ? n_bytes : 1, 1);
    if (!copy)
        return value_of_type(VALUE_UNSET);
    if (n_bytes)
        memcpy(copy, data, n_bytes);
    return text_wrap(in, copy, n_bytes, NULL);
}

struct value text_from_str(struct interp *in, const char *str)
{
    return text_new(in, str, strlen(str));
}

struct value text_part(struct interp *in, const struct text *whole, size_t begin, size_t end)
{
    if (!begin && end == whole->n_bytes)
        return value_text(whole);
    return text_wrap(in, whole->data + begin, end - begin, NULL);
}

struct value text_concat(struct interp *in, const struct text *a, const struct text *b)
{
    if (!b->n_bytes)
        return value_text(a);
    if (!a->n_bytes)
        return value_text(b);
    struct text *text = interp_alloc(in, 1, sizeof(*text));
    if (!text || !interp_step(in, b->n_bytes / 64))
        return value_of_type(VALUE_UNSET);
    struct text_room *room = a->room;
    if (!room || a->data + a->n_bytes != room->data + room->used ||
        room->capacity - room->used < b->n_bytes) {
        size_t total = a->n_bytes + b->n_bytes, capacity = total < 64 ? total : total * 2;
        room = interp_alloc(in, 1, sizeof(*room));
        char *data = room ? interp_alloc(in, capacity, 1) : NULL;
        if (!data || !interp_step(in, a->n_bytes / 64))
            return value_of_type(VALUE_UNSET);
        memcpy(data, a->data, a->n_bytes);
        *room = (struct text_room){data, a->n_bytes, capacity};
    }
    memcpy(room->data + room->used, b->data, b->n_bytes);
    room->used += b->n_bytes;
    *text = (struct text){room->data + room->used - a->n_bytes - b->n_bytes,
                          a->n_bytes + b->n_bytes, a->n_chars + b->n_chars, room};
    return value_text(text);
}

bool text_equal(const struct text *a, const struct text *b)
{
    return a == b || (a->n_bytes == b->n_bytes && !memcmp(a->data, b->data, a->n_bytes));
}

bool text_equal_str(const struct text *a, const char *str)
{
    size_t n_bytes = strlen(str);
    return a->n_bytes == n_bytes && !memcmp(a->data, str, n_bytes);
}

size_t text_offset(const struct text *text, size_t i_char)
{
    if (i_char >= text->n_chars)
        return text->n_bytes;
    if (text->n_chars == text->n_bytes)
        return i_char;
    size_t offset = 0;
    for (; offset < text->n_bytes; offset++)
        if (((unsigned char)text->data[offset] & 0xC0) != 0x80 && !i_char--)
            break;
    return offset;
}

struct list *list_new(struct interp *in, size_t capacity)
{
    struct list *list = interp_alloc(in, 1, sizeof(*list));
    if (!list)
        return NULL;
    if (capacity && !(list->items = interp_alloc(in, capacity, sizeof(struct value))))
        return NULL;
    list->capacity = capacity;
    return list;
}

bool list_add(struct interp *in, struct list *list, struct value item)
{
    if (!list || !interp_step(in, 1))
        return false;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        struct value *items = interp_alloc(in, capacity, sizeof(*items));
        if (!items)
            return false;
        if (list->n)
            memcpy(items, list->items, list->n * sizeof(*items));
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return true;
}

struct value tuple_pair(struct interp *in, struct value a, struct value b)
{
    struct list *list = list_new(in, 2);
    if (!list_add(in, list, a) || !list_add(in, list, b))
        return value_of_type(VALUE_UNSET);
    return value_list(VALUE_TUPLE, list);
}

struct dict *dict_new(struct interp *in)
{
    return interp_alloc(in, 1, sizeof(struct dict));
}

/* Equal values have equal hashes: 1, 1.0 and true are one key. False: unhashable. */
static bool hash_value(struct interp *in, struct value v, uint64_t *hash, unsigned depth)
{
    if (value_is_integral(v) ||
        (v.type == VALUE_FLOAT && floor(v.u.real) == v.u.real && fabs(v.u.real) < 9e18)) {
        int64_t i = v.type == VALUE_FLOAT ? (int64_t)v.u.real : value_integer(v);
        *hash = hash_bytes(&i, sizeof(i), *hash);
    } else if (v.type == VALUE_FLOAT) {
        *hash = hash_bytes(&v.u.real, sizeof(v.u.real), *hash);
    } else if (v.type == VALUE_BIG) { /* as the double that may equal it */
        double x = strtod(v.u.text->data, NULL);
        *hash = hash_bytes(&x, sizeof(x), *hash);
    } else if (v.type == VALUE_STRING) {
        if (interp_step(in, v.u.text->n_bytes / 64))
            *hash = hash_bytes(v.u.text->data, v.u.text->n_bytes, *hash);
    } else if (v.type == VALUE_TUPLE && depth < CHAT_TEMPLATE_MAX_DEPTH) {
        for (size_t i = 0; i < v.u.list->n; i++)
            if (!interp_step(in, 1) || !hash_value(in, v.u.list->items[i], hash, depth + 1))
                return false;
    } else if (v.type == VALUE_NONE || value_is_undefined(v)) {
        *hash = hash_bytes(&v.type, 1, *hash);
    } else {
        return false;
    }
    return true;
}

/* Slot that holds `key` or the empty one where it belongs. */
static size_t find_slot(struct interp *in, const struct dict *dict, struct value key, uint64_t hash)
{
    size_t mask = dict->n_slots - 1, i = hash & mask;
    while (dict->slots[i] && interp_step(in, 1) &&
           !value_equal(in, dict->entries[dict->slots[i] - 1].key, key))
        i = (i + 1) & mask;
    return i;
}

static struct dict_entry *find_entry(struct interp *in, const struct dict *dict, struct value key,
                                     uint64_t hash)
{
    if (dict->n_slots) {
        uint32_t i = dict->slots[find_slot(in, dict, key, hash)];
        return i && interp_ok(in) ? &dict->entries[i - 1] : NULL;
    }
    for (size_t i = 0; i < dict->n; i++)
        if (value_equal(in, dict->entries[i].key, key))
            return &dict->entries[i];
    return NULL;
}

static bool dict_grow(struct interp *in, struct dict *dict)
{
    size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
    struct dict_entry *entries = interp_alloc(in, capacity, sizeof(*entries));
    if (!entries)
        return false;
    if (dict->entries)
        memcpy(entries, dict->entries, dict->n * sizeof(*entries));
    dict->entries = entries;
    dict->capacity = capacity;
    if (capacity <= SMALL_DICT)
        return true;
    dict->n_slots = 0;
    dict->slots = interp_alloc(in, capacity * 2, sizeof(*dict->slots));
    if (!dict->slots)
        return false;
    dict->n_slots = capacity * 2;
    for (size_t i = 0; i < dict->n && interp_ok(in); i++) {
        uint64_t hash = 0;
        hash_value(in, entries[i].key, &hash, 0);
        dict->slots[find_slot(in, dict, entries[i].key, hash)] = (uint32_t)i + 1;
    }
    return interp_ok(in);
}

bool dict_set(struct interp *in, struct dict *dict, struct value key, struct value item)
{
    uint64_t hash = 0;
    if (!dict || !interp_step(in, 1))
        return false;
    if (!hash_value(in, key, &hash, 0)) {
        interp_fail(in, "unhashable type: '%s' as a dict key", value_type_name(key));
        return false;
    }
    struct dict_entry *entry = find_entry(in, dict, key, hash);
    if (entry) {
        entry->value = item;
        return interp_ok(in);
    }
    bool has_room = dict->entries && dict->n < dict->capacity;
    if (!interp_ok(in) || (!has_room && !dict_grow(in, dict)))
        return false;
    dict->entries[dict->n] = (struct dict_entry){key, item};
    dict->n++;
    if (dict->n_slots)
        dict->slots[find_slot(in, dict, key, hash)] = (uint32_t)dict->n;
    return interp_ok(in);
}

bool dict_set_str(struct interp *in, struct dict *dict, const char *key, struct value item)
{
    struct value text = text_from_str(in, key);
    return interp_ok(in) && dict_set(in, dict, text, item);
}

const struct value *dict_get(struct interp *in, const struct dict *dict, struct value key,
                             bool *out_unhashable)
{
    uint64_t hash = 0;
    bool hashable = hash_value(in, key, &hash, 0);
    if (out_unhashable)
        *out_unhashable = !hashable;
    const struct dict_entry *entry = hashable ? find_entry(in, dict, key, hash) : NULL;
    return entry ? &entry->value : NULL;
}

const struct value *dict_get_str(struct interp *in, const struct dict *dict, const char *key)
{
    size_t n_bytes = strlen(key);
    struct text text = {key, n_bytes, unicode_count(key, n_bytes), NULL};
    return dict_get(in, dict, value_text(&text), NULL);
}

bool value_truth(struct value v)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return v.u.boolean;
    case VALUE_INT:
        return v.u.integer != 0;
    case VALUE_FLOAT:
        return fpclassify(v.u.real) != FP_ZERO;
    case VALUE_STRING:
        return v.u.text->n_bytes > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        return v.u.list->n > 0;
    case VALUE_RANGE:
        return v.u.range->n > 0;
    case VALUE_DICT:
        return v.u.dict->n > 0;
    default:
        return true;
    }
}

struct value value_from_digits(struct interp *in, const char *digits, size_t n)
{
    char buf[24];
    if (n < sizeof(buf)) {
        memcpy(buf, digits, n);
        buf[n] = '\0';
        errno = 0;
        int64_t i = strtoll(buf, NULL, 10);
        if (errno == 0)
            return value_int(i);
    }
    char *copy = interp_alloc(in, n + 1, 1); /* ended by a NUL for strtod() */
    if (!copy)
        return value_of_type(VALUE_UNSET);
    memcpy(copy, digits, n);
    struct value v = text_wrap(in, copy, n, NULL);
    if (v.type == VALUE_STRING)
        v.type = VALUE_BIG;
    return v;
}

/* Of a decimal integer without leading zeros, against another: by sign, length, digits. */
static int order_digits(const struct text *a, const struct text *b)
{
    bool a_negative = a->data[0] == '-', b_negative = b->data[0] == '-';
    if (a_negative != b_negative)
        return a_negative ? -1 : 1;
    int sign = a->n_bytes != b->n_bytes ? (a->n_bytes > b->n_bytes ? 1 : -1)
                                        : memcmp(a->data, b->data, a->n_bytes);
    return a_negative ? -sign : sign;
}

/* An integer outside 64 bits against any number: < 0, 0, > 0, or 2 where b is NaN. */
static int order_big(struct value a, struct value b)
{
    char buf[FLOAT_DIGITS_BYTES];
    int sign = a.u.text->data[0] == '-' ? -1 : 1;
    if (b.type == VALUE_BIG)
        return order_digits(a.u.text, b.u.text);
    if (b.type != VALUE_FLOAT || fabs(b.u.real) < 9.2e18)
        return sign;
    if (isnan(b.u.real))
        return 2;
    if (isinf(b.u.real))
        return b.u.real > 0 ? -1 : 1;
    int n = snprintf(buf, sizeof(buf), "%.0f", floor(b.u.real));
    const struct text digits = {buf, (size_t)n, (size_t)n, NULL};
    return order_digits(a.u.text, &digits);
}

/* Exact, as in Python: an integer above 2^53 does not equal the double it rounds to. */
static int order_numbers(struct value a, struct value b)
{
    if (a.type == VALUE_BIG)
        return order_big(a, b);
    if (b.type == VALUE_BIG) {
        int order = order_big(b, a);
        return order == 2 ? 2 : -order;
    }
    if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT) {
        int64_t x = value_integer(a), y = value_integer(b);
        return (x > y) - (x < y);
    }
    double x = value_real(a), y = value_real(b);
    if (isnan(x) || isnan(y))
        return 2;
    if (x < y || x > y || (a.type == VALUE_FLOAT && b.type == VALUE_FLOAT))
        return (x > y) - (x < y);
    double real = a.type == VALUE_FLOAT ? x : y;
    if (real >= 9223372036854775808.0) /* 2^63, to which integers near it are rounded */
        return a.type == VALUE_FLOAT ? 1 : -1;
    int64_t i = a.type == VALUE_FLOAT ? (int64_t)x : value_integer(a);
    int64_t j = b.type == VALUE_FLOAT ? (int64_t)y : value_integer(b);
    return (i > j) - (i < j);
}

static bool is_ordered_number(struct value v)
{
    return value_is_number(v) || v.type == VALUE_BIG;
}

static bool equal(struct interp *in, struct value a, struct value b, unsigned depth);

static bool equal_lists(struct interp *in, const struct list *a, const struct list *b,
                        unsigned depth)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!equal(in, a->items[i], b->items[i], depth + 1))
            return false;
    return true;
}

static bool equal_dicts(struct interp *in, const struct dict *a, const struct dict *b,
                        unsigned depth)
{
    if (a == b)
        return true;
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *other = dict_get(in, b, a->entries[i].key, NULL);
        if (!other || !equal(in, a->entries[i].value, *other, depth + 1))
            return false;
    }
    return true;
}

static bool equal(struct interp *in, struct value a, struct value b, unsigned depth)
{
    if (depth > CHAT_TEMPLATE_MAX_DEPTH) {
        interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "data is nested deeper than %d levels",
                           CHAT_TEMPLATE_MAX_DEPTH);
        return false;
    }
    if (!interp_step(in, 1))
        return false;
    if (is_ordered_number(a) && is_ordered_number(b))
        return order_numbers(a, b) == 0;
    if (value_is_undefined(a) && value_is_undefined(b))
        return true;
    if (a.type != b.type)
        return false;
    switch ((enum value_type)a.type) {
    case VALUE_NONE:
        return true;
    case VALUE_STRING:
        return interp_step(in, a.u.text->n_bytes / 256) && text_equal(a.u.text, b.u.text);
    case VALUE_LIST:
    case VALUE_TUPLE:
        return equal_lists(in, a.u.list, b.u.list, depth);
    case VALUE_RANGE:
        return a.u.range->n == b.u.range->n &&
               (!a.u.range->n || (a.u.range->start == b.u.range->start &&
                                  (a.u.range->n == 1 || a.u.range->step == b.u.range->step)));
    case VALUE_DICT:
        return equal_dicts(in, a.u.dict, b.u.dict, depth);
    default:
        return a.u.list == b.u.list;
    }
}

bool value_equal(struct interp *in, struct value a, struct value b)
{
    return equal(in, a, b, 0);
}

static int order_texts(const struct text *a, const struct text *b)
{
    size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    int sign = memcmp(a->data, b->data, n); /* UTF-8 sorts as its code points do */
    if (sign)
        return sign < 0 ? -1 : 1;
    return (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

bool value_order(struct interp *in, struct value a, struct value b, int *out_order)
{
    if (!interp_step(in, 1))
        return false;
    if (is_ordered_number(a) && is_ordered_number(b)) {
        *out_order = order_numbers(a, b);
        return true;
    }
    if (a.type == VALUE_STRING && b.type == VALUE_STRING) {
        *out_order = order_texts(a.u.text, b.u.text);
        return interp_step(in, a.u.text->n_bytes / 256);
    }
    if (a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE)) {
        const struct list *x = a.u.list, *y = b.u.list;
        for (size_t i = 0; i < x->n && i < y->n; i++)
            if (!value_equal(in, x->items[i], y->items[i])) {
                if (++in->eval_depth > MAX_EVAL_DEPTH)
                    interp_fail_status(in, STATUS_RESOURCE_EXHAUSTED, "data is nested too deeply");
                bool ok = interp_ok(in) && value_order(in, x->items[i], y->items[i], out_order);
                in->eval_depth--;
                return ok;
            }
        *out_order = (x->n > y->n) - (x->n < y->n);
        return interp_ok(in);
    }
    interp_fail(in, "cannot compare '%s' and '%s'", value_type_name(a), value_type_name(b));
    return false;
}

bool cursor_open(struct interp *in, struct value v, struct cursor *out_cursor)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
    case VALUE_STRING:
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
    case VALUE_ITERATOR:
    case VALUE_RANGE:
    case VALUE_DICT:
        *out_cursor = (struct cursor){.source = v};
        return interp_ok(in);
    default:
        interp_fail(in, "'%s' object is not iterable", value_type_name(v));
        return false;
    }
}

bool cursor_next(struct interp *in, struct cursor *cursor, struct value *out_item)
{
    struct value v = cursor->source;
    if (!interp_step(in, 1))
        return false;
    size_t i = cursor->i;
    switch ((enum value_type)v.type) {
    case VALUE_STRING: {
        if (cursor->offset >= v.u.text->n_bytes)
            return false;
        uint32_t cp;
        size_t n =
            utf8_decode(v.u.text->data + cursor->offset, v.u.text->n_bytes - cursor->offset, &cp);
        *out_item = text_part(in, v.u.text, cursor->offset, cursor->offset + (n ? n : 1));
        cursor->offset += n ? n : 1;
        return interp_ok(in);
    }
    case VALUE_ITERATOR:
        if (v.u.list->pos >= v.u.list->n)
            return false;
        *out_item = v.u.list->items[v.u.list->pos++];
        return true;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        if (i >= v.u.list->n)
            return false;
        *out_item = v.u.list->items[i];
        break;
    case VALUE_RANGE:
        if (i >= v.u.range->n)
            return false;
        *out_item =
            value_int((int64_t)((uint64_t)v.u.range->start + i * (uint64_t)v.u.range->step));
        break;
    case VALUE_DICT:
        if (i >= v.u.dict->n)
            return false;
        *out_item = v.u.dict->entries[i].key;
        break;
    default:
        return false;
    }
    cursor->i++;
    return true;
}

struct list *value_to_list(struct interp *in, struct value v)
{
    struct cursor cursor;
    struct value item;
    struct list *list = list_new(in, 0);
    if (!list || !cursor_open(in, v, &cursor))
        return NULL;
    while (cursor_next(in, &cursor, &item))
        if (!list_add(in, list, item))
            return NULL;
    return interp_ok(in) ? list : NULL;
}
