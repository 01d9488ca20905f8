/* context.h: the top-level variables of a render. Private to engine/template. */
#pragma once

#include "engine/template/value/interp.h"

struct chat_template_input;

/* Fills in->context from the caller's input. Returns false (failed, with the field's name) on bad
 * JSON, UTF-8 or nesting. */
bool context_build(struct interp *in, const struct chat_template_input *input);
