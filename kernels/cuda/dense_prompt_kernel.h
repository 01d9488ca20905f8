/* dense_prompt_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ, path P where cuBLASLt is not used: f16 and
 * bf16, int8 and f8 weights.
 *
 * A block makes 128 × 128 results with 8 warps of 64 tokens × 32 weight rows. Tokens are the left
 * operand of a 16 × 8 multiplication, weight rows the right one. Stages of 128 bytes of each row
 * (f16, bf16: 64 columns; f8: 128; int8: 64 columns, 64 bytes of a weight row) come by
 * asynchronous copies, 3 in a ring (int8: 4), 96 KiB of shared memory; rows are turned by their
 * number so that neither copies nor ldmatrix meet in a bank. What lies beyond m, n or the segment's
 * end is zeros. Every result is one chain of multiplications along k per segment, front to back,
 * whatever m is and wherever its row lies; segments are added by the contract's tree, its waiting
 * branches in local memory.
 *
 * Operations: 2·m·n·k. Bytes: a block reads 2 · 128 rows: 64 operations per byte of the second
 * cache at 16 bits. Bound: the multiplications; per stage of 64 columns a warp issues 64 of them,
 * 24 ldmatrix and 8 copies. Registers: 64 sums, 24 fragments, at most 128, so 2 blocks share an SM
 * (f8, which sm_90 widens in registers: one). */
/* What the compiler is held to (tests/lint/ptxas.sh):
 * ptxas: dense_prompt.cu dense_promptIL10dense_form[123]E registers 128 shared 1024 stack 1024
 * ptxas: dense_prompt.cu dense_promptIL10dense_form4E registers 184 shared 1024 stack 1024
 * ptx: dense_prompt.cu dense_prompt mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 * ptx: dense_prompt.cu dense_prompt ldmatrix.sync.aligned.m8n8.x4
 */
#pragma once

#include "kernels/cuda/dense_fragment.h"

/* What a thread copies: a piece of several rows, for one stage after the other. */
struct prompt_source {
    const unsigned char *x, *w;    /* its first row at its place of the next stage */
    size_t x_step, w_step;         /* bytes to its next row */
    uint32_t x_at, w_at;           /* its first piece's place in a stage */
    uint32_t x_valid, w_valid;     /* bit i: its row i is there */
    uint32_t segment, column, end; /* of the next stage */
};

enum { PROMPT_PIECES = PROMPT_LINE / DENSE_PIECE, PROMPT_ROWS = PROMPT_THREADS / PROMPT_PIECES };

/* ROWS: weight rows of a stage. */
template <enum dense_form FORM, uint32_t ROWS = PROMPT_TILE>
CUDA_DEVICE struct prompt_source prompt_place(const struct dense_job &job, uint32_t token,
                                              uint32_t row)
{
    constexpr uint32_t w_line = prompt_w_line(FORM), w_pieces = w_line / DENSE_PIECE;
    constexpr uint32_t w_rows = PROMPT_THREADS / w_pieces;
    uint32_t x_piece = threadIdx.x % PROMPT_PIECES, x_row = threadIdx.x / PROMPT_PIECES;
    uint32_t w_piece = threadIdx.x % w_pieces, w_row = threadIdx.x / w_pieces;
    size_t x_bytes = job.x_stride * dense_act_bytes(FORM);
    struct prompt_source at = {};
    at.x = (const unsigned char *)job.x + (token + x_row) * x_bytes + x_piece * DENSE_PIECE;
    at.w = (const unsigned char *)job.parts[0].w + (row + w_row) * job.w_row_bytes +
           w_piece * DENSE_PIECE;
    at.x_step = PROMPT_ROWS * x_bytes;
    at.w_step = w_rows * job.w_row_bytes;
    at.x_at = prompt_piece_at(x_row, x_piece, PROMPT_LINE);
    at.w_at = PROMPT_TILE * PROMPT_LINE + prompt_piece_at(w_row, w_piece, w_line);
    for (uint32_t i = 0; i < PROMPT_TILE / PROMPT_ROWS; i++)
        at.x_valid |= (token + x_row + i * PROMPT_ROWS < job.m ? 1u : 0u) << i;
    for (uint32_t i = 0; i < ROWS / w_rows; i++)
        at.w_valid |= (row + w_row + i * w_rows < job.parts[0].n ? 1u : 0u) << i;
    return at;
}

/* On to the segment that holds `column`, the next one's beginning where it ends one. */
CUDA_DEVICE void prompt_enter(struct prompt_source *at, const struct dense_slices &slices)
{
    while (at->segment < slices.count && at->column >= slices.bounds[at->segment + 1])
        at->segment++;
    at->end = at->segment < slices.count ? slices.bounds[at->segment + 1] : at->column;
}

/* Begins to copy a stage and goes on; zeros where all is read. Rows of a thread are a multiple of 8
 * apart, so their pieces are turned alike. */
template <enum dense_form FORM, uint32_t ROWS = PROMPT_TILE>
CUDA_DEVICE void prompt_fetch(unsigned char *stage, struct prompt_source *at,
                              const struct dense_slices &slices)
{
    constexpr uint32_t w_line = prompt_w_line(FORM), w_pieces = w_line / DENSE_PIECE;
    constexpr uint32_t w_rows = PROMPT_THREADS / w_pieces;
    uint32_t left = at->end - at->column;
    bool x_in = threadIdx.x % PROMPT_PIECES * (DENSE_PIECE / dense_act_bytes(FORM)) < left;
    bool w_in = threadIdx.x % w_pieces * (DENSE_PIECE / dense_weight_bytes(FORM)) < left;
    const unsigned char *x = at->x + (size_t)at->column * dense_act_bytes(FORM);
    const unsigned char *w = at->w + (size_t)at->column * dense_weight_bytes(FORM);
#pragma unroll
    for (uint32_t i = 0; i < PROMPT_TILE / PROMPT_ROWS; i++)
        cp_async_16(stage + at->x_at + i * PROMPT_ROWS * PROMPT_LINE, x + i * at->x_step,
                    x_in && (at->x_valid >> i & 1));
#pragma unroll
    for (uint32_t i = 0; i < ROWS / w_rows; i++)
        cp_async_16(stage + at->w_at + i * w_rows * w_line, w + i * at->w_step,
                    w_in && (at->w_valid >> i & 1));
    at->column += left < prompt_step(FORM) ? left : prompt_step(FORM);
    if (at->column == at->end)
        prompt_enter(at, slices);
}

/* Fragments of a warp's 32 weight rows for multiplication c of a stage. */
template <enum dense_form FORM>
CUDA_DEVICE void prompt_weights(uint32_t b[4][2], const unsigned char *w, uint32_t c)
{
    uint32_t lane = threadIdx.x % DENSE_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t row = i * 16 + lane % 8 + lane / 16 * 8, piece = 2 * c + lane / 8 % 2, r[4];
        ldmatrix_x4(r, w + prompt_piece_at(row, piece, PROMPT_LINE));
        b[2 * i][0] = r[0], b[2 * i][1] = r[1];
        b[2 * i + 1][0] = r[2], b[2 * i + 1][1] = r[3];
    }
}

/* The same of int8: a lane's word has four columns of its row. */
CUDA_DEVICE void prompt_weights_int8(uint32_t b[4][2], const unsigned char *w, uint32_t c)
{
    uint32_t lane = threadIdx.x % DENSE_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t at = prompt_piece_at(i * 8 + lane / 4, c, prompt_w_line(DENSE_INT8));
        dense_widen(b[i], *(const uint32_t *)(w + at + lane % 4 * 4));
    }
}

/* d[token tile][row tile] += a stage's products. Not unrolled: what the compiler would read ahead
 * takes registers that the second block of an SM needs. */
template <enum dense_form FORM>
CUDA_DEVICE void prompt_multiply(float d[4][4][4], const unsigned char *stage, uint32_t warp)
{
    uint32_t lane = threadIdx.x % DENSE_WARP;
    const unsigned char *w =
        stage + PROMPT_TILE * PROMPT_LINE + warp % 4 * PROMPT_WARP_COLS * prompt_w_line(FORM);
    stage += warp / 4 * PROMPT_WARP_ROWS * PROMPT_LINE;
#pragma unroll 1
    for (uint32_t c = 0; c < PROMPT_LINE / 32; c++) {
        uint32_t a[4][4], b[4][2];
        if constexpr (FORM == DENSE_INT8)
            prompt_weights_int8(b, w, c);
        else
            prompt_weights<FORM>(b, w, c);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            ldmatrix_x4(
                a[i], stage + prompt_piece_at(i * 16 + lane % 16, 2 * c + lane / 16, PROMPT_LINE));
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                dense_mma<FORM>(d[i][j], a[i], b[j]);
    }
}

/* Sums of the contract's tree that wait for their right neighbour; bit l of `present`: level l has
 * one. N of a thread. */
template <uint32_t N> struct prompt_tree {
    float waiting[3][N];
    uint32_t present;
};

/* Segment s is summed: adds what waits for it. The sum of all is in d after the last one. A segment
 * of nothing is +0, and adding that changes nothing. */
template <uint32_t N>
CUDA_DEVICE void prompt_tree_put(struct prompt_tree<N> *tree, float d[N], uint32_t s,
                                 const struct dense_slices &slices)
{
    uint32_t level = 0, present = slices.present >> s & 1;
#pragma unroll 1
    for (; s >> level & 1; level++) {
        if (!(tree->present >> level & 1))
            continue;
        present = 1;
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            d[i] = tree->waiting[level][i] + d[i];
    }
    if (s + 1 == slices.count)
        return;
    tree->present = (tree->present & ~(1u << level)) | present << level;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        tree->waiting[level][i] = d[i];
        d[i] = 0.0f;
    }
}

CUDA_DEVICE void prompt_store(const struct dense_job &job, float d[4][4][4], uint32_t token,
                              uint32_t row)
{
    const struct dense_part &p = job.parts[0];
    uint32_t lane = threadIdx.x % DENSE_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t to_token = token + i * 16 + e / 2 * 8 + lane / 4;
                uint32_t to_row = row + j * 8 + lane % 4 * 2 + e % 2;
                if (to_token < job.m && to_row < p.n)
                    p.y[to_token * p.y_stride + to_row] =
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
    uint32_t warp = threadIdx.x / DENSE_WARP, token = blockIdx.x * PROMPT_TILE;
    uint32_t row = blockIdx.y * PROMPT_TILE, stage = 0;
    struct prompt_source at = prompt_place<FORM>(job, token, row);
    struct prompt_tree<64> tree;
    float d[4][4][4] = {};
    tree.present = 0;
    prompt_enter(&at, job.slices);
    for (uint32_t i = 0; i + 1 < S; i++) {
        prompt_fetch<FORM>(shared + i * stage_bytes, &at, job.slices);
        cp_async_commit();
    }
    for (uint32_t s = 0; s < job.slices.count; s++) {
        uint32_t n_steps =
            dense_n_groups(job.slices.bounds[s], job.slices.bounds[s + 1], prompt_step(FORM));
        for (uint32_t i = 0; i < n_steps; i++) {
            cp_async_wait<S - 2>();
            __syncthreads(); /* the stage has come, and the one before it has been read */
            prompt_fetch<FORM>(shared + (stage + S - 1) % S * stage_bytes, &at, job.slices);
            cp_async_commit();
            prompt_multiply<FORM>(d, shared + stage * stage_bytes, warp);
            stage = (stage + 1) % S;
        }
        if (job.slices.count > 1)
            prompt_tree_put(&tree, &d[0][0][0], s, job.slices);
    }
    cp_async_wait<0>();
    prompt_store(job, d, token + warp / 4 * PROMPT_WARP_ROWS, row + warp % 4 * PROMPT_WARP_COLS);
}
