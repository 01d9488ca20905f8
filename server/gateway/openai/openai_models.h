/* openai_models.h: answers GET /v1/models and /v1/models/{name}: the models that ListModels has,
 * with the context's length where clients look for it. */
#pragma once

#include <stdint.h>

#include "proto/http/http_server.h"

struct arena;
struct dispatch;

/* The argument of the handlers. */
struct openai_models {
    struct dispatch *dispatch;
    int64_t created; /* seconds since the epoch, of every model */
};

http_handler_fn openai_models_list, openai_models_get;

/* Returns the name of the only loaded model, in the arena; NULL if there is none, or several. */
const char *openai_models_only(struct dispatch *dispatch, struct arena *arena);
/* Returns the context's length of a version; 0 if it is unknown. */
uint32_t openai_models_context(struct dispatch *dispatch, const char *model, const char *version);
