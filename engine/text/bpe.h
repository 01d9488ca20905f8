/* bpe.h: byte-pair merges. Private to engine/text. The table is immutable once loaded. Any number
 * of threads may encode at once, each with its own scratch. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct error;
struct token_list;
struct vocab;

struct bpe_merge;

struct bpe {
    struct bpe_merge *slots; /* owned; open addressing by (left, right) */
    uint32_t mask;
    uint64_t seed;
};

/* Fills a zeroed table from tokenizer.ggml.merges. Row i, "left right", merges two tokens into the
 * token of the joined text, with rank i. Call bpe_fini() in any case. */
int bpe_load(struct bpe *bpe, const struct checkpoint *ckpt, const struct vocab *vocab,
             struct error *err);
void bpe_fini(struct bpe *bpe);

struct bpe_scratch {
    struct bpe_symbol *symbols; /* owned */
    size_t n_symbols_max;
    uint64_t *heap; /* owned min-heap of rank << 32 | position of the left symbol */
    size_t n_heap, n_heap_max;
};
void bpe_scratch_fini(struct bpe_scratch *scratch);

/* Appends the ids of one piece to *list. Starts from one token per byte; bytes without a token are
 * skipped and added to *n_lost. Then always applies the merge of lowest rank, the leftmost of equal
 * ones. O(n log n). n_bytes < 2^31. */
int bpe_encode(const struct bpe *bpe, const struct vocab *vocab, struct bpe_scratch *scratch,
               const char *piece, size_t n_bytes, struct token_list *list, size_t *n_lost,
               struct error *err);
