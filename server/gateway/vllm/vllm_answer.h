/* vllm_answer.h: the answer of a relay as responses of VllmEngine.Generate. The struct is the state
 * of one request; its functions run under the lock of the request's relay.
 *
 * The relay streams in any case, since a response has one choice. Without `streams` the tokens give
 * no responses, and the state keeps their log-probabilities for the end. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "server/gateway/front/call_sink.h"
#include "server/gateway/relay/relay.h"
#include "vllm/grpc/engine/vllm_engine.pb-c.h"

struct vllm_request;

/* Log-probabilities of tokens; the lists are in the state's arena. */
struct vllm_logprobs {
    float *values;
    uint32_t *ids;
    Vllm__Grpc__Engine__TopLogProbs **tops;
    size_t n, capacity;
};

struct vllm_answer {
    struct arena arena;
    bool streams;
    uint32_t
        sent_input; /* a bit for each choice whose response had the prompt's log-probabilities */
    int32_t n_top, n_prompt_top; /* see struct vllm_request */
    uint32_t n_prompt_tokens, n_cached_tokens;
    struct vllm_logprobs input;
    struct vllm_logprobs outputs[RELAY_MAX_CHOICES]; /* not used with `streams` */
};

/* The state is a struct vllm_answer. */
extern const struct call_form vllm_answer_form;

/* NULL if memory is exhausted. Owned. */
struct vllm_answer *vllm_answer_create(const struct vllm_request *request, bool streams);
void vllm_answer_destroy(struct vllm_answer *answer); /* NULL is accepted */
