/* dense_decode_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ, path D: the same bits for any m. 1 to 64
 * tokens are one tile; more tokens are more tiles of the same arithmetic (dense_index.h).
 *
 * A block computes 32 or 64 weight rows × 8 to 64 tokens, with a warp per slice of K. Weights are
 * the left operand of a 16 × 8 multiplication, tokens the right operand. Every lane copies its own
 * fragments, 16 bytes at a time, into a ring in shared memory, and reads only its own bytes (f32:
 * its warp's bytes). So the loop has no barrier and no bank conflict, and bytes in flight take no
 * registers. At the end the slices' sums meet in shared memory for the tree.
 *
 * Bytes: n·row_bytes of weights from memory once, m·k activations per block from the second cache,
 * 4·m·n of results. Operations: 2·m·n·k. Bound: memory, up to about 200 tokens.
 *
 *     tile  rows  tokens  ring of a warp     block    blocks/SM  weights in flight per block
 *     0     32    8       4 × (2 + 0.5) KiB  80 KiB   2          48 KiB
 *     1     32    16      4 × (2 + 1) KiB    96 KiB   2          48 KiB
 *     2     64    32      3 × (4 + 2) KiB    144 KiB  1          64 KiB
 *     3     64    64      3 × (4 + 4) KiB    192 KiB  1          64 KiB   f16, bf16
 *
 * int8: a stage holds twice the activations. f32: tiles 0 and 1. A rank of 4 or 8 has 2 slices or
 * 1, with rings of four times as many stages. At 800 ns from request to use, 3.35 TB/s over 132 SMs
 * need 20 KiB in flight per SM; 4.8 TB/s need 29 KiB. Activations are m/rows of the weights' bytes
 * at 16 bits: 25 % at 8 tokens, 50 % at 32, 100 % at 64. The second cache delivers about 1.6 times
 * the rate of memory.
 *
 * Instructions of a warp per group of 32 rows (2 KiB of weights) and 8 tokens: 40. These are 5
 * copies, 5 reads of 16 bytes, 4 multiplications and about 25 of bookkeeping. With int8: 6, 6, 8
 * and 112 to widen 1024 pairs (7 instructions per 4 weights): 160. An SM that streams its 25
 * bytes/ns has 560 issue slots for 2 KiB (4 · 140 cycles at 1.75 GHz): 7 % and 29 % of them are
 * used. With 64 tokens and 64 rows: 64 multiplications per 4 KiB, a quarter of the rate of 4 tensor
 * cores in those 280 cycles.
 */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: dense_decode.cu dense_decode.*ELj[01]ELj registers 128 shared 1024
 *    ptxas: dense_decode.cu dense_decode.*ELj[23]ELj registers 216 shared 1024
 *    ptx: dense_decode.cu dense_decode mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 *    ptx: dense_decode.cu dense_decode mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
 *    ptx: dense_decode.cu dense_decode griddepcontrol.wait
 *    ptx: dense_decode.cu dense_decode griddepcontrol.launch_dependents
 */
#pragma once

#include "kernels/cuda/dense/dense_decode_index.h"
#include "kernels/cuda/dense/dense_fragment.h"

/* Copies four floats of a row that may begin anywhere and may end within them. */
CUDA_DEVICE void decode_copy_floats(void *shared, const unsigned char *global, uint32_t n)
{
    const float *from = (const float *)global;
    float4 x = {n > 0 ? from[0] : 0.0f, n > 1 ? from[1] : 0.0f, n > 2 ? from[2] : 0.0f,
                n > 3 ? from[3] : 0.0f};
    *(float4 *)shared = x;
}

/* Starts copying the lane's weights of the next group into `slot`, its first 16 bytes of a
 * stage. */
template <uint32_t N_PIECES>
CUDA_DEVICE void decode_fetch_weights(unsigned char *slot, struct decode_lane *at, bool inside)
{
#pragma unroll
    for (uint32_t i = 0; i < N_PIECES; i++)
        cp_async_once_16(slot + decode_weight_piece(i), decode_weights_at(at, i),
                         inside && cuda_bit(at->w_valid, i));
    decode_next_weights(at);
}

/* The same for its tokens; advances to the next group. */
template <enum dense_form FORM, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_fetch_tokens(unsigned char *slot, struct decode_lane *at)
{
    bool inside = decode_is_inside(at, FORM, 0);
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
        const unsigned char *x = decode_tokens_at(at, i);
        bool valid = inside && cuda_bit(at->x_valid, i);
        if constexpr (FORM == DENSE_INT8) {
            cp_async_16(slot + decode_int8_token_piece(R, i, 0), x, valid);
            cp_async_16(slot + decode_int8_token_piece(R, i, 1), x + DENSE_PIECE, valid);
        } else if constexpr (FORM == DENSE_F32) {
            uint32_t left = decode_n_floats(at, i);
            if (left < 4 || !cuda_is_multiple(x, DENSE_PIECE))
                decode_copy_floats(slot + decode_token_piece(R, i), x, left);
            else
                cp_async_16(slot + decode_token_piece(R, i), x, true);
        } else {
            cp_async_16(slot + decode_token_piece(R, i), x, valid);
        }
    }
    decode_next_tokens(at, FORM);
}

template <enum dense_form FORM, uint32_t PIECES, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_fetch(unsigned char *slot, struct decode_lane *at)
{
    decode_fetch_weights<PIECES>(slot, at, decode_is_inside(at, FORM, 0));
    decode_fetch_tokens<FORM, R, NT>(slot, at);
}

/* Fills all stages of the ring but one. Weights are copied before the previous op has ended, then
 * tokens. The first group of copies has all of these weights. */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
CUDA_DEVICE void decode_fill(unsigned char *ring, struct decode_lane *at, uint32_t n_groups)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    constexpr uint32_t stage_bytes = dense_stage_bytes(FORM, tile), STAGES = tile.n_stages;
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < STAGES && i < n_groups; i++)
        decode_fetch_weights<dense_w_pieces(tile)>(ring + cuda_stage_at(i, stage_bytes), at,
                                                   decode_is_inside(at, FORM, i));
    cuda_op_begin();
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < STAGES; i++) {
        if (i < n_groups)
            decode_fetch_tokens<FORM, tile.n_row_tiles, tile.n_token_tiles>(
                ring + cuda_stage_at(i, stage_bytes), at);
        cp_async_commit();
    }
}

/* Loads a lane's 16 bytes of a piece. */
CUDA_DEVICE void decode_take(uint32_t words[4], const unsigned char *at)
{
    uint4 x = *(const uint4 *)at;
    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
}

/* Loads half of a lane's bytes of a piece. */
CUDA_DEVICE void decode_take_half(uint32_t words[2], const unsigned char *at)
{
    uint2 x = *(const uint2 *)at;
    words[0] = x.x, words[1] = x.y;
}

/* d[row tile][token tile] += a stage's products; f16, bf16. */
template <enum dense_form FORM, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply(float (*d)[NT][4], const unsigned char *slot)
{
    uint32_t a[R][2][4];
#pragma unroll
    for (uint32_t r = 0; r < R; r++) {
        uint32_t low[4], high[4];
        decode_take(low, slot + decode_tile_piece(r, 0));
        decode_take(high, slot + decode_tile_piece(r, 1));
        decode_a(a[r], low, high);
    }
#pragma unroll
    for (uint32_t i = 0; i < NT; i++) {
        uint32_t x[4], b[2][2];
        decode_take(x, slot + decode_token_piece(R, i));
        decode_b(b, x);
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
                dense_mma<FORM>(d[r][i], a[r][c], b[c]);
    }
}

/* The same for f8, one multiplication at a time: sm_90 widens f8 to f16 in registers, which takes
 * twice as many registers per multiplication. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply_f8(float (*d)[NT][4], const unsigned char *slot)
{
#pragma unroll 1
    for (uint32_t c = 0; c < 2; c++) {
        const unsigned char *half = slot + decode_f8_at(c);
        uint32_t a[R][4];
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
            uint32_t low[2], high[2];
            decode_take_half(low, half + decode_tile_piece(r, 0));
            decode_take_half(high, half + decode_tile_piece(r, 1));
            decode_f8_a(a[r], low, high);
        }
#pragma unroll
        for (uint32_t i = 0; i < NT; i++) {
            uint32_t b[2];
            decode_take_half(b, half + decode_token_piece(R, i));
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
                dense_mma<DENSE_F8>(d[r][i], a[r], b);
        }
    }
}

/* Widens a row tile's int8 weights for all four multiplications. */
CUDA_DEVICE void decode_widen_tile(uint32_t a[4][4], const unsigned char *slot, uint32_t r)
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t words[4];
        decode_take(words, slot + decode_tile_piece(r, half));
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t wide[2];
            dense_widen(wide, words[c]);
            decode_int8_a(a[c], wide, half);
        }
    }
}

/* The same for int8, two row tiles at a time, because widened weights take registers. */
template <uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_multiply_int8(float (*d)[NT][4], const unsigned char *slot)
{
#pragma unroll
    for (uint32_t r = 0; r < R; r += 2) {
        float(*behind)[NT][4] = d + r;
        uint32_t a[2][4][4]; /* [row tile][multiplication] */
        decode_widen_tile(a[0], slot, r);
        decode_widen_tile(a[1], slot, r + 1);
#pragma unroll
        for (uint32_t i = 0; i < NT; i++) {
            uint32_t x[4], y[4], b[4][2];
            decode_take(x, slot + decode_int8_token_piece(R, i, 0));
            decode_take(y, slot + decode_int8_token_piece(R, i, 1));
            decode_int8_b(b, x, y);
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                dense_mma<DENSE_INT8>(behind[0][i], a[0][c], b[c]);
                dense_mma<DENSE_INT8>(behind[1][i], a[1][c], b[c]);
            }
        }
    }
}

/* The same for f32: sums[token] of a lane's row in each piece. `stage` belongs to the warp, because
 * other lanes copied the tokens. */
template <uint32_t R, uint32_t PIECES, uint32_t TOKENS>
CUDA_DEVICE void decode_multiply_f32(float (*sums)[TOKENS], const unsigned char *stage,
                                     uint32_t lane)
{
    const unsigned char *slot = stage + decode_own_at(lane);
    float4 w[PIECES];
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++)
        w[i] = *(const float4 *)(slot + decode_weight_piece(i));
#pragma unroll
    for (uint32_t i = 0; i < TOKENS; i++) {
        float4 four = *(const float4 *)(stage + decode_float_at(R, i, lane));
        const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (uint32_t r = 0; r < PIECES; r++) {
            const float row[4] = {w[r].x, w[r].y, w[r].z, w[r].w};
            sums[r][i] = dense_chain(sums[r][i], row, x);
        }
    }
}

/* Stores a slice's sums to out[token][row]. */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES, uint32_t R, uint32_t NT>
CUDA_DEVICE void decode_put(float *out, float (*d)[NT][4], uint32_t lane)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
#pragma unroll
        for (uint32_t i = 0; i < NT; i++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                out[decode_sum_at(tile, r, i, e, lane)] = d[r][i][e];
}

template <uint32_t TILE, uint32_t SLICES, uint32_t N>
CUDA_DEVICE void decode_put_f32(float *out, float (*sums)[N], uint32_t lane)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
#pragma unroll
    for (uint32_t r = 0; r < dense_w_pieces(tile); r++)
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            float sum = sums[r][i];
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
            if (decode_puts_float(i, lane))
                out[decode_float_sum_at(tile, r, i, lane)] = sum;
        }
}

/* Computes a warp's slice into out[token][row], which may overlap the warp's ring. */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
CUDA_DEVICE void decode_slice(float *out, unsigned char *ring, const struct dense_job &job,
                              struct decode_lane *at, uint32_t slice)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    constexpr uint32_t R = tile.n_row_tiles, NT = tile.n_token_tiles, S = tile.n_stages;
    constexpr uint32_t stage_bytes = dense_stage_bytes(FORM, tile);
    constexpr uint32_t PIECES = dense_w_pieces(tile), TOKENS = dense_tile_tokens(tile);
    uint32_t lane = cuda_lane_of(threadIdx.x);
    unsigned char *own = ring + decode_own_at(lane);
    uint32_t n_groups = dense_slice_groups(&job.slices, slice, dense_group(FORM));
    float d[R][NT][4] = {}, sums[PIECES][TOKENS] = {};
    uint32_t fetched = cuda_stage_at(S - 1, stage_bytes),
             read = 0; /* byte offsets of stages of the ring */
    decode_fill<FORM, TILE, SLICES>(own, at, n_groups);
    for (uint32_t i = 0; i < n_groups; i++) {
        cp_async_wait<S - 2>();
        __syncwarp(); /* the stage has arrived, and the stage before it has been read */
        if (n_groups - i >= S)
            decode_fetch<FORM, PIECES, R, NT>(own + fetched, at);
        cp_async_commit();
        if constexpr (FORM == DENSE_F32)
            decode_multiply_f32<R, PIECES>(sums, ring + read, lane);
        else if constexpr (FORM == DENSE_INT8)
            decode_multiply_int8<R, NT>(d, own + read);
        else if constexpr (FORM == DENSE_F8)
            decode_multiply_f8<R, NT>(d, own + read);
        else
            decode_multiply<FORM, R, NT>(d, own + read);
        fetched = cuda_ring_next(fetched, stage_bytes, S);
        read = cuda_ring_next(read, stage_bytes, S);
    }
    cp_async_wait<0>();
    __syncthreads(); /* these sums overwrite the ends of other warps' rings */
    if constexpr (FORM == DENSE_F32)
        decode_put_f32<TILE, SLICES>(out, sums, lane);
    else
        decode_put<FORM, TILE, SLICES, R>(out, d, lane);
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
    p.y[cuda_element(token, p.y_stride, row)] = y;
    if (p.sum)
        p.sum[cuda_element(token, p.sum_stride, row)] += y;
}

/* Stores a gated result: the next linear's activation, or gate and up. */
template <enum dense_form FORM>
CUDA_DEVICE void decode_store_gated(const struct dense_job &job, float y, float up, uint32_t token,
                                    uint32_t row)
{
    float gated = dense_gated(y, up, job.activation);
    if (job.half) {
        job.half[cuda_element(token, dense_act_stride(job.parts[0].n), row)] =
            (uint16_t)act_half(gated, FORM);
        return;
    }
    decode_store(job, 0, gated, token, row);
    decode_store(job, 1, up, token, row);
}

/* Computes all results of a block from the slices' sums in shared memory. */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
CUDA_DEVICE void decode_results(const struct dense_job &job, const float *sums,
                                struct decode_share share)
{
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    constexpr uint32_t slice_floats = decode_slice_floats(tile);
    uint32_t present = job.slices.present;
    for (uint32_t i = threadIdx.x; i < decode_n_results(tile, job.gated); i += blockDim.x) {
        struct decode_result to = decode_result_of(tile, job.gated, share, i);
        if (to.token >= job.m || to.row >= job.parts[share.part].n)
            continue;
        float y = dense_tree(sums + to.at, slice_floats, present);
        if (!job.gated) {
            y = decode_finish(job, share.part, y, to.token, to.row);
            decode_store(job, share.part, y, to.token, to.row);
            continue;
        }
        float up = dense_tree(sums + decode_up_at(to.at), slice_floats, present);
        y = decode_finish(job, 0, y, to.token, to.row);
        up = decode_finish(job, 1, up, to.token, to.row);
        decode_store_gated<FORM>(job, y, up, to.token, to.row);
    }
}

/* Grid: token tiles, which share their weights in the second cache; blocks of weight rows. Threads:
 * a warp per slice. SLICES: DENSE_FEW_SLICES if there are no more slices, else 8.
 * op begins in: decode_fill */
template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
static __global__ void __launch_bounds__(dense_n_threads(SLICES), TILE < 2 ? 2 : 1)
    dense_decode(const struct dense_job job)
{
    CUDA_SHARED(shared);
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    uint32_t slice = cuda_warp_of(threadIdx.x);
    struct decode_share share = decode_share_of(&job, tile, blockIdx.x, blockIdx.y, slice);
    struct decode_lane at = decode_lane_of(&job, FORM, tile, share, cuda_lane_of(threadIdx.x));
    float *sums = (float *)shared;
    decode_slice<FORM, TILE, SLICES>(sums + decode_slice_sums(tile, slice),
                                     shared + decode_slice_ring(FORM, tile, slice), job, &at,
                                     slice);
    decode_results<FORM, TILE, SLICES>(job, sums, share);
}
