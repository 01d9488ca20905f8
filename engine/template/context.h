/* context.h: the top-level variables of a render. Private to engine/template. */
#pragma once

#include "engine/template/value/interp.h"

struct chat_template_input;
struct continuation;
struct conversation_form;

/* Fills in->context from the caller's input, and *out_continuation if a message stays open. Returns
 * false on bad JSON, bad UTF-8 or too deep nesting. The render has then failed with an error that
 * names the field. */
bool context_build(struct interp *in, const struct chat_template_input *input,
                   const struct conversation_form *form, struct continuation *out_continuation);
