/* vocab.h: the tokens of a vocabulary: spelling, kind, look-up by spelling, literal matching of
 * special tokens. Private to engine/format. Immutable once loaded; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "engine/text/tokenizer.h"

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

/* Open addressing over token spellings. The tag is the hash's other half: most tokens that are not
 * the one are told by it, without a look at them. */
struct vocab_slot {
    uint32_t tag;
    uint32_t id_plus_1; /* 0: free */
};

struct vocab_index {
    struct vocab_slot *slots;
    uint32_t mask;
};

struct vocab {
    struct arena arena;
    struct token *tokens;
    uint32_t n_tokens;
    uint32_t max_token_bytes;
    uint32_t n_empty, first_empty; /* tokens whose text in the file is empty */
    uint64_t seed[2];              /* of both indices' hashes */
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

/* A text to look up: all of it but the byte at `skipped` (n_bytes: all of it). */
struct vocab_key {
    const char *text;
    uint32_t n_bytes;
    uint32_t skipped;
};
enum { VOCAB_MAX_KEYS = 96 };
/* The ids of tokens by their text, or TOKENIZER_NO_ID; n is at most VOCAB_MAX_KEYS. Many at once,
 * whose cache misses overlap. */
void vocab_find_texts(const struct vocab *vocab, const struct vocab_key *keys, size_t n,
                      int32_t *out_ids);
int32_t vocab_find_bytes(const struct vocab *vocab, const char *bytes, size_t n_bytes);

/* The longest special token that starts at text[0], or TOKENIZER_NO_ID. control: control tokens
 * count too. */
int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t n_bytes,
                            bool control);
