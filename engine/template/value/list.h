/* list.h: growing arrays of values: lists, tuples, views and iterators. Private to engine/template;
 * one thread per interp. */
#pragma once

#include "engine/template/value/value.h"

struct list {
    struct value *items;
    size_t n, capacity;
    size_t pos; /* ITERATOR: next unread item; CYCLER: current item */
};

/* Lists grow only while nobody else sees them. */
struct list *list_new(struct interp *in, size_t capacity);
bool list_add(struct interp *in, struct list *list, struct value item);
/* A tuple of two. */
struct value list_pair(struct interp *in, struct value a, struct value b);
/* A new list of all items of any iterable. */
struct list *value_to_list(struct interp *in, struct value v);
