#include <stdatomic.h>

#include "base/status.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/sample_cpu.h"
#include "kernels/cpu/stream_cpu.h"

enum { ROWS_PER_TILE = 32 };

struct attention_job {
    const struct cpu_inner *inner;
    struct stream_cpu *stream;
    struct tensor *y;
    const struct tensor *q;
    const struct kv_layer *kv;
    const struct attention_rows *rows;
    const struct attention_params *params;
    _Atomic uint32_t next;
};

/* Local query heads [begin, end) that read the same KV head as `begin`. */
static uint32_t group_end(const struct attention_params *p, uint32_t begin)
{
    uint32_t kv_head = (p->head_begin + begin) / p->heads_per_kv;
    uint64_t end = (uint64_t)(kv_head + 1) * p->heads_per_kv - p->head_begin;
    return end < p->n_heads ? (uint32_t)end : p->n_heads;
}

static void run_tile(const struct attention_job *job, uint32_t row, uint32_t n_rows, uint32_t head,
                     uint32_t n_heads, void *scratch)
{
    const struct attention_params *p = job->params;
    size_t column = (size_t)head * job->kv->head_dim;
    struct attention_tile tile = {
        .q = tensor_row_f32(job->q, row) + column,
        .y = tensor_row_f32(job->y, row) + column,
        .q_stride = job->q->row_stride,
        .y_stride = job->y->row_stride,
        .positions = job->rows->positions + row,
        .table =
            job->rows->block_tables + (size_t)job->rows->seq_of_row[row] * job->rows->table_stride,
        .kv = job->kv,
        .i_kv = (p->head_begin + head) / p->heads_per_kv - p->kv_begin,
        .n_rows = n_rows,
        .n_heads = n_heads,
        .window = p->window,
        .scale = p->scale,
        .softcap = p->softcap,
    };
    job->inner->attention(&tile, scratch);
}

/* Rows from `row` on that make one tile: of one sequence, at most ROWS_PER_TILE. */
static uint32_t tile_rows(const struct attention_job *job, uint32_t row)
{
    const uint32_t *seq = job->rows->seq_of_row;
    uint32_t n = 1;
    while (n < ROWS_PER_TILE && row + n < job->rows->n_rows && seq[row + n] == seq[row])
        n++;
    return n;
}

/* All heads [begin, end) of a tile of rows, KV group by KV group, cut so that no tile exceeds
 * ATTENTION_MAX_Q queries. */
static void run_heads(const struct attention_job *job, uint32_t row, uint32_t n_rows,
                      uint32_t begin, uint32_t end, void *scratch)
{
    while (begin < end) {
        uint32_t stop = group_end(job->params, begin);
        stop = stop < end ? stop : end;
        uint32_t most = ATTENTION_MAX_Q / n_rows;
        if (stop - begin > most)
            stop = begin + most;
        run_tile(job, row, n_rows, begin, stop - begin, scratch);
        begin = stop;
    }
}

/* Few rows (decode of one sequence): members share the heads of every row, so that three KV heads
 * do not leave a second member idle. Cutting a group only loads its K and V twice. */
static void share_heads(void *arg, uint32_t index, uint32_t n_threads)
{
    struct attention_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->params->n_heads, 1, index, n_threads, &begin, &end);
    for (uint32_t row = 0; row < job->rows->n_rows;) {
        uint32_t n = tile_rows(job, row);
        run_heads(job, row, n, begin, end, stream_scratch(job->stream, index));
        row += n;
    }
}

/* Many rows: members take tiles (rows × KV group) as they come, the longest contexts first. */
static void share_tiles(void *arg, uint32_t index, uint32_t n_threads)
{
    struct attention_job *job = arg;
    (void)n_threads;
    uint32_t item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed), i = 0;
    for (uint32_t row = 0; row < job->rows->n_rows;) {
        uint32_t n = tile_rows(job, row);
        for (uint32_t head = 0; head < job->params->n_heads;) {
            uint32_t end = group_end(job->params, head);
            if (i++ == item) {
                run_heads(job, row, n, head, end, stream_scratch(job->stream, index));
                item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
            }
            head = end;
        }
        row += n;
    }
}

int attention_cpu(struct stream *s, struct tensor *y, const struct tensor *q,
                  const struct kv_layer *kv, const struct attention_rows *rows,
                  const struct attention_params *params)
{
    if (kv->head_dim > ATTENTION_MAX_HEAD_DIM)
        return STATUS_INTERNAL;
    struct attention_job job = {.inner = inner_of(s->ops),
                                .stream = stream_cpu(s),
                                .y = y,
                                .q = q,
                                .kv = kv,
                                .rows = rows,
                                .params = params};
    uint32_t n_threads = thread_pool_size(job.stream->pool);
    uint32_t n_tiles = 0;
    for (uint32_t row = 0; row < rows->n_rows && n_tiles < 2 * n_threads; n_tiles++)
        row += tile_rows(&job, row);
    run_job(s, n_tiles < 2 * n_threads ? share_heads : share_tiles, &job, true);
    return 0;
}

enum { PAGE_BYTES = 4096 };

size_t scratch_bytes_cpu(uint32_t vocab_size, uint32_t head_dim)
{
    size_t dim = (head_dim + 15) & ~15u;
    size_t floats = 2 * dim * ATTENTION_PARTITION + ATTENTION_MAX_Q * (size_t)ATTENTION_PARTITION +
                    2 * ATTENTION_MAX_Q * dim + 4 * (size_t)ATTENTION_MAX_Q;
    size_t attention = floats * sizeof(float), sample = SAMPLE_SCRATCH_BYTES(vocab_size);
    size_t most = attention > sample ? attention : sample;
    return (most + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}
