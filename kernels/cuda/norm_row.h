/* norm_row.h: RMS and layer norm of a few rows by one block. The bits equal those of
 * kernels/cpu/ref: 16 lanes of fused multiply-adds, the tree 8 4 2 1, correctly rounded division
 * and square root.
 *
 * A lane's chain of n/16 additions is fixed by the contract. So rows are first loaded into shared
 * memory, 16 bytes per thread at a time. Then 16 threads per row add there (block_chain). 4096
 * columns are 256 additions of 4 cycles each, 0.6 us, while other loads of a batch run. The weights
 * are fetched into L2 in that time. Short rows share a block. Rows beyond NORM_CHUNK are loaded in
 * pieces, twice (layer norm: three times). Bytes: 8·m·n + 4·n (8·n with a bias). */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: norm.cu norm_blocks registers 96
 *    ptxas: norm.cu norm_blocks on sm_90a registers 80
 */
#pragma once

#include <math.h>
#include <stdbool.h>

#include "kernels/cuda/block.h"

enum {
    NORM_CHUNK = 8192, /* columns in shared memory at once; a multiple of the lanes */
    NORM_STAGED = (NORM_CHUNK + 31) / 32 * 32 + CUDA_LANES, /* floats of a row loaded in pieces */
    NORM_MAX_ROWS = 8, /* rows per block: its sums lie in the block's lanes */
    NORM_SHORT = 2048, /* limit of elements of rows that share a block */
    NORM_BATCH = 4,    /* groups of four columns that a thread loads before it uses the first */
    NORM_AHEAD = 8     /* the same where a row is staged: 4096 columns at once */
};

/* arXiv 1910.07467, eq. 4; with `centred` y = (x − mean) / √(var + eps) · w + bias. y may be x. */
struct norm_rows {
    float *y;
    const float *x, *w, *bias; /* bias NULL: none */
    size_t y_stride, x_stride;
    uint32_t n_rows, n;
    float eps;
    bool centred;
    uint32_t n_w; /* rows of w and bias; row r of x takes row r % n_w. 0 or 1: the same for all */
};

/* Returns the place in w, and in bias, of a row's weights. */
CUDA_HD size_t norm_weights_at(const struct norm_rows *job, uint32_t row)
{
    return job->n_w > 1 ? (size_t)(row % job->n_w) * job->n : 0;
}

/* Returns the rows that a block computes at once. */
CUDA_HD uint32_t norm_block_rows(uint32_t n)
{
    uint32_t rows = 1;
    while (rows < NORM_MAX_ROWS && 2 * rows * n <= NORM_SHORT)
        rows *= 2;
    return rows;
}

/* Returns the first row of block `block`, in blocks of `rows` rows. For n_blocks it is the distance
 * to a block's next rows. */
CUDA_HD uint32_t norm_block_first(uint32_t block, uint32_t rows)
{
    return block * rows;
}

/* Returns the rows that remain for a block from `row` on, at most `rows`. */
CUDA_HD uint32_t norm_rows_left(uint32_t n_rows, uint32_t row, uint32_t rows)
{
    return n_rows - row < rows ? n_rows - row : rows;
}

/* Returns the floats from one staged row to the next; the lanes of two rows lie in different
 * banks. */
CUDA_HD uint32_t norm_pitch(uint32_t n)
{
    uint32_t columns = n < NORM_CHUNK ? n : (uint32_t)NORM_CHUNK;
    return (uint32_t)cuda_round_up(columns, 32) + CUDA_LANES;
}

/* Returns the bytes of shared memory, which must be 16-byte aligned. */
CUDA_HD uint32_t norm_stage_bytes(uint32_t n)
{
    return norm_block_rows(n) * norm_pitch(n) * (uint32_t)sizeof(float);
}

/* Four adjacent columns of one of a block's rows. */
struct norm_place {
    uint32_t row, column;
};

/* Returns item i of rows of n_fours items each. */
CUDA_HD struct norm_place norm_place_of(uint32_t i, uint32_t n_fours)
{
    struct norm_place place = {i / n_fours, i % n_fours * 4};
    return place;
}

/* The same for n_rows rows. A single row, as all long rows are, needs no division. */
CUDA_HD struct norm_place norm_place_in(uint32_t i, uint32_t n_fours, uint32_t n_rows)
{
    struct norm_place place = {0, i * 4};
    return n_rows == 1 ? place : norm_place_of(i, n_fours);
}

/* Returns the floats between the 128-byte lines of a weight. */
CUDA_HD uint32_t norm_line(uint32_t i)
{
    return i * 32;
}

/* Returns the number of items of n_rows rows that are `stride` columns apart, a multiple of 4. */
CUDA_HD uint32_t norm_n_fours(uint32_t n_rows, size_t stride)
{
    return n_rows * (uint32_t)(stride / 4);
}

/* Returns item j of a thread's batch; the thread's first item is i. */
CUDA_HD uint32_t norm_batch_item(uint32_t i, uint32_t j, uint32_t n_threads)
{
    return i + j * n_threads;
}

struct norm_four {
    float at[4];
} __attribute__((aligned(16)));

BLOCK_FN bool norm_is_aligned(const void *p)
{
    return (uintptr_t)p % sizeof(struct norm_four) == 0;
}

BLOCK_FN struct norm_four norm_load(const float *x)
{
    return *(const struct norm_four *)(const void *)x;
}

BLOCK_FN void norm_store(float *y, const struct norm_four *four)
{
    *(struct norm_four *)(void *)y = *four;
}

/* Loads columns [begin, begin + n) of rows [row, row + n_rows) into `stage`. */
BLOCK_FN void norm_stage(const struct block *b, float *stage, const struct norm_rows *job,
                         uint32_t row, uint32_t n_rows, uint32_t begin, uint32_t n)
{
    const float *x = job->x + row * job->x_stride + begin;
    bool aligned = norm_is_aligned(x) && job->x_stride % 4 == 0;
    uint32_t pitch = norm_pitch(job->n), fours = aligned ? n / 4 : 0, rest = n - 4 * fours;
    block_sync(b); /* the staged columns have been read */
    for (uint32_t i = b->tid; i < n_rows * fours; i += NORM_AHEAD * b->n_threads) {
        struct norm_four batch[NORM_AHEAD];
        BLOCK_UNROLL
        for (uint32_t j = 0; j < NORM_AHEAD; j++) { /* the last item again in place of none */
            uint32_t item = i + j * b->n_threads, last = n_rows * fours - 1;
            struct norm_place from = norm_place_in(item < last ? item : last, fours, n_rows);
            batch[j] = norm_load(x + from.row * job->x_stride + from.column);
        }
        BLOCK_UNROLL
        for (uint32_t j = 0; j < NORM_AHEAD; j++) {
            uint32_t item = i + j * b->n_threads;
            struct norm_place to = norm_place_in(item, fours, n_rows);
            if (item < n_rows * fours)
                norm_store(stage + to.row * pitch + to.column, &batch[j]);
        }
    }
    for (uint32_t i = b->tid; i < n_rows * rest; i += b->n_threads) {
        uint32_t r = i / rest, at = 4 * fours + i % rest;
        stage[r * pitch + at] = x[r * job->x_stride + at];
    }
    block_sync(b);
}

/* Computes the rows' sums in lanes[16 · r]: of x if means is NULL, else of squares. Afterwards the
 * last columns are staged; these are all columns if they fit. */
BLOCK_FN void norm_sums(const struct block *b, float *stage, const struct norm_rows *job,
                        uint32_t row, uint32_t n_rows, const float *means, bool is_staged)
{
    float *lanes = b->shared->lanes;
    uint32_t pitch = norm_pitch(job->n);
    for (uint32_t begin = 0; begin < job->n; begin += NORM_CHUNK) {
        uint32_t left = job->n - begin, n = left < NORM_CHUNK ? left : (uint32_t)NORM_CHUNK;
        if (!is_staged)
            norm_stage(b, stage, job, row, n_rows, begin, n);
        for (uint32_t l = b->tid; l < n_rows * CUDA_LANES; l += b->n_threads) {
            uint32_t r = l / CUDA_LANES, lane = l % CUDA_LANES;
            const float *x = stage + r * pitch + lane;
            float sum = begin > 0 ? lanes[l] : 0.0f;
            uint32_t n_left = n > lane ? n - lane : 0;
            lanes[l] = means ? block_chain(x, n_left, BLOCK_TERM_SQUARE, means[r], sum)
                             : block_chain(x, n_left, BLOCK_TERM_SELF, 0.0f, sum);
        }
    }
    block_fold_lanes(b, lanes, n_rows);
}

BLOCK_FN float norm_scaled(float x, float mean, float scale, float w)
{
    return (x - mean) * scale * w;
}

BLOCK_FN float norm_value(const struct norm_rows *job, float x, float mean, float scale, size_t i)
{
    float normed = norm_scaled(x, mean, scale, job->w[i]);
    return job->bias ? normed + job->bias[i] : normed;
}

/* Stores columns [at, at + 4) of a row, with loaded weights and biases. */
BLOCK_FN void norm_put_four(const struct norm_rows *job, float *y, struct norm_four x, float mean,
                            float scale, const struct norm_four *w, const struct norm_four *bias)
{
    BLOCK_UNROLL_FEW
    for (uint32_t e = 0; e < 4; e++) {
        float normed = norm_scaled(x.at[e], mean, scale, w->at[e]);
        x.at[e] = job->bias ? normed + bias->at[e] : normed;
    }
    norm_store(y, &x);
}

/* Stores y of rows with known mean and scale, from the stage if it holds whole rows. */
BLOCK_FN void norm_put(const struct block *b, const float *stage, const struct norm_rows *job,
                       uint32_t row, uint32_t n_rows, const float *means, const float *scales)
{
    bool whole = job->n <= NORM_CHUNK;
    size_t from_stride = whole ? norm_pitch(job->n) : job->x_stride;
    const float *from = whole ? stage : job->x + row * job->x_stride;
    float *y = job->y + row * job->y_stride;
    bool aligned = norm_is_aligned(y) && job->y_stride % 4 == 0 && norm_is_aligned(from) &&
                   from_stride % 4 == 0 && norm_is_aligned(job->w) && norm_is_aligned(job->bias) &&
                   (job->n_w < 2 || job->n % 4 == 0);
    uint32_t n = job->n, fours = aligned ? n / 4 : 0, rest = n - 4 * fours;
    for (uint32_t i = b->tid; i < n_rows * fours; i += NORM_BATCH * b->n_threads) {
        struct norm_four w[NORM_BATCH], bias[NORM_BATCH];
        BLOCK_UNROLL
        for (uint32_t j = 0; j < NORM_BATCH; j++) {
            uint32_t item = i + j * b->n_threads, last = n_rows * fours - 1;
            struct norm_place at = norm_place_in(item < last ? item : last, fours, n_rows);
            size_t from_w = norm_weights_at(job, row + at.row) + at.column;
            w[j] = norm_load(job->w + from_w);
            if (job->bias)
                bias[j] = norm_load(job->bias + from_w);
        }
        BLOCK_UNROLL
        for (uint32_t j = 0; j < NORM_BATCH; j++) {
            uint32_t item = i + j * b->n_threads;
            struct norm_place at = norm_place_in(item, fours, n_rows);
            if (item < n_rows * fours)
                norm_put_four(job, y + at.row * job->y_stride + at.column,
                              norm_load(from + at.row * from_stride + at.column), means[at.row],
                              scales[at.row], &w[j], &bias[j]);
        }
    }
    for (uint32_t i = b->tid; i < n_rows * rest; i += b->n_threads) {
        uint32_t r = i / rest, at = 4 * fours + i % rest;
        y[r * job->y_stride + at] = norm_value(job, from[r * from_stride + at], means[r], scales[r],
                                               norm_weights_at(job, row + r) + at);
    }
}

/* Computes means and scales of rows [row, row + n_rows), at most norm_block_rows(). Stage:
 * norm_stage_bytes(). Afterwards rows up to NORM_CHUNK columns are staged. */
BLOCK_FN void norm_stats(const struct block *b, float *stage, const struct norm_rows *job,
                         uint32_t row, uint32_t n_rows, float *means, float *scales)
{
    float *lanes = b->shared->lanes;
    float count = (float)job->n;
    for (uint32_t i = b->tid; norm_line(i) < job->n; i += b->n_threads)
        block_prefetch(job->w + norm_line(i)); /* its first use is after the sums */
    if (job->centred)
        norm_sums(b, stage, job, row, n_rows, NULL, false);
    for (uint32_t r = b->tid; r < n_rows; r += b->n_threads)
        means[r] = job->centred ? lanes[r * CUDA_LANES] / count : 0.0f;
    if (job->centred) /* otherwise the staging waits for all threads */
        block_sync(b);
    norm_sums(b, stage, job, row, n_rows, means, job->centred && job->n <= NORM_CHUNK);
    for (uint32_t r = b->tid; r < n_rows; r += b->n_threads)
        scales[r] = 1.0f / sqrtf(lanes[r * CUDA_LANES] / count + job->eps);
    block_sync(b);
}

/* Computes rows [row, row + n_rows), as norm_stats(). */
BLOCK_FN void norm_run(const struct block *b, float *stage, const struct norm_rows *job,
                       uint32_t row, uint32_t n_rows)
{
    float *means = b->shared->floats, *scales = means + NORM_MAX_ROWS;
    norm_stats(b, stage, job, row, n_rows, means, scales);
    norm_put(b, stage, job, row, n_rows, means, scales);
    block_sync(b); /* afterwards shared memory may be overwritten */
}
