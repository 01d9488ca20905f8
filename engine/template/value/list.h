/* list.h: growing arrays of values: lists, tuples, views and iterators. Private to engine/template;
 * each interp belongs to one thread. */
#pragma once

#include "engine/template/value/value.h"

struct list {
    struct value *items;
    size_t n, capacity;
    size_t pos; /* ITERATOR: next unread item; CYCLER: current item */
};

/* A list may grow only while no other value refers to it. */
struct list *list_new(struct interp *in, size_t capacity);
bool list_add(struct interp *in, struct list *list, struct value item);
/* A tuple of two values. */
struct value list_pair(struct interp *in, struct value a, struct value b);
/* A new list of all items of an iterable. */
struct list *value_to_list(struct interp *in, struct value v);
