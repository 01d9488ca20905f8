/* kserve_output.h: the answer of a relay as ModelInferResponses, on ModelInfer and on
 * ModelStreamInfer. The struct is the state of one request; its functions run under the lock of the
 * request's relay. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inference/grpc_service.pb-c.h"
#include "inference/model_config.pb-c.h"
#include "server/gateway/kserve/kserve_request.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

struct error;
struct rpc_out;
struct strbuf;

struct kserve_answer {
    char id[KSERVE_MAX_ID_BYTES + 1];
    uint64_t given;   /* copy of the request's, for errors */
    unsigned outputs; /* bits of enum kserve_output */
    uint32_t n_choices;
    bool prepends_prompt, empty_final;
    bool on_stream; /* ModelStreamInfer */
    uint32_t n_prompt_tokens;
    double logprob_sums[RELAY_MAX_CHOICES];
};

/* Makes the state for a request that was read from `message`. NULL if memory is exhausted. Owned:
 * free(). */
struct kserve_answer *kserve_output_create(const struct kserve_request *request,
                                           const Inference__ModelInferRequest *message,
                                           bool on_stream);

/* Puts the response for a frame into `out`. False if the frame needs no response. Does not put the
 * end of a call. */
bool kserve_output_put(struct kserve_answer *answer, const struct relay *relay,
                       const struct relay_frame *frame, struct rpc_out *out);
/* Puts the response of a failed request on ModelStreamInfer. */
void kserve_output_put_error(const char *id, const struct error *err, struct rpc_out *out);

/* Facts of an output, for metadata; the index is an enum kserve_output. */
struct kserve_output_facts {
    const char *name, *datatype;
    Inference__DataType type;
};
extern const struct kserve_output_facts kserve_output_facts[N_KSERVE_OUTPUTS];
/* Returns the enum kserve_output of a name, or -1. */
int kserve_output_find(const char *name);
