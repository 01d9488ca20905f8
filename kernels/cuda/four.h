/* four.h: four adjacent floats of a thread, of which the last may not exist. Included by .cu files
 * only. */
#pragma once

#include "kernels/cuda/thread.h"

enum { FOUR = 4 };

/* Returns how many of four columns from `column` on are below n. */
CUDA_HD uint32_t four_below(uint32_t column, uint32_t n)
{
    uint32_t left = column < n ? n - column : 0;
    return left < FOUR ? left : (uint32_t)FOUR;
}

/* Loads the first n of four floats; the others are zeros. */
CUDA_DEVICE float4 four_load(const float *at, uint32_t n)
{
    if (n == FOUR && cuda_is_multiple(at, sizeof(float4)))
        return *(const float4 *)at;
    float4 x = {n > 0 ? at[0] : 0.0f, n > 1 ? at[1] : 0.0f, n > 2 ? at[2] : 0.0f,
                n > 3 ? at[3] : 0.0f};
    return x;
}

/* Stores the first n of four floats. */
CUDA_DEVICE void four_store(float *at, float4 x, uint32_t n)
{
    if (n == FOUR && cuda_is_multiple(at, sizeof(float4))) {
        *(float4 *)at = x;
        return;
    }
    if (n > 0)
        at[0] = x.x;
    if (n > 1)
        at[1] = x.y;
    if (n > 2)
        at[2] = x.z;
    if (n > 3)
        at[3] = x.w;
}

CUDA_DEVICE float4 four_sum(float4 x, float4 y)
{
    float4 both = {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
    return both;
}

/* Returns the largest magnitude of all; ignores NaN. */
CUDA_DEVICE float four_largest(float largest, float4 x)
{
    return fmaxf(fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y))), fmaxf(fabsf(x.z), fabsf(x.w)));
}
