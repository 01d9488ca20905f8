/* shape_keys.h: checks the keys of the architecture as a whole. Every key is known, spellings of
 * one thing agree, and a key without a parameter has a value that is built. Internal to shape.c and
 * model.c. */
#pragma once

#include "engine/model/shape_reader.h"

struct model;

/* Call after all parameters and patterns were read. */
int shape_keys_check(struct shape_reader *r);
/* Checks the keys that say which tensors the file has (ARCH_KEY_TENSOR). Call after the tensors
 * were bound. */
int shape_keys_check_tensors(const struct model *model, const char *prefix, struct error *err);
