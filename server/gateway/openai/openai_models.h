/* openai_models.h: answers GET /v1/models and /v1/models/{name}: the models that ListModels has,
 * with the context's length where clients look for it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http_server.h"

struct dispatch;
struct error;
struct http_reply;
struct model_name;

/* The argument of the handlers. */
struct openai_models {
    struct dispatch *dispatch;
    int64_t created; /* seconds since the epoch, of every model */
};

http_handler_fn openai_models_list, openai_models_get;

/* Chooses the model of a request (model_name_choose): `given`, or the only loaded model if `given`
 * is NULL or empty. INVALID_ARGUMENT also if no model is loaded. */
int openai_models_choose(struct dispatch *dispatch, const char *given, struct model_name *out_name,
                         struct error *err);
/* As openai_error_reply. The text of MODEL_NOT_FOUND also names the loaded models. Any thread. */
void openai_models_error_reply(struct dispatch *dispatch, const struct error *err, bool is_chat,
                               char *out_headers, struct http_reply *reply);
/* Returns the context's length of a version; 0 if it is unknown. */
uint32_t openai_models_context(struct dispatch *dispatch, const char *model, const char *version);
/* Returns true if an operator limits prompt and answer of a version of the model below the context.
 */
bool openai_models_limit_total(struct dispatch *dispatch, const char *model);
