/* Integer activations and embedding rows. Activations (docs/performance.md, "block integers"): one
 * block per row.
 *
 *   s = max(mean|x| · 0.034539763, max|x| / 32000, 1e-30), a = rint(x · (1/s)) = lo + 255·hi
 *
 * Σ|x| has the contract's order: 16 lanes per segment, the tree 8 4 2 1, then the tree over
 * segments; so 16 threads (with segments 128) add k / 16 values each one after the other, out of
 * shared memory, and the others wait: 4 cycles per value. Bytes of a row: 4·k read (once up to
 * STAGED columns, else twice), 2.5·k written. Bound: that chain, about 0.6 µs at k = 4096; many
 * rows: memory. */
#include "kernels/cuda/act_quant.h"
#include "kernels/cuda/launch_quant.h"
#include "kernels/cuda/norm_row.h"
#include "kernels/cuda/thread.h"

enum { THREADS = 256, STAGED = 8192, BATCH = 8, LANES = CUDA_SEGMENTS * CUDA_LANES };

static __device__ const float MEAN_FACTOR = 0.034539763f, MAX_DIVISOR = 32000.0f;

/* Within shared memory: floats. */
enum {
    AT_LANES = STAGED,
    AT_MAX = AT_LANES + LANES,
    AT_RESULT = AT_MAX + THREADS / 32,
    N_SHARED = AT_RESULT + 2
};

/* Adds |x| of staged columns [from, to) to a lane of a part that begins at `begin`. */
CUDA_DEVICE float add_lane(float sum, const float *staged, uint32_t from, uint32_t to,
                           uint32_t begin, uint32_t end, uint32_t lane)
{
    uint32_t first = from > begin ? from : begin;
    first += (lane + CUDA_LANES - (first - begin) % CUDA_LANES) % CUDA_LANES;
    uint32_t last = to < end ? to : end;
#pragma unroll 8
    for (uint32_t i = first; i < last; i += CUDA_LANES)
        sum += fabsf(staged[i - from]);
    return sum;
}

/* Σ|x| and max|x| of a row to every thread; the row (or its end) stays staged. */
CUDA_DEVICE void row_stats(const struct quant_rows *q, const float *x, float *shared,
                           float *out_sum, float *out_max)
{
    uint32_t tid = threadIdx.x, part = tid / CUDA_LANES, lane = tid % CUDA_LANES;
    float sum = 0.0f, max = 0.0f, *lanes = shared + AT_LANES;
    for (uint32_t from = 0; from < q->k; from += STAGED) {
        uint32_t to = q->k - from < STAGED ? q->k : from + STAGED;
        for (uint32_t i = from + tid; i < to; i += THREADS * BATCH) {
            float v[BATCH]; /* all under way at once */
#pragma unroll
            for (uint32_t j = 0; j < BATCH; j++)
                v[j] = i + j * THREADS < to ? x[i + j * THREADS] : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < BATCH; j++) {
                if (i + j * THREADS < to)
                    shared[i + j * THREADS - from] = v[j];
                max = fabsf(v[j]) > max ? fabsf(v[j]) : max;
            }
        }
        __syncthreads();
        if (part < q->n_parts)
            sum = add_lane(sum, shared, from, to, q->bounds[part], q->bounds[part + 1], lane);
        __syncthreads();
    }
    if (tid < LANES)
        lanes[tid] = sum;
    for (uint32_t step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, max, step);
        max = other > max ? other : max;
    }
    if (tid % 32 == 0)
        shared[AT_MAX + tid / 32] = max;
    for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (tid < CUDA_SEGMENTS * half)
            lanes[tid / half * CUDA_LANES + tid % half] +=
                lanes[tid / half * CUDA_LANES + tid % half + half];
    }
    __syncthreads();
    if (tid == 0) {
        float parts[CUDA_SEGMENTS];
        uint32_t present = 0;
        for (uint32_t p = 0; p < q->n_parts && p < CUDA_SEGMENTS; p++) {
            parts[p] = lanes[p * CUDA_LANES];
            present |= (uint32_t)(q->bounds[p] < q->bounds[p + 1]) << p;
        }
        for (uint32_t w = 0; w < THREADS / 32; w++)
            max = shared[AT_MAX + w] > max ? shared[AT_MAX + w] : max;
        shared[AT_RESULT] = cuda_tree_sum(parts, present, q->n_parts);
        shared[AT_RESULT + 1] = max;
    }
    __syncthreads();
    *out_sum = shared[AT_RESULT];
    *out_max = shared[AT_RESULT + 1];
}

CUDA_DEVICE void combine_ranks(const struct quant_rows *q, uint32_t row, float *out_sum,
                               float *out_max)
{
    float sums[CUDA_SEGMENTS], max = 0.0f;
    for (uint32_t r = 0; r < q->n_ranks; r++) {
        const float *stats = q->all_stats + 2 * ((size_t)r * q->n_rows + row);
        sums[r] = stats[0];
        max = stats[1] > max ? stats[1] : max;
    }
    *out_sum = cuda_tree_sum(sums, (1u << q->n_ranks) - 1, q->n_ranks);
    *out_max = max;
}

/* Four columns: the words of lo and of hi, Σ of their bytes. x null: all zero. */
struct quad {
    uint32_t lo, hi;
    int32_t lo_sum, hi_sum;
};

CUDA_DEVICE struct quad quantize_four(const float *x, uint32_t k, uint32_t n, float inv)
{
    struct quad q = {0, 0, 0, 0};
    for (uint32_t j = 0; j < 4; j++) {
        float a = x && k + j < n ? rintf(x[k + j] * inv) : 0.0f;
        float high = rintf(a * (1.0f / 255.0f));
        int32_t hi = (int32_t)high, lo = (int32_t)(a - 255.0f * high);
        q.lo |= ((uint32_t)lo & 0xFF) << 8 * j;
        q.hi |= ((uint32_t)hi & 0xFF) << 8 * j;
        q.lo_sum += lo;
        q.hi_sum += hi;
    }
    return q;
}

/* Over the four lanes of a pair. */
CUDA_DEVICE int32_t sum_of_four(int32_t x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* Sums of the halves of both runs as a tile's pair has them; row g of the tile. */
CUDA_DEVICE void put_sums(uint8_t *sums, uint32_t g, const int32_t halves[4])
{
    int16_t *at32 = (int16_t *)(sums + QUANT_SUMS32_AT) + g / 2 * 4 + g % 2;
    int16_t *at16 = (int16_t *)(sums + QUANT_SUMS16_AT) + g / 2 * 8 + g % 2;
    for (uint32_t run = 0; run < 2; run++) {
        at32[run * 2] = (int16_t)(halves[2 * run] + halves[2 * run + 1]);
        for (uint32_t h = 0; h < 2; h++)
            at16[run * 4 + h * 2] = (int16_t)halves[2 * run + h];
    }
}

CUDA_DEVICE void put_digits(uint8_t *digits, uint32_t g, uint32_t pair, const int32_t lo[4],
                            const int32_t hi[4])
{
    for (uint32_t run = 0; run < 2; run++) {
        uint32_t i = (2 * pair + run) % QUANT_CHUNK_RUNS, group = i / 4;
        int8_t d[QUANT_DIGITS];
        quant_digits(lo[2 * run] + lo[2 * run + 1] + 255 * (hi[2 * run] + hi[2 * run + 1]), d);
        for (uint32_t j = 0; j < QUANT_DIGITS; j++)
            digits[j * 256 + quant_lane(g, group) * 8 + group / 4 * 4 + i % 4] = (uint8_t)d[j];
    }
}

/* One pair of a row by four lanes; all 32 lanes come here. */
CUDA_DEVICE void quantize_pair(const struct quant_rows *q, const float *x, uint32_t row,
                               uint32_t pair, float inv)
{
    uint32_t t = threadIdx.x % 4, tile = row / QUANT_TILE, g = row % QUANT_TILE;
    uint32_t n_pairs = quant_n_pairs(q->k), n_chunks = quant_n_chunks(q->k);
    int32_t lo[4], hi[4];
    uint32_t words[8], any = 0;
    for (uint32_t i = 0; i < 4; i++) { /* run i / 2, half i % 2 */
        struct quad four = quantize_four(x, pair * QUANT_PAIR + i * 16 + t * 4, q->k, inv);
        words[i] = four.lo;
        words[4 + i] = four.hi;
        lo[i] = sum_of_four(four.lo_sum);
        hi[i] = sum_of_four(four.hi_sum);
        any |= (uint32_t)(four.hi != 0) << i / 2;
    }
    any |= __shfl_xor_sync(0xFFFFFFFFu, any, 1);
    any |= __shfl_xor_sync(0xFFFFFFFFu, any, 2);
    size_t at = (size_t)tile * n_pairs + pair;
    if (pair < n_pairs) {
        size_t fragment = at * QUANT_FRAGMENT_BYTES + (g * 4 + t) * 16;
        *(uint4 *)(q->to.lo + fragment) = make_uint4(words[0], words[1], words[2], words[3]);
        *(uint4 *)(q->to.hi + fragment) = make_uint4(words[4], words[5], words[6], words[7]);
        if (t == 0)
            put_sums(q->to.sums + at * QUANT_SUMS_BYTES, g, lo);
        if (t == 1)
            put_sums(q->to.hi_sums + at * QUANT_SUMS_BYTES, g, hi);
        if (t == 2) /* also of the rows that the last tile lacks: none */
            for (uint32_t i = g; i == g || (row + 1 == q->n_rows && i < QUANT_TILE); i++)
                q->to.sums[at * QUANT_SUMS_BYTES + i] = i == g ? (uint8_t)any : 0;
    }
    if (t == 3 && pair < n_chunks * (QUANT_CHUNK_RUNS / 2))
        put_digits(q->to.digits + ((size_t)tile * n_chunks + pair / (QUANT_CHUNK_RUNS / 2)) *
                                      QUANT_CHUNK_BYTES,
                   g, pair, lo, hi);
}

CUDA_DEVICE void quantize_row(const struct quant_rows *q, const float *x, uint32_t row, float sum,
                              float max)
{
    float by_mean = sum / (float)q->k_total * MEAN_FACTOR, by_max = max / MAX_DIVISOR;
    float scale = by_mean > by_max ? by_mean : by_max;
    scale = scale > 1e-30f ? scale : 1e-30f;
    bool finite = fabsf(sum) <= 3.4028234663852886e38f;
    if (threadIdx.x == 0)
        q->to.scale[row] = finite ? scale : NAN;
    float inv = 1.0f / scale;
    uint32_t n = quant_n_chunks(q->k) * (QUANT_CHUNK_RUNS / 2);
    for (uint32_t pair = threadIdx.x / 4; pair < n; pair += THREADS / 4)
        quantize_pair(q, finite ? x : nullptr, row, pair, inv);
}

/* Both of one row, or (ranks) its statistics first and, when those of all are there, the rest. */
static __global__ void __launch_bounds__(THREADS)
    act_quant_rows(struct quant_rows q, bool stats, bool quantize)
{
    CUDA_SHARED(shared_bytes);
    cuda_op_begin();
    float *shared = (float *)shared_bytes, sum, max;
    uint32_t row = blockIdx.x;
    const float *x = q.x + row * q.x_stride;
    if (stats)
        row_stats(&q, x, shared, &sum, &max);
    else
        combine_ranks(&q, row, &sum, &max);
    if (!quantize) {
        if (threadIdx.x == 0) {
            q.stats[2 * (size_t)row] = sum;
            q.stats[2 * (size_t)row + 1] = max;
        }
        return;
    }
    quantize_row(&q, stats && q.k <= STAGED ? shared : x, row, sum, max);
}

int cuda_launch_act_quant(void *stream, const struct quant_rows *rows, bool stats, bool quantize)
{
    return CUDA_LAUNCH(act_quant_rows, rows->n_rows, THREADS, N_SHARED * sizeof(float), stream,
                       *rows, stats, quantize);
}

/* The row's norm and then its integers: the code, and so the bits, of norm.cu and of the above. y
 * is written for whoever else reads it, and read again by this block alone. */
static __global__ void __launch_bounds__(THREADS)
    norm_quant_rows(struct norm_rows norm, struct quant_rows q)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared block;
    cuda_op_begin();
    struct block b = {&block, threadIdx.x, THREADS, nullptr, nullptr};
    float *shared = (float *)shared_bytes, sum, max;
    uint32_t row = blockIdx.x;
    const float *x = q.x + row * q.x_stride;
    norm_run(&b, shared, &norm, row, 1);
    row_stats(&q, x, shared, &sum, &max);
    quantize_row(&q, q.k <= STAGED ? shared : x, row, sum, max);
}

int cuda_launch_norm_quant(void *stream, const struct norm_rows *norm,
                           const struct quant_rows *rows)
{
    static_assert(NORM_CHUNK + CUDA_LANES <= N_SHARED && (int)NORM_CHUNK % 32 == 0,
                  "a staged row of the norm fits");
    return CUDA_LAUNCH(norm_quant_rows, rows->n_rows, THREADS, N_SHARED * sizeof(float), stream,
                       *norm, *rows);
}

/* y[n] = float(W)·unit of a row; an id that there is no row of gives NaN. Bytes: those of 16 rows
 * (a sector holds parts of several) + 4·n. */
static __global__ void __launch_bounds__(THREADS)
    embed_quant_rows(float *y, size_t y_stride, const uint32_t *ids, struct quant_embedding w)
{
    cuda_op_begin();
    uint32_t id = ids[blockIdx.x];
    float *to = y + blockIdx.x * y_stride;
    const uint8_t *panel = w.data + id / QUANT_ROWS * w.layout.panel_bytes;
    for (uint32_t k = threadIdx.x; k < w.n_cols; k += THREADS)
        to[k] = id < w.n_rows
                    ? (float)quant_weight_at(&w.layout, panel, id % QUANT_ROWS, k) * w.units[id]
                    : NAN;
}

int cuda_launch_embed_quant(void *stream, float *y, size_t y_stride, const uint32_t *ids,
                            uint32_t n_rows, const struct quant_embedding *w)
{
    return CUDA_LAUNCH(embed_quant_rows, n_rows, THREADS, 0, stream, y, y_stride, ids, *w);
}
