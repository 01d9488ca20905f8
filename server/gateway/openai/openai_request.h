/* openai_request.h: reads the body of POST /v1/chat/completions and /v1/completions into a request
 * of the proto. The fields are those of OpenAI's API, with the extras of vLLM and llama.cpp that
 * clients use. Plain functions; any thread.
 *
 * A field with a wrong type is an error that names the field. A field that would change the answer
 * and is not built is an error. Any other unknown field is ignored and named in `ignored`, or an
 * error if the server is strict. No field that is read may be given twice. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "server/gateway/openai/openai_prompt.h"
#include "server/gateway/replicas/model_name.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

struct openai_request {
    struct arena arena;                  /* memory of everything below */
    Sluice__V1__GenerateRequest request; /* without a prompt for completions */
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
    Sluice__V1__Chat chat;
    bool is_chat;
    struct openai_prompts prompts; /* completions only */
    bool streams, include_usage, continuous_usage;
    protobuf_c_boolean has_stream_options;
    bool echoes; /* completions: the text begins with the prompt */
    /* Completions: literals of special tokens in a text become these tokens, as in vLLM and
     * llama-server. Default true. */
    bool parses_special;
    protobuf_c_boolean has_parses_special; /* the client gave it */
    bool returns_ids;                      /* extra of vLLM: token_ids */
    bool wants_logprobs;
    bool wants_prompt_logprobs; /* extra of vLLM */
    /* Alternatives of each generated token and of each token of the prompt. The request of the
     * proto has one number for both: the larger. */
    uint32_t n_top, n_prompt_top;
    bool includes_reasoning;      /* extra of vLLM; default true */
    const char *model_name;       /* as the client spells it: name or name:version; NULL: none */
    struct model_name name;       /* openai_request_set_model */
    const char *reasoning_effort; /* a variable of the template; NULL: none */
    struct strbuf ignored;        /* names of fields without effect; see http_ignored_add */
};

/* INVALID_ARGUMENT with the field's name as OpenAI spells it, or UNIMPLEMENTED. Call fini in any
 * case. */
int openai_request_read(struct openai_request *request, bool is_chat, bool is_strict,
                        const char *body, size_t n_bytes, struct error *err);
void openai_request_fini(struct openai_request *request);

/* Sets the model, which is chosen after the read. A request without a name gets this model's. */
void openai_request_set_model(struct openai_request *request, const struct model_name *name);

/* Number of prompts, each of which is a generation. */
size_t openai_request_n_prompts(const struct openai_request *request);
/* Fills the request's prompt number i. Borrowed from `request`. Returns false if memory is
 * exhausted. */
bool openai_request_choose(struct openai_request *request, size_t i);

/* After a refusal: true if max_tokens exceeded the operator's limit of prompt and answer together.
 * The request then has no max_tokens, and the engine cuts the answer at the limit. */
bool openai_request_unbind(struct openai_request *request, const struct error *err);
