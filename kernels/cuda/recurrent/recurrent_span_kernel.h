/* recurrent_span_kernel.h: the gated delta net and Mamba-2, with the bits of kernels/cpu/ref.
 *
 * A block takes some columns of a head's state S[dim][head_dim] through the rows of a run. Each
 * thread has a column. S stays in registers if dim is 64 or 128, else in shared memory. A run reads
 * and writes S once, 128 bytes per warp and row of S. All loads of a thread are in flight together.
 * The contract's sums over dim are chains, so a thread computes each whole sum. In a delta net the
 * pass that updates S also computes kᵀS of the next row. So two chains of dim additions run side by
 * side, and bound the time of a row: 4·dim cycles.
 *
 * Keys, queries, values and gates of a batch of rows lie in shared memory. A ring holds three
 * batches: a batch is computed, the next is normed, and the third is on its way (cp.async). Each
 * block norms the keys of its own head, so that the op is a single launch.
 *
 * Bytes of a run: 8·n_heads·dim·head_dim, and its rows. Bound: memory for short runs, the chains
 * for long runs. */
#pragma once

#include "kernels/cuda/ptx_word.h"
#include "kernels/cuda/recurrent/recurrent_run.h"
#include "kernels/maths.h"

/* The place of a thread. */
struct span_place {
    uint32_t head, key, column; /* column: of the head */
    bool is_own;                /* false: the thread has no column */
    float *shared;
};

CUDA_DEVICE struct span_place span_place_of(const struct recurrent_span *job, unsigned char *shared)
{
    uint32_t column = recurrent_column(blockIdx.x, job->n_columns, threadIdx.x);
    struct span_place p = {blockIdx.y, recurrent_span_key(job, blockIdx.y), column,
                           threadIdx.x < job->n_columns && column < job->head_dim, (float *)shared};
    return p;
}

CUDA_DEVICE const uint32_t *span_writes(const struct span_place *p,
                                        const struct recurrent_ring *ring)
{
    return (const uint32_t *)(p->shared + ring->writes);
}

/* Begins to copy rows [first, first + batch) of the run [row, row + n), as far as they exist. */
template <bool DELTA>
CUDA_DEVICE void span_fetch(const struct recurrent_span *job, const struct span_place *p,
                            const struct recurrent_ring *ring, uint32_t row, uint32_t n,
                            uint32_t first)
{
    uint32_t n_rows = recurrent_rows_of(n, first, ring->batch);
    for (uint32_t b = 0; b < n_rows; b++) {
        uint32_t i = recurrent_row(first, b), r = recurrent_row(row, i),
                 at = recurrent_place(ring, i);
        float *key = p->shared + recurrent_ring_key(ring, i), *query = key + job->dim,
              *decay = p->shared + ring->decay, *gain = p->shared + ring->gain,
              *writes = p->shared + ring->writes;
        const float *k = job->k + recurrent_key_at(job, r, p->key),
                    *q = job->q + recurrent_key_at(job, r, p->key);
        for (uint32_t e = threadIdx.x; e < job->dim; e += blockDim.x) {
            cp_async_4(key + e, k + e);
            cp_async_4(query + e, q + e);
        }
        if (p->is_own)
            cp_async_4(key + recurrent_ring_value(job->dim, threadIdx.x),
                       job->x + recurrent_value_at(job, r, p->head, p->column));
        if (threadIdx.x == 0)
            cp_async_4(decay + at, job->dt + cuda_element(r, job->dt_stride, p->head));
        if (DELTA && threadIdx.x == 1)
            cp_async_4(gain + at, job->beta + cuda_element(r, job->beta_stride, p->head));
        if (threadIdx.x == 2)
            cp_async_4(writes + at, job->slots.writes + r);
    }
    cp_async_commit();
}

/* Computes the gates of a batch in place, a thread for each row. */
template <bool DELTA>
CUDA_DEVICE void span_gates(const struct recurrent_span *job, const struct span_place *p,
                            const struct recurrent_ring *ring, uint32_t n, uint32_t first)
{
    if (threadIdx.x >= recurrent_rows_of(n, first, ring->batch))
        return;
    uint32_t at = recurrent_place(ring, recurrent_row(first, threadIdx.x));
    float *decay = p->shared + ring->decay, *gain = p->shared + ring->gain;
    float time = recurrent_time(decay[at], job->dt_bias[p->head]);
    decay[at] = recurrent_decay(time, job->a[p->head]);
    gain[at] = DELTA ? maths_sigmoid(gain[at]) : time;
}

/* Norms keys and queries of a batch in place, 16 threads each. */
CUDA_DEVICE void span_norm(const struct recurrent_span *job, const struct span_place *p,
                           const struct recurrent_ring *ring, uint32_t n, uint32_t first)
{
    uint32_t n_vectors = recurrent_n_vectors(recurrent_rows_of(n, first, ring->batch)),
             lane = recurrent_lane(threadIdx.x);
    for (uint32_t v = 0; v < n_vectors; v += recurrent_n_groups(blockDim.x)) {
        uint32_t vector = recurrent_vector(v, threadIdx.x);
        float *x = p->shared + recurrent_ring_vector(ring, job->dim, first, vector);
        float sum = 0.0f, scale = recurrent_is_query(vector) ? job->scale : 1.0f;
        uint32_t n_own = vector < n_vectors ? job->dim : 0; /* all lanes take part in the tree */
        for (uint32_t i = lane; i < n_own; i += CUDA_LANES)
            sum = fmaf(x[i], x[i], sum);
        for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
        float factor = recurrent_norm_factor(sum, job->norm_eps);
        for (uint32_t i = lane; i < n_own; i += CUDA_LANES)
            x[i] = recurrent_normed(x[i], factor, scale);
    }
}

/* Prepares a batch whose copies have come. */
template <bool DELTA>
CUDA_DEVICE void span_prepare(const struct recurrent_span *job, const struct span_place *p,
                              const struct recurrent_ring *ring, uint32_t n, uint32_t first)
{
    span_gates<DELTA>(job, p, ring, n, first);
    if constexpr (DELTA)
        span_norm(job, p, ring, n, first);
}

/* A thread's column of S: DIM floats in registers, or a column of the tile (DIM 0). */
template <uint32_t DIM> struct span_column {
    float s[DIM];
};

template <> struct span_column<0> {
    float *s;
    uint32_t stride;
};

/* Four floats of a key or query in shared memory, which all threads read. */
CUDA_DEVICE float4 span_four(const float *x, uint32_t i)
{
    return *(const float4 *)(x + i);
}

/* S = 0, or S of a state. */
template <uint32_t DIM>
CUDA_DEVICE void span_load(const struct recurrent_span *job, struct span_column<DIM> *c,
                           const float *from)
{
    if constexpr (DIM > 0) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < DIM; i++)
            c->s[i] = from ? from[recurrent_cell(i, job->head_dim)] : 0.0f;
    } else {
        for (uint32_t i = 0; i < job->dim; i++)
            c->s[recurrent_cell(i, c->stride)] =
                from ? from[recurrent_cell(i, job->head_dim)] : 0.0f;
    }
}

template <uint32_t DIM>
CUDA_DEVICE void span_store(const struct recurrent_span *job, const struct span_column<DIM> *c,
                            float *to)
{
    if constexpr (DIM > 0) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < DIM; i++)
            to[recurrent_cell(i, job->head_dim)] = c->s[i];
    } else {
        for (uint32_t i = 0; i < job->dim; i++)
            to[recurrent_cell(i, job->head_dim)] = c->s[recurrent_cell(i, c->stride)];
    }
}

/* Returns kᵀS. */
template <uint32_t DIM>
CUDA_DEVICE float span_read(const struct recurrent_span *job, const struct span_column<DIM> *c,
                            const float *k)
{
    float sum = 0.0f;
    if constexpr (DIM > 0) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < DIM; i += 4) {
            float4 four = span_four(k, i);
            sum = fmaf(four.x, c->s[i], sum);
            sum = fmaf(four.y, c->s[recurrent_in_four(i, 1)], sum);
            sum = fmaf(four.z, c->s[recurrent_in_four(i, 2)], sum);
            sum = fmaf(four.w, c->s[recurrent_in_four(i, 3)], sum);
        }
    } else {
        for (uint32_t i = 0; i < job->dim; i++)
            sum = fmaf(k[i], c->s[recurrent_cell(i, c->stride)], sum);
    }
    return sum;
}

/* The factors of a row, and its sums: `out` of qᵀS, `ahead` of kᵀS with the key of the next row. */
struct span_sums {
    float decay, d, out, ahead;
};

/* An element of S. */
template <bool DELTA>
CUDA_DEVICE float span_element(struct span_sums *sums, float s, float k, float q, float next)
{
    s = recurrent_element(s, sums->decay, k, sums->d);
    sums->out = fmaf(q, s, sums->out);
    if (DELTA)
        sums->ahead = fmaf(next, s, sums->ahead);
    return s;
}

/* S = decay·S + k⊗d, and the sums. */
template <bool DELTA, uint32_t DIM>
CUDA_DEVICE void span_step(const struct recurrent_span *job, struct span_column<DIM> *c,
                           struct span_sums *sums, const float *k, const float *q,
                           const float *next)
{
    sums->out = sums->ahead = 0.0f;
    if constexpr (DIM > 0) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < DIM; i += 4) {
            float4 ks = span_four(k, i), qs = span_four(q, i), ns = DELTA ? span_four(next, i) : ks;
            c->s[i] = span_element<DELTA>(sums, c->s[i], ks.x, qs.x, ns.x);
            c->s[recurrent_in_four(i, 1)] =
                span_element<DELTA>(sums, c->s[recurrent_in_four(i, 1)], ks.y, qs.y, ns.y);
            c->s[recurrent_in_four(i, 2)] =
                span_element<DELTA>(sums, c->s[recurrent_in_four(i, 2)], ks.z, qs.z, ns.z);
            c->s[recurrent_in_four(i, 3)] =
                span_element<DELTA>(sums, c->s[recurrent_in_four(i, 3)], ks.w, qs.w, ns.w);
        }
    } else {
        for (uint32_t i = 0; i < job->dim; i++) {
            float *s = &c->s[recurrent_cell(i, c->stride)];
            *s = span_element<DELTA>(sums, *s, k[i], q[i], next[i]);
        }
    }
}

/* Computes rows [first, first + batch) of the run, as far as they exist. `ahead` is kᵀS of the
 * first row. Returns that of the row after. */
template <bool DELTA, uint32_t DIM>
CUDA_DEVICE float span_rows(const struct recurrent_span *job, const struct span_place *p,
                            const struct recurrent_ring *ring, struct span_column<DIM> *c,
                            uint32_t row, uint32_t n, uint32_t first, float ahead)
{
    uint32_t n_rows = recurrent_rows_of(n, first, ring->batch);
    const float *decay = p->shared + ring->decay, *gain = p->shared + ring->gain;
    for (uint32_t b = 0; b < n_rows; b++) {
        uint32_t i = recurrent_row(first, b), after = recurrent_row(i, 1),
                 at = recurrent_place(ring, i);
        const float *k = p->shared + recurrent_ring_key(ring, i), *q = k + job->dim,
                    *next = p->shared + recurrent_ring_key(ring, after < n ? after : i);
        float x = k[recurrent_ring_value(job->dim, threadIdx.x)];
        struct span_sums sums;
        sums.decay = decay[at];
        sums.d =
            DELTA ? recurrent_delta(gain[at], x, decay[at], ahead) : recurrent_input(gain[at], x);
        span_step<DELTA>(job, c, &sums, k, q, next);
        ahead = sums.ahead;
        job->y[recurrent_result_at(job, recurrent_row(row, i), p->head, p->column)] =
            DELTA ? sums.out : fmaf(job->d[p->head], x, sums.out);
        float *slot = recurrent_slot(&job->slots, span_writes(p, ring)[at]);
        if (slot)
            span_store(job, c, slot + recurrent_state_at(job, p->head, p->column));
    }
    return ahead;
}

/* Computes the run [row, end). */
template <bool DELTA, uint32_t DIM>
CUDA_DEVICE void span_run(const struct recurrent_span *job, const struct span_place *p,
                          const struct recurrent_ring *ring, uint32_t row, uint32_t end)
{
    struct span_column<DIM> column;
    uint32_t n = end - row;
    float ahead = 0.0f;
    if constexpr (DIM == 0) {
        column.s = p->shared + recurrent_row(ring->tile, threadIdx.x);
        column.stride = job->n_columns;
    }
    span_fetch<DELTA>(job, p, ring, row, n, 0);
    span_fetch<DELTA>(job, p, ring, row, n, recurrent_batch_after(ring, 0, 1));
    if (p->is_own) {
        const float *from = recurrent_slot(&job->slots, job->slots.reads[row]);
        span_load(job, &column, from ? from + recurrent_state_at(job, p->head, p->column) : from);
    }
    for (uint32_t first = 0; first < n; first += ring->batch) {
        cp_async_wait<0>();
        __syncthreads(); /* the next batch has come, and the batch before this one is computed */
        if (first == 0)
            span_prepare<DELTA>(job, p, ring, n, 0);
        span_prepare<DELTA>(job, p, ring, n, recurrent_batch_after(ring, first, 1));
        span_fetch<DELTA>(job, p, ring, row, n, recurrent_batch_after(ring, first, 2));
        __syncthreads();
        if (!p->is_own)
            continue;
        if (DELTA && first == 0)
            ahead = span_read(job, &column, p->shared);
        ahead = span_rows<DELTA, DIM>(job, p, ring, &column, row, n, first, ahead);
    }
    __syncthreads(); /* the ring may be filled again */
}

template <bool DELTA, uint32_t DIM>
static __global__ void __launch_bounds__(RECURRENT_MAX_COLUMNS, 2)
    span_runs(struct recurrent_span job)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    struct span_place place = span_place_of(&job, shared);
    struct recurrent_ring ring = recurrent_ring_of(&job);
    uint32_t end;
    for (uint32_t row = blockIdx.z; row < job.slots.n_rows; row += gridDim.z)
        if (recurrent_run_at(&job.slots, row, &end))
            span_run<DELTA, DIM>(&job, &place, &ring, row, end);
}

template <bool DELTA, uint32_t DIM>
static int span_launch(void *stream, const struct recurrent_span *given)
{
    struct recurrent_span job = *given;
    job.n_columns = recurrent_columns(job.dim, job.head_dim, job.slots.n_rows, job.n_heads);
    dim3 grid(cuda_n_blocks(job.head_dim, job.n_columns, UINT32_MAX), job.n_heads,
              cuda_n_blocks(job.slots.n_rows, 1, RECURRENT_RUN_BLOCKS));
    return CUDA_LAUNCH((span_runs<DELTA, DIM>), grid, recurrent_threads(job.n_columns),
                       recurrent_shared_bytes(job.dim, job.n_columns), stream, job);
}

template <bool DELTA> static int span_launch_any(void *stream, const struct recurrent_span *job)
{
    if (job->dim == 128)
        return span_launch<DELTA, 128>(stream, job);
    if (job->dim == 64)
        return span_launch<DELTA, 64>(stream, job);
    return span_launch<DELTA, 0>(stream, job);
}
