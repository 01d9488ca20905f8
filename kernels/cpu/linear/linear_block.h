/* linear_block.h: the number of rows that an item of a linear reads, so that their activations stay
 * in the L2 cache. */
#pragma once

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/weight_cpu.h"

enum { LINEAR_ROW_MULTIPLE = 48 }; /* a multiple of the tile height of every kernel */

static inline uint32_t linear_row_block(const struct cpu_inner *inner, const struct weight_cpu *w)
{
    if (w->base.act_kind == ACT_BF16 && inner->bf16_tile_rows > 0)
        return inner->bf16_tile_rows;
    uint32_t row_bytes = w->k_pad * (w->base.act_kind == ACT_INT8 ? 1 : 4);
    uint32_t fit = inner->row_block_bytes / (row_bytes > 0 ? row_bytes : 1);
    fit = fit < LINEAR_ROW_MULTIPLE ? LINEAR_ROW_MULTIPLE
                                    : fit / LINEAR_ROW_MULTIPLE * LINEAR_ROW_MULTIPLE;
    if (inner->arrange != NULL && fit > ACT_PAIR_ROWS)
        fit = fit / ACT_PAIR_ROWS * ACT_PAIR_ROWS;
    return fit;
}
