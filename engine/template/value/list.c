#include "engine/template/value/list.h"

#include <string.h>

#include "engine/template/value/cursor.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/value.h"

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

struct value list_pair(struct interp *in, struct value a, struct value b)
{
    struct list *list = list_new(in, 2);
    if (!list_add(in, list, a) || !list_add(in, list, b))
        return value_of_type(VALUE_UNSET);
    return value_list(VALUE_TUPLE, list);
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
