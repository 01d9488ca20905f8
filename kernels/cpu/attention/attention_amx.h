/* attention_amx.h: attention in AMX tiles, the set "amx" alone. Over an int8 cache: integers, the
 * same bits as in every other set. Over a bf16 cache: in the tiles' order, whatever the number of
 * queries (attention_bf16_amx_impl.h). The rest is done as by avx512. */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/inner.h"

enum {
    /* Queries of a KV head in an item from which tiles are faster than vpdpbusd: of a partition and
     * 64 elements, 16 queries take 32 products of tiles, 21 cycles each, and 250 for arranging V;
     * one query takes 256 by vpdpbusd (docs/log/2026-11-22-amx-counted.md). */
    AMX_ATTENTION_MIN_QUERIES = 4,
    AMX_ATTENTION_MIN_DIM = 64, /* a tile's worth of codes */
    /* Over bf16: 16 queries take 32 products and 128 pairs of V are arranged, as much as the FMAs
     * of two queries. */
    AMX_ATTENTION_MIN_BF16_QUERIES = 2,
    AMX_ATTENTION_MIN_BF16_DIM = 32, /* head_dim, padded to 16; others as by avx512 */
};

/* Over a bf16 cache. false: it is left to avx512. */
bool attention_bf16_amx(const struct attention_tile *tile, void *scratch);
void attention_amx(const struct attention_tile *tile, void *scratch);
