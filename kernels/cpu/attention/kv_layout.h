/* kv_layout.h: the CPU's layout of K and V inside one block and head of the paged cache. Block,
 * head and size are as in struct kv_layer. Code outside may copy whole blocks, but not parts of a
 * block.
 *
 * If head_dim, v_dim and block_size are multiples of 16, positions lie in tiles of 16, so that
 * scores need no transposition. Otherwise K is [block_size][head_dim] and V [block_size][v_dim].
 * The same goes for a latent cache, where a vector of K begins with that of V.
 *
 *     f32, f16, bf16   K [block_size/16][head_dim/g][16 positions][g elements], g = 4 bytes' worth
 *                      V [block_size][v_dim]
 *     int8             K [block_size/16][head_dim/4][16 positions][4 elements]
 *                      V [block_size/16][4][v_dim elements][4 positions]
 *
 * An int8 element is a code in −127…127, stored as code + 128. After the codes of a block and head
 * come their scales, [block_size] f32: element = code · scale. Untiled vectors of codes are padded
 * to multiples of 4 bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { KV_TILE = 16, KV_CODE_BIAS = 128, KV_CODE_MAX = 127 };

static inline bool kv_is_tiled(const struct kv_layer *kv)
{
    return kv->v != NULL && kv->head_dim % KV_TILE == 0 && kv->v_dim % KV_TILE == 0 &&
           kv->block_size % KV_TILE == 0;
}

/* Returns the number of a position's vector within K or V. */
static inline size_t kv_item_of(const struct kv_layer *kv, const uint32_t *table, uint32_t i_kv,
                                uint32_t position)
{
    size_t block = table[position / kv->block_size];
    return (block * kv->n_kv_heads + i_kv) * kv->block_size + position % kv->block_size;
}

/* Returns the index of element d of the K at item number `item`; not for int8. */
static inline size_t kv_key_at(const struct kv_layer *kv, size_t item, uint32_t d)
{
    if (!kv_is_tiled(kv))
        return item * kv->head_dim + d;
    size_t g = kv->dtype == DTYPE_F32 ? 1 : 2, lane = item % KV_TILE;
    return (item - lane) * kv->head_dim + (d / g * KV_TILE + lane) * g + d % g;
}

/* int8: returns the bytes of the codes of a vector of `dim` elements. */
static inline size_t kv_code_bytes(uint32_t dim)
{
    return ((size_t)dim + 3) & ~(size_t)3;
}

/* int8: returns the byte offset of the codes of the tile (tiled cache) or vector (untiled) of item
 * number `item`. `dim` is head_dim in K, v_dim in V. */
static inline size_t kv_codes_at(const struct kv_layer *kv, uint32_t dim, size_t item)
{
    size_t offset = item % kv->block_size, first = item - offset;
    if (kv_is_tiled(kv))
        offset -= offset % KV_TILE;
    return first * ops_kv_vector_bytes(DTYPE_I8, dim) + offset * kv_code_bytes(dim);
}

/* int8: returns the byte offset of the scale of item number `item`; scales of a tile are
 * adjacent. */
static inline size_t kv_scale_at(const struct kv_layer *kv, uint32_t dim, size_t item)
{
    size_t offset = item % kv->block_size, first = item - offset;
    return first * ops_kv_vector_bytes(DTYPE_I8, dim) + kv->block_size * kv_code_bytes(dim) +
           offset * sizeof(float);
}

/* The pool that holds V, and the elements from a vector of V to the next. */
static inline const void *kv_values_of(const struct kv_layer *kv, uint32_t *out_stride)
{
    *out_stride = kv->v != NULL ? kv->v_dim : kv->head_dim;
    return kv->v != NULL ? kv->v : kv->k;
}

/* int8: returns the offset of code d of the vector in lane `lane` within its tile. */
static inline size_t kv_key_code(uint32_t lane, uint32_t d)
{
    return (size_t)d / 4 * 4 * KV_TILE + lane * 4 + d % 4;
}
static inline size_t kv_value_code(size_t dim, uint32_t lane, uint32_t d)
{
    return lane / 4 * (4 * dim) + (size_t)d * 4 + lane % 4;
}
