/* The op heads_linear: a linear per head, for latent attention. The heads are computed as experts
 * that all rows take. There is a launch for the activations, and a launch for all products. As many
 * rows and heads as the activations have room for are computed at once. */
#include "base/status.h"
#include "kernels/cuda/experts/experts_cuda.h"
#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/experts/heads_index.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_quant_args.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/weight_cuda.h"

/* A call, or the part of its rows and heads that one product computes. */
struct heads {
    struct stream_cuda *s;
    struct act *act;
    struct tensor y, x; /* columns of y beyond the last head stay as they are */
    const struct weight *const *w;
    uint32_t n, y_head;
    struct experts_strides by;
};

static uint32_t k_of(const struct heads *h)
{
    return h->w[0]->k_local;
}

/* Returns the part of the rows [row, + n_rows) and the heads [first, + n). */
static struct heads part_of(const struct heads *all, uint32_t row, uint32_t n_rows, uint32_t first,
                            uint32_t n)
{
    struct heads h = *all;
    h.x = tensor_rows(&all->x, row, n_rows);
    h.y = tensor_rows(&all->y, row, n_rows);
    h.x.data = (float *)h.x.data + (size_t)first * k_of(all);
    h.y.data = (float *)h.y.data + (size_t)first * all->y_head;
    h.w = all->w + first;
    h.n = n;
    return h;
}

/* --- quantized weights --- */

static int run_quant(const struct heads *h)
{
    struct act_quant *q = act_quant_of(h->act);
    const struct weight_quant *w = weight_quant(h->w[0]);
    uint32_t m = h->x.n_rows, rows = heads_tile_rows(m);
    int rc = act_quant_heads(&h->s->base, q, &h->x, h->n, k_of(h));
    const struct experts_tiles tiles = {.n_experts = h->n,
                                        .tile_rows = rows,
                                        .heads = {.n_blocks = experts_n_tiles(m, rows),
                                                  .n_tiles = quant_n_tiles(m),
                                                  .y_columns = h->y_head}};
    const struct quant_linear args = {.layout = w->layout,
                                      .m = m,
                                      .act = q->planes,
                                      .put = QUANT_PUT_Y,
                                      .n_parts = 1,
                                      .n_panels = (w->base.n_rows + QUANT_ROWS - 1) / QUANT_ROWS,
                                      .parts = {{.data = w->data,
                                                 .units = weight_quant_units(w),
                                                 .y = h->y.data,
                                                 .y_stride = h->y.row_stride,
                                                 .n_rows = w->base.n_rows}}};
    struct quant_plan plan = quant_plan_of(args.layout.form, args.n_panels, args.layout.n_pairs,
                                           rows, q->n_sms, q->max_shared);
    plan.token_blocks = h->n * tiles.heads.n_blocks;
    plan.n_splits = 1;
    return rc != 0 ? rc : experts_quant_cuda(h->s, "heads_linear", &tiles, &args, &h->by, &plan);
}

/* Returns how many of n rows or heads to compute at once: half as many, whole tiles of rows. */
static uint32_t half_of(uint32_t n, uint32_t multiple)
{
    uint32_t half = (n / 2 + multiple - 1) / multiple * multiple;
    return half > 0 && half < n ? half : n > multiple ? multiple : n;
}

static int run_all_quant(const struct heads *all)
{
    const struct act_quant *q = act_quant_of(all->act);
    uint32_t m = all->x.n_rows, rows = m, n = all->n;
    while (rows > QUANT_TILE && !act_quant_takes_heads(q, rows, n, k_of(all)))
        rows = half_of(rows, QUANT_TILE);
    while (n > 1 && !act_quant_takes_heads(q, rows, n, k_of(all)))
        n = half_of(n, 1);
    int rc = 0;
    for (uint32_t row = 0; rc == 0 && row < m; row += rows)
        for (uint32_t first = 0; rc == 0 && first < all->n; first += n) {
            struct heads h = part_of(all, row, m - row < rows ? m - row : rows, first,
                                     all->n - first < n ? all->n - first : n);
            rc = run_quant(&h);
        }
    return rc;
}

/* --- dense weights --- */

/* Sets the activations of all heads: [row][head] of k columns, padded as the form needs. */
static int round_rows(const struct heads *h, enum dense_form form, struct dense_job *job,
                      struct experts_heads *heads)
{
    struct act_cuda *act = act_cuda(h->act);
    size_t stride = dense_act_stride(k_of(h));
    job->x = h->x.data;
    job->x_stride = h->x.row_stride;
    heads->x_bytes = k_of(h) * sizeof(float);
    if (form == DENSE_F32)
        return 0;
    job->x = act->half;
    job->x_stride = h->n * stride;
    heads->x_bytes = stride * sizeof(*act->half);
    act->half_form = N_DENSE_FORMS;
    act->x = NULL;
    return device_stream_check(h->s, "heads_linear",
                               cuda_launch_act_half(h->s->handle, act->half, h->x.data, k_of(h),
                                                    h->x.n_rows * h->n, k_of(h), form));
}

static int run_dense(const struct heads *h)
{
    const struct weight_cuda *w = weight_cuda(h->w[0]);
    struct experts_tiles tiles = {.n_experts = h->n,
                                  .tile_rows = heads_tile_rows(h->x.n_rows),
                                  .heads = {.y_columns = h->y_head}};
    struct dense_job job = {
        .parts = {{.w = w->data, .y = h->y.data, .y_stride = h->y.row_stride, .n = w->base.n_rows}},
        .n_parts = 1,
        .m = h->x.n_rows,
        .k = k_of(h),
        .w_row_bytes = w->row_bytes,
        .slices = dense_slices_of(k_of(h))};
    int rc = round_rows(h, w->form, &job, &tiles.heads);
    return rc != 0 ? rc
                   : device_stream_check(
                         h->s, "heads_linear",
                         cuda_launch_experts_dense(h->s->handle, &tiles, w->form, &job, &h->by));
}

/* Returns the rows whose activations have room at once; 0: not even those of one row. */
static uint32_t dense_rows(const struct heads *h)
{
    size_t row = h->n * (size_t)dense_act_stride(k_of(h)),
           room = (h->act->max_rows + (size_t)CUBLASLT_ROWS) * dense_act_stride(h->act->max_k);
    bool any = weight_cuda(h->w[0])->form == DENSE_F32 || row == 0;
    size_t n = any ? h->x.n_rows : room / row;
    return n < h->x.n_rows ? (uint32_t)n : h->x.n_rows;
}

static int run_all_dense(const struct heads *all)
{
    uint32_t m = all->x.n_rows, rows = dense_rows(all);
    int rc = 0;
    for (uint32_t row = 0; rc == 0 && row < m; row += rows) {
        struct heads h = part_of(all, row, m - row < rows ? m - row : rows, 0, all->n);
        rc = run_dense(&h);
    }
    return rc;
}

static bool dense_is_one(const struct heads *h)
{
    enum dense_form form = weight_cuda(h->w[0])->form;
    bool adjacent = h->x.row_stride == h->n * (size_t)k_of(h);
    for (uint32_t i = 0; i < h->n; i++)
        if (weight_is_quant(h->w[i]) || weight_cuda(h->w[i])->form != form)
            return false;
    return form == DENSE_F32 || (form <= DENSE_BF16 && adjacent && dense_rows(h) > 0);
}

/* --- heads that differ --- */

static bool quant_is_one(const struct heads *h)
{
    for (uint32_t i = 0; i < h->n; i++)
        if (!weight_is_quant(h->w[i]) || !linear_quant_same(h->w[0], h->w[i]))
            return false;
    return act_quant_takes_heads(act_quant_of(h->act), 1, 1, k_of(h));
}

static int run_in_turn(const struct heads *all)
{
    struct stream *s = &all->s->base;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < all->n; i++) {
        struct heads h = part_of(all, 0, all->x.n_rows, i, 1);
        h.x.n_cols = k_of(&h);
        h.y.n_cols = h.w[0]->n_rows;
        rc = act_prepare_cuda(s, h.act, &h.x, h.w[0]->act_kind, NULL, NULL);
        if (rc == 0)
            rc = linear_cuda(s, &h.y, h.act, h.w[0]);
    }
    return rc;
}

int heads_linear_cuda(struct stream *stream, struct act *act, struct tensor *y,
                      const struct tensor *x, const struct weight *const *heads, uint32_t n_heads,
                      uint32_t y_head)
{
    struct heads all = {.s = stream_cuda(stream),
                        .act = act,
                        .y = *y,
                        .x = *x,
                        .w = heads,
                        .n = n_heads,
                        .y_head = y_head};
    int rc = device_stream_enter(all.s);
    if (rc != 0)
        return rc;
    bool apart = experts_stride_cuda(heads, n_heads, &all.by.weights[0]);
    if (apart && weight_is_quant(heads[0]) && quant_is_one(&all))
        return run_all_quant(&all);
    if (apart && !weight_is_quant(heads[0]) && dense_is_one(&all))
        return run_all_dense(&all);
    return run_in_turn(&all);
}
