/* recurrent_index.h: the work of the kernels of recurrent.h, and their indices. Compiles for the
 * GPU and for the CPU.
 *
 * A block takes the runs that begin at some of the rows. The host does not know the runs, because
 * `reads` and `writes` are on the device. So blocks whose rows begin no run end at once. */
#pragma once

#include "kernels/cuda/index.h"
#include "kernels/maths.h"
#include "kernels/recurrent.h"

enum {
    RECURRENT_RUN_BLOCKS = 128,   /* blocks that share the rows of a head, at most */
    RECURRENT_MAX_COLUMNS = 128,  /* columns of S that a block computes, a thread each */
    RECURRENT_FEW_COLUMNS = 32,   /* the same where there are few rows, or S is in shared memory */
    RECURRENT_FEW_BLOCKS = 128,   /* rows · heads from which a GPU is full of wide blocks */
    RECURRENT_SHARED = 48 * 1024, /* bytes that every device gives a block */
    RECURRENT_RING = 3,           /* batches of rows in shared memory */
    RECURRENT_BATCH = 8,          /* rows of a batch if S is in registers */
    RECURRENT_TILED_PAIRS = 256,  /* longest key with two rows a batch if S is in shared memory */
};

/* struct state_view and struct state_rows (recurrent.h). */
struct recurrent_slots {
    float *base;
    uint64_t stride;
    const uint32_t *reads, *writes;
    uint32_t n_slots, n_rows;
};

/* Returns the state in a slot; NULL if there is no such slot, as for RECURRENT_NONE. */
CUDA_HD float *recurrent_slot(const struct recurrent_slots *s, uint32_t slot)
{
    return slot < s->n_slots ? s->base + slot * s->stride : NULL;
}

/* A causal convolution. y may be x. */
struct recurrent_conv {
    struct recurrent_slots slots;
    float *y;
    const float *x, *w, *bias; /* bias NULL: 0 */
    size_t y_stride, x_stride;
    uint32_t n_cols, width;
    bool silu;
};

/* A gated delta net, or Mamba-2. Pointers to rows are those of row 0. */
struct recurrent_span {
    struct recurrent_slots slots; /* a state: [n_heads][dim][head_dim] */
    float *y;
    const float *q, *k, *x;       /* at key head 0, or head 0 */
    const float *dt, *beta;       /* beta: delta net only */
    const float *a, *dt_bias, *d; /* [n_heads]; d: Mamba-2 only */
    size_t y_stride, x_stride, dt_stride, beta_stride;
    uint32_t n_heads, dim, head_dim;
    uint32_t first_head, first_key, n_all_keys, heads_per_key; /* struct delta_params */
    bool tiled;
    float norm_eps, scale;
    uint32_t n_columns; /* a block's */
};

/* Returns the key head, of this rank, that a head of this rank reads. */
CUDA_HD uint32_t recurrent_span_key(const struct recurrent_span *job, uint32_t head)
{
    uint32_t all = job->first_head + head;
    return (job->tiled ? all % job->n_all_keys : all / job->heads_per_key) - job->first_key;
}

/* Returns true if a kernel exists that has S in registers. */
CUDA_HD bool recurrent_in_registers(uint32_t dim)
{
    return dim == 64 || dim == 128;
}

/* Returns the rows whose keys, queries and values a block prepares at once. */
CUDA_HD uint32_t recurrent_batch(uint32_t dim)
{
    return recurrent_in_registers(dim) ? RECURRENT_BATCH : dim <= RECURRENT_TILED_PAIRS ? 2 : 1;
}

/* Returns the floats of a row in shared memory: key, query, values. */
CUDA_HD uint32_t recurrent_row_floats(uint32_t dim, uint32_t n_columns)
{
    return (uint32_t)cuda_round_up(2 * dim + n_columns, 4);
}

/* Returns a block's bytes of shared memory. A row has three words beside its floats. */
CUDA_HD uint32_t recurrent_shared_bytes(uint32_t dim, uint32_t n_columns)
{
    uint32_t n_rows = RECURRENT_RING * recurrent_batch(dim),
             tile = recurrent_in_registers(dim) ? 0 : dim * n_columns;
    return (n_rows * (recurrent_row_floats(dim, n_columns) + 3) + tile) * (uint32_t)sizeof(float);
}

/* Returns the columns of S that a block computes. The bits do not depend on them. */
CUDA_HD uint32_t recurrent_columns(uint32_t dim, uint32_t head_dim, uint32_t n_rows,
                                   uint32_t n_heads)
{
    uint64_t n_blocks = (uint64_t)n_rows * n_heads;
    uint32_t n = RECURRENT_FEW_COLUMNS;
    if (recurrent_in_registers(dim)) {
        uint32_t most = n_blocks < RECURRENT_FEW_BLOCKS ? n : (uint32_t)RECURRENT_MAX_COLUMNS;
        while (n < most && n < head_dim)
            n *= 2;
        return n;
    }
    while (recurrent_shared_bytes(dim, n) > RECURRENT_SHARED)
        n /= 2;
    return n;
}

/* Returns the threads of a block: whole warps. */
CUDA_HD uint32_t recurrent_threads(uint32_t n_columns)
{
    return (uint32_t)cuda_round_up(n_columns, CUDA_WARP);
}

/* --- runs --- */

/* Returns row i of a run that begins at `row`. */
CUDA_HD uint32_t recurrent_row(uint32_t row, uint32_t i)
{
    return row + i;
}

/* Returns the number of the lowest bit of a word that is not 0. */
CUDA_HD uint32_t recurrent_first_bit(uint32_t word)
{
    uint32_t n = 0;
    while (cuda_bit(word, n) == 0)
        n++;
    return n;
}

/* Returns how many rows of [first, first + most) a run of n rows has. */
CUDA_HD uint32_t recurrent_rows_of(uint32_t n, uint32_t first, uint32_t most)
{
    uint32_t left = first < n ? n - first : 0;
    return left < most ? left : most;
}

/* --- the window of a convolution: WIDTH inputs, of which the first `skip` are not used --- */

/* Returns the tap of input t of the window. */
CUDA_HD uint32_t recurrent_tap(uint32_t t, uint32_t skip)
{
    return t - skip;
}

/* Returns the input after input t. */
CUDA_HD uint32_t recurrent_newer(uint32_t t)
{
    return t + 1;
}

/* --- places of a span --- */

/* Returns the column of a thread in its head. */
CUDA_HD uint32_t recurrent_column(uint32_t block, uint32_t n_columns, uint32_t thread)
{
    return block * n_columns + thread;
}

/* Returns the place of key head `key` in the keys, or in the queries, of all rows. */
CUDA_HD size_t recurrent_key_at(const struct recurrent_span *job, uint32_t row, uint32_t key)
{
    return row * job->x_stride + (size_t)key * job->dim;
}

/* Returns the place of a column of a head in the values of all rows. */
CUDA_HD size_t recurrent_value_at(const struct recurrent_span *job, uint32_t row, uint32_t head,
                                  uint32_t column)
{
    return row * job->x_stride + (size_t)head * job->head_dim + column;
}

/* Returns the same place in y. */
CUDA_HD size_t recurrent_result_at(const struct recurrent_span *job, uint32_t row, uint32_t head,
                                   uint32_t column)
{
    return row * job->y_stride + (size_t)head * job->head_dim + column;
}

/* Returns the place of a column of a head's S in a state. */
CUDA_HD size_t recurrent_state_at(const struct recurrent_span *job, uint32_t head, uint32_t column)
{
    return (size_t)head * job->dim * job->head_dim + column;
}

/* Returns the place of row i of a column of S from that column's first row. S has n_columns
 * columns. */
CUDA_HD size_t recurrent_cell(uint32_t i, uint32_t n_columns)
{
    return (size_t)i * n_columns;
}

/* Returns element e of four elements from i on. */
CUDA_HD uint32_t recurrent_in_four(uint32_t i, uint32_t e)
{
    return i + e;
}

/* --- the ring of rows in shared memory --- */

/* Offsets in floats. Row i of a run lies at place i % n. A row has the key, the query and the
 * values. The others have a word for each place. */
struct recurrent_ring {
    uint32_t n, batch, row_floats;
    uint32_t decay, gain, writes; /* decay and gain are dt and beta until the batch is normed */
    uint32_t tile;                /* [dim][n_columns], if S is not in registers */
};

CUDA_HD struct recurrent_ring recurrent_ring_of(const struct recurrent_span *job)
{
    struct recurrent_ring ring;
    ring.batch = recurrent_batch(job->dim);
    ring.n = RECURRENT_RING * ring.batch;
    ring.row_floats = recurrent_row_floats(job->dim, job->n_columns);
    ring.decay = ring.n * ring.row_floats;
    ring.gain = ring.decay + ring.n;
    ring.writes = ring.gain + ring.n;
    ring.tile = ring.writes + ring.n;
    return ring;
}

/* Returns the place of row i of a run. */
CUDA_HD uint32_t recurrent_place(const struct recurrent_ring *ring, uint32_t i)
{
    return i % ring->n;
}

/* Returns the key of row i of a run. The query lies behind the key. */
CUDA_HD uint32_t recurrent_ring_key(const struct recurrent_ring *ring, uint32_t i)
{
    return i % ring->n * ring->row_floats;
}

/* Returns the value of a thread, from the row's key on. */
CUDA_HD uint32_t recurrent_ring_value(uint32_t dim, uint32_t thread)
{
    return 2 * dim + thread;
}

/* Returns the first row of the batch that is n batches after the batch of row `first`. */
CUDA_HD uint32_t recurrent_batch_after(const struct recurrent_ring *ring, uint32_t first,
                                       uint32_t n)
{
    return first + n * ring->batch;
}

/* Vectors of a batch: a key and a query for each row. CUDA_LANES threads norm a vector. */
CUDA_HD uint32_t recurrent_n_vectors(uint32_t n_rows)
{
    return 2 * n_rows;
}

/* Returns the vectors that a block norms at once. */
CUDA_HD uint32_t recurrent_n_groups(uint32_t n_threads)
{
    return n_threads / CUDA_LANES;
}

/* Returns the vector of a thread, if the block norms vectors from v on. */
CUDA_HD uint32_t recurrent_vector(uint32_t v, uint32_t thread)
{
    return v + thread / CUDA_LANES;
}

CUDA_HD uint32_t recurrent_lane(uint32_t thread)
{
    return thread % CUDA_LANES;
}

CUDA_HD bool recurrent_is_query(uint32_t vector)
{
    return vector % 2 == 1;
}

/* Returns the place of a vector of the batch that begins at row `first` of the run. */
CUDA_HD uint32_t recurrent_ring_vector(const struct recurrent_ring *ring, uint32_t dim,
                                       uint32_t first, uint32_t vector)
{
    return recurrent_ring_key(ring, first + vector / 2) + vector % 2 * dim;
}

/* --- the expressions of the contract --- */

/* Returns softplus(dt + bias). */
CUDA_HD float recurrent_time(float dt, float bias)
{
    return maths_softplus(dt + bias);
}

CUDA_HD float recurrent_decay(float time, float a)
{
    return maths_exp(time * a);
}

/* Returns the factor of a key or query whose squares have this sum. */
CUDA_HD float recurrent_norm_factor(float sum, float eps)
{
    return 1.0f / sqrtf(sum + eps);
}

CUDA_HD float recurrent_normed(float x, float factor, float scale)
{
    return x * factor * scale;
}

/* Returns d of a delta net; `read` is kᵀS. */
CUDA_HD float recurrent_delta(float gain, float x, float decay, float read)
{
    return gain * (x - decay * read);
}

/* Returns d of Mamba-2. */
CUDA_HD float recurrent_input(float gain, float x)
{
    return gain * x;
}

/* Returns the new value of an element of S. */
CUDA_HD float recurrent_element(float s, float decay, float k, float d)
{
    return fmaf(k, d, s * decay);
}
