/* The ops router_topk and experts. Every launch has a grid that the host knows. The counts of the
 * router stay on the device, so a captured step serves any choice. All rows take path D. */
#include "kernels/cuda/experts/experts_cuda.h"

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/cuda/experts/experts_index.h"
#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_quant_args.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/cuda/weight_cuda.h"

int experts_open_cuda(uint32_t max_shared)
{
    int code = cuda_allow_experts_dense(max_shared);
    if (code == 0)
        code = cuda_allow_experts_4bit(max_shared);
    if (code == 0)
        code = cuda_allow_experts_8bit(max_shared);
    if (code == 0)
        code = cuda_allow_experts_super(max_shared);
    return code != 0 ? code : cuda_allow_experts_table(max_shared);
}

int router_topk_cuda(struct stream *stream, struct expert_routes *routes,
                     const struct tensor *logits, const struct router_params *params)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = device_stream_enter(s);
    if (rc == 0)
        rc = device_stream_check(
            s, "router_topk",
            cuda_launch_router(s->handle, routes, logits->data, logits->row_stride, params));
    return rc != 0
               ? rc
               : device_stream_check(s, "router_topk", cuda_launch_router_order(s->handle, routes));
}

/* The arguments of every launch of a batch. */
struct batch {
    struct stream_cuda *s;
    const struct expert_routes *routes;
    const struct experts *experts;
    const struct expert_work *work;
    struct experts_tiles tiles;
    uint32_t n_slots;
};

/* Returns the batch's rows of a work tensor, n_cols wide. */
static struct tensor batch_rows(const struct batch *b, const struct tensor *t, uint32_t n_cols)
{
    struct tensor rows = tensor_rows(t, 0, b->n_slots);
    rows.n_cols = n_cols;
    return rows;
}

static const void *data_of(const struct weight *w)
{
    return weight_is_quant(w) ? (const void *)weight_quant(w)->data : weight_cuda(w)->data;
}

/* The matrices of an expert, in the order of experts.strides. */
enum { GATE, UP, DOWN };

bool experts_stride_cuda(const struct weight *const *w, uint32_t n, size_t *out)
{
    const uint8_t *first = data_of(w[0]);
    *out = n > 1 ? (size_t)((const uint8_t *)data_of(w[1]) - first) : 0;
    for (uint32_t e = 0; e < n; e++)
        if (data_of(w[e]) == NULL || (const uint8_t *)data_of(w[e]) != first + e * *out)
            return false;
    return first != NULL;
}

int experts_bind_cuda(struct experts *experts, struct error *err)
{
    const struct weight *const *matrices[] = {experts->gate, experts->up, experts->down};
    static const char *const names[] = {"gate", "up", "down"};
    for (uint32_t i = GATE; i <= DOWN; i++)
        if (matrices[i] != NULL &&
            !experts_stride_cuda(matrices[i], experts->n, &experts->strides[i]))
            return error_set(err, STATUS_INTERNAL,
                             "experts: the weights of %s are not equally far apart", names[i]);
    return 0;
}

/* A product of a batch with one matrix of every expert, or with gate and up. */
struct product {
    const struct weight *const *w[2];
    size_t strides[2];
    const float *bias[2];
    struct tensor *y[2];
    uint32_t n;
    bool gated;
    enum activation kind;
    struct tensor *partial, *high; /* NULL, or the sums of this rank */
};

int experts_quant_cuda(struct stream_cuda *s, const char *op, const struct experts_tiles *tiles,
                       const struct quant_linear *args, const struct experts_strides *by,
                       const struct quant_plan *plan)
{
    uint32_t form = args->layout.form;
    int code = quant_has_table(form)  ? cuda_launch_experts_table(s->handle, tiles, args, by, plan)
               : quant_is_super(form) ? cuda_launch_experts_super(s->handle, tiles, args, by, plan)
               : quant_is_wide(form)  ? cuda_launch_experts_8bit(s->handle, tiles, args, by, plan)
                                      : cuda_launch_experts_4bit(s->handle, tiles, args, by, plan);
    return device_stream_check(s, op, code);
}

static int run_quant(const struct batch *b, const struct product *p,
                     const struct experts_strides *by)
{
    const struct act_quant *q = act_quant_of(b->work->act);
    const struct weight_quant *first = weight_quant(p->w[0][0]);
    struct quant_linear args = {.layout = first->layout,
                                .m = b->n_slots,
                                .act = q->planes,
                                .put = p->gated ? QUANT_PUT_GATED : QUANT_PUT_Y,
                                .kind = p->kind};
    for (uint32_t i = 0; i < p->n; i++) {
        const struct weight_quant *w = weight_quant(p->w[i][0]);
        args.parts[i] = (struct quant_part){.data = w->data,
                                            .units = weight_quant_units(w),
                                            .y = p->y[i] != NULL ? p->y[i]->data : NULL,
                                            .y_stride = p->y[i] != NULL ? p->y[i]->row_stride : 0,
                                            .bias = p->bias[i],
                                            .n_rows = w->base.n_rows,
                                            .first_panel = args.n_panels};
        args.n_panels += (w->base.n_rows + QUANT_ROWS - 1) / QUANT_ROWS;
    }
    args.n_parts = p->n;
    if (p->partial != NULL) {
        args.put = QUANT_PUT_PARTIAL;
        args.low = p->partial->data;
        args.low_stride = p->partial->row_stride;
        args.high = first->base.n_partial_planes == 2 ? p->high->data : NULL;
        args.high_stride = p->high->row_stride;
    }
    uint32_t form = args.layout.form, rows = b->tiles.tile_rows;
    struct quant_plan plan =
        quant_plan_of(form, args.n_panels, args.layout.n_pairs, rows, q->n_sms, q->max_shared);
    plan.token_blocks = b->tiles.n;
    plan.n_splits = 1;
    return experts_quant_cuda(b->s, "experts", &b->tiles, &args, by, &plan);
}

static int run_dense(const struct batch *b, const struct product *p,
                     const struct experts_strides *by)
{
    const struct weight *first = p->w[0][0];
    const struct weight_cuda *w = weight_cuda(first);
    struct dense_job job = {.n_parts = p->n,
                            .gated = p->gated,
                            .activation = (uint32_t)p->kind,
                            .m = b->n_slots,
                            .k = first->k_local,
                            .w_row_bytes = w->row_bytes,
                            .slices = first->role == WEIGHT_LINEAR_ROW
                                          ? dense_slices_from(w->part_bounds, w->n_parts)
                                          : dense_slices_of(first->k_local)};
    if (w->form > DENSE_BF16)
        return device_stream_fail(b->s, STATUS_UNIMPLEMENTED,
                                  "experts: weights must be stored in their source type");
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tensor *y = p->partial != NULL ? p->partial : p->y[i];
        job.parts[i] = (struct dense_part){.w = weight_cuda(p->w[i][0])->data,
                                           .bias = p->bias[i],
                                           .y = y->data,
                                           .y_stride = y->row_stride,
                                           .n = p->w[i][0]->n_rows};
    }
    int rc =
        linear_act_dense_rows(b->s, b->work->act, w->form, &job.x, &job.x_stride, &job.x_scale);
    return rc != 0 ? rc
                   : device_stream_check(
                         b->s, "experts",
                         cuda_launch_experts_dense(b->s->handle, &b->tiles, w->form, &job, by));
}

static int run_product(const struct batch *b, const struct product *p)
{
    const struct experts_strides by = {{p->strides[0], p->strides[1]}};
    return weight_is_quant(p->w[0][0]) ? run_quant(b, p, &by) : run_dense(b, p, &by);
}

/* Returns true if gate and up can be one product. */
static bool alike(const struct weight *gate, const struct weight *up)
{
    if (weight_is_quant(gate) != weight_is_quant(up))
        return false;
    return weight_is_quant(gate) ? linear_quant_same(gate, up) : linear_dense_same(gate, up);
}

static int run_gate_and_up(const struct batch *b, const struct tensor *x, struct tensor *middle,
                           struct tensor *up)
{
    const struct experts *e = b->experts;
    const struct expert_work *work = b->work;
    struct stream *s = &b->s->base;
    struct tensor rows = batch_rows(b, &work->rows, x->n_cols);
    int rc = device_stream_check(
        b->s, "experts",
        cuda_launch_experts_gather(b->s->handle, &b->tiles, b->routes, e->weighs_input, rows.data,
                                   rows.row_stride, x->data, x->row_stride, x->n_cols));
    uint32_t kinds = e->up[0]->act_kind | (e->gate != NULL ? e->gate[0]->act_kind : 0);
    if (rc == 0)
        rc = act_prepare_cuda(s, work->act, &rows, kinds, NULL, NULL);
    if (rc != 0)
        return rc;
    struct product one = {
        .w = {e->up}, .strides = {e->strides[UP]}, .bias = {e->up_bias}, .y = {up}, .n = 1};
    if (e->gate == NULL) {
        rc = run_product(b, &one);
        return rc != 0 ? rc : act_mul_cuda(s, up, up, NULL, e->activation);
    }
    if (alike(e->gate[0], e->up[0])) {
        const struct product both = {.w = {e->gate, e->up},
                                     .strides = {e->strides[GATE], e->strides[UP]},
                                     .bias = {e->gate_bias, e->up_bias},
                                     .y = {middle, up},
                                     .n = 2,
                                     .gated = true,
                                     .kind = e->activation};
        return run_product(b, &both);
    }
    const struct product gate = {.w = {e->gate},
                                 .strides = {e->strides[GATE]},
                                 .bias = {e->gate_bias},
                                 .y = {middle},
                                 .n = 1};
    rc = run_product(b, &one);
    if (rc == 0)
        rc = run_product(b, &gate);
    return rc != 0 ? rc : act_mul_cuda(s, middle, middle, up, e->activation);
}

/* Sums `partial` and `high` over ranks and makes them outputs. */
static int reduce(const struct batch *b, struct tensor *rows, struct tensor *partial,
                  struct comm *comm)
{
    const struct weight *first = b->experts->down[0];
    struct stream *s = &b->s->base;
    bool integer = weight_is_quant(first), two = first->n_partial_planes == 2;
    struct tensor sums = *partial, high = *rows;
    sums.dtype = integer ? DTYPE_I32 : DTYPE_F32;
    high.dtype = DTYPE_I32;
    int rc = comm_all_reduce(comm, s, &sums, integer ? COMM_SUM_I32 : COMM_SUM_TREE_F32);
    if (rc == 0 && two)
        rc = comm_all_reduce(comm, s, &high, COMM_SUM_I32);
    if (rc != 0)
        return rc;
    if (!integer)
        return device_stream_check(
            b->s, "experts",
            cuda_launch_dense_scale(b->s->handle, rows->data, rows->row_stride, partial->data,
                                    partial->row_stride, NULL, NULL, rows->n_rows, rows->n_cols));
    const struct weight_quant *w = weight_quant(first);
    const struct quant_linear args = {.layout = w->layout,
                                      .m = b->n_slots,
                                      .act = act_quant_of(b->work->act)->planes,
                                      .n_parts = 1,
                                      .parts = {{.data = w->data,
                                                 .units = weight_quant_units(w),
                                                 .y = rows->data,
                                                 .y_stride = rows->row_stride,
                                                 .n_rows = first->n_rows}}};
    return device_stream_check(b->s, "experts",
                               cuda_launch_experts_sums(b->s->handle, &b->tiles, &args,
                                                        b->experts->strides[DOWN], partial->data,
                                                        partial->row_stride, two));
}

static int run_batch(const struct batch *b, struct tensor *y, const struct tensor *x,
                     struct comm *comm)
{
    const struct experts *e = b->experts;
    const struct expert_work *work = b->work;
    uint32_t ff = segments_len(e->segments);
    struct tensor gate = batch_rows(b, &work->gate, ff), up = batch_rows(b, &work->up, ff),
                  rows = batch_rows(b, &work->rows, x->n_cols),
                  partial = batch_rows(b, &work->partial, x->n_cols);
    struct tensor *middle = e->gate != NULL ? &gate : &up;
    bool is_split = comm != NULL && comm->size > 1;
    int rc = run_gate_and_up(b, x, middle, &up);
    if (rc == 0)
        rc = act_prepare_cuda(&b->s->base, work->act, middle, e->down[0]->act_kind, e->segments,
                              comm);
    const struct product down = {.w = {e->down},
                                 .strides = {e->strides[DOWN]},
                                 .y = {&rows},
                                 .n = 1,
                                 .partial = is_split ? &partial : NULL,
                                 .high = is_split ? &rows : NULL};
    if (rc == 0)
        rc = run_product(b, &down);
    if (rc == 0 && is_split)
        rc = reduce(b, &rows, &partial, comm);
    return rc != 0 ? rc
                   : device_stream_check(b->s, "experts",
                                         cuda_launch_experts_combine(
                                             b->s->handle, &b->tiles, b->routes, e->weighs_input,
                                             y->data, y->row_stride, rows.data, rows.row_stride,
                                             e->down_bias, y->n_cols));
}

static int run_batches(struct batch *b, struct tensor *y, const struct tensor *x, struct comm *comm)
{
    const struct expert_routes *routes = b->routes;
    uint32_t n_pairs = routes->n_rows * routes->n_used, rows = b->tiles.tile_rows,
             most = b->work->act->max_rows / rows,
             n_tiles = experts_max_tiles(n_pairs, routes->n_experts, rows);
    int rc = device_stream_check(
        b->s, "experts",
        cuda_launch_experts_tiles(b->s->handle, routes, routes->tiles, rows, n_tiles));
    for (uint32_t first = 0; rc == 0 && first < n_tiles; first += most) {
        b->tiles.first = first;
        b->tiles.n = n_tiles - first < most ? n_tiles - first : most;
        b->n_slots = b->tiles.n * rows;
        rc = run_batch(b, y, x, comm);
    }
    return rc;
}

int experts_cuda(struct stream *stream, struct tensor *y, const struct tensor *x,
                 const struct expert_routes *routes, const struct experts *experts,
                 const struct expert_work *work, struct comm *comm)
{
    uint32_t n_pairs = routes->n_rows * routes->n_used;
    struct batch b = {.s = stream_cuda(stream),
                      .routes = routes,
                      .experts = experts,
                      .work = work,
                      .tiles = {.table = routes->tiles,
                                .n_experts = routes->n_experts,
                                .tile_rows = experts_tile_rows(n_pairs, routes->n_experts)}};
    int rc = device_stream_enter(b.s);
    if (rc != 0)
        return rc;
    if (work->act->max_rows < b.tiles.tile_rows)
        return device_stream_fail(b.s, STATUS_INTERNAL, "experts: too little work memory");
    uint32_t n_roles = stream->n_roles; /* slots are no rows of the step */
    stream->n_roles = 0;
    rc = run_batches(&b, y, x, comm);
    stream->n_roles = n_roles;
    return rc;
}
