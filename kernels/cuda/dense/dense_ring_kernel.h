/* dense_ring_kernel.h: y[m, n] = x[m, k] · W[n, k]ᵀ for f16, bf16 and E4M3 weights, path P with the
 * warpgroup multiplication of compute capability 9.0 and its copy engine. SLUICE_CUDA_FETCH and
 * SLUICE_CUDA_FP8 (table_cuda.h) choose this kernel.
 *
 * A block computes tiles of 128 × 256 results, one after the other. A single thread asks the engine
 * for stages, also for those of the block's next tile. A stage has 128 bytes of each row: 48 KiB,
 * four in a ring. Two groups of four warps multiply 64 tokens × 256 weight rows each. A group waits
 * for stages by itself. So a group can store its results, or add sums, while the other group
 * multiplies.
 *
 * f16, bf16: the multiplications and the order of sums are those of dense_wgmma_kernel.h, so the
 * bits are too. A group waits for the multiplications of a stage when those of the next are queued.
 *
 * E4M3: the sums of a chain of multiplications keep 14 bits. So a chain is the 4 multiplications of
 * a stage, 128 columns, for half of the weight rows. The chain starts from zero, and its sums are
 * then added in f32. Chains begin at multiples of 128 columns of a segment. Scales are applied at
 * the end. A multiplication cuts products and the sum before it to 14 bits of the largest of them.
 * So the error stays below 2^-8 of the sum of magnitudes, for any k. Where signs alternate, the
 * error is far smaller.
 *
 * A stage at a segment's end also has columns of the next segment. Zeros take the place of their
 * tokens. In all forms a row's bits depend neither on m nor on the row's place or the number of
 * blocks. Segments are added by the contract's tree.
 *
 * Operations: 2·m·n·k. Bytes: a block reads 128 + 256 rows: 85 operations per byte of the second
 * cache at 16 bits, 170 at 8. A stage takes the tensor cores 1024 clocks, in all forms. Shared
 * memory (128 bytes per clock) is busy with arriving copies for 384 clocks. Operands take 640
 * clocks at 16 bits (8 multiplications of 2 + 8 KiB), 768 for E4M3 (16 of 2 + 4 KiB). So E4M3
 * reaches at most 89 % of its rate. [14336, 4096] at 2048 tokens: 7 rounds of 132 tiles of 32 E4M3
 * stages, 152 us at 1.7 GHz. The 117 MB of results take 48 us of memory. That time overlaps with
 * the copies, and partly with the products, of the next tile.
 *
 * Registers: 128 sums, for E4M3 64 of a chain too: 240 for threads that multiply. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: dense_ring.cu dense_ring.*Lb0ELb[01]E registers 168 shared 1024
 *    ptxas: dense_ring.cu dense_ring.*Lb1ELb0E registers 168 shared 1024 stack 1600
 *    ptx: dense_ring.cu dense_ring wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3
 *    ptx: dense_ring.cu dense_ring wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16
 *    ptx: dense_ring.cu dense_ring cp.async.bulk.tensor.2d.shared::cluster.global
 *    ptx: dense_ring.cu dense_ring fence.mbarrier_init.release.cluster
 *    ptx: dense_ring.cu dense_ring setmaxnreg.inc.sync.aligned.u32
 */
#pragma once

#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/dense/dense_ring_index.h"
#include "kernels/cuda/dense/prompt_tree.h"
#include "kernels/cuda/dense/ptx_wgmma_f8.h"
#include "kernels/cuda/dense/wgmma_store.h"
#include "kernels/cuda/ptx_tma.h"

/* Returns the barrier of a stage's arrival. */
CUDA_DEVICE uint64_t *ring_full(unsigned char *shared, uint32_t stage)
{
    return (uint64_t *)(shared + ring_full_at(stage));
}

/* Returns the barrier of a stage's release by all warps that multiply. */
CUDA_DEVICE uint64_t *ring_empty(unsigned char *shared, uint32_t stage)
{
    return (uint64_t *)(shared + ring_empty_at(stage));
}

/* Makes the barriers. A single thread calls this, then all wait at __syncthreads(). */
CUDA_DEVICE void ring_init(unsigned char *shared)
{
    for (uint32_t i = 0; i < RING_STAGES; i++) {
        barrier_init(ring_full(shared, i), 1);
        barrier_init(ring_empty(shared, i), RING_WARPS);
    }
    tma_fence_barriers();
}

/* Writes the zeros. All threads call this, then all wait at __syncthreads(). */
CUDA_DEVICE void ring_clear(unsigned char *shared)
{
    uint4 zero = {0, 0, 0, 0};
    for (uint32_t i = threadIdx.x; i < RING_ZERO_PIECES; i += RING_THREADS)
        *(uint4 *)(shared + ring_zero_at(i)) = zero;
    wgmma_fence_shared();
}

/* A warp calls this when its multiplications have read the stage. */
CUDA_DEVICE void ring_release(unsigned char *shared, uint32_t stage)
{
    if (cuda_lane_of(threadIdx.x) == 0)
        barrier_arrive(ring_empty(shared, stage));
}

/* --- fetching --- */

/* Fetches the stages of a segment of a tile, as the ring has room. */
template <enum dense_form FORM, bool GATED>
CUDA_DEVICE void ring_fetch(unsigned char *shared, struct ring_place *at, struct ring_tile tile,
                            struct ring_columns segment, const struct tensor_map *x,
                            const struct tensor_map *w, const struct tensor_map *up)
{
    for (uint32_t column = segment.begin; column < segment.end; column += prompt_step(FORM)) {
        unsigned char *stage = shared + cuda_stage_at(at->stage, wgmma_stage_bytes());
        uint64_t *full = ring_full(shared, at->stage);
        barrier_wait(ring_empty(shared, at->stage), ring_parity_before(*at));
        tma_expect(full, wgmma_stage_bytes());
        tma_fetch(stage + wgmma_x_at(0, 0), x, ring_x_byte(FORM, column), tile.token, full);
        tma_fetch(stage + ring_half_at(wgmma_w_at(0), 0), w, ring_w_byte(FORM, column),
                  ring_half_row(tile, 0, GATED), full);
        tma_fetch(stage + ring_half_at(wgmma_w_at(0), 1), GATED ? up : w, ring_w_byte(FORM, column),
                  ring_half_row(tile, 1, GATED), full);
        ring_next(at);
    }
}

/* Fetches the stages of all tiles of the block. A single thread calls this. */
template <enum dense_form FORM, bool GATED>
CUDA_DEVICE void ring_fetch_all(unsigned char *shared, const struct dense_job &job,
                                const struct tensor_map *x, const struct tensor_map *w,
                                const struct tensor_map *up)
{
    constexpr uint32_t rows = GATED ? (uint32_t)RING_PAIR_ROWS : (uint32_t)WGMMA_ROWS;
    struct ring_place at = {0, 0};
    uint32_t n_tiles = ring_n_tiles(job.m, job.parts[0].n, rows);
    for (uint32_t i = blockIdx.x; i < n_tiles; i += gridDim.x)
        for (uint32_t s = 0; s < job.slices.count; s++)
            ring_fetch<FORM, GATED>(shared, &at, ring_tile_of(i, job.m, rows),
                                    ring_columns_of(&job.slices, s), x, w, up);
}

/* --- multiplying --- */

/* d[64, 128] += the products of a chain of E4M3; w is the address of the weight rows. */
CUDA_DEVICE void ring_chain(float d[RING_HALF_SUMS], const struct ring_operands &of, uint32_t w)
{
    float chain[RING_HALF_SUMS];
    wgmma_fence();
    wgmma_m64n128k32_e4m3_first(chain, wgmma_matrix(of.x), wgmma_matrix(w));
#pragma unroll
    for (uint32_t c = 1; c < RING_STEPS; c++)
        wgmma_m64n128k32_e4m3(chain, wgmma_matrix(ring_x_at(&of, c)),
                              wgmma_matrix(wgmma_step_at(w, c)));
    wgmma_commit();
    wgmma_wait_64(chain);
#pragma unroll
    for (uint32_t i = 0; i < RING_HALF_SUMS; i++)
        d[i] += chain[i];
}

/* Queues d[64, 256] += the products of a stage of 16-bit operands. */
template <enum dense_form FORM>
CUDA_DEVICE void ring_queue(float d[WGMMA_SUMS], const struct ring_operands &of)
{
    wgmma_fence();
#pragma unroll
    for (uint32_t c = 0; c < RING_STEPS; c++) {
        uint64_t a = wgmma_matrix(ring_x_at(&of, c)), b = wgmma_matrix(wgmma_step_at(of.w, c));
        if constexpr (FORM == DENSE_F16)
            wgmma_m64n256k16_f16(d, a, b);
        else
            wgmma_m64n256k16_bf16(d, a, b);
    }
    wgmma_commit();
}

/* Waits until the stage has arrived. `left` columns of its segment are left. */
template <enum dense_form FORM>
CUDA_DEVICE struct ring_operands ring_await(unsigned char *shared, struct ring_place at,
                                            uint32_t left)
{
    uint32_t address = wgmma_address(shared);
    uint32_t stage = address + cuda_stage_at(at.stage, wgmma_stage_bytes());
    struct ring_operands of = {wgmma_x_at(stage, wgmma_group_of(threadIdx.x)), wgmma_w_at(stage),
                               address + ring_zeros_at(), ring_n_steps(FORM, left)};
    barrier_wait(ring_full(shared, at.stage), at.parity);
    return of;
}

/* d += the products of a segment's columns. 16-bit operands: multiplications of up to two stages
 * are queued, and none on return. */
template <enum dense_form FORM>
CUDA_DEVICE void ring_multiply(unsigned char *shared, struct ring_place *at, float d[WGMMA_SUMS],
                               struct ring_columns segment)
{
    uint32_t before = at->stage;
    for (uint32_t column = segment.begin; column < segment.end; column += prompt_step(FORM)) {
        struct ring_operands of = ring_await<FORM>(shared, *at, segment.end - column);
        if constexpr (FORM == DENSE_F8) {
#pragma unroll
            for (uint32_t half = 0; half < RING_HALVES; half++)
                ring_chain(d + ring_half_sum_at(half), of, ring_half_at(of.w, half));
            ring_release(shared, at->stage);
        } else {
            ring_queue<FORM>(d, of);
            wgmma_wait_but_one();
            if (column != segment.begin)
                ring_release(shared, before);
            before = at->stage;
        }
        ring_next(at);
    }
    if constexpr (FORM != DENSE_F8) {
        wgmma_wait(d);
        if (segment.begin < segment.end)
            ring_release(shared, before);
    }
}

/* --- results --- */

CUDA_DEVICE float2 ring_sum(float2 x, float2 y)
{
    float2 both = {x.x + y.x, x.y + y.y};
    return both;
}

/* Returns two adjacent floats, of which n_left exist; `otherwise` for the others, and where `at` is
 * NULL. WHOLE: both exist and are aligned. */
template <bool WHOLE>
CUDA_DEVICE float2 ring_pair(const float *at, uint32_t offset, uint32_t n_left, float otherwise)
{
    float2 both = {otherwise, otherwise};
    if (at == NULL)
        return both;
    const float *from = at + offset;
    if (WHOLE)
        return *(const float2 *)from;
    if (n_left > 0)
        both.x = from[0];
    if (n_left > 1)
        both.y = from[1];
    return both;
}

/* Stores a thread's results of one token, with scales, bias and sum. */
template <enum dense_form FORM, bool WHOLE>
CUDA_DEVICE void ring_store_token(const struct dense_part &p, const float d[WGMMA_SUMS],
                                  uint32_t half, uint32_t token, uint32_t first_row, float factor)
{
    float *to = p.sum ? p.sum + cuda_row(token, p.sum_stride) : p.y + cuda_row(token, p.y_stride);
#pragma unroll
    for (uint32_t i = 0; i < WGMMA_ROW_TILES; i += RING_LOADS) {
        float2 before[RING_LOADS];
#pragma unroll
        for (uint32_t j = 0; j < RING_LOADS; j++) {
            uint32_t row = first_row + wgmma_result_row(threadIdx.x, i + j);
            before[j] = ring_pair<WHOLE>(p.sum ? to : NULL, row, ring_rows_left(row, p.n), 0.0f);
        }
#pragma unroll
        for (uint32_t j = 0; j < RING_LOADS; j++) {
            uint32_t row = first_row + wgmma_result_row(threadIdx.x, i + j);
            uint32_t n_left = ring_rows_left(row, p.n);
            const float *sums = d + wgmma_sum_at(half, i + j);
            float2 two = {sums[0], sums[1]};
            if constexpr (FORM != DENSE_BF16) { /* f16: widened weights have scales */
                float2 w = ring_pair<WHOLE>(p.w_scale, row, n_left, 1.0f);
                two.x = dense_scaled_by(sums[0], factor, w.x);
                two.y = dense_scaled_by(sums[1], factor, w.y);
            }
            if (p.bias)
                two = ring_sum(two, ring_pair<WHOLE>(p.bias, row, n_left, 0.0f));
            if (p.sum)
                two = ring_sum(before[j], two);
            if (WHOLE)
                *(float2 *)(to + row) = two;
            else
                wgmma_store_pair(to + row, two.x, two.y, n_left);
        }
    }
}

/* Stores a thread's results of a tile. */
template <enum dense_form FORM>
CUDA_DEVICE void ring_store(const struct dense_job &job, const float d[WGMMA_SUMS],
                            struct ring_tile tile)
{
    const struct dense_part &p = job.parts[0];
    bool whole = ring_is_whole(tile, &p);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t token = tile.token + wgmma_result_token(threadIdx.x, half);
        if (token >= job.m)
            continue;
        float factor = job.x_scale != NULL ? job.x_scale[token] : 1.0f;
        if (whole)
            ring_store_token<FORM, true>(p, d, half, token, tile.row, factor);
        else
            ring_store_token<FORM, false>(p, d, half, token, tile.row, factor);
    }
}

/* Writes the next linear's activations for a warp's chunk of gates and ups, which begins at this
 * token and row. */
template <enum dense_form FORM>
CUDA_DEVICE void ring_gate_chunk(const struct dense_job &job, const float *own, uint32_t token,
                                 uint32_t row)
{
    const struct dense_part &gate = job.parts[0], &up = job.parts[1];
    uint32_t lane = cuda_lane_of(threadIdx.x);
    size_t stride = dense_act_stride(gate.n);
#pragma unroll 1
    for (uint32_t i = 0; i < RING_PAIR_TURNS; i++) {
        struct ring_two two = ring_two_of(i, lane);
        uint32_t of_token = token + two.token, of_row = row + two.column;
        uint32_t n_left = ring_rows_left(of_row, gate.n);
        float2 g = *(const float2 *)(own + two.gate_at), u = *(const float2 *)(own + two.up_at);
        if (gate.bias)
            g = ring_sum(g, ring_pair<false>(gate.bias, of_row, n_left, 0.0f));
        if (up.bias)
            u = ring_sum(u, ring_pair<false>(up.bias, of_row, n_left, 0.0f));
        uint32_t first = n_left > 0 ? act_half(dense_gated(g.x, u.x, job.activation), FORM) : 0;
        uint32_t second = n_left > 1 ? act_half(dense_gated(g.y, u.y, job.activation), FORM) : 0;
        if (of_token < job.m && of_row < stride)
            *(uint32_t *)(job.half + cuda_element(of_token, stride, of_row)) =
                fragment_pair(first, second);
    }
}

/* half = activation(gate) · up of a tile, rounded; zeros from column n to the row's end. The ring
 * may hold the next tile's stages, so sums pass through floats of the warp, 16 columns at a time.
 */
template <enum dense_form FORM>
CUDA_DEVICE void ring_gate(unsigned char *shared, const struct dense_job &job,
                           const float d[WGMMA_SUMS], struct ring_tile tile)
{
    uint32_t warp = cuda_warp_of(threadIdx.x), lane = cuda_lane_of(threadIdx.x);
    float *own = (float *)(shared + ring_pairs_at(warp));
#pragma unroll
    for (uint32_t i = 0; i < RING_PAIR_CHUNKS; i++) {
        __syncwarp(); /* the chunk before has been read */
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
#pragma unroll
            for (uint32_t j = 0; j < RING_PAIR_TILES; j++)
#pragma unroll
                for (uint32_t is_up = 0; is_up < 2; is_up++) {
                    const float *two = d + wgmma_sum_at(half, ring_pair_tile(i, j, is_up));
                    float2 both = {two[0], two[1]};
                    *(float2 *)(own + ring_pair_at(lane, half, j, is_up)) = both;
                }
        __syncwarp();
        ring_gate_chunk<FORM>(job, own, tile.token + ring_warp_token(warp),
                              tile.row + ring_chunk_column(i));
    }
}

/* Computes the tiles of the block from the stages that arrive. Eight warps call this. */
template <enum dense_form FORM, bool SPLIT, bool GATED>
CUDA_DEVICE void ring_multiply_all(unsigned char *shared, const struct dense_job &job)
{
    constexpr uint32_t rows = GATED ? (uint32_t)RING_PAIR_ROWS : (uint32_t)WGMMA_ROWS;
    struct ring_place at = {0, 0};
    uint32_t n_tiles = ring_n_tiles(job.m, job.parts[0].n, rows);
    for (uint32_t i = blockIdx.x; i < n_tiles; i += gridDim.x) {
        struct prompt_tree<WGMMA_SUMS> tree;
        float d[WGMMA_SUMS] = {};
        tree.present = 0;
        for (uint32_t s = 0; s < (SPLIT ? job.slices.count : 1); s++) {
            ring_multiply<FORM>(shared, &at, d, ring_columns_of(&job.slices, s));
            if (SPLIT)
                prompt_tree_put(&tree, d, s, job.slices);
        }
        if constexpr (GATED)
            ring_gate<FORM>(shared, job, d, ring_tile_of(i, job.m, rows));
        else
            ring_store<FORM>(job, d, ring_tile_of(i, job.m, rows));
    }
}

/* Grid: any number of blocks; a block computes every gridDim.x-th tile. SPLIT: the matrix has
 * segments. GATED: gate and up are one matrix, 128 rows of each per tile; `up` describes the up. */
template <enum dense_form FORM, bool SPLIT, bool GATED>
static __global__ void __launch_bounds__(RING_THREADS, 1)
    dense_ring(const __grid_constant__ struct dense_job job,
               const __grid_constant__ struct tensor_map x,
               const __grid_constant__ struct tensor_map w,
               const __grid_constant__ struct tensor_map up)
{
#if WGMMA_BUILT
    CUDA_SHARED(memory);
    cuda_op_begin();
    unsigned char *shared = memory + wgmma_skip(wgmma_address(memory));
    if (threadIdx.x == 0)
        ring_init(shared);
    ring_clear(shared);
    __syncthreads();
    if (threadIdx.x < PROMPT_THREADS) {
        registers_raise<RING_MULTIPLY_REGISTERS>();
        ring_multiply_all<FORM, SPLIT, GATED>(shared, job);
    } else {
        registers_lower<RING_FETCH_REGISTERS>();
        if (threadIdx.x == PROMPT_THREADS)
            ring_fetch_all<FORM, GATED>(shared, job, &x, &w, &up);
    }
#endif
}
