/* wgmma_store.h: stores sums of warpgroup multiplications. Included by .cu files only. */
#pragma once

#include "kernels/cuda/thread.h"

/* Stores two adjacent results of a row; n_left of them exist. */
CUDA_DEVICE void wgmma_store_pair(float *y, float first, float second, uint32_t n_left)
{
    if (n_left > 1 && cuda_is_multiple(y, sizeof(float2))) {
        float2 both = {first, second};
        *(float2 *)y = both;
        return;
    }
    if (n_left > 0)
        y[0] = first;
    if (n_left > 1)
        y[1] = second;
}
