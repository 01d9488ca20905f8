/* bpe.h: byte-pair merges of the pieces of a text. Private to engine/text. Immutable once loaded.
 * Any number of threads may encode at once, each with its own scratch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/vocab/char_map.h"
#include "engine/text/vocab/merge_queue.h"
#include "engine/text/vocab/merges.h"

struct error;
struct text_facts;
struct token_list;
struct vocab;

struct bpe {
    struct merges merges;
    struct char_map chars; /* start symbols of characters, where merges start from these */
    int32_t byte_ids[256]; /* start symbols of bytes, or the tokens that stand for bytes */
    uint64_t *joins; /* owned: bits of character pairs that stand beside each other in a token */
    int32_t unknown_id;
    bool by_characters, byte_fallback, fuse_unknown;
    bool late_unknown; /* a character without a token may still be part of a merge */
};

/* Fills a zeroed struct. Call bpe_fini() in any case. */
int bpe_load(struct bpe *bpe, const struct text_facts *facts, const struct vocab *vocab,
             struct error *err);
void bpe_fini(struct bpe *bpe);

/* A piece and its ids: a line of the processor's cache. */
enum { BPE_WORD_BYTES = 30, BPE_WORD_IDS = 8 };
struct bpe_word {
    uint8_t n_bytes, n_ids;
    char bytes[BPE_WORD_BYTES];
    uint32_t ids[BPE_WORD_IDS];
};

struct bpe_scratch {
    struct bpe_symbol *symbols; /* owned */
    size_t n_symbols_max;
    struct merge_queue queue;
    struct bpe_word *words; /* owned: pieces of this text that were merged before; NULL without */
    size_t unknown_end;     /* length of the list after the last unknown token of the piece; or 0 */
};
/* Prepares a zeroed scratch for a text of n_bytes. */
void bpe_scratch_init(struct bpe_scratch *scratch, size_t n_bytes);
void bpe_scratch_fini(struct bpe_scratch *scratch);

/* Appends the ids of one piece to *list. Always applies the merge of lowest rank, the leftmost of
 * equal ones. Bytes without a token are skipped and added to *n_lost. n_bytes < 2^31. */
int bpe_encode(const struct bpe *bpe, const struct vocab *vocab, struct bpe_scratch *scratch,
               const char *piece, size_t n_bytes, struct token_list *list, size_t *n_lost,
               struct error *err);
