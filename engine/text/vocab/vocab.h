/* vocab.h: the tokens of a vocabulary: text, kind, look-up by text. Private to engine/text.
 * Immutable once loaded; any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "engine/text/facts/text_facts.h"

struct token {
    const char *text;  /* text in the file, spelled as enum text_spelling says */
    const char *bytes; /* the bytes that the token decodes to */
    uint32_t n_text, n_bytes;
    uint8_t kind;  /* enum token_kind */
    uint8_t flags; /* bits of enum token_flag */
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
    uint32_t n_holes;              /* ids without a token */
    uint64_t seed[2];              /* hash seeds of both indices */
    struct vocab_index by_text;  /* normal tokens take precedence over others with the same text */
    struct vocab_index by_bytes; /* normal tokens take precedence over others with the same bytes */
    int32_t byte_ids[256];       /* normal token of each single byte, or TOKENIZER_NO_ID */
};

/* Fills a zeroed vocab from the facts' tokens; keeps copies. Call vocab_fini() in any case. */
int vocab_load(struct vocab *vocab, const struct text_facts *facts, struct error *err);
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
int32_t vocab_find_text(const struct vocab *vocab, const char *text, size_t n_bytes);
int32_t vocab_find_bytes(const struct vocab *vocab, const char *bytes, size_t n_bytes);
