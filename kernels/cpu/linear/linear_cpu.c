#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_block.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MIN_PARALLEL = 1 << 14, /* below this many multiply-adds the calling thread works alone */
    ITEM_BYTES = 12 * 1024, /* minimum bytes of weights in an item, for one row */
    ITEMS_PER_THREAD = 6,   /* for several rows */
};

/* A weight in a job, and the treatment of its results. */
struct part {
    struct linear_job linear;
    const float *bias;    /* NULL: none */
    struct tensor *sum;   /* NULL: none */
    float sum_factor;     /* 0: none */
    uint32_t first_panel; /* index among the panels of all parts in sequence */
};

/* A job of linears over the same activations. An item is a block of rows × a run of panels of 16
 * outputs. */
struct split_job {
    struct part parts[LINEAR_MAX_PARTS];
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    uint32_t n_parts, n_panels; /* gated: the panels of one part */
    uint32_t n_rows, row_block;
    uint32_t items_per_block, n_items;
    bool gated;
    enum activation kind;
};

static void run_share(const struct split_job *job, const struct part *part,
                      const struct linear_share *share)
{
    if (part->linear.w->base.act_kind == ACT_INT8)
        job->inner->linear_int(&part->linear, share);
    else
        job->inner->linear_dense(&part->linear, share);
    uint32_t n = share->n_end - share->n_begin;
    for (uint32_t r = share->row_begin; r < share->row_end; r++) {
        float *y = part->linear.y + (size_t)r * part->linear.y_stride + share->n_begin;
        if (part->bias != NULL)
            job->inner->add(y, part->bias + share->n_begin, n);
        if (part->sum_factor != 0.0f)
            job->inner->scale(y, n, part->sum_factor, 0.0f);
        if (part->sum != NULL)
            job->inner->add(tensor_row_f32(part->sum, r) + share->n_begin, y, n);
    }
}

/* Returns the outputs of panels [begin, end) of a part, up to its last output. */
static struct linear_share share_of(const struct split_job *job, const struct part *part,
                                    uint32_t i_block, uint32_t begin, uint32_t end, void *scratch)
{
    uint32_t n = part->linear.w->base.n_rows, row_end = (i_block + 1) * job->row_block;
    struct linear_share share = {
        .row_begin = i_block * job->row_block,
        .row_end = row_end < job->n_rows ? row_end : job->n_rows,
        .n_begin = begin * PANEL_ROWS,
        .n_end = end * PANEL_ROWS,
        .scratch = scratch,
    };
    share.n_begin = share.n_begin < n ? share.n_begin : n;
    share.n_end = share.n_end < n ? share.n_end : n;
    return share;
}

static void run_gated(const struct split_job *job, uint32_t i_block, uint32_t begin, uint32_t end,
                      void *scratch)
{
    const struct part *gate = &job->parts[0], *up = &job->parts[1];
    struct linear_share share = share_of(job, gate, i_block, begin, end, scratch);
    if (share.n_begin == share.n_end)
        return;
    run_share(job, gate, &share);
    run_share(job, up, &share);
    for (uint32_t r = share.row_begin; r < share.row_end; r++) {
        float *y = gate->linear.y + (size_t)r * gate->linear.y_stride + share.n_begin;
        job->inner->act_mul(y, y, up->linear.y + (size_t)r * up->linear.y_stride + share.n_begin,
                            share.n_end - share.n_begin, job->kind);
    }
}

static void run_item(void *arg, uint32_t item, uint32_t member)
{
    const struct split_job *job = arg;
    uint32_t i_block = item / job->items_per_block, i = item % job->items_per_block, begin, end;
    void *scratch = stream_scratch(job->stream, member);
    /* with several rows kernels take two panels at a time */
    thread_pool_share(job->n_panels, job->n_rows > 1 ? 2 : 1, i, job->items_per_block, &begin,
                      &end);
    if (job->gated) {
        run_gated(job, i_block, begin, end, scratch);
        return;
    }
    for (uint32_t p = 0; p < job->n_parts; p++) {
        const struct part *part = &job->parts[p];
        uint32_t first = part->first_panel, last = first + weight_n_panels(part->linear.w);
        if (end <= first || begin >= last)
            continue;
        struct linear_share share = share_of(job, part, i_block, begin > first ? begin - first : 0,
                                             (end < last ? end : last) - first, scratch);
        if (share.n_begin < share.n_end)
            run_share(job, part, &share);
    }
}

/* Splits the rows into blocks whose activations stay in L2. Each block has items of a few panels,
 * so that a delayed member does not delay the others. With one row, items are as short as the cost
 * of handing them over allows. */
static void run_split(struct stream *s, struct split_job *job)
{
    const struct weight_cpu *w = job->parts[0].linear.w;
    uint32_t m = job->n_rows, n_threads = thread_pool_size(stream_cpu(s)->pool);
    assert(w != NULL && m > 0);
    job->inner = inner_of(s->ops);
    job->stream = stream_cpu(s);
    uint32_t fit = linear_row_block(job->inner, w);
    uint64_t bytes = 0, n_macs = 0;
    for (uint32_t p = 0; p < job->n_parts; p++) {
        const struct weight_cpu *part = job->parts[p].linear.w;
        bytes += part->units_offset - part->data_offset;
        n_macs += (uint64_t)m * part->base.n_rows * part->k_pad;
    }
    uint64_t wanted = n_threads == 1 ? 1 : (uint64_t)ITEMS_PER_THREAD * n_threads;
    if (n_threads > 1 && m == 1 && bytes / ITEM_BYTES > wanted)
        wanted = bytes / ITEM_BYTES;
    if (n_macs < MIN_PARALLEL)
        wanted = 1;
    job->row_block = fit < m ? fit : m;
    assert(job->row_block > 0);
    job->items_per_block = wanted < job->n_panels ? (uint32_t)wanted : job->n_panels;
    if (job->items_per_block == 0)
        job->items_per_block = 1;
    job->n_items = (m + job->row_block - 1) / job->row_block * job->items_per_block;
    if (n_macs < MIN_PARALLEL)
        for (uint32_t item = 0; item < job->n_items; item++)
            run_item(job, item, 0);
    else
        thread_pool_run_items(stream_cpu(s)->pool, job->n_items, run_item, job);
}

static void run_linear(struct stream *s, const struct linear_job *linear)
{
    struct split_job job = {
        .n_parts = 1, .n_rows = linear->act->base.n_rows, .n_panels = weight_n_panels(linear->w)};
    job.parts[0].linear = *linear;
    run_split(s, &job);
}

int linear_cpu(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w)
{
    struct linear_job job = {
        .act = act_cpu(act), .w = weight_cpu(w), .y = y->data, .y_stride = y->row_stride};
    run_linear(s, &job);
    return 0;
}

static void set_part(struct part *part, const struct linear_part *from, const struct act *act)
{
    *part = (struct part){.linear = {.act = act_cpu(act),
                                     .w = weight_cpu(from->w),
                                     .y = from->y->data,
                                     .y_stride = from->y->row_stride},
                          .bias = from->bias,
                          .sum = from->sum,
                          .sum_factor = from->sum != NULL ? from->sum_factor : 0.0f};
}

int linear_parts_cpu(struct stream *s, const struct act *act, const struct linear_part *parts,
                     uint32_t n_parts)
{
    struct split_job job = {.n_parts = n_parts, .n_rows = act->n_rows};
    for (uint32_t p = 0; p < n_parts; p++) {
        set_part(&job.parts[p], &parts[p], act);
        job.parts[p].first_panel = job.n_panels;
        job.n_panels += weight_n_panels(job.parts[p].linear.w);
    }
    run_split(s, &job);
    return 0;
}

int linear_gated_cpu(struct stream *s, const struct act *act, const struct linear_part *gate,
                     const struct linear_part *up, enum activation kind)
{
    struct split_job job = {.n_parts = 2, .n_rows = act->n_rows, .gated = true, .kind = kind};
    set_part(&job.parts[0], gate, act);
    set_part(&job.parts[1], up, act);
    job.n_panels = weight_n_panels(job.parts[0].linear.w);
    run_split(s, &job);
    return 0;
}

void will_read_cpu(struct stream *s, const struct weight *const *weights, uint32_t n)
{
    struct thread_pool_range ranges[LINEAR_MAX_PARTS];
    for (uint32_t i = 0; i < n; i++)
        ranges[i] =
            (struct thread_pool_range){weights[i], (size_t)weight_cpu(weights[i])->total_bytes};
    thread_pool_will_read(stream_cpu(s)->pool, ranges, n);
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

void ops_finish_rows(struct tensor *y, const struct tensor *partial, const struct act *base,
                     uint32_t row_begin, const struct weight *base_weight)
{
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
                int32_t high; /* until now y holds the high plane */
                memcpy(&high, out + i, sizeof(high));
                total += (int64_t)high * 65536;
            }
            out[i] = (float)total * (units[i] * act->scale[row_begin + r]);
        }
    }
}

int linear_finish_cpu(struct stream *s, struct tensor *y, const struct tensor *partial,
                      const struct act *act, const struct weight *w)
{
    (void)s;
    ops_finish_rows(y, partial, act, 0, w);
    return 0;
}
