/* The op heads_linear on CPUs: a step of one row is one job over all heads. The heads of the row
 * are then the rows of the activations. */
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MIN_PARALLEL = 1 << 14, /* below this many multiply-adds the calling thread works alone */
    ITEMS_PER_THREAD = 6,
};

/* An item is a run of panels of 16 outputs of one head. */
struct heads_job {
    const struct cpu_inner *inner;
    const struct stream_cpu *stream;
    const struct act_cpu *act;
    const struct weight *const *heads;
    float *y;
    size_t y_head;
    uint32_t n_panels, items_per_head;
};

static void run_item(void *arg, uint32_t item, uint32_t member)
{
    const struct heads_job *job = arg;
    uint32_t head = item / job->items_per_head, begin, end;
    const struct weight *w = job->heads[head];
    thread_pool_share(job->n_panels, 1, item % job->items_per_head, job->items_per_head, &begin,
                      &end);
    const struct linear_job linear = {
        .act = job->act, .w = weight_cpu(w), .y = job->y, .y_stride = job->y_head};
    struct linear_share share = {.row_begin = head,
                                 .row_end = head + 1,
                                 .n_begin = begin * PANEL_ROWS,
                                 .n_end =
                                     end * PANEL_ROWS < w->n_rows ? end * PANEL_ROWS : w->n_rows,
                                 .scratch = stream_scratch(job->stream, member)};
    if (share.n_begin >= share.n_end)
        return;
    if (w->act_kind == ACT_INT8)
        job->inner->linear_int(&linear, &share);
    else
        job->inner->linear_dense(&linear, &share);
}

static int run_row(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                   const struct weight *const *heads, uint32_t n_heads, uint32_t y_head)
{
    const struct tensor rows = tensor_view(x->data, DTYPE_F32, n_heads, heads[0]->k_local);
    int rc = act_prepare_cpu(s, act, &rows, heads[0]->act_kind, NULL, NULL);
    if (rc != 0)
        return rc;
    uint32_t wanted = ITEMS_PER_THREAD * thread_pool_size(stream_cpu(s)->pool);
    struct heads_job job = {.inner = inner_of(s->ops),
                            .stream = stream_cpu(s),
                            .act = act_cpu(act),
                            .heads = heads,
                            .y = y->data,
                            .y_head = y_head,
                            .n_panels = weight_n_panels(weight_cpu(heads[0])),
                            .items_per_head = (wanted + n_heads - 1) / n_heads};
    if (job.items_per_head > job.n_panels)
        job.items_per_head = job.n_panels;
    uint32_t n_items = n_heads * job.items_per_head;
    if ((uint64_t)n_heads * heads[0]->n_rows * heads[0]->k_local < MIN_PARALLEL)
        for (uint32_t item = 0; item < n_items; item++)
            run_item(&job, item, 0);
    else
        thread_pool_run_items(stream_cpu(s)->pool, n_items, run_item, &job);
    return 0;
}

int heads_linear_cpu(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                     const struct weight *const *heads, uint32_t n_heads, uint32_t y_head)
{
    return x->n_rows == 1 && n_heads <= act->max_rows
               ? run_row(s, act, y, x, heads, n_heads, y_head)
               : op_heads_in_turn(s, act, y, x, heads, n_heads, y_head);
}
