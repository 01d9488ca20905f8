/* map, select and similar filters, which apply other filters and tests by name. Also the lookup of
 * filters. */
#include <string.h>

#include "engine/template/builtin/filters.h"
#include "engine/template/builtin/sequence.h"
#include "engine/template/operators.h"
#include "engine/template/value/builtin.h"
#include "engine/template/value/cursor.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

static const struct builtin *find_in(const struct builtin *table, const struct text *name)
{
    for (; table->name; table++)
        if (text_equal_str(name, table->name))
            return table;
    return NULL;
}

const struct builtin *builtin_filter(const struct text *name)
{
    const struct builtin *found = find_in(text_filters, name);
    found = found ? found : find_in(sequence_filters, name);
    return found ? found : find_in(select_filters, name);
}

/* The arguments after the first n. */
static struct args args_after(const struct args *args, size_t n)
{
    struct args rest = *args;
    rest.positional += n;
    rest.n_positional -= n;
    return rest;
}

static const struct keyword *keyword_named(const struct args *args, const char *name)
{
    for (size_t i = 0; i < args->n_keywords; i++)
        if (text_equal_str(args->keywords[i].name, name))
            return &args->keywords[i];
    return NULL;
}

static struct value map_attribute(struct interp *in, struct value self, const struct args *args)
{
    const struct keyword *path = keyword_named(args, "attribute");
    const struct keyword *fallback = keyword_named(args, "default");
    struct list *list = list_new(in, 0);
    struct cursor cursor;
    struct value item;
    if (!value_truth(self)) /* any false value has nothing to map */
        return value_list(VALUE_ITERATOR, list);
    if (args->n_keywords > (fallback ? 2U : 1U))
        return interp_fail(in, "got an unexpected keyword argument");
    if (!cursor_open(in, self, &cursor))
        return self;
    while (cursor_next(in, &cursor, &item)) {
        struct value v = sequence_attribute(in, item, path->value);
        if (value_is_undefined(v) && fallback)
            v = fallback->value;
        if (!list_add(in, list, v))
            return self;
    }
    return value_list(VALUE_ITERATOR, list);
}

/* The filter or test that argument i names. */
static const struct builtin *find_named(struct interp *in, const struct args *args, size_t i,
                                        const struct builtin *(*find)(const struct text *),
                                        const char *kind)
{
    struct value name = i < args->n_positional ? args->positional[i] : value_none();
    if (name.type != VALUE_STRING) {
        interp_fail(in, "needs a %s's name", kind);
        return NULL;
    }
    const struct builtin *found = find(name.u.text);
    if (!found)
        interp_fail_status(in, STATUS_UNIMPLEMENTED, "%s '%.*s' is not supported", kind,
                           (int)(name.u.text->n_bytes > 40 ? 40 : name.u.text->n_bytes),
                           name.u.text->data);
    return found;
}

static struct value filter_map(struct interp *in, struct value self, const struct value *argv,
                               const struct args *args)
{
    (void)argv;
    if (!args->n_positional && keyword_named(args, "attribute"))
        return map_attribute(in, self, args);
    const struct builtin *filter = find_named(in, args, 0, builtin_filter, "filter");
    struct list *list = list_new(in, 0);
    struct cursor cursor;
    struct value item;
    if (filter && !value_truth(self))
        return value_list(VALUE_ITERATOR, list);
    if (!filter || !cursor_open(in, self, &cursor))
        return self;
    struct args rest = args_after(args, 1);
    while (cursor_next(in, &cursor, &item))
        if (!list_add(in, list, builtin_call(in, filter, "filter", item, &rest)))
            return self;
    return value_list(VALUE_ITERATOR, list);
}

/* `keep`: true if passing items are kept, false if they are dropped. by_attribute: the first
 * argument is the attribute to test. */
static struct value select_items(struct interp *in, struct value self, const struct args *args,
                                 bool keep, bool by_attribute)
{
    size_t n_skip = by_attribute ? 1 : 0;
    struct value path = value_of_type(VALUE_UNSET), item;
    const struct builtin *test = NULL;
    struct list *list = list_new(in, 0);
    struct cursor cursor;
    if (by_attribute && !args->n_positional)
        return interp_fail(in, "needs an attribute's name");
    if (by_attribute)
        path = args->positional[0];
    if (args->n_positional > n_skip && !(test = find_named(in, args, n_skip, builtin_test, "test")))
        return self;
    if (!value_truth(self))
        return value_list(VALUE_ITERATOR, list);
    if (!cursor_open(in, self, &cursor))
        return self;
    struct args rest = args_after(args, test ? n_skip + 1 : n_skip);
    while (cursor_next(in, &cursor, &item)) {
        struct value subject = sequence_attribute(in, item, path);
        if (in->failed)
            return self;
        struct value result = test ? builtin_call(in, test, "test", subject, &rest) : subject;
        if (in->failed || (value_truth(result) == keep && !list_add(in, list, item)))
            return self;
    }
    return value_list(VALUE_ITERATOR, list);
}

static struct value filter_select(struct interp *in, struct value self, const struct value *argv,
                                  const struct args *args)
{
    (void)argv;
    return select_items(in, self, args, true, false);
}

static struct value filter_reject(struct interp *in, struct value self, const struct value *argv,
                                  const struct args *args)
{
    (void)argv;
    return select_items(in, self, args, false, false);
}

static struct value filter_selectattr(struct interp *in, struct value self,
                                      const struct value *argv, const struct args *args)
{
    (void)argv;
    return select_items(in, self, args, true, true);
}

static struct value filter_rejectattr(struct interp *in, struct value self,
                                      const struct value *argv, const struct args *args)
{
    (void)argv;
    return select_items(in, self, args, false, true);
}

static struct value filter_attr(struct interp *in, struct value self, const struct value *argv,
                                const struct args *args)
{
    /* Looks up attributes only, never keys. As in Jinja's sandbox, Python's own attributes are
     * hidden, except methods. */
    (void)args;
    if (value_is_undefined(self))
        return interp_fail_undefined(in, self);
    if (argv[0].type != VALUE_STRING)
        return interp_fail(in, "needs an attribute's name");
    if (self.type == VALUE_DICT && !builtin_method(self, argv[0].u.text))
        return value_undefined(argv[0].u.text, self.type);
    return operator_getattr(in, self, argv[0].u.text);
}

const struct builtin select_filters[] = {
    {"map", filter_map, NULL, 0},
    {"select", filter_select, NULL, 0},
    {"reject", filter_reject, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0},
    {"attr", filter_attr, "name", 1},
    {NULL, NULL, NULL, 0},
};
