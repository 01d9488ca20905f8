/* merges.h: the table of merges: which pairs of symbols join, in which order, into which token.
 * Private to engine/text. Immutable once loaded; any thread.
 *
 * A symbol is a token id. Characters that are no token but part of tokens get ids from n_tokens
 * up. */
#pragma once

#include <stdint.h>

#include "engine/text/vocab/char_map.h"

struct error;
struct text_facts;
struct vocab;

enum {
    MERGES_MAX = 16 << 20,
    MERGES_MAX_SPLIT_BYTES = 1024, /* a longer token is not made by scored or ranked merges */
};

struct merge {
    uint32_t left, right, merged;
    uint32_t rank_plus_1; /* 0: free slot */
};

struct merges {
    struct merge *slots; /* owned; open addressing by (left, right) */
    uint32_t mask;
    uint64_t seed;
    uint32_t n_ranks;   /* ranks are below this number */
    uint32_t n_symbols; /* symbols are below this number */
};

/* Fills a zeroed table. Adds the characters of scored merges that are no tokens to `chars`. Call
 * merges_fini() in any case. */
int merges_load(struct merges *merges, const struct text_facts *facts, const struct vocab *vocab,
                struct char_map *chars, struct error *err);
void merges_fini(struct merges *merges);

static inline uint32_t merges_place(const struct merges *merges, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) ^ merges->seed;
    h *= 0x9E3779B97F4A7C15ULL;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ULL;
    return (uint32_t)(h >> 32) & merges->mask;
}

/* The slot of a pair; rank_plus_1 is 0 if the pair has no merge. */
static inline struct merge *merges_slot(const struct merges *merges, uint32_t left, uint32_t right)
{
    uint32_t i = merges_place(merges, left, right);
    while (merges->slots[i].rank_plus_1 &&
           (merges->slots[i].left != left || merges->slots[i].right != right))
        i = (i + 1) & merges->mask;
    return &merges->slots[i];
}
