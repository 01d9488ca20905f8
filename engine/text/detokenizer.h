/* detokenizer.h: ids of one sequence back to text, as they come. Text is handed out only as
 * complete UTF-8, and an id is held exactly as long as its text: whenever a call releases n ids,
 * all text given so far is the text of all ids released so far. Bytes that no continuation can make
 * valid become U+FFFD, one per maximal bad part (what decoding with errors=replace gives). The
 * concatenation of all text equals decoding all ids at once. One thread; no allocation per token
 * while sequences of cut characters stay short. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct detokenizer;
struct error;
struct tokenizer;

/* `tok` is borrowed until destroy. skip_special: control tokens give no text (they still count as
 * ids). *out_detok is owned. */
int detokenizer_create(const struct tokenizer *tok, bool skip_special,
                       struct detokenizer **out_detok, struct error *err);
/* The tokenizer that it was made with. */
const struct tokenizer *detokenizer_tokenizer(const struct detokenizer *detok);
void detokenizer_destroy(struct detokenizer *detok);

struct detokenizer_delta {
    const char *text; /* complete UTF-8, not terminated; borrowed until the next call */
    size_t n_bytes;
    uint32_t n_released; /* oldest held ids whose text is now out; 0 while text is held */
};

/* Takes the next id. INVALID_ARGUMENT (field "token_ids") for an id outside the vocabulary,
 * RESOURCE_EXHAUSTED. */
int detokenizer_push(struct detokenizer *detok, uint32_t id, struct detokenizer_delta *out_delta,
                     struct error *err);
/* End of the sequence: releases what is held, cut characters as U+FFFD. The object may be used for
 * another sequence afterwards. */
int detokenizer_flush(struct detokenizer *detok, struct detokenizer_delta *out_delta,
                      struct error *err);
/* Ids pushed and not released. */
uint32_t detokenizer_n_held(const struct detokenizer *detok);
