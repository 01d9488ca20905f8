/* arena.h: divides a device's single allocation into parts. Plain C; touches no device memory.
 * Callers lock. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/index.h"

enum { ARENA_ALIGN = 256 };

struct arena {
    unsigned char *base; /* NULL: no reserve */
    size_t n_bytes, n_used;
    uint32_t n_live; /* parts in use; at 0 all memory is free again */
};

static inline size_t arena_left(const struct arena *a)
{
    return a->n_bytes - a->n_used;
}

/* Takes the next n_bytes, in the order in which planned allocations are made; NULL if they do not
 * fit. */
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

/* Gives a part of n_bytes back. Its memory is reused when all parts are back, or at once if it was
 * the last part. False if the part is not the arena's. */
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
