#include <stdatomic.h>

#include "base/status.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/sample/sample_cpu.h"
#include "kernels/cpu/stream_cpu.h"

/* Work is shared in items: (rows of one sequence, heads of one KV head, partitions). Members take
 * items as they become free. With few rows, an item processes all KV heads of a partition in turn,
 * in the order of the cache's memory. With few queries against a long context, the context is split
 * into runs of units (inner.h). The member that finishes the last run of a split folds all its
 * results, in index order. */
enum {
    ROWS_PER_TILE = 32,
    MIN_ROWS_PER_TILE = 8,
    ITEMS_PER_THREAD = 6,
    MAX_SPLIT_QUERIES = ATTENTION_MAX_Q,
    MAX_ROWS_ALL_HEADS = 4, /* up to this many rows an item has all heads */
    LEAST_RUN = 6, /* minimum units of an item of a split, if every thread still gets some */
    MAX_SPLITS = 256,
    MIN_PARALLEL = 1 << 16, /* below this many multiplications the calling thread works alone */
    PARTS_AT = 4 << 20,     /* place of the results of splits in the caller's scratch */
    PARTS_BYTES = 2 << 20,
};

struct attention_job {
    const struct cpu_inner *inner;
    struct stream_cpu *stream;
    struct tensor *y;
    const struct tensor *q;
    const struct kv_layer *kv;
    const struct attention_rows *rows;
    const struct attention_params *params;
    uint32_t rows_per_tile, n_threads;
    uint64_t
        grain; /* approximate queries × partitions of an item of a split; UINT64_MAX: no splits */
    _Atomic uint32_t next;
    _Atomic uint32_t done[MAX_SPLITS]; /* finished items of each split */
};

/* Position of a walk through all items. Every member makes the same walk. */
struct walk {
    uint32_t rows_left; /* rows before the current tile of rows */
    uint32_t row, n_rows;
    uint32_t head, n_heads;     /* heads of the current item */
    uint32_t n_groups;          /* KV heads of the current item */
    uint32_t first, last;       /* partitions that the rows attend to */
    uint32_t begin, end;        /* units of the current item */
    uint32_t run;               /* units per item of a split; 0: no split */
    uint32_t n_splits, i_split; /* splits so far; index of the current split */
    size_t n_floats, i_floats;  /* used memory for results; offset of the current split's results */
};

/* Returns the end of the local query heads from `begin` on that read the same KV head. */
static uint32_t group_end(const struct attention_params *p, uint32_t begin)
{
    uint32_t kv_head = (p->head_begin + begin) / p->heads_per_kv;
    uint64_t end = (uint64_t)(kv_head + 1) * p->heads_per_kv - p->head_begin;
    return end < p->n_heads ? (uint32_t)end : p->n_heads;
}

/* Moves to the tile of rows before the current one. So the longest contexts of a sequence come
 * first. */
static bool next_rows(const struct attention_job *job, struct walk *w)
{
    const struct attention_rows *rows = job->rows;
    uint32_t last = w->rows_left - 1, n = 1;
    if (w->rows_left == 0)
        return false;
    while (n < job->rows_per_tile && n <= last &&
           rows->seq_of_row[last - n] == rows->seq_of_row[last])
        n++;
    w->rows_left -= n;
    w->row = w->rows_left;
    w->n_rows = n;
    w->head = w->n_heads = 0;
    w->first = attention_first(rows->positions[w->row], job->params->window, job->params->chunk) /
               ATTENTION_PARTITION;
    w->last = rows->positions[last] / ATTENTION_PARTITION + 1;
    return true;
}

/* Returns the floats that the results of a split of n queries take. */
static size_t split_floats(const struct attention_job *job, const struct walk *w, uint32_t n)
{
    return (size_t)(w->last - w->first) * n * attention_result_floats(job->kv->v_dim);
}

static bool fits(const struct walk *w, size_t floats)
{
    return floats <= PARTS_BYTES / sizeof(float) - w->n_floats;
}

/* Chooses the heads of the item that begins with w->head: those of one KV head, or all. */
static void choose_heads(const struct attention_job *job, struct walk *w)
{
    const struct attention_params *p = job->params;
    uint32_t n = group_end(p, w->head) - w->head, most = ATTENTION_MAX_Q / w->n_rows;
    w->n_heads = n < most ? n : most;
    w->n_groups = 1;
    if (w->head > 0 || w->n_rows > MAX_ROWS_ALL_HEADS || p->n_heads > most ||
        !fits(w, split_floats(job, w, w->n_rows * p->n_heads)))
        return;
    w->n_heads = p->n_heads;
    w->n_groups = (p->n_heads - n + p->heads_per_kv - 1) / p->heads_per_kv + 1;
}

/* Returns the units per item: about `run` out of n. Adjacent units are adjacent in memory, and the
 * processor prefetches into the next unit. So runs are not too short, and every thread gets the
 * same number. */
static uint64_t even_run(const struct attention_job *job, uint32_t n, uint64_t run)
{
    uint32_t most = (n + job->n_threads - 1) / job->n_threads,
             least = most < LEAST_RUN ? most : LEAST_RUN;
    run = run > least ? run : least;
    uint64_t per_thread = (n + run * job->n_threads - 1) / (run * job->n_threads);
    return (n + per_thread * job->n_threads - 1) / (per_thread * job->n_threads);
}

/* Decides whether to split the queries of the current heads, and takes memory for the results. */
static void begin_heads(const struct attention_job *job, struct walk *w)
{
    uint32_t n_q = w->n_rows * w->n_heads, n = (w->last - w->first) * w->n_groups;
    uint64_t run = job->grain / n_q * w->n_groups + job->grain % n_q * w->n_groups / n_q;
    size_t floats = split_floats(job, w, n_q);
    w->run = 0;
    if (job->grain == UINT64_MAX || n_q > MAX_SPLIT_QUERIES || run >= n)
        return;
    run = even_run(job, n, run);
    if (run >= n || w->n_splits == MAX_SPLITS || !fits(w, floats))
        return;
    w->run = (uint32_t)run;
    w->i_split = w->n_splits++;
    w->i_floats = w->n_floats;
    w->n_floats += floats;
}

/* Moves to the next item; a walk starts from {.rows_left = rows}. */
static bool next_item(const struct attention_job *job, struct walk *w)
{
    uint32_t last = w->last * w->n_groups;
    if (w->run > 0 && w->end < last) {
        w->begin = w->end;
    } else {
        uint32_t head = w->head + w->n_heads;
        if (w->n_rows == 0 || head == job->params->n_heads) {
            if (!next_rows(job, w))
                return false;
            head = 0;
        }
        w->head = head;
        choose_heads(job, w);
        w->begin = w->first * w->n_groups;
        last = w->last * w->n_groups;
        begin_heads(job, w);
    }
    w->end = w->run > 0 && last - w->begin > w->run ? w->begin + w->run : last;
    return true;
}

static void run_item(struct attention_job *job, const struct walk *w, uint32_t member)
{
    const struct attention_params *p = job->params;
    uint32_t in_group = group_end(p, w->head) - w->head;
    struct attention_tile tile = {
        .q = tensor_row_f32(job->q, w->row) + (size_t)w->head * job->kv->head_dim,
        .y = tensor_row_f32(job->y, w->row) + (size_t)w->head * job->kv->v_dim,
        .q_stride = job->q->row_stride,
        .y_stride = job->y->row_stride,
        .positions = job->rows->positions + w->row,
        .table = job->rows->block_tables +
                 (size_t)job->rows->seq_of_row[w->row] * job->rows->table_stride,
        .kv = job->kv,
        .i_kv = (p->head_begin + w->head) / p->heads_per_kv - p->kv_begin,
        .n_rows = w->n_rows,
        .n_heads = w->n_heads,
        .heads_per_kv = p->heads_per_kv,
        .first_heads = in_group < w->n_heads ? in_group : w->n_heads,
        .n_groups = w->n_groups,
        .window = p->window,
        .chunk = p->chunk,
        .scale = p->scale,
        .softcap = p->softcap,
        .slopes = p->slopes ? p->slopes + w->head : NULL,
        .sinks = p->sinks ? p->sinks + w->head : NULL,
        .unit_begin = w->begin,
        .unit_end = w->end,
        .parts_begin = w->first,
    };
    if (w->run == 0) {
        job->inner->attention(&tile, stream_scratch(job->stream, member));
        return;
    }
    uint32_t last = w->last * w->n_groups;
    uint32_t n_runs = (last - w->first * w->n_groups + w->run - 1) / w->run;
    uint32_t others =
        (job->n_threads - 1) * w->run; /* units that the other threads take meanwhile */
    if (others < last - w->end)
        tile.unit_next = w->end + others;
    tile.parts =
        (float *)(void *)((uint8_t *)stream_scratch(job->stream, 0) + PARTS_AT) + w->i_floats;
    job->inner->attention(&tile, stream_scratch(job->stream, member));
    if (atomic_fetch_add_explicit(&job->done[w->i_split], 1, memory_order_acq_rel) + 1 < n_runs)
        return;
    tile.unit_begin = w->first * w->n_groups;
    tile.unit_end = w->last * w->n_groups;
    job->inner->attention_fold(&tile);
}

static void share_items(void *arg, uint32_t index, uint32_t n_threads)
{
    struct attention_job *job = arg;
    struct walk w = {.rows_left = job->rows->n_rows};
    (void)n_threads;
    uint32_t item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    for (uint32_t i = 0; next_item(job, &w); i++) {
        if (i != item)
            continue;
        run_item(job, &w, index);
        item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    }
}

/* Counts the items, and queries × partitions, without splits. */
static uint32_t count_items(const struct attention_job *job, uint64_t *out_work)
{
    struct walk w = {.rows_left = job->rows->n_rows};
    uint32_t n = 0;
    for (*out_work = 0; next_item(job, &w); n++)
        *out_work += (uint64_t)w.n_rows * w.n_heads * (w.last - w.first);
    return n;
}

/* Returns true if the op is worth a second thread. */
static bool is_large(const struct attention_job *job)
{
    uint64_t seen = 0, per = (uint64_t)job->params->n_heads * (job->kv->head_dim + job->kv->v_dim);
    for (uint32_t r = 0; r < job->rows->n_rows && seen * per < MIN_PARALLEL; r++)
        seen += job->rows->positions[r] + 1;
    return seen * per >= MIN_PARALLEL;
}

/* Makes enough items for all threads, by rows if possible. */
static void size_items(struct attention_job *job, uint32_t n_threads)
{
    uint64_t work, wanted = ITEMS_PER_THREAD * (uint64_t)n_threads;
    while (count_items(job, &work) < wanted && job->rows_per_tile > MIN_ROWS_PER_TILE)
        job->rows_per_tile /= 2;
    job->grain = n_threads > 0 ? work / ITEMS_PER_THREAD / n_threads : UINT64_MAX;
}

int attention_cpu(struct stream *s, struct tensor *y, const struct tensor *q,
                  const struct kv_layer *kv, const struct attention_rows *rows,
                  const struct attention_params *params)
{
    if (kv->head_dim > ATTENTION_MAX_HEAD_DIM || kv->v_dim > ATTENTION_MAX_HEAD_DIM)
        return STATUS_INTERNAL;
    struct attention_job job = {.inner = inner_of(s->ops),
                                .stream = stream_cpu(s),
                                .y = y,
                                .q = q,
                                .kv = kv,
                                .rows = rows,
                                .params = params,
                                .rows_per_tile = ROWS_PER_TILE,
                                .n_threads = thread_pool_size(stream_cpu(s)->pool),
                                .grain = UINT64_MAX};
    bool parallel = job.n_threads > 1 && is_large(&job);
    if (parallel)
        size_items(&job, job.n_threads);
    ops_run_job(s, share_items, &job, parallel);
    return 0;
}

enum { PAGE_BYTES = 4096 };

/* head_dim: the widest K or V of a head. */
static size_t attention_scratch_bytes(uint32_t head_dim)
{
    size_t dim = attention_dim(head_dim), result = attention_result_floats(head_dim);
    size_t floats = (ATTENTION_MAX_Q + ATTENTION_MAX_NQ) * result +
                    (size_t)ATTENTION_MAX_NQ * ATTENTION_PARTITION + 2 * ATTENTION_MAX_Q +
                    2 * ATTENTION_PARTITION + 2 * dim * ATTENTION_PARTITION;
    size_t codes = (ATTENTION_MAX_Q + ATTENTION_MAX_NQ) * attention_query_bytes(head_dim) +
                   ATTENTION_MAX_NQ * 2 * (size_t)ATTENTION_PARTITION + ATTENTION_PRODUCT_BYTES;
    return floats * sizeof(float) + codes;
}

_Static_assert((2 * (ATTENTION_MAX_Q + ATTENTION_MAX_NQ) + 2 * ATTENTION_PARTITION) *
                           (ATTENTION_MAX_HEAD_DIM + 16) * 6 <
                       PARTS_AT &&
                   PARTS_AT + PARTS_BYTES <= STREAM_SCRATCH_BYTES,
               "attention's scratch and the results of splits must not meet");

size_t scratch_bytes_cpu(uint32_t vocab_size, uint32_t head_dim)
{
    size_t attention = attention_scratch_bytes(head_dim) + PARTS_BYTES,
           sample = SAMPLE_SCRATCH_BYTES(vocab_size);
    size_t most = attention > sample ? attention : sample;
    return (most + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}
