/* dense_act_kernel.h: converts activations for dense linears, and scales results after a sum over
 * ranks. Every thread has four adjacent columns. Bound: memory; dense_job.h gives the bytes. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: dense_act.cu act_halves registers 24
 *    ptxas: dense_act.cu act_largest registers 32 shared 64
 *    ptxas: dense_act.cu act_f8 registers 40 shared 64
 *    ptxas: dense_act.cu act_f16 registers 40 shared 64
 *    ptxas: dense_act.cu dense_scale registers 24
 */
#pragma once

#include "kernels/cuda/dense/dense_fragment.h"
#include "kernels/cuda/fragment.h"

CUDA_DEVICE float4 act_four(const float *row, uint32_t column, uint32_t k)
{
    const float *at = row + column;
    if (column + ACT_COLUMNS <= k && cuda_is_multiple(at, sizeof(float4)))
        return *(const float4 *)at;
    float4 x = {column < k ? at[0] : 0.0f, column + 1 < k ? at[1] : 0.0f,
                column + 2 < k ? at[2] : 0.0f, column + 3 < k ? at[3] : 0.0f};
    return x;
}

/* Loads ACT_BATCH groups of four columns of a thread, the first at column i, zero beyond k. All
 * loads are in flight at once. */
CUDA_DEVICE void act_batch(float4 v[ACT_BATCH], const float *row, uint32_t i, uint32_t k)
{
#pragma unroll
    for (uint32_t j = 0; j < ACT_BATCH; j++)
        v[j] = act_four(row, act_batch_column(i, j), k);
}

/* Grid: columns, rows. */
template <enum dense_form FORM>
static __global__ void act_halves(uint16_t *dst, const float *x, size_t x_stride, uint32_t m,
                                  uint32_t k)
{
    cuda_op_begin();
    uint32_t column = act_column(blockIdx.x, threadIdx.x);
    size_t stride = dense_act_stride(k);
    if (column >= stride)
        return;
    for (uint32_t row = blockIdx.y; row < m; row += gridDim.y) {
        float4 v = act_four(x + cuda_row(row, x_stride), column, k);
        uint32_t h[4] = {act_half(v.x, FORM), act_half(v.y, FORM), act_half(v.z, FORM),
                         act_half(v.w, FORM)};
        uint16_t *to = dst + cuda_row(row, stride);
        if constexpr (FORM == DENSE_INT8) { /* columns 0 and 2, 1 and 3 are adjacent */
            *(uint32_t *)(to + dense_paired_at(column)) = fragment_pair(h[0], h[2]);
            *(uint32_t *)(to + dense_paired_at(column + 1)) = fragment_pair(h[1], h[3]);
        } else {
            uint2 pairs = {fragment_pair(h[0], h[1]), fragment_pair(h[2], h[3])};
            *(uint2 *)(to + column) = pairs;
        }
    }
}

/* Returns the largest magnitude of a row, computed by one block; ignores NaN. */
CUDA_DEVICE float act_row_largest(const float *row, uint32_t k)
{
    __shared__ float warps[ACT_WARPS];
    float largest = 0.0f;
    for (uint32_t i = act_column(0, threadIdx.x); i < k; i += ACT_BATCH_COLUMNS) {
        float4 v[ACT_BATCH];
        act_batch(v, row, i, k);
#pragma unroll
        for (uint32_t j = 0; j < ACT_BATCH; j++)
            largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v[j].x), fabsf(v[j].y))),
                            fmaxf(fabsf(v[j].z), fabsf(v[j].w)));
    }
    for (int lanes = DENSE_WARP / 2; lanes > 0; lanes /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, lanes));
    __syncthreads(); /* the previous row has been read */
    if (cuda_lane_of(threadIdx.x) == 0)
        warps[cuda_warp_of(threadIdx.x)] = largest;
    __syncthreads();
    for (uint32_t i = 0; i < ACT_WARPS; i++)
        largest = fmaxf(largest, warps[i]);
    return largest;
}

static __global__ void act_largest(float *largest, const float *x, size_t x_stride, uint32_t m,
                                   uint32_t k)
{
    cuda_op_begin();
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        float found = act_row_largest(x + cuda_row(row, x_stride), k);
        if (threadIdx.x == 0)
            largest[row] = found;
    }
}

/* A block per row; `largest` NULL: computed here. An infinite row gets an infinite scale and
 * becomes NaN, as it should. */
static __global__ void act_f8(uint8_t *dst, float *scale, const float *largest, const float *x,
                              size_t x_stride, uint32_t m, uint32_t k)
{
    cuda_op_begin();
    size_t stride = dense_act_stride(k);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        const float *from = x + cuda_row(row, x_stride);
        float top = fmaxf(largest ? largest[row] : act_row_largest(from, k), ACT_TINY);
        float inverse = act_f8_inverse(top);
        uint8_t *to = dst + cuda_row(row, stride);
        for (uint32_t i = act_column(0, threadIdx.x); i < stride; i += ACT_BATCH_COLUMNS) {
            float4 v[ACT_BATCH];
            act_batch(v, from, i, k);
#pragma unroll
            for (uint32_t j = 0; j < ACT_BATCH; j++) {
                uint32_t column = act_batch_column(i, j);
                if (column < stride)
                    *(uint32_t *)(to + column) =
                        fragment_four(act_f8_code(v[j].x, inverse), act_f8_code(v[j].y, inverse),
                                      act_f8_code(v[j].z, inverse), act_f8_code(v[j].w, inverse));
            }
        }
        __syncthreads(); /* `scale` may be `largest` */
        if (threadIdx.x == 0)
            scale[row] = act_f8_unit(top);
    }
}

/* A block per row. A power of two loses nothing. A value of 2^-28 of the row's largest is still a
 * normal f16. */
static __global__ void act_f16(uint16_t *dst, float *scale, const float *x, size_t x_stride,
                               uint32_t m, uint32_t k)
{
    cuda_op_begin();
    size_t stride = dense_act_stride(k);
    for (uint32_t row = blockIdx.x; row < m; row += gridDim.x) {
        const float *from = x + cuda_row(row, x_stride);
        float top = fmaxf(act_row_largest(from, k), ACT_TINY);
        uint16_t *to = dst + cuda_row(row, stride);
        for (uint32_t i = act_column(0, threadIdx.x); i < stride; i += ACT_BATCH_COLUMNS) {
            float4 v[ACT_BATCH];
            act_batch(v, from, i, k);
#pragma unroll
            for (uint32_t j = 0; j < ACT_BATCH; j++) {
                uint32_t column = act_batch_column(i, j);
                uint2 four = {pack_f16x2(act_f16_scaled(v[j].x, top), act_f16_scaled(v[j].y, top)),
                              pack_f16x2(act_f16_scaled(v[j].z, top), act_f16_scaled(v[j].w, top))};
                if (column < stride)
                    *(uint2 *)(to + column) = four;
            }
        }
        if (threadIdx.x == 0)
            scale[row] = act_f16_unit(top);
    }
}

/* Grid: columns, rows. */
static __global__ void dense_scale(float *y, size_t y_stride, const float *x, size_t x_stride,
                                   const float *row_scale, const float *col_scale, uint32_t m,
                                   uint32_t n)
{
    cuda_op_begin();
    uint32_t column = cuda_item(blockIdx.x, ACT_THREADS, threadIdx.x);
    if (column >= n)
        return;
    for (uint32_t row = blockIdx.y; row < m; row += gridDim.y)
        y[cuda_element(row, y_stride, column)] =
            dense_scaled(x[cuda_element(row, x_stride, column)], row_scale, col_scale, row, column);
}
