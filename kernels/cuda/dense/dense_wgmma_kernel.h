/* dense_wgmma_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ for f16 and bf16 weights, path P with the
 * warpgroup multiplication of compute capability 9.0. SLUICE_CUDA_PROMPTS (table_cuda.h) chooses
 * this kernel; by default it is used if it passes a check. On an H100 it reaches 95 % of cuBLASLt's
 * rate at 2048 rows.
 *
 * A block computes 128 × 256 results with two groups of four warps, 64 tokens × 256 weight rows
 * each. Stages are those of dense_prompt_kernel.h with twice the weight rows: 48 KiB, four in a
 * ring. While the tensor cores multiply stage i (4 multiplications per group), the threads copy
 * stage i + 2 over stage i − 2, which both groups have finished. Each group waits for its
 * multiplications of stage i − 1 before the barrier of stage i + 1. So there is always one group of
 * multiplications queued behind the running group. Every result is one chain of multiplications
 * along k per segment, front to back. This holds for any m and any place of its row. Segments are
 * added by the contract's tree.
 *
 * Operations: 2·m·n·k. Bytes: a block reads 128 + 256 rows: 85 operations per byte of the second
 * cache. An SM of an H100 does 2048 dense bf16 multiply-adds per clock, so one multiplication of 64
 * × 256 × 16 takes 128. Shared memory has 128 bytes per clock. A step of 16 columns takes 256
 * clocks. Shared memory is busy for 160 of these with operands (2 · (2 + 8) KiB) and for 96 with
 * arriving copies (12 KiB), so all the time. Issue: 12 copies per thread and stage, some 400 of
 * 4096 slots. Storing 128 KiB at the end overlaps with nothing: 8 % at K = 4096, 2 % at 14336. A
 * gated block stores 32 KiB. A
 * row-split matrix also moves 2 · 7 · 128 KiB through local memory for the tree.
 *
 * Registers: 128 sums, at most 255: one block per SM. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: dense_wgmma.cu dense_wgmma.*ELb0ELb[01] registers 255 shared 1024
 *    ptxas: dense_wgmma.cu dense_wgmma.*ELb1ELb0 registers 255 shared 1024 stack 1600
 *    ptxas: dense_wgmma.cu wgmma_is_built registers 16
 *    ptx: dense_wgmma.cu dense_wgmma wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16
 *    ptx: dense_wgmma.cu dense_wgmma wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16
 *    ptx: dense_wgmma.cu dense_wgmma fence.proxy.async.shared::cta
 */
#pragma once

#include "kernels/cuda/dense/dense_prompt_kernel.h"
#include "kernels/cuda/dense/dense_wgmma_end.h"
#include "kernels/cuda/dense/ptx_wgmma.h"

/* d[64, 256] += a stage's products, computed by a group; `stage` is the stage's address. */
template <enum dense_form FORM>
CUDA_DEVICE void wgmma_multiply(float d[WGMMA_SUMS], uint32_t stage, uint32_t group)
{
    uint32_t x = wgmma_x_at(stage, group), w = wgmma_w_at(stage);
#pragma unroll
    for (uint32_t c = 0; c < PROMPT_WARP_STEPS; c++) {
        uint64_t a = wgmma_matrix(wgmma_step_at(x, c)), b = wgmma_matrix(wgmma_step_at(w, c));
        if constexpr (FORM == DENSE_F16)
            wgmma_m64n256k16_f16(d, a, b);
        else
            wgmma_m64n256k16_bf16(d, a, b);
    }
}

/* Scales a thread's sums, for widened weights; token and row are the block's first. The weights'
 * scales lie in shared memory, because their addresses would take registers. */
CUDA_DEVICE void wgmma_scale(const struct dense_job &job, const struct dense_part &p,
                             float d[WGMMA_SUMS], float *shared, uint32_t token, uint32_t row)
{
    uint32_t of_row = wgmma_scale_row(row, threadIdx.x);
    __syncthreads(); /* the stages have been read */
    shared[threadIdx.x] = of_row < p.n ? p.w_scale[of_row] : 0.0f;
    __syncthreads();
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t of_token = token + wgmma_result_token(threadIdx.x, half);
        float x_scale = of_token < job.m ? job.x_scale[of_token] : 0.0f;
        const float *scales = shared + wgmma_result_row(threadIdx.x, 0);
#pragma unroll
        for (uint32_t j = 0; j < WGMMA_ROW_TILES; j++) {
            float2 w_scale = *(const float2 *)(scales + wgmma_result_step(j));
            float *two = d + wgmma_sum_at(half, j);
            two[0] = dense_scaled_by(two[0], x_scale, w_scale.x);
            two[1] = dense_scaled_by(two[1], x_scale, w_scale.y);
        }
    }
}

/* Grid: tiles of tokens (which share weights in the second cache), tiles of weight rows of all
 * parts. SPLIT: the one part has segments. GATED: gate and up are one matrix, 128 rows of each per
 * block. f16 and bf16 have no scales. */
template <enum dense_form FORM, bool SPLIT, bool GATED>
static __global__ void __launch_bounds__(PROMPT_THREADS, 1)
    dense_wgmma(const __grid_constant__ struct dense_job job)
{
#if WGMMA_BUILT
    CUDA_SHARED(memory);
    cuda_op_begin();
    constexpr uint32_t S = WGMMA_STAGES, stage_bytes = wgmma_stage_bytes();
    unsigned char *shared = memory + wgmma_skip(wgmma_address(memory));
    uint32_t address = wgmma_address(shared), group = wgmma_group_of(threadIdx.x);
    uint32_t token = prompt_first(blockIdx.x, PROMPT_TILE), stage = 0;
    struct wgmma_tile tile = {
        0, prompt_first(blockIdx.y, GATED ? (uint32_t)WGMMA_PAIR_ROWS : (uint32_t)WGMMA_ROWS)};
    if (!SPLIT && !GATED)
        tile = wgmma_tile_of(&job, blockIdx.y);
    const struct dense_part &p = job.parts[tile.part];
    uint32_t row = tile.row;
    intptr_t skip = GATED ? prompt_pair_skip(&job, WGMMA_ROWS) : 0;
    struct prompt_source at = prompt_source_of(&job, FORM, WGMMA_ROWS, token, row, threadIdx.x);
    struct prompt_tree<WGMMA_SUMS> tree;
    float d[WGMMA_SUMS] = {};
    tree.present = 0;
    if (!SPLIT && !GATED)
        prompt_take_part(&at, &job, &p, FORM, WGMMA_ROWS, row, threadIdx.x);
    if (GATED)
        prompt_pair_rows(&at, &job, FORM, WGMMA_ROWS, row, threadIdx.x);
    prompt_enter(&at, &job.slices);
    for (uint32_t i = 0; i + 2 < S; i++) {
        prompt_fetch<FORM, WGMMA_ROWS>(shared + cuda_stage_at(i, stage_bytes), &at, job.slices,
                                       skip);
        cp_async_commit();
    }
    for (uint32_t s = 0; s < (SPLIT ? job.slices.count : 1); s++) {
        uint32_t n_steps = dense_slice_groups(&job.slices, s, prompt_step(FORM));
        for (uint32_t i = 0; i < n_steps; i++) {
            cp_async_wait<S - 3>();
            wgmma_fence_shared();
            __syncthreads(); /* the stage has arrived, and the stage before the last has been read
                              */
            wgmma_fence();
            wgmma_multiply<FORM>(d, address + cuda_stage_at(stage, stage_bytes), group);
            wgmma_commit();
            uint32_t free = cuda_stage_after(stage, S - 2, S);
            prompt_fetch<FORM, WGMMA_ROWS>(shared + cuda_stage_at(free, stage_bytes), &at,
                                           job.slices, skip);
            cp_async_commit();
            wgmma_wait_but_one();
            stage = cuda_stage_after(stage, 1, S);
        }
        wgmma_wait(d);
        if (SPLIT)
            prompt_tree_put(&tree, d, s, job.slices);
    }
    cp_async_wait<0>();
    if (!GATED && job.x_scale)
        wgmma_scale(job, p, d, (float *)shared, token, row);
    if (GATED)
        wgmma_end_gated<FORM>(job, (float *)shared, d, token, row);
    else if (p.sum || p.bias)
        wgmma_end_add(job, p, (float *)shared, d, token, row);
    else
        wgmma_store(job, p, d, token, row);
#endif
}

/* Reports if the device's code has the kernels. */
static __global__ void wgmma_is_built(uint32_t *out)
{
    cuda_op_begin();
    *out = WGMMA_BUILT;
}
