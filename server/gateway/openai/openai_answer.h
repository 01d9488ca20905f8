/* openai_answer.h: writes answers as OpenAI's API does: whole objects, and the chunks of a stream.
 * Plain functions; the state belongs to the caller. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "server/gateway/openai/openai_logprobs.h"
#include "server/gateway/relay/relay_sink.h"
#include "sluice/v1/inference.pb-c.h"

/* A prompt. In a stream its lists go into the first chunk of each choice. */
struct openai_answer_prompt {
    bool has_info;
    struct strbuf choices;           /* JSON of its choices, in a whole answer */
    struct openai_logprobs logprobs; /* tokens of the prompt; with echo and logprobs */
    struct strbuf ids;               /* "1,2,3", with returns_ids */
};

/* A choice of a stream. */
struct openai_answer_choice {
    bool has_begun;  /* the role was sent */
    uint64_t n_text; /* code points sent: text_offset of the next token */
};

/* State of an answer. */
struct openai_answer {
    bool is_chat, wants_logprobs, returns_ids, continuous_usage, include_usage;
    bool echoes;              /* completions: text and log-probabilities begin with the prompt's */
    bool has_prompt_logprobs; /* vLLM's list is wanted */
    uint32_t n_top, n_prompt_top; /* alternatives of a generated token, and of the prompt's */
    bool hides_reasoning;         /* vLLM's include_reasoning is false */
    char id[64];                  /* "chatcmpl-..." */
    const char *model;            /* as the client named it */
    char fingerprint[72];         /* empty: unknown */
    int64_t created;              /* seconds since the epoch */
    /* so far; reasoning is generated too */
    uint32_t n_prompt_tokens, n_cached_tokens, n_generated_tokens, n_reasoning_tokens;
    /* A chunk is written up to its finish_reason: the next frame may have the reason. */
    bool is_open;
    uint32_t i_open;            /* index of the choice of the open chunk */
    struct strbuf prompt_lists; /* a chat's prompt, in a whole answer */
    struct strbuf chunk_begin;  /* the begin of every chunk; empty: not made yet */
};

void openai_answer_fini(struct openai_answer *answer);
void openai_answer_prompt_fini(struct openai_answer_prompt *prompt);

/* --- a stream --- */

/* Notes what is known of a prompt; may come in several parts. */
void openai_answer_prompt_info(struct openai_answer *answer, struct openai_answer_prompt *prompt,
                               const Sluice__V1__PromptInfo *info);
/* Appends `data: {...}` with the tokens of a frame, and leaves the chunk open. */
void openai_answer_tokens(struct openai_answer *answer, const struct openai_answer_prompt *prompt,
                          struct openai_answer_choice *choice, uint32_t index,
                          const struct relay_frame *frame, struct strbuf *out);
/* Appends the end of a choice: in the open chunk if that is the choice's, else in its own chunk. */
void openai_answer_finish(struct openai_answer *answer, const struct openai_answer_prompt *prompt,
                          struct openai_answer_choice *choice, uint32_t index,
                          const Sluice__V1__Finished *finished, struct strbuf *out);
/* Ends the open chunk. */
void openai_answer_flush(struct openai_answer *answer, struct strbuf *out);
/* Appends the end of a stream: usage if it was asked for, and [DONE]. */
void openai_answer_end(struct openai_answer *answer, struct strbuf *out);

/* --- a whole answer --- */

/* Writes the choices of a finished prompt to prompt->choices, with indices from `first`, and counts
 * its tokens. Prompts end in any order. */
void openai_answer_choices(struct openai_answer *answer, struct openai_answer_prompt *prompt,
                           const struct relay_frame *frame, uint32_t first);
/* Appends the object with the choices of all prompts, in the order of the prompts. */
void openai_answer_whole(const struct openai_answer *answer,
                         const struct openai_answer_prompt *prompts, size_t n_prompts,
                         struct strbuf *out);
