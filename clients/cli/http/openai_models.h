/* openai_models.h: asks an OpenAI server for its models. Blocks; single-threaded. */
#pragma once

#include "clients/cli/http/openai_reply.h"

struct error;
struct http_target;

/* Looks up a model of that id. If the server lists another model alone, that model answers to every
 * id. Else *out_model is empty, except its id, for an id that is not listed. */
int openai_models_find(const struct http_target *target, const char *id,
                       struct openai_model *out_model, struct error *err);
/* Takes the only model. INVALID_ARGUMENT with the names, and REASON_USAGE, if the server lists
 * several; FAILED_PRECONDITION if the server lists none. */
int openai_models_choose(const struct http_target *target, struct openai_model *out_model,
                         struct error *err);
