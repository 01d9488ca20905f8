/* validate.h: checks that a request is well formed, within the limits and uses only supported
 * fields. Pure functions; errors name the field. */
#pragma once

#include <stdint.h>

#include "server/gateway/base/limits.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

/* Checks everything that needs no model. INVALID_ARGUMENT with field, value and limit;
 * UNIMPLEMENTED with the name of a declared but unsupported field. The limits are those of
 * check->limits. An exceeded limit is stored in check->over. */
int validate_generate(const Sluice__V1__GenerateRequest *request, struct limit_check *check,
                      struct error *err);
/* Checks token ids against the model's vocabulary. */
int validate_for_model(const Sluice__V1__GenerateRequest *request,
                       const Sluice__V1__ModelInfo *info, struct error *err);
int validate_update(const Sluice__V1__UpdateFrame *update, struct limit_check *check,
                    struct error *err);
int validate_tokenize(const Sluice__V1__TokenizeRequest *request, struct limit_check *check,
                      struct error *err);
int validate_apply_chat_template(const Sluice__V1__ApplyChatTemplateRequest *request,
                                 struct limit_check *check, struct error *err);
int validate_detokenize(const Sluice__V1__DetokenizeRequest *request, struct error *err);
/* Checks a frame of a GenerateStream: its request_id and its own fields, without the contents of
 * `start` and `update`. *out_id is the request's id, borrowed from the frame ("" if the frame
 * has none). */
int validate_frame(const Sluice__V1__GenerateStreamRequest *frame, const char **out_id,
                   struct error *err);
int validate_cancel(const Sluice__V1__CancelRequest *request, struct error *err);
