/* dense_act_kernel.h: activations as dense linears read them, and what is left to do after a sum
 * over ranks. Every thread has four neighbouring columns. Bound: memory; the bytes are at the
 * launchers (dense_job.h). */
/* What the compiler is held to (tests/lint/ptxas.sh):
 * ptxas: dense_act.cu act_halves registers 24
 * ptxas: dense_act.cu act_largest registers 32 shared 64
 * ptxas: dense_act.cu act_f8 registers 32 shared 64
 * ptxas: dense_act.cu dense_scale registers 24
 */
#pragma once

#include "kernels/cuda/dense_fragment.h"
#include "kernels/maths.h"

enum { ACT_THREADS = 128, ACT_COLUMNS = 4, ACT_BLOCK_COLUMNS = ACT_THREADS * ACT_COLUMNS };

#define ACT_TINY 1e-30f /* rows whose largest is below count as this large */

CUDA_DEVICE float4 act_four(const float *row, uint32_t column, uint32_t k)
{
    if (column + ACT_COLUMNS <= k && (uintptr_t)(row + column) % sizeof(float4) == 0)
        return *(const float4 *)(row + column);
    float4 x = {column < k ? row[column] : 0.0f, column + 1 < k ? row[column + 1] : 0.0f,
                column + 2 < k ? row[column + 2] : 0.0f, column + 3 < k ? row[column + 3] : 0.0f};
    return x;
}

CUDA_DEVICE float act_bounded(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

template <enum dense_form FORM> CUDA_DEVICE uint32_t act_half(float x)
{
    return FORM == DENSE_F16 ? maths_f32_to_f16(act_bounded(x, 65504.0f)) : maths_f32_to_bf16(x);
}

/* Grid: columns, rows. */
template <enum dense_form FORM>
static __global__ void act_halves(uint16_t *dst, const float *x, size_t x_stride, uint32_t m,
                                  uint32_t k)
{
    cuda_op_begin();
    uint32_t column = (blockIdx.x * ACT_THREADS + threadIdx.x) * ACT_COLUMNS;
    size_t stride = dense_act_stride(k);
    if (column >= stride)
        return;
    for (uint32_t row = blockIdx.y; row < m; row += gridDim.y) {
        float4 v = act_four(x + row * x_stride, column, k);
        uint32_t h[4] = {act_half<FORM>(v.x), act_half<FORM>(v.y), act_half<FORM>(v.z),
                         act_half<FORM>(v.w)};
        if constexpr (FORM == DENSE_INT8) { /* columns 0 and 2, 1 and 3 are neighbours */
            uint32_t *to = (uint32_t *)(dst + row * stride);
            to[dense_paired_at(column) / 2] = h[0] | h[2] << 16;
            to[dense_paired_at(column + 1) / 2] = h[1] | h[3] << 16;
        } else {
            uint2 pairs = {h[0] | h[1] << 16, h[2] | h[3] << 16};
            *(uint2 *)(dst + row * stride + column) = pairs;
        }
    }
}

/* The largest magnitude of a row, by one block; NaN is left out. */
CUDA_DEVICE float act_row_largest(const float *row, uint32_t k)
{
    __shared__ float warps[ACT_THREADS / DENSE_WARP];
    float largest = 0.0f;
    for (uint32_t i = threadIdx.x * ACT_COLUMNS; i < k; i += ACT_THREADS * ACT_COLUMNS) {
        float4 v = act_four(row, i, k);
        largest =
            fmaxf(fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
    }
    for (int step = DENSE_WARP / 2; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    __syncthreads(); /* the row before has been read */
    if (threadIdx.x % DENSE_WARP == 0)
        warps[threadIdx.x / DENSE_WARP] = largest;
    __syncthreads();
    for (uint32_t i = 0; i < ACT_THREADS / DENSE_WARP; i++)
        largest = fmaxf(largest, warps[i]);
    return largest;
}

static __global__ void act_largest(float *largest, const float *x, size_t x_stride, uint32_t m,
                                   uint32_t k)
{
    cuda_op_begin();
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        float found = act_row_largest(x + row * x_stride, k);
        if (threadIdx.x == 0)
            largest[row] = found;
    }
}

/* One block per row; `largest` NULL: found here. An infinite row has a scale of infinity and ends
 * as NaN, as it should. */
static __global__ void act_f8(uint8_t *dst, float *scale, const float *largest, const float *x,
                              size_t x_stride, uint32_t m, uint32_t k)
{
    cuda_op_begin();
    uint32_t stride = (uint32_t)dense_act_stride(k);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        const float *from = x + row * x_stride;
        float top = fmaxf(largest ? largest[row] : act_row_largest(from, k), ACT_TINY);
        float inverse = 448.0f / top;
        uint32_t *to = (uint32_t *)(dst + (size_t)row * stride);
        for (uint32_t i = threadIdx.x * ACT_COLUMNS; i < stride; i += ACT_THREADS * ACT_COLUMNS) {
            float4 v = act_four(from, i, k);
            to[i / ACT_COLUMNS] = (uint32_t)maths_f32_to_f8(v.x * inverse) |
                                  (uint32_t)maths_f32_to_f8(v.y * inverse) << 8 |
                                  (uint32_t)maths_f32_to_f8(v.z * inverse) << 16 |
                                  (uint32_t)maths_f32_to_f8(v.w * inverse) << 24;
        }
        __syncthreads(); /* `scale` may be `largest` */
        if (threadIdx.x == 0)
            scale[row] = top / 448.0f;
    }
}

/* Grid: columns, rows. */
static __global__ void dense_scale(float *y, size_t y_stride, const float *x, size_t x_stride,
                                   const float *row_scale, const float *col_scale, uint32_t m,
                                   uint32_t n)
{
    cuda_op_begin();
    uint32_t column = blockIdx.x * ACT_THREADS + threadIdx.x;
    if (column >= n)
        return;
    for (uint32_t row = blockIdx.y; row < m; row += gridDim.y)
        y[row * y_stride + column] =
            dense_scaled(x[row * x_stride + column], row_scale, col_scale, row, column);
}
