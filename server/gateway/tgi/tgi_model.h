/* tgi_model.h: chooses the model of a request. Requests of
 * text-generation-inference have no field for a model. The header X-Sluice-Model names a model:
 * "name" or "name:version". Without the header the only loaded model answers. Any thread. */
#pragma once

#include <stdint.h>

#include "server/gateway/replicas/model_name.h"
#include "server/gateway/tgi/tgi_answer.h"

struct error;

struct tgi_model {
    struct model_name name;
    uint32_t end_ids[TGI_ANSWER_MAX_END_IDS]; /* tokens that end an answer */
    uint32_t n_end_ids;
};

/* `wanted` is the header, or NULL. INVALID_ARGUMENT with field X-Sluice-Model if the header is
 * malformed, or is missing while several models are loaded. UNAVAILABLE while none is loaded. An
 * unknown name is no error here. */
int tgi_model_choose(const struct route_table *routes, const char *wanted,
                     struct tgi_model *out_model, struct error *err);
