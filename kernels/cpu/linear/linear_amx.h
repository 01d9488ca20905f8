/* linear_amx.h: linears in AMX tiles. The set "amx" is avx512 with these linears instead of its
 * own. Integer weights, F16 and F32 give the same bits as every other set. BF16 sums are in the
 * tiles' order (linear_dense_amx_impl.h) for any number of rows. So is attention over a bf16 cache
 * (attention_amx.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/inner.h"

/* The set's numerics: it differs from the other sets for BF16 weights and caches. */
#define AMX_NUMERICS "cpu-b4-tiles"

enum {
    /* From this number of rows tiles are faster than vpdpbusd (docs/log/2026-11-22-amx-counted.md).
     * Per 16 outputs × 64 columns, unpacking takes about 96 cycles and 16 rows of products 64;
     * vpdpbusd takes 12 per row. */
    AMX_MIN_ROWS = 16,
    /* The same for form S, where a weight has three or four planes (linear_int_amx_planes.h).
     * Unpacking takes 230 to 340 cycles and 16 rows of products 80 to 110. vpdpbusd takes 15 to 18
     * per row, and 3 to 8 for its outliers. */
    AMX_MIN_ROWS_THREE = 24,
    AMX_MIN_ROWS_FOUR = 32,
    AMX_MAX_K = 32768,           /* so that 255·127·K, the largest sum, is below 2^31 */
    AMX_MAX_K_TOTAL = 8 * 32768, /* 255·29.5·k_total < 2^31: Σ|a| ≤ 29.5·K (numerics.md) */
    AMX_BLOCK_BYTES =
        1 << 20, /* bytes of lo per block of rows: half of the L2 cache of a CPU with AMX */
    AMX_BLOCK_ROWS = 512,
    /* For BF16: a tile costs 21 cycles for any number of rows, and the equivalent FMAs 17 per
     * row. */
    AMX_DENSE_MIN_ROWS = 4,
    AMX_DENSE_ROWS = 256, /* per share: memory reads the weights once for these rows */
    /* The largest part of its scratch that a share uses: planes at AMX_MAX_K (1 MiB) and sums, or
     * the totals of BF16 (2 MiB). */
    AMX_SCRATCH_BYTES = 2 << 20,
};

/* Returns true if this processor's tiles multiply bytes as documented; tested once. Only if
 * cpu_features() has amx_int8. With a hypervisor or processor that differs, only speed is lost. */
bool linear_amx_int8_checks(void);

/* The same for TDPBF16PS. */
bool linear_amx_bf16_checks(void);

/* Rearranges rows [begin, end) of lo and the outliers as tiles, for linear_int_amx(). */
void act_arrange_amx(struct act_cpu *act, uint32_t begin, uint32_t end);
void linear_int_amx(const struct linear_job *job, const struct linear_share *share);
void linear_dense_amx(const struct linear_job *job, const struct linear_share *share);
