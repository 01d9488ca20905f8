/* attention_amx.h: attention in AMX tiles, the set "amx" alone. Over an int8 cache: integers, the
 * same bits as in every other set. What tiles do not take is done as by avx512. */
#pragma once

#include "kernels/cpu/inner.h"

enum {
    /* Queries of a KV head in an item from which tiles are faster than vpdpbusd: of a partition and
     * 64 elements, 16 queries take 32 products of tiles, 21 cycles each, and 250 for arranging V;
     * one query takes 256 by vpdpbusd (docs/performance.md, "AMX"). */
    AMX_ATTENTION_MIN_QUERIES = 4,
    AMX_ATTENTION_MIN_DIM = 64, /* a tile's worth of codes */
};

void attention_amx(const struct attention_tile *tile, void *scratch);
