/* dict.h: mappings with any hashable key, in insertion order. Private to engine/template; each
 * interp belongs to one thread. */
#pragma once

#include "engine/template/value/value.h"

struct dict_entry {
    struct value key, value;
};

/* `entries` are in insertion order. Large dicts also have `slots`: a power of two of entry indices
 * + 1, 0 for empty. */
struct dict {
    struct dict_entry *entries;
    size_t n, capacity;
    uint32_t *slots;
    size_t n_slots;
};

struct dict *dict_new(struct interp *in);
/* Returns false after a failure, for example an unhashable key (list, dict). */
bool dict_set(struct interp *in, struct dict *dict, struct value key, struct value item);
bool dict_set_str(struct interp *in, struct dict *dict, const char *key, struct value item);
/* NULL if the key is absent or unhashable. *out_unhashable (may be NULL) tells which. */
const struct value *dict_get(struct interp *in, const struct dict *dict, struct value key,
                             bool *out_unhashable);
const struct value *dict_get_str(struct interp *in, const struct dict *dict, const char *key);
