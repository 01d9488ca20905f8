#include <stdatomic.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MIN_PARALLEL = 1 << 16,  /* multiply-adds below which the caller works alone */
    ROW_BLOCK_MULTIPLE = 48, /* a multiple of every kernel's rows per tile */
};

struct split_job {
    struct linear_job linear;
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    uint32_t row_block; /* rows of act per item */
    uint32_t n_row_blocks;
    uint32_t grain, n_grains; /* rows of w per item */
    _Atomic uint32_t next;    /* many items: members take the next one; results do not care */
    uint32_t grains_per_item, items_per_block, n_items;
};

static void run_item(const struct split_job *job, uint32_t item, void *scratch)
{
    uint32_t n = job->linear.w->base.n_rows, m = job->linear.act->base.n_rows;
    uint32_t i_block = item / job->items_per_block, i_grain = item % job->items_per_block;
    struct linear_share share = {
        .row_begin = i_block * job->row_block,
        .row_end = (i_block + 1) * job->row_block < m ? (i_block + 1) * job->row_block : m,
        .n_begin = i_grain * job->grains_per_item * job->grain,
        .scratch = scratch,
    };
    uint64_t n_end = (uint64_t)(i_grain + 1) * job->grains_per_item * job->grain;
    share.n_end = n_end < n ? (uint32_t)n_end : n;
    if (share.n_begin >= share.n_end)
        return;
    if (job->linear.w->base.act_kind == ACT_INT8)
        job->inner->linear_int(&job->linear, &share);
    else
        job->inner->linear_dense(&job->linear, &share);
}

static void run_items(void *arg, uint32_t index, uint32_t n_threads)
{
    struct split_job *job = arg;
    void *scratch = stream_scratch(job->stream, index);
    (void)n_threads;
    for (uint32_t item;
         (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->n_items;)
        run_item(job, item, scratch);
}

/* Cuts [rows of act] × [rows of w] into items: blocks of rows whose activations stay in L2, and
 * about four items per member in each, so that a delayed member does not hold up the others. */
static void run_linear(struct stream *s, const struct linear_job *linear)
{
    const struct weight_cpu *w = linear->w;
    uint32_t m = linear->act->base.n_rows, n_threads = thread_pool_size(stream_cpu(s)->pool);
    struct split_job job = {
        .linear = *linear, .inner = inner_of(s->ops), .stream = stream_cpu(s), .grain = PANEL_ROWS};
    uint32_t row_bytes = w->k_pad * (w->base.act_kind == ACT_INT8 ? 1 : 4);
    uint32_t fit = job.inner->row_block_bytes / (row_bytes > 0 ? row_bytes : 1);
    fit = fit < ROW_BLOCK_MULTIPLE ? ROW_BLOCK_MULTIPLE
                                   : fit / ROW_BLOCK_MULTIPLE * ROW_BLOCK_MULTIPLE;
    job.row_block = fit < m ? fit : m;
    job.n_row_blocks = (m + job.row_block - 1) / job.row_block;
    job.n_grains = weight_n_panels(w);
    uint32_t wanted = n_threads == 1 ? 1 : 4 * n_threads;
    job.grains_per_item = (job.n_grains + wanted - 1) / wanted;
    job.items_per_block = (job.n_grains + job.grains_per_item - 1) / job.grains_per_item;
    job.n_items = job.n_row_blocks * job.items_per_block;
    bool parallel = (uint64_t)m * w->base.n_rows * w->k_pad >= MIN_PARALLEL;
    run_job(s, run_items, &job, parallel);
}

int linear_cpu(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w)
{
    struct linear_job job = {
        .act = act_cpu(act), .w = weight_cpu(w), .y = y->data, .y_stride = y->row_stride};
    run_linear(s, &job);
    return 0;
}

int linear_partial_cpu(struct stream *s, struct tensor *partial, struct tensor *high,
                       const struct act *act, const struct weight *w)
{
    struct linear_job job = {.act = act_cpu(act), .w = weight_cpu(w)};
    if (w->act_kind == ACT_INT8) {
        job.sums = partial->data;
        job.sums_stride = partial->row_stride;
        job.high = w->n_partial_planes == 2 ? high->data : NULL;
        job.y_stride = high->row_stride;
    } else {
        job.y = partial->data;
        job.y_stride = partial->row_stride;
    }
    run_linear(s, &job);
    return 0;
}

int linear_finish_cpu(struct stream *s, struct tensor *y, const struct tensor *partial,
                      const struct act *base, const struct weight *base_weight)
{
    (void)s;
    const struct act_cpu *act = act_cpu(base);
    const struct weight_cpu *w = weight_cpu(base_weight);
    const float *units = weight_units(w);
    for (uint32_t r = 0; r < y->n_rows; r++) {
        float *out = tensor_row_f32(y, r);
        if (base_weight->act_kind != ACT_INT8) {
            memcpy(out, tensor_row_f32(partial, r), y->n_cols * sizeof(float));
            continue;
        }
        const int32_t *sums = (const int32_t *)partial->data + (size_t)r * partial->row_stride;
        for (uint32_t i = 0; i < y->n_cols; i++) {
            int64_t total = sums[i];
            if (base_weight->n_partial_planes == 2) {
                int32_t high; /* y carries the high plane until now */
                memcpy(&high, out + i, sizeof(high));
                total += (int64_t)high * 65536;
            }
            out[i] = (float)total * (units[i] * act->scale[r]);
        }
    }
    return 0;
}
