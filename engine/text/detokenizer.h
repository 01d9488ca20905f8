/* detokenizer.h: decodes the ids of one sequence to text, one id at a time. Text is released only
 * as complete UTF-8, and an id is held exactly as long as its text. So the text released so far is
 * always the text of the ids released so far. Bytes that no continuation can make valid become
 * U+FFFD, one per maximal invalid part (as errors=replace in Python). The concatenation of all text
 * equals decoding all ids at once. Single-threaded. No allocation per token while runs of
 * incomplete characters stay short. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct detokenizer;
struct error;
struct tokenizer;

/* `tok` is borrowed until destroy. skip_special: control tokens give no text, but still count as
 * ids. *out_detok is owned. */
int detokenizer_create(const struct tokenizer *tok, bool skip_special,
                       struct detokenizer **out_detok, struct error *err);
/* The tokenizer of detokenizer_create(). */
const struct tokenizer *detokenizer_tokenizer(const struct detokenizer *detok);
void detokenizer_destroy(struct detokenizer *detok);
/* The next id begins a text: some tokenizers put a space before a text, which is dropped then. A
 * detokenizer that continues a prompt keeps this space. */
void detokenizer_begin_text(struct detokenizer *detok);

struct detokenizer_delta {
    const char *text; /* complete UTF-8, not terminated; borrowed until the next call */
    size_t n_bytes;
    uint32_t n_released; /* ids released by this call, oldest first; 0 while text is held */
};

/* Decodes the next id. INVALID_ARGUMENT (field "token_ids") for an id outside the vocabulary;
 * RESOURCE_EXHAUSTED. */
int detokenizer_push(struct detokenizer *detok, uint32_t id, struct detokenizer_delta *out_delta,
                     struct error *err);
/* End of the sequence: releases all held text; incomplete characters become U+FFFD. Afterwards the
 * object may serve another sequence. */
int detokenizer_flush(struct detokenizer *detok, struct detokenizer_delta *out_delta,
                      struct error *err);
/* Number of ids that are held. */
uint32_t detokenizer_n_held(const struct detokenizer *detok);
