/* openai_reply.h: reads the answers of an OpenAI server: events of a stream, whole answers, and the
 * list of models. Plain functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

struct error;

/* An event or a whole answer. Only the first choice is read. A zeroed struct is empty. */
struct openai_reply {
    struct strbuf text, reasoning; /* owned; of chat and of completions */
    char finish[32];               /* "stop", "length", ...; empty: the answer goes on */
    bool has_choice, has_usage, has_predicted;
    uint64_t n_prompt, n_generated, n_cached; /* usage */
    uint64_t n_predicted;                     /* llama.cpp: timings.predicted_n */
};

void openai_reply_fini(struct openai_reply *reply);
/* Replaces the content of *reply. DATA_LOSS for a text that is no JSON object; an error inside the
 * text is returned as such (openai_error.h). */
int openai_reply_read(struct openai_reply *reply, const char *json, size_t n_bytes,
                      struct error *err);

struct openai_model {
    char id[256], owned_by[64];
    uint64_t n_context, n_vocab; /* 0: unknown */
};

/* Reads GET /models, and fills *out_model with the model of that id, or with the first if `wanted`
 * is NULL. *out_n is the number of listed models, and `names` their ids. An id that is not listed
 * gives an empty model. DATA_LOSS for a text without a list. */
int openai_reply_read_models(const char *json, size_t n_bytes, const char *wanted,
                             struct openai_model *out_model, size_t *out_n, struct strbuf *names,
                             struct error *err);
