/* dense_wgmma_end.h: the treatment of a block's sums in dense_wgmma. The block stores
 * the sums, adds them to a residual sum, or turns gate and up into the next linear's activations.
 * The bits are those of the plain ops (act_mul and add in rows/row_ops.h, act_half in
 * dense_maths.h).
 *
 * Additions and gates pass through shared memory, over the ring. So each lane has four adjacent
 * columns and accesses 16 bytes at once. The code of an activation is there once. A warp writes
 * and reads its own 16 tokens alone. Bytes of a block: addition 128 KiB read and 128 KiB written,
 * gate 32 KiB written. The 128 · 128 activations of a gate are about 1,000,000 instructions: 8 % of
 * the block's time at K = 4096. */
#pragma once

#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/dense/dense_prompt_index.h"
#include "kernels/cuda/dense/ptx_wgmma.h"
#include "kernels/cuda/dense/wgmma_store.h"
#include "kernels/cuda/four.h"

enum { WGMMA_ADD_BATCH = 8 }; /* loads of a lane in flight */

/* Stores a thread's results; token and row are the block's first. */
CUDA_DEVICE void wgmma_store(const struct dense_job &job, const struct dense_part &p,
                             const float d[WGMMA_SUMS], uint32_t token, uint32_t row)
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t to_token = token + wgmma_result_token(threadIdx.x, half);
        if (to_token >= job.m)
            continue;
        float *y = p.y + cuda_row(to_token, p.y_stride);
#pragma unroll
        for (uint32_t j = 0; j < WGMMA_ROW_TILES; j++) {
            uint32_t to_row = row + wgmma_result_row(threadIdx.x, j);
            const float *two = d + wgmma_sum_at(half, j);
            wgmma_store_pair(y + to_row, two[0], two[1], to_row < p.n ? p.n - to_row : 0);
        }
    }
}

/* Moves the block's sums to shared memory; returns the warp's floats. The ring is free afterwards,
 * because all copies have arrived and all multiplications have ended. */
CUDA_DEVICE const float *wgmma_put_sums(float *shared, const float d[WGMMA_SUMS])
{
    static_assert(wgmma_sums_bytes() <= wgmma_shared_bytes() - WGMMA_EIGHT, "they fit the ring");
    uint32_t lane = cuda_lane_of(threadIdx.x);
    float *own = shared + wgmma_warp_at(cuda_warp_of(threadIdx.x));
    __syncthreads();
#pragma unroll
    for (uint32_t half = 0; half < 2; half++)
#pragma unroll
        for (uint32_t j = 0; j < WGMMA_ROW_TILES; j++) {
            const float *two = d + wgmma_sum_at(half, j);
            float2 both = {two[0], two[1]};
            *(float2 *)(own + wgmma_put_at(lane, half, j)) = both;
        }
    __syncwarp();
    return own;
}

/* y = d + bias; then sum += y if there is a sum. */
CUDA_DEVICE void wgmma_end_add(const struct dense_job &job, const struct dense_part &p,
                               float *shared, const float d[WGMMA_SUMS], uint32_t token,
                               uint32_t row)
{
    const float *own = wgmma_put_sums(shared, d);
    uint32_t warp = cuda_warp_of(threadIdx.x), lane = cuda_lane_of(threadIdx.x);
    float *to = p.sum ? p.sum : p.y;
    size_t stride = p.sum ? p.sum_stride : p.y_stride;
#pragma unroll 1
    for (uint32_t i = 0; i < WGMMA_ADD_ITEMS; i += WGMMA_ADD_BATCH) {
        float4 before[WGMMA_ADD_BATCH];
#pragma unroll
        for (uint32_t j = 0; j < WGMMA_ADD_BATCH; j++) {
            struct wgmma_four four = wgmma_four_of(i + j, WGMMA_LINES, warp, lane);
            uint32_t of_token = token + four.token, of_row = row + four.column;
            uint32_t n = of_token < job.m && p.sum ? four_below(of_row, p.n) : 0;
            before[j] = four_load(to + cuda_element(of_token, stride, of_row), n);
        }
#pragma unroll
        for (uint32_t j = 0; j < WGMMA_ADD_BATCH; j++) {
            struct wgmma_four four = wgmma_four_of(i + j, WGMMA_LINES, warp, lane);
            uint32_t of_token = token + four.token, of_row = row + four.column;
            uint32_t n = of_token < job.m ? four_below(of_row, p.n) : 0;
            float4 y = *(const float4 *)(own + four.at);
            if (p.bias)
                y = four_sum(y, four_load(p.bias + of_row, n));
            if (p.sum)
                y = four_sum(before[j], y);
            four_store(to + cuda_element(of_token, stride, of_row), y, n);
        }
    }
}

/* Returns the next linear's activation for a gate and an up. */
template <enum dense_form FORM>
CUDA_DEVICE uint32_t wgmma_gated_half(float gate, float up, uint32_t kind, bool exists)
{
    return exists ? act_half(dense_gated(gate, up, kind), FORM) : 0;
}

/* half = activation(gate) · up, rounded; zeros from column n to the row's end. */
template <enum dense_form FORM>
CUDA_DEVICE void wgmma_end_gated(const struct dense_job &job, float *shared,
                                 const float d[WGMMA_SUMS], uint32_t token, uint32_t row)
{
    const struct dense_part &gate = job.parts[0], &up = job.parts[1];
    const float *own = wgmma_put_sums(shared, d);
    uint32_t warp = cuda_warp_of(threadIdx.x), lane = cuda_lane_of(threadIdx.x);
    size_t stride = dense_act_stride(gate.n);
#pragma unroll 2
    for (uint32_t i = 0; i < WGMMA_WARP_TOKENS; i++) {
        struct wgmma_four four = wgmma_four_of(i, 1, warp, lane);
        uint32_t of_token = token + four.token, of_row = row + four.column;
        uint32_t n = four_below(of_row, gate.n);
        float4 g = *(const float4 *)(own + four.at);
        float4 u = *(const float4 *)(own + wgmma_up_at(four.at));
        if (gate.bias)
            g = four_sum(g, four_load(gate.bias + of_row, n));
        if (up.bias)
            u = four_sum(u, four_load(up.bias + of_row, n));
        uint32_t h[FOUR] = {wgmma_gated_half<FORM>(g.x, u.x, job.activation, n > 0),
                            wgmma_gated_half<FORM>(g.y, u.y, job.activation, n > 1),
                            wgmma_gated_half<FORM>(g.z, u.z, job.activation, n > 2),
                            wgmma_gated_half<FORM>(g.w, u.w, job.activation, n > 3)};
        uint2 pairs = {fragment_pair(h[0], h[1]), fragment_pair(h[2], h[3])};
        if (of_token < job.m && of_row < stride)
            *(uint2 *)(job.half + cuda_element(of_token, stride, of_row)) = pairs;
    }
}
