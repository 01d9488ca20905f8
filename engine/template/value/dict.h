/* dict.h: mappings with any hashable key, in order of insertion. Private to engine/template; one
 * thread per interp. */
#pragma once

#include "engine/template/value/value.h"

struct dict_entry {
    struct value key, value;
};

/* Insertion order in `entries`; `slots` (power of two, entry index + 1, 0 = empty) once it is big.
 */
struct dict {
    struct dict_entry *entries;
    size_t n, capacity;
    uint32_t *slots;
    size_t n_slots;
};

struct dict *dict_new(struct interp *in);
/* False after a failure; an unhashable key (list, dict) is one. */
bool dict_set(struct interp *in, struct dict *dict, struct value key, struct value item);
bool dict_set_str(struct interp *in, struct dict *dict, const char *key, struct value item);
/* NULL where the key is absent (or unhashable: *out_unhashable, which may be NULL). */
const struct value *dict_get(struct interp *in, const struct dict *dict, struct value key,
                             bool *out_unhashable);
const struct value *dict_get_str(struct interp *in, const struct dict *dict, const char *key);
