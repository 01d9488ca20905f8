/* openai_request.h: reads the body of POST /v1/chat/completions and /v1/completions into requests
 * of the proto (OpenAI API reference; extras as vLLM and llama.cpp have them). Plain functions; any
 * thread.
 *
 * A known field with a wrong type is an error that names the field. A field that would change the
 * answer and is not built is an error. Any other unknown field is ignored and named in `ignored`,
 * or an error if the server is strict. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

struct error;

enum { OPENAI_MAX_PROMPTS = 64 };

/* A prompt of /v1/completions: a text, or ids. */
struct openai_prompt {
    const char *text; /* NULL: ids */
    uint32_t *ids;
    size_t n_ids;
};

struct openai_request {
    struct arena arena;                  /* memory of everything below */
    Sluice__V1__GenerateRequest request; /* without a prompt for completions */
    Sluice__V1__Sampling sampling;
    Sluice__V1__Stopping stopping;
    Sluice__V1__Output output;
    Sluice__V1__Chat chat;
    bool is_chat;
    struct openai_prompt *prompts; /* of completions */
    size_t n_prompts;
    bool streams, include_usage, continuous_usage;
    bool echoes;      /* completions: the text begins with the prompt */
    bool returns_ids; /* extra of vLLM: token_ids */
    bool wants_logprobs;
    const char *suffix;    /* completions: text behind the gap; NULL: none */
    struct strbuf ignored; /* names of fields without effect, between commas */
};

/* INVALID_ARGUMENT with the field's name as OpenAI spells it, or UNIMPLEMENTED. Call fini in any
 * case. */
int openai_request_read(struct openai_request *request, bool is_chat, bool is_strict,
                        const char *body, size_t n_bytes, struct error *err);
void openai_request_fini(struct openai_request *request);

/* Fills the request's prompt number i. Borrowed from `request`. */
void openai_request_choose(struct openai_request *request, size_t i);

/* Rewrites the field of an error from the proto's spelling to OpenAI's: "sampling.top_p" becomes
 * "top_p". */
void openai_request_name_field(struct error *err);
