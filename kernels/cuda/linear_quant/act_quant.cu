/* Integer activations and embedding rows. Activations (docs/house/numerics.md, "block integers"):
 * a block per row, with the arithmetic of act_quant_index.h.
 *
 * Σ|x| has the contract's order: 16 lanes per segment, the tree 8 4 2 1, then the tree over
 * segments. So 16 threads (with segments 128) add k / 16 values each in sequence, from shared
 * memory, and the other threads wait: 4 cycles per value. Bytes of a row: 4·k read (once up to
 * ACT_QUANT_STAGED columns, else twice), 2.5·k written. Bound: that sequence, about 0.6 µs at k =
 * 4096; with many rows memory. */
#include "kernels/cuda/linear_quant/act_quant_heads.h"
#include "kernels/cuda/linear_quant/act_quant_index.h"
#include "kernels/cuda/linear_quant/launch_quant.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/thread.h"

/* Adds |x| of staged columns [from, to) to a lane of a part that begins at `begin`. */
CUDA_DEVICE float add_lane(float sum, const float *staged, uint32_t from, uint32_t to,
                           uint32_t begin, uint32_t end, uint32_t lane)
{
    uint32_t last = to < end ? to : end, first = act_quant_lane_first(from, begin, lane);
    return first < last ? block_chain(staged + act_quant_staged_at(first, from), last - first,
                                      BLOCK_TERM_MAGNITUDE, 0.0f, sum)
                        : sum;
}

/* Computes Σ|x| and max|x| of a row for every thread. The row (or its end) stays staged. */
CUDA_DEVICE void row_stats(const struct quant_rows *q, const float *x, float *shared,
                           float *out_sum, float *out_max)
{
    uint32_t tid = threadIdx.x, part = act_quant_part(tid), lane = act_quant_part_lane(tid);
    float sum = 0.0f, max = 0.0f;
    float *lanes = shared + ACT_QUANT_AT_LANES, *maxima = shared + ACT_QUANT_AT_MAX;
    for (uint32_t from = 0; from < q->k; from += ACT_QUANT_STAGED) {
        uint32_t to = act_quant_staged_end(from, q->k);
        for (uint32_t i = from + tid; i < to; i += ACT_QUANT_COLUMNS) {
            float v[ACT_QUANT_BATCH]; /* all loads are in flight at once */
#pragma unroll
            for (uint32_t j = 0; j < ACT_QUANT_BATCH; j++) {
                uint32_t column = act_quant_column(i, j);
                v[j] = column < to ? x[column] : 0.0f;
            }
#pragma unroll
            for (uint32_t j = 0; j < ACT_QUANT_BATCH; j++) {
                uint32_t column = act_quant_column(i, j);
                if (column < to)
                    shared[act_quant_staged_at(column, from)] = v[j];
                max = fabsf(v[j]) > max ? fabsf(v[j]) : max;
            }
        }
        __syncthreads();
        if (part < q->n_parts) {
            const uint32_t *bounds = q->bounds + part;
            sum = add_lane(sum, shared, from, to, bounds[0], bounds[1], lane);
        }
        __syncthreads();
    }
    if (tid < ACT_QUANT_LANES)
        lanes[tid] = sum;
    for (uint32_t step = CUDA_WARP / 2; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, max, step);
        max = other > max ? other : max;
    }
    if (cuda_lane_of(tid) == 0)
        maxima[cuda_warp_of(tid)] = max;
    for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (act_quant_folds(tid, half))
            lanes[act_quant_fold_to(tid, half)] += lanes[act_quant_fold_from(tid, half)];
    }
    __syncthreads();
    if (tid == 0) {
        float parts[CUDA_SEGMENTS];
        uint32_t present = 0;
        for (uint32_t p = 0; p < q->n_parts && p < CUDA_SEGMENTS; p++) {
            parts[p] = lanes[act_quant_part_sum_at(p)];
            present |= act_quant_part_bit(q->bounds, p);
        }
        for (uint32_t w = 0; w < ACT_QUANT_WARPS; w++)
            max = maxima[w] > max ? maxima[w] : max;
        shared[ACT_QUANT_AT_SUM] = cuda_tree_sum(parts, present, q->n_parts);
        shared[ACT_QUANT_AT_LARGEST] = max;
    }
    __syncthreads();
    *out_sum = shared[ACT_QUANT_AT_SUM];
    *out_max = shared[ACT_QUANT_AT_LARGEST];
}

CUDA_DEVICE void combine_ranks(const struct quant_rows *q, uint32_t row, float *out_sum,
                               float *out_max)
{
    float sums[CUDA_SEGMENTS], max = 0.0f;
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        const float *stats = q->all_stats + act_quant_stats_at(r, q->n_rows, row);
        sums[r] = stats[0];
        max = stats[1] > max ? stats[1] : max;
    }
    *out_sum = cuda_tree_sum(sums, act_quant_rank_bits(q->n_ranks), q->n_ranks);
    *out_max = max;
}

/* Sums over the four lanes of a pair. */
CUDA_DEVICE int32_t sum_of_four(int32_t x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* Quantizes one pair of a row with four lanes; all 32 lanes must call. */
CUDA_DEVICE void quantize_pair(const struct quant_rows *q, const float *x, uint32_t row,
                               uint32_t pair, float inv)
{
    uint32_t t = act_quant_pair_lane(threadIdx.x);
    uint32_t tile = act_quant_tile(row), g = act_quant_tile_row(row);
    uint32_t n_pairs = quant_n_pairs(q->k);
    int32_t lo[4], hi[4];
    uint32_t low[4], high[4], any = 0;
    for (uint32_t i = 0; i < 4; i++) { /* each i is a quarter */
        struct act_quad four = act_quant_four(x, act_quant_quad(pair, i, t), q->k, inv);
        low[i] = four.lo;
        high[i] = four.hi;
        lo[i] = sum_of_four(four.lo_sum);
        hi[i] = sum_of_four(four.hi_sum);
        any |= act_quant_run_bit(four.hi, i);
    }
    any |= __shfl_xor_sync(0xFFFFFFFFu, any, 1);
    any |= __shfl_xor_sync(0xFFFFFFFFu, any, 2);
    size_t at = act_quant_tile_pair(tile, n_pairs, pair), sums_at = act_quant_sums_at(at);
    if (pair < n_pairs) {
        size_t fragment = act_quant_fragment_at(at, g, t);
        *(uint4 *)(q->to.lo + fragment) = make_uint4(low[0], low[1], low[2], low[3]);
        *(uint4 *)(q->to.hi + fragment) = make_uint4(high[0], high[1], high[2], high[3]);
        uint8_t *flags = q->to.sums + sums_at;
        if (t == 0)
            act_quant_put_sums(flags, g, lo);
        if (t == 1)
            act_quant_put_sums(q->to.hi_sums + sums_at, g, hi);
        if (t == 2) /* also clears the flags of missing rows in the last tile */
            for (uint32_t i = g; i == g || (row + 1 == q->n_rows && i < QUANT_TILE); i++)
                flags[i] = i == g ? (uint8_t)any : 0;
    }
    if (t == 3 && pair < act_quant_digit_pairs(q->k))
        act_quant_put_digits(q->to.digits + act_quant_digits_at(tile, quant_n_chunks(q->k), pair),
                             g, pair, lo, hi);
}

CUDA_DEVICE void quantize_row(const struct quant_rows *q, const float *x, uint32_t row, float sum,
                              float max)
{
    float scale = act_quant_scale(sum, max, q->k_total), inv = act_quant_inverse(scale);
    bool finite = act_quant_is_finite(sum);
    if (threadIdx.x == 0)
        q->to.scale[row] = finite ? scale : NAN;
    uint32_t n = act_quant_digit_pairs(q->k);
    for (uint32_t pair = act_quant_pair(threadIdx.x); pair < n; pair += ACT_QUANT_PAIRS)
        quantize_pair(q, finite ? x : nullptr, row, pair, inv);
}

/* Does statistics and quantization of a row. With several ranks: statistics first, the rest when
 * all ranks' statistics are there. */
static __global__ void __launch_bounds__(ACT_QUANT_THREADS)
    act_quant_rows(struct quant_rows q, bool stats, bool quantize)
{
    CUDA_SHARED(shared_bytes);
    cuda_op_begin();
    float *shared = (float *)shared_bytes, sum, max;
    uint32_t row = blockIdx.x;
    const float *x = q.x + cuda_row(row, q.x_stride);
    if (stats)
        row_stats(&q, x, shared, &sum, &max);
    else
        combine_ranks(&q, row, &sum, &max);
    if (!quantize) {
        if (threadIdx.x == 0) {
            float *figures = q.stats + act_quant_stats_at(0, q.n_rows, row);
            figures[0] = sum;
            figures[1] = max;
        }
        return;
    }
    quantize_row(&q, stats && q.k <= ACT_QUANT_STAGED ? shared : x, row, sum, max);
}

int cuda_launch_act_quant(void *stream, const struct quant_rows *rows, bool stats, bool quantize)
{
    return CUDA_LAUNCH(act_quant_rows, rows->n_rows, ACT_QUANT_THREADS, ACT_QUANT_SHARED_BYTES,
                       stream, *rows, stats, quantize);
}

/* The same for a head of a row. Statistics are those of the head. */
static __global__ void __launch_bounds__(ACT_QUANT_THREADS)
    act_quant_head_rows(struct quant_head_rows heads)
{
    CUDA_SHARED(shared_bytes);
    cuda_op_begin();
    float *shared = (float *)shared_bytes, sum = 0.0f, max = 0.0f;
    uint32_t row = blockIdx.x;
    const struct quant_rows *q = &heads.rows;
    const float *x = quant_head_row(&heads, row);
    bool staged = x != nullptr && q->k <= ACT_QUANT_STAGED;
    if (x != nullptr)
        row_stats(q, x, shared, &sum, &max);
    quantize_row(q, staged ? shared : x, row, sum, max);
}

int cuda_launch_act_quant_heads(void *stream, const struct quant_head_rows *heads)
{
    return CUDA_LAUNCH(act_quant_head_rows, heads->rows.n_rows, ACT_QUANT_THREADS,
                       ACT_QUANT_SHARED_BYTES, stream, *heads);
}

/* Computes the row's norm and then its integers. The code, and so the bits, are those of norm.cu
 * and of the kernel above. Writes y for other readers; only this block reads it again. */
static __global__ void __launch_bounds__(ACT_QUANT_THREADS)
    norm_quant_rows(struct norm_rows norm, struct quant_rows q)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared block;
    cuda_op_begin();
    struct block b = {&block, threadIdx.x, ACT_QUANT_THREADS, nullptr, nullptr};
    float *shared = (float *)shared_bytes, sum, max;
    uint32_t row = blockIdx.x;
    const float *x = q.x + cuda_row(row, q.x_stride);
    norm_run(&b, shared, &norm, row, 1);
    row_stats(&q, x, shared, &sum, &max);
    quantize_row(&q, q.k <= ACT_QUANT_STAGED ? shared : x, row, sum, max);
}

int cuda_launch_norm_quant(void *stream, const struct norm_rows *norm,
                           const struct quant_rows *rows)
{
    static_assert((int)NORM_STAGED <= (int)ACT_QUANT_N_SHARED, "a staged row of the norm fits");
    return CUDA_LAUNCH(norm_quant_rows, rows->n_rows, ACT_QUANT_THREADS, ACT_QUANT_SHARED_BYTES,
                       stream, *norm, *rows);
}

/* y[n] = float(W)·unit of a row; an id without a row gives NaN. Bytes: those of 16 rows (a sector
 * holds parts of several) + 4·n. */
static __global__ void __launch_bounds__(ACT_QUANT_THREADS)
    embed_quant_rows(float *y, size_t y_stride, const uint32_t *ids, struct quant_embedding w)
{
    cuda_op_begin();
    uint32_t id = ids[blockIdx.x];
    float *to = y + cuda_row(blockIdx.x, y_stride);
    for (uint32_t k = threadIdx.x; k < w.n_cols; k += ACT_QUANT_THREADS)
        to[k] = id < w.n_rows ? embed_quant_value(&w, id, k) : NAN;
}

int cuda_launch_embed_quant(void *stream, float *y, size_t y_stride, const uint32_t *ids,
                            uint32_t n_rows, const struct quant_embedding *w)
{
    return CUDA_LAUNCH(embed_quant_rows, n_rows, ACT_QUANT_THREADS, 0, stream, y, y_stride, ids,
                       *w);
}
