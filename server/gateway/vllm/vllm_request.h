/* vllm_request.h: a request of VllmEngine as Sluice's GenerateRequest. Plain functions; a request
 * belongs to one thread. */
#pragma once

#include <stdint.h>

#include "base/arena.h"
#include "sluice/v1/inference.pb-c.h"
#include "vllm/grpc/engine/vllm_engine.pb-c.h"

struct error;

struct vllm_request {
    struct arena arena;
    Sluice__V1__GenerateRequest generate; /* its parts are below; borrowed from the message */
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
    Sluice__V1__TokenIds ids;
    int32_t n_top, n_prompt_top; /* alternatives of a generated and of a prompt token; -1: no
                                  * log-probabilities at all */
};

/* Reads a request, which outlives the result. The caller sets the model. INVALID_ARGUMENT, or
 * UNIMPLEMENTED for what is not built, with the field. Call fini also after an error. */
int vllm_request_read(struct vllm_request *out_request,
                      const Vllm__Grpc__Engine__GenerateRequest *message, struct error *err);
void vllm_request_fini(struct vllm_request *request);
/* Replaces the field in *err, a field of Sluice's GenerateRequest, by VllmEngine's name. */
void vllm_request_name_field(struct error *err);
