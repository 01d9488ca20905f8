/* vocab.h: the tokens of a vocabulary: spelling, kind, look-up by spelling, literal matching of
 * special tokens. Private to engine/format. Immutable once loaded; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "engine/format/tokenizer.h"

struct special {
    const char *bytes;
    uint32_t n_bytes;
    uint32_t id;
};

struct token {
    const char *text;  /* as the file has it (GPT-2's byte alphabet for normal tokens) */
    const char *bytes; /* what it stands for */
    uint32_t n_text, n_bytes;
    enum token_kind kind;
};

/* Open addressing over token spellings; a slot holds id + 1. */
struct vocab_index {
    uint32_t *slots;
    uint32_t mask;
    uint64_t seed;
};

struct vocab {
    struct arena arena;
    struct token *tokens;
    uint32_t n_tokens;
    uint32_t max_token_bytes;
    struct vocab_index by_text;
    struct vocab_index by_bytes; /* normal tokens win over others with the same bytes */
    int32_t byte_ids[256];       /* the normal token of one byte, or TOKENIZER_NO_ID */
    struct special *specials;    /* control and user-defined, sorted by bytes */
    uint32_t n_specials;
    uint32_t specials_begin[257]; /* by first byte */
};

/* Fills a zeroed vocab from tokenizer.ggml.tokens and .token_type; vocab_fini in any case. */
int vocab_load(struct vocab *vocab, const struct checkpoint *ckpt, struct error *err);
void vocab_fini(struct vocab *vocab);

int32_t vocab_find_text(const struct vocab *vocab, const char *text, size_t n_bytes);
int32_t vocab_find_bytes(const struct vocab *vocab, const char *bytes, size_t n_bytes);

/* The longest special token that starts at text[0], or TOKENIZER_NO_ID. control: control tokens
 * count too. */
int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t n_bytes,
                            bool control);
