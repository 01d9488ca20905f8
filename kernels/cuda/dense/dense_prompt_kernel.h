/* dense_prompt_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ, path P without cuBLASLt: f16 and bf16, int8
 * and f8 weights.
 *
 * A block computes 128 × 128 results with 8 warps of 64 tokens × 32 weight rows. Tokens are the
 * left operand of a 16 × 8 multiplication, weight rows the right operand. A stage has 128 bytes of
 * each row (f16, bf16: 64 columns; f8: 128; int8: 64 columns, 64 bytes of a weight row).
 * Asynchronous copies fill 3 stages in a ring (int8: 4), 96 KiB of shared memory. Pieces of a row
 * are rotated by the row's number, so that neither copies nor ldmatrix have bank conflicts. Bytes
 * beyond m, n or the segment's end are zeros. Every result is one chain of multiplications along k
 * per segment, front to back. This holds for any m and any place of its row. Segments are added by
 * the contract's tree; its waiting branches are in local memory.
 *
 * Operations: 2·m·n·k. Bytes: a block reads 2 · 128 rows: 64 operations per byte of the second
 * cache at 16 bits. Bound: the multiplications. Per stage of 64 columns a warp issues 64 of them,
 * 24 ldmatrix and 8 copies. Registers: 64 sums, 24 fragments, at most 128, so 2 blocks share an SM.
 * With f8, which sm_90 widens in registers, an SM has one block. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: dense_prompt.cu dense_promptIL10dense_form[123]E registers 128 shared 1024 stack 1024
 *    ptxas: dense_prompt.cu dense_promptIL10dense_form4E registers 184 shared 1024 stack 1024
 *    ptx: dense_prompt.cu dense_prompt mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 *    ptx: dense_prompt.cu dense_prompt ldmatrix.sync.aligned.m8n8.x4
 */
#pragma once

#include "kernels/cuda/dense/dense_fragment.h"
#include "kernels/cuda/dense/dense_prompt_index.h"
#include "kernels/cuda/dense/prompt_tree.h"

/* Starts copying a stage and advances; zeros after the end. `skip`: prompt_pair_skip(), or 0. */
template <enum dense_form FORM, uint32_t ROWS = PROMPT_TILE>
CUDA_DEVICE void prompt_fetch(unsigned char *stage, struct prompt_source *at,
                              const struct dense_slices &slices, intptr_t skip = 0)
{
    bool x_in = prompt_has_x(at, FORM, threadIdx.x), w_in = prompt_has_w(at, FORM, threadIdx.x);
    const unsigned char *x = prompt_x_of(at, FORM), *w = prompt_w_of(at, FORM);
#pragma unroll
    for (uint32_t i = 0; i < PROMPT_X_COPIES; i++)
        cp_async_16(stage + prompt_x_place(at, i), x + prompt_row_step(i, at->x_step),
                    x_in && cuda_bit(at->x_valid, i));
#pragma unroll
    for (uint32_t i = 0; i < prompt_w_copies(FORM, ROWS); i++)
        cp_async_16(stage + prompt_w_place(at, FORM, i),
                    w + prompt_w_step(i, prompt_w_copies(FORM, ROWS), at->w_step, skip),
                    w_in && cuda_bit(at->w_valid, i));
    prompt_next(at, FORM, &slices);
}

/* Loads the fragments of a warp's 32 weight rows for multiplication c of a stage. */
template <enum dense_form FORM>
CUDA_DEVICE void prompt_weights(uint32_t b[4][2], const unsigned char *w, uint32_t c)
{
    uint32_t lane = cuda_lane_of(threadIdx.x), r[2][4];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        ldmatrix_x4(r[i], w + prompt_b_at(i, c, lane));
    prompt_b(b, r[0]);
    prompt_b(b + 2, r[1]);
}

/* The same for int8: a lane's word has four columns of its row. */
CUDA_DEVICE void prompt_weights_int8(uint32_t b[4][2], const unsigned char *w, uint32_t c)
{
    uint32_t lane = cuda_lane_of(threadIdx.x);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        dense_widen(b[i], *(const uint32_t *)(w + prompt_int8_at(i, c, lane)));
}

/* d[token tile][row tile] += a stage's products. Not unrolled: the compiler would read ahead into
 * registers that the second block of an SM needs. */
template <enum dense_form FORM>
CUDA_DEVICE void prompt_multiply(float d[4][4][4], const unsigned char *stage, uint32_t warp)
{
    uint32_t lane = cuda_lane_of(threadIdx.x);
    const unsigned char *w = stage + prompt_warp_w(FORM, warp), *x = stage + prompt_warp_x(warp);
#pragma unroll 1
    for (uint32_t c = 0; c < PROMPT_WARP_STEPS; c++) {
        uint32_t a[4][4], b[4][2];
        if constexpr (FORM == DENSE_INT8)
            prompt_weights_int8(b, w, c);
        else
            prompt_weights<FORM>(b, w, c);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            ldmatrix_x4(a[i], x + prompt_a_at(i, c, lane));
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                dense_mma<FORM>(d[i][j], a[i], b[j]);
    }
}

/* token, row: the block's first. */
CUDA_DEVICE void prompt_store(const struct dense_job &job, float d[4][4][4], uint32_t token,
                              uint32_t row, uint32_t warp)
{
    const struct dense_part &p = job.parts[0];
    uint32_t lane = cuda_lane_of(threadIdx.x);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t to_token = token + prompt_result_token(warp, i, e, lane);
                uint32_t to_row = row + prompt_result_row(warp, j, e, lane);
                if (to_token < job.m && to_row < p.n)
                    p.y[cuda_element(to_token, p.y_stride, to_row)] =
                        dense_scaled(d[i][j][e], job.x_scale, p.w_scale, to_token, to_row);
            }
}

/* Grid: tiles of tokens (which share weights in the second cache), tiles of weight rows. */
template <enum dense_form FORM>
static __global__ void __launch_bounds__(PROMPT_THREADS, FORM == DENSE_F8 ? 1 : 2)
    dense_prompt(const struct dense_job job)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    constexpr uint32_t S = prompt_n_stages(FORM), stage_bytes = prompt_stage_bytes(FORM);
    uint32_t warp = cuda_warp_of(threadIdx.x), token = prompt_first(blockIdx.x, PROMPT_TILE);
    uint32_t row = prompt_first(blockIdx.y, PROMPT_TILE), stage = 0;
    struct prompt_source at = prompt_source_of(&job, FORM, PROMPT_TILE, token, row, threadIdx.x);
    struct prompt_tree<PROMPT_SUMS> tree;
    float d[4][4][4] = {};
    tree.present = 0;
    prompt_enter(&at, &job.slices);
    for (uint32_t i = 0; i + 1 < S; i++) {
        prompt_fetch<FORM>(shared + cuda_stage_at(i, stage_bytes), &at, job.slices);
        cp_async_commit();
    }
    for (uint32_t s = 0; s < job.slices.count; s++) {
        uint32_t n_steps = dense_slice_groups(&job.slices, s, prompt_step(FORM));
        for (uint32_t i = 0; i < n_steps; i++) {
            cp_async_wait<S - 2>();
            __syncthreads(); /* the stage has arrived, and the stage before it has been read */
            uint32_t free = cuda_stage_after(stage, S - 1, S);
            prompt_fetch<FORM>(shared + cuda_stage_at(free, stage_bytes), &at, job.slices);
            cp_async_commit();
            prompt_multiply<FORM>(d, shared + cuda_stage_at(stage, stage_bytes), warp);
            stage = cuda_stage_after(stage, 1, S);
        }
        if (job.slices.count > 1)
            prompt_tree_put(&tree, &d[0][0][0], s, job.slices);
    }
    cp_async_wait<0>();
    prompt_store(job, d, token, row, warp);
}
