/* kv_layout.h: how the CPU keeps K and V inside one block and head of the paged cache. Block, head
 * and size are as in struct kv_layer; whole blocks may be copied, parts of one may not. V:
 * [block_size][head_dim]. K the same, but in tiles of 16 positions where head_dim and block_size
 * are multiples of 16: [block_size/16][head_dim/g][16 positions][g elements], g = 2 for 16-bit
 * types, 1 for f32, so that a vector of 16 scores needs no transposition. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { KV_TILE = 16 };

static inline bool kv_is_tiled(const struct kv_layer *kv)
{
    return kv->head_dim % KV_TILE == 0 && kv->block_size % KV_TILE == 0;
}

/* Number of a position's vector within K or V, in units of head_dim elements. */
static inline size_t kv_item_of(const struct kv_layer *kv, const uint32_t *table, uint32_t i_kv,
                                uint32_t position)
{
    size_t block = table[position / kv->block_size];
    return (block * kv->n_kv_heads + i_kv) * kv->block_size + position % kv->block_size;
}

/* Index of element d of the K at item number `item`. */
static inline size_t kv_key_at(const struct kv_layer *kv, size_t item, uint32_t d)
{
    if (!kv_is_tiled(kv))
        return item * kv->head_dim + d;
    size_t g = kv->dtype == DTYPE_F32 ? 1 : 2, lane = item % KV_TILE;
    return (item - lane) * kv->head_dim + (d / g * KV_TILE + lane) * g + d % g;
}
