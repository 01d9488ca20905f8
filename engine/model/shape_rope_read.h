/* shape_rope_read.h: reads the rope sets of a model. shape_rope.c computes their frequencies.
 * Internal to shape.c. */
#pragma once

#include "engine/model/shape_reader.h"

/* Fills each set of s->ropes that a layer uses, and s->long_rope_after. The layers are set. Errors:
 * a key with a bad value, layers with keys of different lengths that share a set, longropes of
 * different lengths. */
int shape_rope_read(struct shape_reader *r, struct model_shape *s);
