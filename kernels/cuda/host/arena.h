/* arena.h: which part of a device's one allocation belongs to whom. Plain C, no memory is touched;
 * locks are the caller's. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/index.h"

enum { ARENA_ALIGN = 256 };

struct arena {
    unsigned char *base; /* NULL: there is none */
    size_t n_bytes, n_used;
    uint32_t n_live; /* parts that are taken; at 0 all is free again */
};

static inline size_t arena_left(const struct arena *a)
{
    return a->n_bytes - a->n_used;
}

/* The next n_bytes, in order, as what is planned is allocated; NULL where they do not fit. */
static inline void *arena_take(struct arena *a, size_t n_bytes)
{
    size_t needed = cuda_round_up(n_bytes, ARENA_ALIGN);
    if (needed < n_bytes || needed > arena_left(a))
        return NULL;
    void *data = a->base + a->n_used;
    a->n_used += needed;
    a->n_live++;
    return data;
}

/* Gives a part back, of n_bytes as it was taken: it comes back when all is, or at once where it was
 * the last. False where it is not the arena's. */
static inline bool arena_give(struct arena *a, const void *data, size_t n_bytes)
{
    const unsigned char *at = data;
    if (at == NULL || at < a->base || at >= a->base + a->n_bytes)
        return false;
    size_t begin = (size_t)(at - a->base);
    if (begin + cuda_round_up(n_bytes, ARENA_ALIGN) == a->n_used)
        a->n_used = begin;
    if (--a->n_live == 0)
        a->n_used = 0;
    return true;
}
