/* attention_part.h: what the loops of attention_*_impl.h are told of one partition of a cache. */
#pragma once

#include "kernels/cpu/attention/kv_layout.h"
#include "kernels/cpu/inner.h"

enum { PART = ATTENTION_PARTITION, PART_TILES = PART / KV_TILE };

/* Asks for what is used half a unit later. Into L2: the loads that L1 can have under way are too
 * few to read memory as fast as a core may. */
#define FETCH(at) __builtin_prefetch(at, 0, 2)

/* The tiles of one partition. */
struct partition {
    const uint8_t *k[PART_TILES], *v[PART_TILES];
    const uint8_t *k_scales[PART_TILES], *v_scales[PART_TILES]; /* int8: f32[KV_TILE] each */
    /* fetched while this one is read: the partition after it, or anything */
    const uint8_t *next_k[PART_TILES], *next_v[PART_TILES];
    enum dtype dtype;
    uint32_t base, n; /* its first position, how many there are */
    size_t v_item;    /* bytes from one position's V to the next; int8: head_dim of the tiles */
};
