/* vocab.h: the tokens of a vocabulary: text, kind, look-up by text, literal matching of special
 * tokens. Private to engine/text. Immutable once loaded; any thread. */
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
    const char *text;  /* text in the file (GPT-2's byte alphabet for normal tokens) */
    const char *bytes; /* the bytes that the token decodes to */
    uint32_t n_text, n_bytes;
    enum token_kind kind;
};

/* Open addressing by token text. The tag is the hash's other half. Most wrong tokens have another
 * tag, so that their text need not be read. */
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
    uint64_t seed[2];              /* hash seeds of both indices */
    struct vocab_index by_text;
    struct vocab_index by_bytes; /* normal tokens take precedence over others with the same bytes */
    int32_t byte_ids[256];       /* normal token of each single byte, or TOKENIZER_NO_ID */
    struct special *specials;    /* control and user-defined tokens, sorted by bytes */
    uint32_t n_specials;
    uint32_t specials_begin[257]; /* first entry in `specials`, by first byte */
};

/* Fills a zeroed vocab from tokenizer.ggml.tokens and .token_type. Call vocab_fini() in any
 * case. */
int vocab_load(struct vocab *vocab, const struct checkpoint *ckpt, struct error *err);
void vocab_fini(struct vocab *vocab);

/* A text to look up, without the byte at `skipped` (n_bytes: nothing is skipped). */
struct vocab_key {
    const char *text;
    uint32_t n_bytes;
    uint32_t skipped;
};
enum { VOCAB_MAX_KEYS = 96 };
/* Finds the ids of n tokens by text; TOKENIZER_NO_ID if there is none. n ≤ VOCAB_MAX_KEYS. Many
 * look-ups at once overlap their cache misses. */
void vocab_find_texts(const struct vocab *vocab, const struct vocab_key *keys, size_t n,
                      int32_t *out_ids);
int32_t vocab_find_bytes(const struct vocab *vocab, const char *bytes, size_t n_bytes);

/* The longest special token at text[0], or TOKENIZER_NO_ID. `control`: control tokens are matched,
 * too. */
int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t n_bytes,
                            bool control);
