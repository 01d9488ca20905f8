/* Pairs are computed in batches that fit the work memory. In a batch the pairs of an expert are
 * adjacent rows of the prepared activations, and these rows are one product.
 * A batch has six jobs: gather, prepare, gate and up, prepare, down, combine. Where each expert has
 * a single row, as in decode, the rows of x are prepared themselves, without a gather. With few
 * pairs the job of `down` also combines, so it walks through all experts per run of outputs. */
#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "kernels/comm.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_block.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MIN_PARALLEL = 4096,         /* elements */
    MIN_PARALLEL_MACS = 1 << 14, /* multiply-adds of a product */
    ITEM_BYTES = 12 * 1024,      /* minimum bytes of weights in an item, for few rows */
    ITEMS_PER_THREAD = 6,
    ITEMS_PER_EXPERT = 4, /* for many rows and several threads */
    FEW_ROWS = 4,         /* up to this number of rows per expert, memory is the bound */
    FEW_PAIRS = 64,       /* up to this number of pairs, `down` also combines */
    ITEM_PANELS = 8,      /* usual panels of an item of that job, and the least */
    ITEM_MIN_PANELS = 2,
    AHEAD_BYTES = 1024, /* bytes of the next expert that are prefetched */
    LINE_BYTES = 64,
    COMBINE_COLUMNS = 512,
};

/* Rows [slot, slot + n) of the work memory are pairs [pair, pair + n), all of one expert. */
struct block {
    uint32_t expert, pair, n, slot;
};

struct batch {
    uint32_t n_blocks, pair, end_pair;
    uint32_t n_slots; /* rows in use; rows between blocks are zero */
    struct block blocks[EXPERTS_MAX];
    uint32_t shift[EXPERTS_MAX]; /* pair + shift = slot, modulo 2^32, for the experts of blocks */
};

/* The arguments of every job of a batch. */
struct expert_job {
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    struct tensor *y;
    const struct tensor *x;
    const struct expert_routes *routes;
    const struct experts *experts;
    const struct expert_work *work;
    const struct batch *batch;
    /* products */
    const struct weight *const *w[2];
    const float *bias[2];
    float *out[2];
    size_t out_strides[2];
    int32_t *sums, *high; /* integers to be summed over ranks; out[0] is then NULL */
    size_t sums_stride;
    uint32_t n_parts, n_panels, items_per_block, chunks;
    bool gated;
    bool from_x; /* the activations are the rows of x; every block has one pair */
};

/* Rows of tiles are computed 32 at a time, so blocks of many rows begin at a multiple of that. */
static uint32_t slot_of(const struct cpu_inner *inner, uint32_t slot, uint32_t n)
{
    bool tiles = inner->arrange != NULL && n >= inner->arrange_min_rows;
    return tiles ? (slot + ACT_PAIR_ROWS - 1) / ACT_PAIR_ROWS * ACT_PAIR_ROWS : slot;
}

/* Takes the next pairs, from `pair` on, as long as they fit. */
static void next_batch(struct batch *batch, const struct expert_job *job, uint32_t pair,
                       bool aligned)
{
    const uint32_t *begins = job->routes->begins;
    uint32_t room = job->work->act->max_rows, expert = 0;
    batch->pair = batch->end_pair = pair;
    batch->n_blocks = batch->n_slots = 0;
    while (batch->end_pair < begins[job->routes->n_experts]) {
        while (begins[expert + 1] <= batch->end_pair)
            expert++;
        uint32_t n = begins[expert + 1] - batch->end_pair,
                 slot = aligned ? slot_of(job->inner, batch->n_slots, n) : batch->n_slots;
        if (slot >= room)
            break;
        n = n < room - slot ? n : room - slot;
        batch->blocks[batch->n_blocks++] = (struct block){expert, batch->end_pair, n, slot};
        batch->shift[expert] = slot - batch->end_pair;
        batch->end_pair += n;
        batch->n_slots = slot + n;
    }
}

/* Returns the weight of the expert in a row. */
static float weight_of(const struct expert_routes *routes, uint32_t row, uint32_t expert)
{
    uint32_t at = row * routes->n_used;
    while (routes->ids[at] != expert)
        at++;
    return routes->weights[at];
}

static void gather_block(void *arg, uint32_t item, uint32_t member)
{
    const struct expert_job *job = arg;
    const struct block *b = &job->batch->blocks[item];
    const struct tensor *to = &job->work->rows;
    uint32_t n = job->x->n_cols, before = item == 0 ? 0 : b[-1].slot + b[-1].n;
    (void)member;
    for (; before < b->slot; before++)
        memset(tensor_row_f32(to, before), 0, n * sizeof(float));
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t row = job->routes->rows[b->pair + i];
        const float *x = tensor_row_f32(job->x, row);
        float *dst = tensor_row_f32(to, b->slot + i);
        if (!job->experts->weighs_input) {
            memcpy(dst, x, n * sizeof(float));
            continue;
        }
        float w = weight_of(job->routes, row, b->expert);
        for (uint32_t k = 0; k < n; k++)
            dst[k] = w * x[k];
    }
}

/* Computes a product for rows [share->row_begin, share->row_end) of the activations, and adds the
 * bias. The results are rows of the work memory from `slot` on. */
static void run_share(const struct expert_job *job, uint32_t part, uint32_t expert, uint32_t slot,
                      const struct linear_share *share)
{
    const struct weight_cpu *w = weight_cpu(job->w[part][expert]);
    size_t stride = job->out_strides[part];
    struct linear_job linear = {.act = act_cpu(job->work->act),
                                .w = w,
                                .y = job->out[part],
                                .sums = job->sums,
                                .high = job->high,
                                .y_stride = stride,
                                .sums_stride = job->sums_stride};
    if (job->from_x) { /* a single row, whose number differs from its slot */
        linear.y += slot * stride;
        linear.y_stride = 0;
    }
    if (w->base.act_kind == ACT_INT8)
        job->inner->linear_int(&linear, share);
    else
        job->inner->linear_dense(&linear, share);
    if (job->bias[part] == NULL)
        return;
    const float *bias = job->bias[part] + (size_t)expert * w->base.n_rows + share->n_begin;
    for (uint32_t r = 0; r < share->row_end - share->row_begin; r++)
        job->inner->add(job->out[part] + (slot + r) * stride + share->n_begin, bias,
                        share->n_end - share->n_begin);
}

/* Computes outputs [share->n_begin, share->n_end) of a block's products. */
static void run_block(const struct expert_job *job, const struct block *b,
                      struct linear_share *share)
{
    uint32_t step = linear_row_block(job->inner, weight_cpu(job->w[0][b->expert])),
             n = share->n_end - share->n_begin,
             first = job->from_x ? job->routes->rows[b->pair] : b->slot;
    for (uint32_t done = 0; done < b->n; done += step) {
        uint32_t left = b->n - done, slot = b->slot + done;
        share->row_begin = first + done;
        share->row_end = share->row_begin + (left < step ? left : step);
        for (uint32_t p = 0; p < job->n_parts; p++)
            run_share(job, p, b->expert, slot, share);
        for (uint32_t r = slot; job->gated && r < slot + share->row_end - share->row_begin; r++) {
            float *y = job->out[0] + r * job->out_strides[0] + share->n_begin;
            const float *up =
                job->n_parts == 2 ? job->out[1] + r * job->out_strides[1] + share->n_begin : NULL;
            job->inner->act_mul(y, y, up, n, job->experts->activation);
        }
    }
}

/* Computes a run of panels of an expert, for all rows of its block. */
static void run_item(void *arg, uint32_t item, uint32_t member)
{
    const struct expert_job *job = arg;
    const struct block *b = &job->batch->blocks[item / job->items_per_block];
    const struct weight_cpu *w = weight_cpu(job->w[0][b->expert]);
    uint32_t begin, end, n = w->base.n_rows;
    thread_pool_share(job->n_panels, b->n > 1 ? 2 : 1, item % job->items_per_block,
                      job->items_per_block, &begin, &end);
    struct linear_share share = {.n_begin = begin * PANEL_ROWS,
                                 .n_end = end * PANEL_ROWS < n ? end * PANEL_ROWS : n,
                                 .scratch = stream_scratch(job->stream, member)};
    if (share.n_begin < share.n_end)
        run_block(job, b, &share);
}

/* Returns the batch's rows of a work tensor, n_cols wide. */
static struct tensor batch_rows(const struct expert_job *job, const struct tensor *t,
                                uint32_t n_cols)
{
    struct tensor rows = tensor_rows(t, 0, job->batch->n_slots);
    rows.n_cols = n_cols;
    return rows;
}

/* Splits the products of a batch into items. */
static void run_products(struct stream *s, struct expert_job *job)
{
    const struct weight_cpu *w = weight_cpu(job->w[0][0]);
    struct thread_pool *pool = stream_cpu(s)->pool;
    uint32_t n_threads = thread_pool_size(pool), n_blocks = job->batch->n_blocks;
    uint64_t pairs = job->batch->end_pair - job->batch->pair,
             n_macs = pairs * w->base.n_rows * w->k_pad * job->n_parts,
             bytes = (w->units_offset - w->data_offset) * job->n_parts, per_block = 1;
    job->n_panels = weight_n_panels(w);
    if (n_threads > 1) {
        per_block = ((uint64_t)ITEMS_PER_THREAD * n_threads + n_blocks - 1) / n_blocks;
        uint64_t least =
            pairs <= (uint64_t)FEW_ROWS * n_blocks ? bytes / ITEM_BYTES : ITEMS_PER_EXPERT;
        per_block = per_block > least ? per_block : least;
    }
    per_block = per_block < job->n_panels ? per_block : job->n_panels;
    job->items_per_block = per_block > 0 ? (uint32_t)per_block : 1;
    uint32_t n_items = n_blocks * job->items_per_block;
    if (n_macs < MIN_PARALLEL_MACS)
        for (uint32_t item = 0; item < n_items; item++)
            run_item(job, item, 0);
    else
        thread_pool_run_items(pool, n_items, run_item, job);
}

/* Announces a matrix of the batch's experts: to each thread the one with which it starts. */
static void will_read_blocks(struct stream *s, const struct expert_job *job,
                             const struct weight *const *w)
{
    struct thread_pool *pool = stream_cpu(s)->pool;
    struct thread_pool_range ranges[THREAD_POOL_MAX_RANGES];
    uint32_t n = thread_pool_size(pool), n_blocks = job->batch->n_blocks;
    n = n < THREAD_POOL_MAX_RANGES ? n : THREAD_POOL_MAX_RANGES;
    n = n < n_blocks ? n : n_blocks;
    for (uint32_t i = 0; i < n; i++) {
        const struct weight *first = w[job->batch->blocks[(uint64_t)n_blocks * i / n].expert];
        ranges[i] = (struct thread_pool_range){first, (size_t)weight_cpu(first)->total_bytes};
    }
    thread_pool_will_read(pool, ranges, n);
}

static void fetch(const struct weight_cpu *w, uint32_t panel)
{
    const uint8_t *at =
        weight_data(w) + (w->units_offset - w->data_offset) / weight_n_panels(w) * panel;
    for (uint32_t i = 0; i < AHEAD_BYTES; i += LINE_BYTES)
        __builtin_prefetch(at + i, 0, 2);
}

/* y += the weighted outputs of all experts of the batch, for a run of panels. */
static void run_down_item(void *arg, uint32_t item, uint32_t member)
{
    const struct expert_job *job = arg;
    const struct batch *batch = job->batch;
    uint32_t begin, end, hidden = job->y->n_cols;
    thread_pool_share(job->n_panels, ITEM_MIN_PANELS, item, job->items_per_block, &begin, &end);
    struct linear_share share = {.n_begin = begin * PANEL_ROWS,
                                 .n_end = end * PANEL_ROWS < hidden ? end * PANEL_ROWS : hidden,
                                 .scratch = stream_scratch(job->stream, member)};
    if (share.n_begin >= share.n_end)
        return;
    uint32_t n = share.n_end - share.n_begin;
    for (uint32_t r = 0; batch->pair == 0 && r < job->y->n_rows; r++)
        memset(tensor_row_f32(job->y, r) + share.n_begin, 0, n * sizeof(float));
    for (uint32_t i = 0; i < batch->n_blocks; i++) {
        const struct block *b = &batch->blocks[i];
        const float *bias = job->experts->down_bias;
        if (bias != NULL)
            bias += (size_t)b->expert * hidden + share.n_begin;
        if (i + 1 < batch->n_blocks)
            fetch(weight_cpu(job->w[0][b[1].expert]), begin);
        run_block(job, b, &share);
        for (uint32_t r = 0; r < b->n; r++) {
            uint32_t row = job->routes->rows[b->pair + r];
            job->inner->add_weighted(
                tensor_row_f32(job->y, row) + share.n_begin,
                tensor_row_f32(&job->work->rows, b->slot + r) + share.n_begin, bias,
                job->experts->weighs_input ? 1.0f : weight_of(job->routes, row, b->expert), n);
        }
    }
}

/* Computes `down` of few pairs, and combines. */
static void run_down_at_once(struct stream *s, struct expert_job *job)
{
    const struct weight_cpu *w = weight_cpu(job->w[0][0]);
    struct thread_pool *pool = stream_cpu(s)->pool;
    uint32_t n_threads = thread_pool_size(pool), n_items = 1;
    uint64_t pairs = job->batch->end_pair - job->batch->pair;
    job->n_panels = weight_n_panels(w);
    if (n_threads > 1 && pairs * w->base.n_rows * w->k_pad >= MIN_PARALLEL_MACS) {
        uint32_t usual = job->n_panels / ITEM_PANELS, most = job->n_panels / ITEM_MIN_PANELS;
        n_items = ITEMS_PER_THREAD * n_threads;
        n_items = n_items < most ? n_items : most;
        n_items = n_items > usual ? n_items : usual;
        n_items = n_items > 0 ? n_items : 1;
    }
    job->items_per_block = n_items;
    if (n_items == 1)
        run_down_item(job, 0, 0);
    else
        thread_pool_run_items(pool, job->items_per_block, run_down_item, job);
}

/* y += the weighted outputs of the batch, for a chunk of columns of a row. */
static void combine(void *arg, uint32_t item, uint32_t member)
{
    const struct expert_job *job = arg;
    const struct expert_routes *routes = job->routes;
    uint32_t row = item / job->chunks, begin = item % job->chunks * COMBINE_COLUMNS,
             hidden = job->y->n_cols,
             n = hidden - begin < COMBINE_COLUMNS ? hidden - begin : COMBINE_COLUMNS;
    float *y = tensor_row_f32(job->y, row) + begin;
    (void)member;
    if (job->batch->pair == 0)
        memset(y, 0, n * sizeof(float));
    for (uint32_t j = row * routes->n_used; j < (row + 1) * routes->n_used; j++) {
        uint32_t pair = routes->places[j], expert = routes->ids[j];
        if (pair < job->batch->pair || pair >= job->batch->end_pair)
            continue;
        const float *bias = job->experts->down_bias;
        if (bias != NULL)
            bias += (size_t)expert * hidden + begin;
        job->inner->add_weighted(
            y, tensor_row_f32(&job->work->rows, pair + job->batch->shift[expert]) + begin, bias,
            job->experts->weighs_input ? 1.0f : routes->weights[j], n);
    }
}

static void run_items(struct stream *s, struct expert_job *job, thread_pool_item_fn *fn,
                      uint32_t n_items)
{
    if ((uint64_t)job->batch->n_slots * job->x->n_cols >= MIN_PARALLEL)
        thread_pool_run_items(stream_cpu(s)->pool, n_items, fn, job);
    else
        for (uint32_t item = 0; item < n_items; item++)
            fn(job, item, 0);
}

static int run_gate_and_up(struct stream *s, struct expert_job *job)
{
    const struct experts *e = job->experts;
    const struct expert_work *work = job->work;
    struct tensor rows = batch_rows(job, &work->rows, job->x->n_cols);
    bool has_gate = e->gate != NULL;
    uint32_t kinds = e->up[0]->act_kind | (has_gate ? e->gate[0]->act_kind : 0);
    job->from_x = !e->weighs_input && job->batch->pair == 0 &&
                  job->batch->n_blocks == job->routes->n_rows * job->routes->n_used;
    will_read_blocks(s, job, has_gate ? e->gate : e->up);
    if (!job->from_x)
        run_items(s, job, gather_block, job->batch->n_blocks);
    int rc = act_prepare_cpu(s, work->act, job->from_x ? job->x : &rows, kinds, NULL, NULL);
    if (rc != 0)
        return rc;
    uint32_t n = 0;
    if (has_gate) {
        job->w[n] = e->gate;
        job->bias[n] = e->gate_bias;
        job->out_strides[n] = work->gate.row_stride;
        job->out[n++] = work->gate.data;
    }
    job->w[n] = e->up;
    job->bias[n] = e->up_bias;
    job->out_strides[n] = work->up.row_stride;
    job->out[n++] = work->up.data;
    job->n_parts = n;
    job->gated = true;
    will_read_blocks(s, job, e->down);
    run_products(s, job);
    job->from_x = false;
    return 0;
}

/* Sums the products of `down` over ranks and scales the sums. */
static int reduce(struct stream *s, const struct expert_job *job, struct comm *comm)
{
    const struct batch *batch = job->batch;
    const struct weight *const *down = job->experts->down;
    struct tensor sums = batch_rows(job, &job->work->partial, job->x->n_cols),
                  high = batch_rows(job, &job->work->rows, job->x->n_cols);
    bool integer = down[0]->act_kind == ACT_INT8;
    sums.dtype = integer ? DTYPE_I32 : DTYPE_F32;
    high.dtype = DTYPE_I32;
    int rc = comm_all_reduce(comm, s, &sums, integer ? COMM_SUM_I32 : COMM_SUM_TREE_F32);
    if (rc == 0 && down[0]->n_partial_planes == 2)
        rc = comm_all_reduce(comm, s, &high, COMM_SUM_I32);
    for (uint32_t i = 0; rc == 0 && i < batch->n_blocks; i++) {
        const struct block *b = &batch->blocks[i];
        struct tensor y = tensor_rows(&job->work->rows, b->slot, b->n),
                      partial = tensor_rows(&job->work->partial, b->slot, b->n);
        y.n_cols = partial.n_cols = job->x->n_cols;
        ops_finish_rows(&y, &partial, job->work->act, b->slot, down[b->expert]);
    }
    return rc;
}

/* Computes the products of `down` and combines them. */
static int run_down(struct stream *s, struct expert_job *job, struct comm *comm)
{
    const struct experts *e = job->experts;
    const struct expert_work *work = job->work;
    struct tensor middle =
        batch_rows(job, e->gate != NULL ? &work->gate : &work->up, segments_len(e->segments));
    const struct weight *first = e->down[0];
    bool is_split = comm != NULL && comm->size > 1;
    int rc = act_prepare_cpu(s, work->act, &middle, first->act_kind, e->segments, comm);
    if (rc != 0)
        return rc;
    job->w[0] = e->down;
    job->bias[0] = NULL;
    job->n_parts = 1;
    job->gated = false;
    job->out[0] = work->rows.data;
    job->out_strides[0] = work->rows.row_stride;
    if (is_split && first->act_kind == ACT_INT8) {
        job->sums = work->partial.data;
        job->sums_stride = work->partial.row_stride;
        job->high = first->n_partial_planes == 2 ? work->rows.data : NULL;
        job->out[0] = NULL;
    } else if (is_split) {
        job->out[0] = work->partial.data;
        job->out_strides[0] = work->partial.row_stride;
    }
    if (e->n_then > 0 && job->batch->end_pair == job->routes->n_rows * job->routes->n_used)
        will_read_cpu(s, e->then, e->n_then);
    if (!is_split && job->batch->end_pair - job->batch->pair <= FEW_PAIRS) {
        run_down_at_once(s, job);
        return 0;
    }
    run_products(s, job);
    job->sums = job->high = NULL;
    rc = is_split ? reduce(s, job, comm) : 0;
    if (rc == 0)
        run_items(s, job, combine, job->y->n_rows * job->chunks);
    return rc;
}

int experts_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
                const struct expert_routes *routes, const struct experts *experts,
                const struct expert_work *work, struct comm *comm)
{
    struct batch batch; /* 20 KiB; next_batch() fills the part in use */
    struct expert_job job = {.inner = inner_of(s->ops),
                             .stream = stream_cpu(s),
                             .y = y,
                             .x = x,
                             .routes = routes,
                             .experts = experts,
                             .work = work,
                             .batch = &batch,
                             .chunks = (y->n_cols + COMBINE_COLUMNS - 1) / COMBINE_COLUMNS};
    uint32_t n_pairs = routes->n_rows * routes->n_used;
    bool aligned = comm == NULL || comm->size == 1; /* ranks must not sum unwritten rows */
    if (routes->begins[routes->n_experts] != n_pairs)
        return STATUS_INTERNAL;
    for (uint32_t pair = 0; pair < n_pairs; pair = batch.end_pair) {
        next_batch(&batch, &job, pair, aligned);
        assert(batch.end_pair > pair);
        int rc = run_gate_and_up(s, &job);
        if (rc == 0)
            rc = run_down(s, &job, comm);
        if (rc != 0)
            return rc;
    }
    return 0;
}
