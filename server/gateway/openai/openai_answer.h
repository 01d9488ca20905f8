/* openai_answer.h: writes answers as OpenAI's API does: whole objects, and the chunks of a stream.
 * Plain functions; the state belongs to the caller. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

/* The parts that all objects of an answer share. */
struct openai_answer {
    bool is_chat, wants_logprobs, returns_ids, continuous_usage, include_usage;
    char id[64];       /* "chatcmpl-..." */
    const char *model; /* as the client named it */
    int64_t created;   /* seconds since the epoch */
    uint32_t top_n;
    uint32_t n_prompt_tokens, n_cached_tokens, n_generated_tokens; /* so far */
};

/* One choice of a stream. */
struct openai_choice {
    bool has_begun;  /* the role was sent */
    uint64_t n_text; /* code points sent: text_offset of the next token */
};

/* Appends `data: {...}` with a part of a choice. `tokens` may be NULL with `finished`, and vice
 * versa. */
void openai_answer_chunk(struct openai_answer *answer, struct openai_choice *choice, uint32_t index,
                         const Sluice__V1__Tokens *tokens, const Sluice__V1__Finished *finished,
                         struct strbuf *out);
/* Appends the end of a stream: usage if it was asked for, and [DONE]. */
void openai_answer_end(const struct openai_answer *answer, struct strbuf *out);

/* Appends the choices of a whole answer, with indices from `first`. A comma stands before each
 * choice but the first. */
void openai_answer_choices(struct openai_answer *answer, const Sluice__V1__CompleteResponse *whole,
                           uint32_t first, struct strbuf *out);
/* Appends the object around choices. */
void openai_answer_whole(const struct openai_answer *answer, const struct strbuf *choices,
                         struct strbuf *out);
