/* linear_amx.h: linears in AMX tiles; the set "amx" is avx512 with these in place of its own.
 * Integer weights, F16 and F32 have the same bits as in every other set; BF16 adds in the tiles'
 * order (linear_dense_amx_impl.h), whatever the number of rows, and so does attention over a bf16
 * cache (attention_amx.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/inner.h"

/* Of the set: as the others', but for BF16 weights and caches. */
#define AMX_NUMERICS "cpu-b4-tiles"

enum {
    /* Rows from which tiles are faster than vpdpbusd (docs/log/2026-11-22-amx-counted.md): per 16
     * outputs × 64 columns the unpacking takes about 96 cycles and 16 rows of products 64, against
     * 12 a row.
     */
    AMX_MIN_ROWS = 16,
    /* Of form S, where a weight has three or four planes (linear_int_amx_planes.h): unpacking takes
     * 230 to 340 cycles and 16 rows of products 80 to 110, against 15 to 18 a row and 3 to 8 for
     * its outliers. */
    AMX_MIN_ROWS_THREE = 24,
    AMX_MIN_ROWS_FOUR = 32,
    AMX_MAX_K = 32768,           /* 255·127·K, the most of a sum, is below 2^31 */
    AMX_MAX_K_TOTAL = 8 * 32768, /* and so is 255·29.5·k_total, of all ranks together */
    AMX_BLOCK_BYTES = 1 << 20,   /* of lo, per block of rows: half of an L2 cache with AMX */
    AMX_BLOCK_ROWS = 512,
    /* Of BF16: a tile costs 21 cycles whatever its rows, the FMAs that stand for it 17 a row. */
    AMX_DENSE_MIN_ROWS = 4,
    AMX_DENSE_ROWS = 256, /* per share: weights come from memory once for so many */
    /* What a share touches of its scratch at most: planes at AMX_MAX_K (1 MiB) and sums, or the
     * totals of BF16 (2 MiB). */
    AMX_SCRATCH_BYTES = 2 << 20,
};

/* Whether this processor's tiles multiply bytes as documented; tried once. Only where
 * cpu_features() has amx_int8. A hypervisor or processor that does otherwise costs speed, not
 * answers. */
bool linear_amx_int8_checks(void);

/* The same of TDPBF16PS. */
bool linear_amx_bf16_checks(void);

/* Rows [begin, end) of lo and outliers as tiles, for linear_int_amx(). */
void act_arrange_amx(struct act_cpu *act, uint32_t begin, uint32_t end);
void linear_int_amx(const struct linear_job *job, const struct linear_share *share);
void linear_dense_amx(const struct linear_job *job, const struct linear_share *share);
