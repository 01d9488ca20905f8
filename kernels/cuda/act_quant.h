/* act_quant.h: arguments of two kernels in act_quant.cu. They convert a row to integer activations,
 * and read an embedding's row from a quantized weight. Plain data, shared by host and kernels. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: act_quant.cu rows registers 80 shared 8192 stack 64
 */
#pragma once

#include "kernels/cuda/quant_index.h"

/* The planes of quant_act_layout_of(), on the device. */
struct quant_planes {
    uint8_t *lo, *hi, *sums, *hi_sums, *digits;
    float *scale; /* [n_rows]; NaN if a value of x is not finite */
};

struct quant_rows {
    struct quant_planes to;
    const float *x; /* [n_rows][x_stride] */
    size_t x_stride;
    uint32_t n_rows, k, k_total;
    uint32_t n_parts,
        bounds[CUDA_SEGMENTS + 1]; /* bounds of the segments, for the columns on this rank */
    uint32_t n_ranks;
    float *stats;           /* [n_rows][2] Σ|x|, max|x| of this rank; written if n_ranks > 1 … */
    const float *all_stats; /* … and [n_ranks][n_rows][2], read by the second call */
};

struct quant_embedding {
    const uint8_t *data;
    const float *units;
    struct quant_layout layout;
    uint32_t n_rows, n_cols;
};
