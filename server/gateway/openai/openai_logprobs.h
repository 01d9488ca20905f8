/* openai_logprobs.h: writes log-probabilities as OpenAI's APIs have them. Plain functions; the
 * state belongs to the caller. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "sluice/v1/inference.pb-c.h"

/* The object of /v1/completions: four lists with an entry for each token. A zeroed struct has empty
 * lists. */
struct openai_logprobs {
    struct strbuf tokens, logprobs, top, offsets;
    uint64_t n_text; /* code points of the tokens so far: the next text_offset */
};

/* The text of tokens, and where each token's text ends: byte ends[i] - begin. */
struct openai_logprobs_text {
    const char *text;
    const uint32_t *ends;
    uint64_t begin;
    bool has_prompt; /* the text of the first token begins with the prompt's text */
};

void openai_logprobs_fini(struct openai_logprobs *lists);
/* Appends tokens, with n_top alternatives of each at most. Their offsets come from `text`; NULL:
 * from the bytes of the tokens. A NaN, which the first token of a prompt has, becomes null. A token
 * that is no complete UTF-8 is written as its bytes: "bytes:\xf0\x9f". */
void openai_logprobs_add(struct openai_logprobs *lists, Sluice__V1__TokenLogprob *const *list,
                         size_t n, uint32_t n_top, const struct openai_logprobs_text *text);
/* Appends all tokens of another object. */
void openai_logprobs_join(struct openai_logprobs *lists, const struct openai_logprobs *first);
/* Writes the object. */
void openai_logprobs_write(const struct openai_logprobs *lists, struct strbuf *out);

/* Writes the object of /v1/chat/completions, with n_top alternatives of a token at most. */
void openai_logprobs_write_chat(Sluice__V1__TokenLogprob *const *list, size_t n, uint32_t n_top,
                                struct strbuf *out);
