/* kserve_request.h: turns a ModelInferRequest into a GenerateRequest. The tensors are those of
 * Triton's vLLM backend and of TensorRT-LLM's ensemble. Parameters of the request may have the same
 * names. Plain functions; a request belongs to one thread.
 *
 * A tensor precedes a parameter of the same name. The text of sampling_parameters is a JSON object;
 * its values may be strings. A value that is given twice is refused, and so is an unknown name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "inference/grpc_service.pb-c.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

enum { KSERVE_DEFAULT_MAX_TOKENS = 16, KSERVE_MAX_ID_BYTES = 128 };

/* Outputs of a response, in their order. */
enum kserve_output {
    KSERVE_OUTPUT_TEXT,
    KSERVE_OUTPUT_FINISH_REASON,
    KSERVE_OUTPUT_CUMULATIVE_LOGPROB,
    KSERVE_OUTPUT_LOGPROBS,
    KSERVE_OUTPUT_NUM_INPUT_TOKENS,
    KSERVE_OUTPUT_NUM_OUTPUT_TOKENS,
    KSERVE_OUTPUT_CUM_LOG_PROBS,
    KSERVE_OUTPUT_OUTPUT_LOG_PROBS,
    N_KSERVE_OUTPUTS
};

struct kserve_request {
    struct arena arena;
    Sluice__V1__GenerateRequest
        generate; /* its parts are below; texts are borrowed or in the arena */
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
    bool streams;         /* many responses */
    bool prepends_prompt; /* text_output begins with the prompt */
    bool empty_final;     /* a last response of a stream that adds no text has no outputs */
    unsigned outputs;     /* a bit for each enum kserve_output */
    uint64_t timeout_us;  /* 0: none */
    bool has_exclude, excludes_prompt;
    const char *sampling_text; /* sampling_parameters; NULL: not given */
    size_t n_sampling_text;
    uint64_t given; /* a bit for each row of the table of names (kserve_fields.c) */
};

/* Reads a request, which outlives the result. `may_stream` is false on ModelInfer.
 * INVALID_ARGUMENT, or UNIMPLEMENTED for what is not built, with the tensor or parameter as field.
 * Call fini also after an error. */
int kserve_request_read(struct kserve_request *out_request,
                        const Inference__ModelInferRequest *message, bool may_stream,
                        struct error *err);
void kserve_request_fini(struct kserve_request *request);

/* The steps for a reader of another encoding: begins an empty request for a model, whose names are
 * borrowed. Then the reader sets fields (kserve_fields.h). */
void kserve_request_init(struct kserve_request *request, const char *model, const char *version);
/* Checks that concern several fields, and sets defaults. Errors as kserve_request_read. */
int kserve_request_complete(struct kserve_request *request, bool may_stream, struct error *err);
/* Names the tensor or parameter in an error that names a field of GenerateRequest. `given` is that
 * of the request. */
void kserve_request_name_field(uint64_t given, struct error *err);
