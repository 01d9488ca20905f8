/* Methods of mappings and sequences, and the lookup of methods. Methods that would change a value
 * are listed by name only, so that they can be refused. */
#include "engine/template/builtin/methods.h"

#include <string.h>

#include "engine/template/value/builtin.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

typedef const struct args *args_in;

static struct value dict_get_method(struct interp *in, struct value self, const struct value *argv,
                                    args_in args)
{
    (void)args;
    bool unhashable;
    const struct value *item = dict_get(in, self.u.dict, argv[0], &unhashable);
    if (unhashable)
        return interp_fail(in, "unhashable type: '%s'", value_type_name(argv[0]));
    if (item)
        return *item;
    return argv[1].type == VALUE_UNSET ? value_none() : argv[1];
}

static struct value view(struct interp *in, struct value self, char kind)
{
    const struct dict *dict = self.u.dict;
    struct list *list = list_new(in, dict->n);
    for (size_t i = 0; list && i < dict->n && interp_ok(in); i++) {
        const struct dict_entry *entry = &dict->entries[i];
        list_add(in, list,
                 kind == 'k'   ? entry->key
                 : kind == 'v' ? entry->value
                               : list_pair(in, entry->key, entry->value));
    }
    if (in->failed)
        return self;
    struct value v = value_list(VALUE_VIEW, list);
    v.aux = (uint8_t)kind;
    return v;
}

static struct value dict_keys(struct interp *in, struct value self, const struct value *argv,
                              args_in args)
{
    (void)argv, (void)args;
    return view(in, self, 'k');
}

static struct value dict_values(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)argv, (void)args;
    return view(in, self, 'v');
}

static struct value dict_items(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)argv, (void)args;
    return view(in, self, 'i');
}

static struct value copy(struct interp *in, struct value self, const struct value *argv,
                         args_in args)
{
    (void)in, (void)argv, (void)args; /* values are immutable: a copy is the value */
    return self;
}

static struct value list_count(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    int64_t n = 0;
    for (size_t i = 0; i < self.u.list->n && interp_ok(in); i++)
        n += value_equal(in, self.u.list->items[i], argv[0]);
    return value_int(n);
}

static struct value list_index(struct interp *in, struct value self, const struct value *argv,
                               args_in args)
{
    (void)args;
    for (size_t i = 0; i < self.u.list->n && interp_ok(in); i++)
        if (value_equal(in, self.u.list->items[i], argv[0]))
            return value_int((int64_t)i);
    return interp_fail(in, "value is not in the list");
}

static struct value cycler_next(struct interp *in, struct value self, const struct value *argv,
                                args_in args)
{
    (void)in, (void)argv, (void)args;
    struct list *list = self.u.list;
    struct value item = list->items[list->pos];
    list->pos = (list->pos + 1) % list->n;
    return item;
}

static struct value cycler_reset(struct interp *in, struct value self, const struct value *argv,
                                 args_in args)
{
    (void)in, (void)argv, (void)args;
    self.u.list->pos = 0;
    return value_none();
}

static const struct builtin dict_methods[] = {
    {"get", dict_get_method, "key,default", 1},
    {"items", dict_items, "", 0},
    {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0},
    {"copy", copy, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct builtin list_methods[] = {
    {"count", list_count, "value", 1},
    {"index", list_index, "value", 1},
    {"copy", copy, "", 0},
    {NULL, NULL, NULL, 0},
};

static const struct builtin cycler_methods[] = {
    {"next", cycler_next, "", 0},
    {"reset", cycler_reset, "", 0},
    {NULL, NULL, NULL, 0},
};

const struct builtin *builtin_method(struct value self, const struct text *name)
{
    const struct builtin *table = self.type == VALUE_STRING   ? text_methods
                                  : self.type == VALUE_DICT   ? dict_methods
                                  : self.type == VALUE_LIST   ? list_methods
                                  : self.type == VALUE_TUPLE  ? list_methods
                                  : self.type == VALUE_CYCLER ? cycler_methods
                                                              : NULL;
    for (; table && table->name; table++)
        if (text_equal_str(name, table->name))
            return table;
    return NULL;
}

bool builtin_is_mutating(struct value self, const struct text *name)
{
    static const char *const of_list[] = {"append", "extend", "insert",  "pop",
                                          "remove", "sort",   "reverse", "clear"};
    static const char *const of_dict[] = {"update", "pop", "popitem", "setdefault", "clear"};
    bool is_dict = self.type == VALUE_DICT;
    if (!is_dict && self.type != VALUE_LIST)
        return false;
    const char *const *names = is_dict ? of_dict : of_list;
    size_t n =
        is_dict ? sizeof(of_dict) / sizeof(of_dict[0]) : sizeof(of_list) / sizeof(of_list[0]);
    for (size_t i = 0; i < n; i++)
        if (text_equal_str(name, names[i]))
            return true;
    return false;
}
