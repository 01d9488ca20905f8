/* block.h: the threads that work together on one row: a CUDA block, or in tests a few CPU threads.
 * So the parallel code itself runs without a GPU. Float sums use fixed trees and never depend on
 * the number of threads. */
#pragma once

#include <math.h>

#include "kernels/cuda/index.h"

#ifdef __cplusplus
#include "kernels/cuda/thread.h"
#endif

enum { BLOCK_MAX_THREADS = 256 };

/* Memory shared by all threads of a block (CUDA: __shared__). */
struct block_shared {
    float lanes[CUDA_SEGMENTS * CUDA_LANES];
    float segments[CUDA_SEGMENTS]; /* segment sums of the last block_sum() */
    double lanes_f64[CUDA_SEGMENTS * CUDA_LANES];
    uint32_t words[BLOCK_MAX_THREADS];
    float floats[BLOCK_MAX_THREADS];
};

struct block {
    struct block_shared *shared;
    uint32_t tid, n_threads;     /* n_threads is a power of two, at most BLOCK_MAX_THREADS */
    void (*sync)(void *context); /* C only; in C++ the code is a kernel (thread.h) */
    void *context;
};

#ifdef __cplusplus
#define BLOCK_FN __device__ static inline
#else
#define BLOCK_FN static inline
#endif

/* Put before a loop whose loads should not wait for each other. Only for loops with a fixed number
 * of steps: with an exit at each step, loads would stay behind branches. */
#ifdef __CUDACC__
#define BLOCK_UNROLL     _Pragma("unroll 16")
#define BLOCK_UNROLL_FEW _Pragma("unroll 4")
#else
#define BLOCK_UNROLL
#define BLOCK_UNROLL_FEW
#endif

/* Begins to load the 128 bytes at p into L2; a hint. */
BLOCK_FN void block_prefetch(const void *p)
{
#ifdef __CUDACC__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
#else
    (void)p;
#endif
}

/* Waits until all threads of the block have reached this call. */
BLOCK_FN void block_sync(const struct block *b)
{
#ifdef __cplusplus
    (void)b;
    __syncthreads();
#else
    if (b->sync)
        b->sync(b->context);
#endif
}

/* Adds to, or raises, a whole number from many threads in any order; returns the value before. */
/* NOLINTNEXTLINE(readability-non-const-parameter): clang-tidy does not see that it is written */
BLOCK_FN uint32_t block_atomic_add(uint32_t *p, uint32_t x)
{
#ifdef __cplusplus
    return atomicAdd(p, x);
#else
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
#endif
}

/* NOLINTNEXTLINE(readability-non-const-parameter) */
BLOCK_FN void block_atomic_max(uint32_t *p, uint32_t x)
{
#ifdef __cplusplus
    atomicMax(p, x);
#else
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < x &&
           !__atomic_compare_exchange_n(p, &old, x, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
#endif
}

/* Makes this thread's earlier writes visible to blocks that see its later writes. */
BLOCK_FN void block_fence(void)
{
#ifdef __cplusplus
    __threadfence();
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Reads a value that another block of the same launch wrote. */
#ifdef __cplusplus
#define BLOCK_LOAD(p) __ldcg(p)
#else
#define BLOCK_LOAD(p) (*(p))
#endif

/* Returns the sum, largest or smallest of one word per thread, in every thread. */
enum block_word_op { BLOCK_WORD_SUM, BLOCK_WORD_MIN, BLOCK_WORD_MAX };

BLOCK_FN uint32_t block_reduce_word(const struct block *b, uint32_t word, enum block_word_op op)
{
    uint32_t *words = b->shared->words;
    words[b->tid] = word;
    for (uint32_t half = b->n_threads / 2; half > 0; half /= 2) {
        block_sync(b);
        if (b->tid < half) {
            uint32_t x = words[b->tid], y = words[b->tid + half];
            words[b->tid] = op == BLOCK_WORD_SUM   ? x + y
                            : op == BLOCK_WORD_MIN ? (x < y ? x : y)
                                                   : (x > y ? x : y);
        }
    }
    block_sync(b);
    uint32_t result = words[0];
    block_sync(b); /* afterwards words may be overwritten */
    return result;
}

BLOCK_FN float block_max(const struct block *b, float x)
{
    float *floats = b->shared->floats;
    floats[b->tid] = x;
    for (uint32_t half = b->n_threads / 2; half > 0; half /= 2) {
        block_sync(b);
        if (b->tid < half && floats[b->tid + half] > floats[b->tid])
            floats[b->tid] = floats[b->tid + half];
    }
    block_sync(b);
    float result = floats[0];
    block_sync(b);
    return result;
}

/* The term of each element in a lane's chain. */
enum block_term {
    BLOCK_TERM_SELF,
    BLOCK_TERM_MAGNITUDE,
    BLOCK_TERM_SQUARE /* square of x − mean */
};

enum { BLOCK_AHEAD = 16 }; /* elements loaded before the first is added */

BLOCK_FN float block_add_term(float sum, float x, enum block_term term, float mean)
{
    if (term == BLOCK_TERM_SQUARE)
        return fmaf(x - mean, x - mean, sum);
    return sum + (term == BLOCK_TERM_MAGNITUDE ? fabsf(x) : x);
}

/* Loads a batch of a lane's elements, from x[0] on. */
BLOCK_FN void block_load_ahead(float ahead[BLOCK_AHEAD], const float *x)
{
    BLOCK_UNROLL
    for (uint32_t j = 0; j < BLOCK_AHEAD; j++)
        ahead[j] = x[j * CUDA_LANES];
}

BLOCK_FN float block_add_ahead(float sum, const float ahead[BLOCK_AHEAD], enum block_term term,
                               float mean)
{
    BLOCK_UNROLL
    for (uint32_t j = 0; j < BLOCK_AHEAD; j++)
        sum = block_add_term(sum, ahead[j], term, mean);
    return sum;
}

/* Continues a lane's chain from `sum`: terms of x[0], x[16], x[32] and so on below n, in shared
 * memory. An addition takes 4 cycles and a load 30. So a batch is loaded while the batch before is
 * added. `term` is a constant. */
BLOCK_FN float block_chain(const float *x, uint32_t n, enum block_term term, float mean, float sum)
{
    uint32_t n_batches = (n + CUDA_LANES - 1) / (BLOCK_AHEAD * CUDA_LANES);
    const float *rest = x + n_batches * BLOCK_AHEAD * CUDA_LANES, *end = x + n;
    float now[BLOCK_AHEAD], next[BLOCK_AHEAD];
    if (n_batches > 0)
        block_load_ahead(now, x);
    for (; n_batches >= 2; n_batches -= 2) {
        block_load_ahead(next, x + BLOCK_AHEAD * CUDA_LANES);
        sum = block_add_ahead(sum, now, term, mean);
        x += n_batches > 2 ? 2 * BLOCK_AHEAD * CUDA_LANES : 0; /* the last load is not used */
        block_load_ahead(now, x);
        sum = block_add_ahead(sum, next, term, mean);
    }
    if (n_batches > 0)
        sum = block_add_ahead(sum, now, term, mean);
    for (; rest < end; rest += CUDA_LANES)
        sum = block_add_term(sum, *rest, term, mean);
    return sum;
}

/* Adds lanes [0, 16) of each group by the tree 8 4 2 1; group g's sum is then in lane 16·g. */
BLOCK_FN void block_fold_lanes(const struct block *b, float *lanes, uint32_t n_groups)
{
#ifdef __cplusplus
    block_sync(b);
    uint32_t n = (n_groups * CUDA_LANES + CUDA_WARP - 1) / CUDA_WARP * CUDA_WARP; /* whole warps */
    for (uint32_t i = b->tid; i < n; i += b->n_threads) {
        float x = lanes[i];
        for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2)
            x += __shfl_down_sync(0xFFFFFFFFu, x, half, CUDA_LANES);
        if (i % CUDA_LANES == 0 && i < n_groups * CUDA_LANES)
            lanes[i] = x;
    }
    block_sync(b);
#else
    for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2) {
        block_sync(b);
        for (uint32_t i = b->tid; i < n_groups * half; i += b->n_threads) {
            uint32_t lane = i / half * CUDA_LANES + i % half;
            lanes[lane] += lanes[lane + half];
        }
    }
    block_sync(b);
#endif
}

/* Returns the sum over w[0, n) by the contract: 8 segments of 16 lanes, then the trees. The
 * segments' sums stay in shared->segments until the next call. */
BLOCK_FN float block_sum(const struct block *b, const float *w, uint32_t n)
{
    float *lanes = b->shared->lanes, *sums = b->shared->segments;
    for (uint32_t l = b->tid; l < CUDA_SEGMENTS * CUDA_LANES; l += b->n_threads) {
        uint32_t s = l / CUDA_LANES, end = cuda_segment_bound(n, s + 1);
        float sum = 0.0f;
        for (uint32_t i = cuda_segment_bound(n, s) + l % CUDA_LANES; i < end; i += CUDA_LANES)
            sum += w[i];
        lanes[l] = sum;
    }
    block_fold_lanes(b, lanes, CUDA_SEGMENTS);
    for (uint32_t s = b->tid; s < CUDA_SEGMENTS; s += b->n_threads)
        sums[s] = lanes[s * CUDA_LANES];
    block_sync(b);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Returns the f64 sum of one value per lane of 128, by a tree. The caller writes the values to
 * shared->lanes_f64. */
BLOCK_FN double block_fold_f64(const struct block *b)
{
    double *lanes = b->shared->lanes_f64;
    for (uint32_t half = CUDA_SEGMENTS * CUDA_LANES / 2; half > 0; half /= 2) {
        block_sync(b);
        for (uint32_t i = b->tid; i < half; i += b->n_threads)
            lanes[i] += lanes[i + half];
    }
    block_sync(b);
    double result = lanes[0];
    block_sync(b);
    return result;
}
