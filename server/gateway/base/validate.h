/* validate.h: is this request well formed, within the limits and made of what is built? Pure
 * functions; errors name the field. */
#pragma once

#include <stdint.h>

#include "server/gateway/base/limits.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

/* Everything that can be told without the model: INVALID_ARGUMENT (field, value, limit),
 * UNIMPLEMENTED for declared fields that are not built (with the field's name). check->limits are
 * what a request may ask for; where one of them was passed, check->over tells which. */
int validate_generate(const Sluice__V1__GenerateRequest *request, struct limit_check *check,
                      struct error *err);
/* What needs the model's facts: token ids below the vocabulary, max_tokens, capabilities. */
int validate_for_model(const Sluice__V1__GenerateRequest *request,
                       const Sluice__V1__ModelInfo *info, struct error *err);
int validate_update(const Sluice__V1__UpdateFrame *update, struct limit_check *check,
                    struct error *err);
int validate_tokenize(const Sluice__V1__TokenizeRequest *request, struct limit_check *check,
                      struct error *err);
int validate_apply_chat_template(const Sluice__V1__ApplyChatTemplateRequest *request,
                                 struct limit_check *check, struct error *err);
int validate_detokenize(const Sluice__V1__DetokenizeRequest *request, struct error *err);
/* A frame of a GenerateStream but for what is in `start` and `update`: the request_id, and what the
 * frame says. *out_id is the request it is about, borrowed from the frame ("" where it says none).
 */
int validate_frame(const Sluice__V1__GenerateStreamRequest *frame, const char **out_id,
                   struct error *err);
int validate_cancel(const Sluice__V1__CancelRequest *request, struct error *err);
int validate_chat(const Sluice__V1__Chat *chat, const char *field, struct limit_check *check,
                  struct error *err);
