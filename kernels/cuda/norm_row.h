/* norm_row.h: RMS norm of one row by one block. The same bits as kernels/cpu/ref.c: 16 lanes of
 * fused multiply-adds, the tree 8 4 2 1, correctly rounded division and square root. */
#pragma once

#include <math.h>

#include "kernels/cuda/block.h"

/* y[n] = x / rms(x) · w; y may be x. Bytes: 12·n. arXiv 1910.07467, eq. 4. */
BLOCK_FN void norm_row(const struct block *b, float *y, const float *x, const float *w, uint32_t n,
                       float eps)
{
    float *lanes = b->shared->lanes;
    for (uint32_t l = b->tid; l < CUDA_LANES; l += b->n_threads) {
        float sum = 0.0f;
        for (uint32_t i = l; i < n; i += CUDA_LANES)
            sum = fmaf(x[i], x[i], sum);
        lanes[l] = sum;
    }
    block_fold_lanes(b, lanes, 1);
    float scale = 1.0f / sqrtf(lanes[0] / (float)n + eps);
    for (uint32_t i = b->tid; i < n; i += b->n_threads)
        y[i] = x[i] * scale * w[i];
    block_sync(b); /* the lanes may be written again */
}
