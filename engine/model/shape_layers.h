/* shape_layers.h: chooses the kinds of layers by the source's patterns, and reads their numbers.
 * Internal to the room. */
#pragma once

#include "engine/model/shape_reader.h"

/* Allocates and fills s->layers. s->n_layers and s->hidden_dim are set. After an error the caller
 * frees the layers. */
int shape_layers_read(struct shape_reader *r, struct model_shape *s);

/* True if a pattern with this key knows the form of the key's value. `full` is the key with its
 * prefix. */
bool shape_layers_take(const struct shape_reader *r, const char *full, const char *key);

/* Writes the file's key that gives the layer its mixer or FFN to r->key. False if no key does. */
bool shape_layers_find_key(struct shape_reader *r, enum arch_part part,
                           const struct model_layer *layer);

/* Elements of the list that names the kind of each layer; 0 without such a list. */
uint64_t shape_layers_count(struct shape_reader *r);
