/* attention_part.h: the description of one partition of a cache for the loops of
 * attention_*_impl.h. */
#pragma once

#include "kernels/cpu/attention/kv_layout.h"
#include "kernels/cpu/inner.h"

enum { PART = ATTENTION_PARTITION, PART_TILES = PART / KV_TILE };

/* Prefetches data that is used half a unit later. Into L2, because L1 supports too few outstanding
 * loads to read memory at a core's full rate. */
#define FETCH(at) __builtin_prefetch(at, 0, 2)

/* The tiles of one partition. */
struct partition {
    const uint8_t *k[PART_TILES], *v[PART_TILES];
    const uint8_t *k_scales[PART_TILES], *v_scales[PART_TILES]; /* int8: f32[KV_TILE] each */
    /* prefetched meanwhile: the next partition, or any readable memory */
    const uint8_t *next_k[PART_TILES], *next_v[PART_TILES];
    enum dtype dtype;
    uint32_t base, n; /* first position, number of positions */
    size_t v_item;    /* bytes from one position's V to the next; int8: v_dim of the tiles */
};
