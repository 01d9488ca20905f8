/* act_quant_index.h: the computation of act_quant.cu: the distribution of a row over threads, the
 * places of results, and the integers. Functions of plain numbers for the GPU and for the CPU. On
 * the CPU tests/unit/kernels/cuda/test_cuda_act_quant.c makes whole planes with them. The planes:
 * quant_index.h.
 *
 *   s = max(mean|x| · 0.034539763, max|x| / 32000, 1e-30), a = rint(x · (1/s)) = lo + 255·hi
 *
 * Columns of a pair (64): quarter i (0..3) is half i % 2 of run i / 2, 16 columns. Four lanes share
 * the pair; lane t (0..3) has four columns of each quarter, a quad. */
#pragma once

#include <math.h>

#include "kernels/cuda/act_quant.h"

enum {
    ACT_QUANT_THREADS = 256,                                 /* threads per row */
    ACT_QUANT_STAGED = 8192,                                 /* columns in shared memory at once */
    ACT_QUANT_BATCH = 8,                                     /* loads that a thread has in flight */
    ACT_QUANT_COLUMNS = ACT_QUANT_THREADS * ACT_QUANT_BATCH, /* for all threads */
    ACT_QUANT_WARPS = ACT_QUANT_THREADS / CUDA_WARP,
    ACT_QUANT_LANES = CUDA_SEGMENTS * CUDA_LANES,
    ACT_QUANT_LANES_OF_PAIR = 4,
    ACT_QUANT_PAIRS = ACT_QUANT_THREADS / ACT_QUANT_LANES_OF_PAIR, /* pairs at once */
};

/* Places in shared memory, in floats. */
enum {
    ACT_QUANT_AT_LANES = ACT_QUANT_STAGED,
    ACT_QUANT_AT_MAX = ACT_QUANT_AT_LANES + ACT_QUANT_LANES,
    ACT_QUANT_AT_SUM = ACT_QUANT_AT_MAX + ACT_QUANT_WARPS,
    ACT_QUANT_AT_LARGEST,
    ACT_QUANT_N_SHARED,
    ACT_QUANT_SHARED_BYTES = ACT_QUANT_N_SHARED * 4
};

/* --- sum and maximum of a row --- */

/* Returns the end of the columns that are staged together with column `from`. */
CUDA_HD uint32_t act_quant_staged_end(uint32_t from, uint32_t k)
{
    return k - from < ACT_QUANT_STAGED ? k : from + ACT_QUANT_STAGED;
}

/* Returns the column of load j of a thread whose first column is i. */
CUDA_HD uint32_t act_quant_column(uint32_t i, uint32_t j)
{
    return i + j * ACT_QUANT_THREADS;
}

/* Returns the place of a column in shared memory, where column `from` is the first. */
CUDA_HD uint32_t act_quant_staged_at(uint32_t column, uint32_t from)
{
    return column - from;
}

/* Returns the part of the row that a thread adds up; only for threads below ACT_QUANT_LANES. */
CUDA_HD uint32_t act_quant_part(uint32_t thread)
{
    return thread / CUDA_LANES;
}

/* Returns the thread's lane of that part. */
CUDA_HD uint32_t act_quant_part_lane(uint32_t thread)
{
    return thread % CUDA_LANES;
}

/* Returns the first column, at or after `from`, that a lane adds; every 16th follows. `begin` is
 * where the part begins. */
CUDA_HD uint32_t act_quant_lane_first(uint32_t from, uint32_t begin, uint32_t lane)
{
    uint32_t first = from > begin ? from : begin;
    return first + (lane + CUDA_LANES - (first - begin) % CUDA_LANES) % CUDA_LANES;
}

/* Returns true if a thread adds two lanes that are `half` apart. */
CUDA_HD bool act_quant_folds(uint32_t thread, uint32_t half)
{
    return thread < CUDA_SEGMENTS * half;
}

/* Returns the index of the first lane, which receives the sum. */
CUDA_HD uint32_t act_quant_fold_to(uint32_t thread, uint32_t half)
{
    return thread / half * CUDA_LANES + thread % half;
}

/* Returns the index of the second lane. */
CUDA_HD uint32_t act_quant_fold_from(uint32_t thread, uint32_t half)
{
    return act_quant_fold_to(thread, half) + half;
}

/* Returns the lane that receives a part's sum. */
CUDA_HD uint32_t act_quant_part_sum_at(uint32_t part)
{
    return part * CUDA_LANES;
}

/* Returns bit p if part p of the row has columns. */
CUDA_HD uint32_t act_quant_part_bit(const uint32_t *bounds, uint32_t p)
{
    return (uint32_t)(bounds[p] < bounds[p + 1]) << p;
}

/* Returns the place of a row's statistics in [n_ranks][n_rows][2]: Σ|x|, then max|x|. */
CUDA_HD size_t act_quant_stats_at(uint32_t rank, uint32_t n_rows, uint32_t row)
{
    return 2 * ((size_t)rank * n_rows + row);
}

/* Returns the `present` bits of all ranks, for the tree over ranks. */
CUDA_HD uint32_t act_quant_rank_bits(uint32_t n_ranks)
{
    return (1u << n_ranks) - 1;
}

/* --- the integers --- */

CUDA_HD bool act_quant_is_finite(float sum)
{
    return fabsf(sum) <= 3.4028234663852886e38f;
}

CUDA_HD float act_quant_scale(float sum, float max, uint32_t k_total)
{
    float by_mean = sum / (float)k_total * 0.034539763f, by_max = max / 32000.0f;
    float scale = by_mean > by_max ? by_mean : by_max;
    return scale > 1e-30f ? scale : 1e-30f;
}

CUDA_HD float act_quant_inverse(float scale)
{
    return 1.0f / scale;
}

/* Four columns: the words of lo and of hi, and the sums of their bytes. */
struct act_quad {
    uint32_t lo, hi;
    int32_t lo_sum, hi_sum;
};

/* Quantizes columns [k, k + 4) of a row of n; columns beyond are zero. x NULL: all zero. */
CUDA_HD struct act_quad act_quant_four(const float *x, uint32_t k, uint32_t n, float inv)
{
    struct act_quad q = {0, 0, 0, 0};
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

/* --- the planes --- */

/* Returns the pairs of a row that have digits: whole chunks, so at least all pairs with columns. */
CUDA_HD uint32_t act_quant_digit_pairs(uint32_t k)
{
    return quant_n_chunks(k) * (QUANT_CHUNK_RUNS / 2);
}

/* Returns a thread's first pair; the next is ACT_QUANT_PAIRS further. */
CUDA_HD uint32_t act_quant_pair(uint32_t thread)
{
    return thread / ACT_QUANT_LANES_OF_PAIR;
}

/* Returns the thread's lane in the pair. */
CUDA_HD uint32_t act_quant_pair_lane(uint32_t thread)
{
    return thread % ACT_QUANT_LANES_OF_PAIR;
}

/* Returns the first column of lane t's quad in quarter i of a pair. */
CUDA_HD uint32_t act_quant_quad(uint32_t pair, uint32_t i, uint32_t t)
{
    return pair * QUANT_PAIR + i * 16 + t * 4;
}

/* Returns the bit of quarter i's run if its word of hi has outliers. */
CUDA_HD uint32_t act_quant_run_bit(uint32_t hi, uint32_t i)
{
    return (uint32_t)(hi != 0) << i / 2;
}

/* Returns the tile of a row. */
CUDA_HD uint32_t act_quant_tile(uint32_t row)
{
    return row / QUANT_TILE;
}

/* Returns the row within its tile. */
CUDA_HD uint32_t act_quant_tile_row(uint32_t row)
{
    return row % QUANT_TILE;
}

/* Returns the index of a tile's pair among the pairs of all tiles. */
CUDA_HD size_t act_quant_tile_pair(uint32_t tile, uint32_t n_pairs, uint32_t pair)
{
    return (size_t)tile * n_pairs + pair;
}

/* Returns the first of the 16 bytes of lo (hi) that lane t of row g writes in a tile's pair: its
 * four quads. */
CUDA_HD size_t act_quant_fragment_at(size_t tile_pair, uint32_t g, uint32_t t)
{
    return tile_pair * QUANT_FRAGMENT_BYTES + (g * 4 + t) * 16;
}

/* Returns the byte of sums (hi_sums) of a tile's pair; flags come first. */
CUDA_HD size_t act_quant_sums_at(size_t tile_pair)
{
    return tile_pair * QUANT_SUMS_BYTES;
}

/* Returns the byte of digits of the chunk with a tile's pair. */
CUDA_HD size_t act_quant_digits_at(uint32_t tile, uint32_t n_chunks, uint32_t pair)
{
    return ((size_t)tile * n_chunks + pair / (QUANT_CHUNK_RUNS / 2)) * QUANT_CHUNK_BYTES;
}

/* Stores the sums of a pair's quarters as the sums of row g of its tile. */
CUDA_HD void act_quant_put_sums(uint8_t *sums, uint32_t g, const int32_t quarters[4])
{
    int16_t *at32 = (int16_t *)(void *)(sums + QUANT_SUMS32_AT) + g / 2 * 4 + g % 2;
    int16_t *at16 = (int16_t *)(void *)(sums + QUANT_SUMS16_AT) + g / 2 * 8 + g % 2;
    for (uint32_t run = 0; run < 2; run++) {
        at32[run * 2] = (int16_t)(quarters[2 * run] + quarters[2 * run + 1]);
        for (uint32_t h = 0; h < 2; h++)
            at16[run * 4 + h * 2] = (int16_t)quarters[2 * run + h];
    }
}

/* Stores the digits of Σa of a pair's runs in its chunk. */
CUDA_HD void act_quant_put_digits(uint8_t *digits, uint32_t g, uint32_t pair, const int32_t lo[4],
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

/* --- an embedding's row --- */

/* Returns column k of row `id` of the table as a float. */
CUDA_HD float embed_quant_value(const struct quant_embedding *w, uint32_t id, uint32_t k)
{
    const uint8_t *panel = w->data + id / QUANT_ROWS * w->layout.panel_bytes;
    return (float)quant_weight_at(&w->layout, panel, id % QUANT_ROWS, k) * w->units[id];
}
