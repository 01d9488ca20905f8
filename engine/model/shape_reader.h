/* shape_reader.h: reads hyper-parameters by their rows in a source. Checks ranges, and names the
 * key in every error. Internal to shape.c and the files that it calls. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/model/shape.h"

enum { SHAPE_MAX_KEY = 128 };

/* `derived` of a parameter whose value cannot be derived from other keys. */
#define SHAPE_UNSET ((double)NAN)

struct checkpoint_tensor;

struct shape_reader {
    const struct checkpoint *ckpt;
    const struct arch *arch;
    const struct arch_source *source;
    const char *prefix;
    struct error *err;
    uint32_t layer;          /* stands for %u in keys */
    char key[SHAPE_MAX_KEY]; /* the key of the last parameter */
};

/* Writes the first of several keys that the file has to r->key; if it has none, the first. Returns
 * true if the file has it. */
bool shape_reader_find(struct shape_reader *r, const char *keys);

/* --- the values of parameters ---
 * `of` is a rope set or a mixer. Where the mixer has no row of its own, mixer 0's counts. The calls
 * leave *out untouched if the source has no row at all. */

/* An integer in [min, limit] of a layer: a number for all layers, or the layer's element of an
 * array. `derived` is the value if the key is absent and the row says DERIVE. */
int shape_reader_layer_u32(struct shape_reader *r, enum arch_param_id id, uint32_t of,
                           uint32_t layer, uint64_t min, uint64_t limit, uint64_t derived,
                           uint32_t *out);
/* The same for a parameter of the whole model. */
int shape_reader_u32(struct shape_reader *r, enum arch_param_id id, uint32_t of, uint64_t min,
                     uint64_t limit, uint64_t derived, uint32_t *out);
int shape_reader_f64(struct shape_reader *r, enum arch_param_id id, uint32_t of, double min,
                     double max, double derived, double *out);
int shape_reader_bool(struct shape_reader *r, enum arch_param_id id, uint32_t of, bool *out);
/* *out is NULL without the key. */
int shape_reader_text(struct shape_reader *r, enum arch_param_id id, uint32_t of, const char **out);

/* True if the file has a key of the parameter; then r->key is that key. */
bool shape_reader_has(struct shape_reader *r, enum arch_param_id id, uint32_t of);
/* The first of the tensors with these names that the file has, else NULL. */
const struct checkpoint_tensor *shape_reader_tensor(const struct shape_reader *r,
                                                    const char *names);
/* Refuses the word of the key r->key: "WHAT "TEXT" is not known, only KNOWN are". */
int shape_reader_unknown_word(struct shape_reader *r, const char *text, const char *what,
                              const char *known);
