/* dense_decode_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ, path D: the same bits for any m (1 to 64
 * tokens are one tile; more are more tiles of the same arithmetic, dense_index.h).
 *
 * A block takes 32 or 64 weight rows and 8 to 64 tokens, and has one warp per slice of K. Weights
 * are the left operand of a 16 × 8 multiplication, tokens the right one. Every lane copies its own
 * fragments, 16 bytes at a time, into a ring in shared memory of which it alone reads what it wrote
 * (f32: its warp): no barrier and no bank conflict within the loop, and bytes in flight cost no
 * registers. At the end the slices' sums meet in shared memory for the tree.
 *
 * Bytes: n·row_bytes of weights from memory once, m·k activations per block out of the second
 * cache, 4·m·n of results. Operations: 2·m·n·k. Bound: memory, to some 200 tokens.
 *
 *   tile  rows  tokens  ring of a warp     block    blocks/SM  weights in flight per block
 *   0     32    8       4 × (2 + 0.5) KiB  80 KiB   2          48 KiB
 *   1     32    16      4 × (2 + 1) KiB    96 KiB   2          48 KiB
 *   2     64    32      3 × (4 + 2) KiB    144 KiB  1          64 KiB
 *   3     64    64      3 × (4 + 4) KiB    192 KiB  1          64 KiB   f16, bf16
 *
 * (int8: a stage holds twice the activations. f32: tiles 0 and 1. A rank of 4 or 8 has 2 slices or
 * 1, which have rings of four times as many stages.) 3.35 TB/s over 132 SMs with
 * 800 ns from request to use want 20 KiB in flight per SM, 4.8 TB/s 29 KiB. Activations come to
 * m/rows of the weights' bytes at 16 bits: 25 % at 8 tokens, 50 % at 32, 100 % at 64, and the
 * second cache gives some 1.6 times what memory does.
 *
 * Instructions of a warp per group of 32 rows (2 KiB of weights) and 8 tokens: 5 copies, 5 reads of
 * 16 bytes, 4 multiplications, about 25 of bookkeeping: 40; int8 6, 6, 8 and 112 to widen 1024
 * pairs, as 7 do for 4 weights: 160. An SM that streams its 25 bytes/ns has 560 issue slots for
 * 2 KiB (4 · 140 cycles at 1.75 GHz): 7 % and 29 % of them. Multiplications at 64 tokens and 64
 * rows: 64 per 4 KiB, which is a quarter of what 4 tensor cores do in those 280 cycles.
 */
/* What the compiler is held to (tests/lint/ptxas.sh):
 * ptxas: dense_decode.cu dense_decode.*ELj[01]ELj registers 128 shared 1024
 * ptxas: dense_decode.cu dense_decode.*ELj[23]ELj registers 216 shared 1024
 * ptx: dense_decode.cu dense_decode mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 * ptx: dense_decode.cu dense_decode mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
 * ptx: dense_decode.cu dense_decode griddepcontrol.wait
 * ptx: dense_decode.cu dense_decode griddepcontrol.launch_dependents
 */
#pragma once

#include "kernels/cuda/dense_fragment.h"
#include "kernels/maths.h"

/* A lane's share of a block: g = lane / 4 is its row within 8, t = lane % 4 its place in a group.
 * even, odd: the weights of its first row in row tiles 0 and 1, at its place. */
struct decode_lane {
    const unsigned char *even, *odd, *x;
    size_t half, pair;         /* bytes from a tile's row g to g + 8, from row tile i to i + 2 */
    size_t x_step;             /* bytes from a token tile to the next */
    uint32_t w_valid, x_valid; /* bit i: the row of piece i, the token of token tile i is there */
    uint32_t column, end;      /* of the next group at its place; of the slice */
};

/* The block's matrix, and its first row of it; all blocks of one matrix are neighbours. */
CUDA_DEVICE uint32_t decode_part(const struct dense_job &job, uint32_t block_rows,
                                 uint32_t *out_row)
{
    uint32_t block = blockIdx.y, part = 0;
    for (uint32_t i = 0; i + 1 < DENSE_MAX_PARTS; i++) {
        uint32_t n_blocks = dense_n_blocks(job.parts[i].n, block_rows);
        if (!job.gated && part == i && i + 1 < job.n_parts && block >= n_blocks) {
            block -= n_blocks;
            part = i + 1;
        }
    }
    *out_row = block * block_rows;
    return part;
}

template <enum dense_form FORM>
CUDA_DEVICE struct decode_lane decode_place(const struct dense_job &job, uint32_t part,
                                            uint32_t row, uint32_t token, uint32_t slice,
                                            uint32_t n_pieces, uint32_t n_token_tiles)
{
    constexpr uint32_t place = dense_group(FORM) / 4; /* columns of a lane */
    uint32_t lane = threadIdx.x % DENSE_WARP, g = lane / 4, t = lane % 4;
    struct decode_lane at = {};
    at.column = job.slices.bounds[slice] + t * place;
    at.end = job.slices.bounds[slice + 1];
    at.half = 8 * job.w_row_bytes;
    at.pair = (job.gated ? 2 : 4) * at.half;
    at.even = (const unsigned char *)job.parts[part].w + (row + g) * job.w_row_bytes +
              (size_t)at.column * dense_weight_bytes(FORM);
    at.odd = job.gated ? (const unsigned char *)job.parts[1].w +
                             (at.even - (const unsigned char *)job.parts[0].w)
                       : at.even + 2 * at.half;
    for (uint32_t i = 0; i < n_pieces; i++)
        at.w_valid |= (row + dense_piece_row(i, job.gated) + g < job.parts[part].n ? 1u : 0u) << i;
    size_t x_bytes = job.x_stride * dense_act_bytes(FORM);
    at.x = (const unsigned char *)job.x + (token + g) * x_bytes +
           (size_t)at.column * dense_act_bytes(FORM);
    at.x_step = DENSE_TOKENS * x_bytes;
    for (uint32_t i = 0; i < n_token_tiles; i++)
        at.x_valid |= (token + i * DENSE_TOKENS + g < job.m ? 1u : 0u) << i;
    return at;
}

/* Four floats of a row that may begin anywhere and end within them. */
CUDA_DEVICE void decode_copy_floats(void *shared, const unsigned char *global, uint32_t n)
{
    const float *from = (const float *)global;
    float4 x = {n > 0 ? from[0] : 0.0f, n > 1 ? from[1] : 0.0f, n > 2 ? from[2] : 0.0f,
                n > 3 ? from[3] : 0.0f};
    *(float4 *)shared = x;
}

/* Begins to copy the lane's weights of the next group into `slot`, its first 16 bytes of a stage.
 */
template <uint32_t R>
CUDA_DEVICE void decode_fetch_weights(unsigned char *slot, struct decode_lane *at, bool inside)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 2 * R; i++) {
        const unsigned char *tile = (i / 2 % 2 ? at->odd : at->even) + i / 4 * at->pair;
        cp_async_once_16(slot + i * piece, tile + i % 2 * at->half,
                         inside && (at->w_valid >> i & 1));
    }
    at->even += DENSE_LINE;
    at->odd += DENSE_LINE;
}

/* The same of its tokens, and on to the next group. */
template <enum dense_form FORM, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_fetch_tokens(unsigned char *slot, struct decode_lane *at)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
    bool inside = at->column < at->end;
    slot += 2 * R * piece;
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
        const unsigned char *x = at->x + i * at->x_step;
        bool valid = inside && (at->x_valid >> i & 1);
        if constexpr (FORM == DENSE_INT8) {
            cp_async_16(slot + 2 * i * piece, x, valid);
            cp_async_16(slot + (2 * i + 1) * piece, x + DENSE_PIECE, valid);
        } else if constexpr (FORM == DENSE_F32) {
            uint32_t left = valid ? at->end - at->column : 0;
            if (left < 4 || (uintptr_t)x % DENSE_PIECE != 0)
                decode_copy_floats(slot + i * piece, x, left);
            else
                cp_async_16(slot + i * piece, x, true);
        } else {
            cp_async_16(slot + i * piece, x, valid);
        }
    }
    at->column += dense_group(FORM);
    at->x += dense_group(FORM) * dense_act_bytes(FORM);
}

template <enum dense_form FORM, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_fetch(unsigned char *slot, struct decode_lane *at)
{
    decode_fetch_weights<R>(slot, at, at->column < at->end);
    decode_fetch_tokens<FORM, R, NT>(slot, at);
}

/* Fills the ring but for one stage: weights before the op before has ended, then tokens. The first
 * group of copies has all of these weights. */
template <enum dense_form FORM, uint32_t R, uint32_t NT, uint32_t STAGES>
CUDA_DEVICE void decode_fill(unsigned char *ring, struct decode_lane *at, uint32_t n_groups,
                             uint32_t stage_bytes)
{
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < STAGES && i < n_groups; i++)
        decode_fetch_weights<R>(ring + i * stage_bytes, at,
                                at->column + i * dense_group(FORM) < at->end);
    cuda_op_begin();
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < STAGES; i++) {
        if (i < n_groups)
            decode_fetch_tokens<FORM, R, NT>(ring + i * stage_bytes, at);
        cp_async_commit();
    }
}

/* d[row tile][token tile] += a stage's products; f16, bf16. */
template <enum dense_form FORM, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply(float (*d)[NT][4], const unsigned char *slot)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
    uint32_t a[R][2][4];
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
        uint4 low = *(const uint4 *)(slot + 2 * r * piece);
        uint4 high = *(const uint4 *)(slot + (2 * r + 1) * piece);
        a[r][0][0] = low.x, a[r][0][1] = high.x, a[r][0][2] = low.y, a[r][0][3] = high.y;
        a[r][1][0] = low.z, a[r][1][1] = high.z, a[r][1][2] = low.w, a[r][1][3] = high.w;
    }
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
        uint4 x = *(const uint4 *)(slot + (2 * R + i) * piece);
        const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
                dense_mma<FORM>(d[r][i], a[r][c], b[c]);
    }
}

/* The same of f8, one multiplication after the other: sm_90 widens f8 to f16 in registers, which
 * holds twice as many for each. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply_f8(float (*d)[NT][4], const unsigned char *slot)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
#pragma unroll 1
    for (uint32_t c = 0; c < 2; c++, slot += DENSE_PIECE / 2) {
        uint32_t a[R][4];
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
            uint2 low = *(const uint2 *)(slot + 2 * r * piece);
            uint2 high = *(const uint2 *)(slot + (2 * r + 1) * piece);
            a[r][0] = low.x, a[r][1] = high.x, a[r][2] = low.y, a[r][3] = high.y;
        }
#pragma unroll
        for (uint32_t i = 0; i < NT; i++) {
            uint2 x = *(const uint2 *)(slot + (2 * R + i) * piece);
            const uint32_t b[2] = {x.x, x.y};
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
                dense_mma<DENSE_F8>(d[r][i], a[r], b);
        }
    }
}

/* The same of int8, two row tiles at a time: widened weights take registers. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply_int8(float (*d)[NT][4], const unsigned char *slot)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
#pragma unroll
    for (uint32_t r = 0; r < R; r += 2) {
        uint32_t a[2][4][4]; /* [row tile][multiplication] */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint4 w = *(const uint4 *)(slot + (2 * r + i) * piece);
            const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                uint32_t wide[2];
                dense_widen(wide, words[c]);
                a[i / 2][c][i % 2] = wide[0];
                a[i / 2][c][i % 2 + 2] = wide[1];
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < NT; i++) {
            uint4 x = *(const uint4 *)(slot + (2 * R + 2 * i) * piece);
            uint4 y = *(const uint4 *)(slot + (2 * R + 2 * i + 1) * piece);
            const uint32_t b[4][2] = {{x.x, y.x}, {x.y, y.y}, {x.z, y.z}, {x.w, y.w}};
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                dense_mma<DENSE_INT8>(d[r][i], a[0][c], b[c]);
                dense_mma<DENSE_INT8>(d[r + 1][i], a[1][c], b[c]);
            }
        }
    }
}

/* The same of f32: sums[8·NT] of a lane's two rows in each tile; `stage` is the warp's, for the
 * tokens were copied by other lanes. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply_f32(float (*sums)[2][DENSE_TOKENS * NT],
                                     const unsigned char *stage, uint32_t lane)
{
    constexpr uint32_t piece = DENSE_PIECE * DENSE_WARP;
    float4 w[2 * R];
#pragma unroll
    for (uint32_t i = 0; i < 2 * R; i++)
        w[i] = *(const float4 *)(stage + i * piece + lane * DENSE_PIECE);
#pragma unroll
    for (uint32_t i = 0; i < DENSE_TOKENS * NT; i++) {
        uint32_t at = (i * 4 + lane % 4) * DENSE_PIECE;
        float4 x = *(const float4 *)(stage + 2 * R * piece + at);
#pragma unroll
        for (uint32_t r = 0; r < 2 * R; r++) {
            float sum = fmaf(w[r].x, x.x, sums[r / 2][r % 2][i]);
            sum = fmaf(w[r].y, x.y, sum);
            sum = fmaf(w[r].z, x.z, sum);
            sums[r / 2][r % 2][i] = fmaf(w[r].w, x.w, sum);
        }
    }
}

/* A slice's sums to out[token][row]. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_put(float *out, float (*d)[NT][4], uint32_t lane)
{
    constexpr uint32_t pitch = R * DENSE_W_ROWS + 4;
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
#pragma unroll
        for (uint32_t i = 0; i < NT; i++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t token = i * DENSE_TOKENS + 2 * t + e % 2;
                out[token * pitch + r * DENSE_W_ROWS + e / 2 * 8 + g] = d[r][i][e];
            }
}

template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_put_f32(float *out, float (*sums)[2][DENSE_TOKENS * NT], uint32_t lane)
{
    constexpr uint32_t pitch = R * DENSE_W_ROWS + 4;
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t r = 0; r < 2 * R; r++)
#pragma unroll
        for (uint32_t i = 0; i < DENSE_TOKENS * NT; i++) {
            float sum = sums[r / 2][r % 2][i];
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
            if (i % 4 == t)
                out[i * pitch + r * 8 + g] = sum;
        }
}

/* A warp's slice into out[token][row], which may be where its ring is. */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
CUDA_DEVICE void decode_slice(float *out, unsigned char *ring, const struct dense_job &job,
                              struct decode_lane *at, uint32_t slice)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    constexpr uint32_t R = tile.n_row_tiles, NT = tile.n_token_tiles, S = tile.n_stages;
    constexpr uint32_t stage_bytes = dense_stage_bytes(FORM, tile);
    uint32_t lane = threadIdx.x % DENSE_WARP, own = lane * DENSE_PIECE;
    uint32_t n_groups =
        dense_n_groups(job.slices.bounds[slice], job.slices.bounds[slice + 1], dense_group(FORM));
    float d[R][NT][4] = {}, sums[R][2][DENSE_TOKENS * NT] = {};
    uint32_t fetched = (S - 1) * stage_bytes, read = 0; /* stages of the ring, in bytes */
    decode_fill<FORM, R, NT, S>(ring + own, at, n_groups, stage_bytes);
    for (uint32_t i = 0; i < n_groups; i++) {
        cp_async_wait<S - 2>();
        __syncwarp(); /* the stage has come, and the one before it has been read */
        if (i + S - 1 < n_groups)
            decode_fetch<FORM, R, NT>(ring + fetched + own, at);
        cp_async_commit();
        if constexpr (FORM == DENSE_F32)
            decode_multiply_f32<R, NT>(sums, ring + read, lane);
        else if constexpr (FORM == DENSE_INT8)
            decode_multiply_int8<R, NT>(d, ring + read + own);
        else if constexpr (FORM == DENSE_F8)
            decode_multiply_f8<R, NT>(d, ring + read + own);
        else
            decode_multiply<FORM, R, NT>(d, ring + read + own);
        fetched = fetched + stage_bytes == S * stage_bytes ? 0 : fetched + stage_bytes;
        read = read + stage_bytes == S * stage_bytes ? 0 : read + stage_bytes;
    }
    cp_async_wait<0>();
    __syncthreads(); /* other warps' rings end where these sums go */
    if constexpr (FORM == DENSE_F32)
        decode_put_f32<R, NT>(out, sums, lane);
    else
        decode_put<R, NT>(out, d, lane);
    __syncthreads();
}

CUDA_DEVICE float decode_finish(const struct dense_job &job, uint32_t part, float sum,
                                uint32_t token, uint32_t row)
{
    const struct dense_part &p = job.parts[part];
    float y = dense_scaled(sum, job.x_scale, p.w_scale, token, row);
    return p.bias ? y + p.bias[row] : y;
}

CUDA_DEVICE void decode_store(const struct dense_job &job, uint32_t part, float y, uint32_t token,
                              uint32_t row)
{
    const struct dense_part &p = job.parts[part];
    p.y[token * p.y_stride + row] = y;
    if (p.sum)
        p.sum[token * p.sum_stride + row] += y;
}

/* All results of a block, from the slices' sums in shared memory. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_results(const struct dense_job &job, const float *sums, uint32_t part,
                                uint32_t row, uint32_t token)
{
    constexpr uint32_t pitch = R * DENSE_W_ROWS + 4, slice_floats = NT * DENSE_TOKENS * pitch;
    uint32_t rows = R * DENSE_W_ROWS / (job.gated ? 2 : 1), present = job.slices.present;
    for (uint32_t i = threadIdx.x; i < NT * DENSE_TOKENS * rows; i += blockDim.x) {
        uint32_t in = i % rows, to_token = token + i / rows, to_row = row + in;
        if (to_token >= job.m || to_row >= job.parts[part].n)
            continue;
        if (!job.gated) {
            float y = dense_tree(sums + i / rows * pitch + in, slice_floats, present);
            decode_store(job, part, decode_finish(job, part, y, to_token, to_row), to_token,
                         to_row);
            continue;
        }
        const float *at =
            sums + i / rows * pitch + in / DENSE_W_ROWS * 2 * DENSE_W_ROWS + in % DENSE_W_ROWS;
        float gate = dense_tree(at, slice_floats, present);
        float up = dense_tree(at + DENSE_W_ROWS, slice_floats, present);
        gate = decode_finish(job, 0, gate, to_token, to_row);
        up = decode_finish(job, 1, up, to_token, to_row);
        gate = maths_activate(gate, (enum activation)job.activation) * up;
        decode_store(job, 0, gate, to_token, to_row);
        decode_store(job, 1, up, to_token, to_row);
    }
}

/* Grid: token tiles, which meet their weights in the second cache; blocks of weight rows. Threads:
 * a warp per slice. SLICES: 8, or DENSE_FEW_SLICES where there are no more.
 * op begins in: decode_fill */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
static __global__ void __launch_bounds__(SLICES *DENSE_WARP, TILE < 2 ? 2 : 1)
    dense_decode(const struct dense_job job)
{
    CUDA_SHARED(shared);
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    constexpr uint32_t R = tile.n_row_tiles, NT = tile.n_token_tiles;
    uint32_t slice = threadIdx.x / DENSE_WARP, row, token = blockIdx.x * NT * DENSE_TOKENS;
    uint32_t part = decode_part(job, R * DENSE_W_ROWS / (job.gated ? 2 : 1), &row);
    struct decode_lane at =
        decode_place<FORM>(job, part, row, token, slice, dense_w_pieces(tile), NT);
    float *sums = (float *)shared;
    decode_slice<FORM, TILE, SLICES>(sums + slice * (dense_sums_bytes(tile) / sizeof(float)),
                                     shared + slice * tile.n_stages * dense_stage_bytes(FORM, tile),
                                     job, &at, slice);
    decode_results<R, NT>(job, sums, part, row, token);
}
