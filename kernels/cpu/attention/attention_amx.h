/* attention_amx.h: attention in AMX tiles, for the set "amx" alone. Over an int8 cache: integers,
 * with the same bits as every other set. Over a bf16 cache: sums in the tiles' order, for any
 * number of queries (attention_bf16_amx_impl.h). Other caches use the code of avx512. */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/inner.h"

enum {
    /* From this number of queries per KV head and item, tiles are faster than vpdpbusd. Per
     * partition and 64 elements, 16 queries take 32 tile products of 21 cycles, and 250 cycles to
     * rearrange V. By vpdpbusd one query takes 256 cycles (docs/log/2026-11-22-amx-counted.md). */
    AMX_ATTENTION_MIN_QUERIES = 4,
    AMX_ATTENTION_MIN_DIM = 64, /* a full row of a tile */
    /* Over bf16: 16 queries take 32 products and 128 rearranged pairs of V, as much time as the
     * FMAs of two queries. */
    AMX_ATTENTION_MIN_BF16_QUERIES = 2,
    AMX_ATTENTION_MIN_BF16_DIM = 32, /* head_dim padded to 16; smaller heads use avx512 */
};

/* Attention over a bf16 cache. Returns false if the tile must be computed by avx512. */
bool attention_bf16_amx(const struct attention_tile *tile, void *scratch);
void attention_amx(const struct attention_tile *tile, void *scratch);
