#include "kernels/cuda/linear_quant/linear_quant_cuda.h"

#include <string.h>

#include "base/status.h"
#include "kernels/act_header.h"
#include "kernels/cuda/act_quant_cuda.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/launch_quant.h"
#include "kernels/cuda/linear_quant/linear_quant_args.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/table_cuda.h"

static uint32_t n_panels_of(const struct weight *w)
{
    return (w->n_rows + QUANT_ROWS - 1) / QUANT_ROWS;
}

static struct quant_linear args_of(const struct act *act, const struct weight *w)
{
    const struct act_quant *q = act_quant_of(act);
    return (struct quant_linear){
        .layout = weight_quant(w)->layout, .m = q->n_rows, .act = q->planes, .split = q->split};
}

/* Returns the part's results from row `row` on. */
static float *from_row(const struct tensor *t, uint32_t row)
{
    return t != NULL ? (float *)t->data + (size_t)row * t->row_stride : NULL;
}

static void add_part(struct quant_linear *args, const struct act *act,
                     const struct linear_part *from)
{
    const struct weight_quant *w = weight_quant(from->w);
    uint32_t row = act_quant_of(act)->row_begin;
    args->parts[args->n_parts++] = (struct quant_part){
        .data = w->data,
        .units = weight_quant_units(w),
        .y = from_row(from->y, row),
        .y_stride = from->y != NULL ? from->y->row_stride : 0,
        .bias = from->bias,
        .sum = from_row(from->sum, row),
        .sum_stride = from->sum != NULL ? from->sum->row_stride : 0,
        .n_rows = w->base.n_rows,
        .first_panel = args->n_panels,
    };
    args->n_panels += n_panels_of(from->w);
}

static int launch(struct stream_cuda *s, const struct quant_linear *args,
                  const struct quant_plan *plan)
{
    int code = quant_has_table(args->layout.form)  ? cuda_launch_quant_table(s->handle, args, plan)
               : quant_is_super(args->layout.form) ? cuda_launch_quant_super(s->handle, args, plan)
               : quant_is_wide(args->layout.form)  ? cuda_launch_quant_8bit(s->handle, args, plan)
                                                   : cuda_launch_quant_4bit(s->handle, args, plan);
    if (code == 0 && plan->n_splits > 1)
        code = cuda_launch_quant_finish(s->handle, args, plan->n_splits);
    return device_stream_check(s, "linear", code);
}

static struct quant_plan plan_of(const struct act *act, const struct quant_linear *args)
{
    const struct act_quant *q = act_quant_of(act);
    return quant_plan_of(args->layout.form, args->n_panels, args->layout.n_pairs, args->m, q->n_sms,
                         q->max_shared);
}

static int run(struct stream *stream, const struct act *act, const struct quant_linear *args)
{
    struct stream_cuda *s = stream_cuda(stream);
    int rc = device_stream_enter(s);
    if (rc != 0 || args->m == 0)
        return rc;
    for (uint32_t p = 0; p < args->n_parts; p++)
        if (args->parts[p].data == NULL)
            return device_stream_fail(s, STATUS_INTERNAL, "linear: the weight was not uploaded");
    struct quant_plan plan = plan_of(act, args);
    return launch(s, args, &plan);
}

int linear_quant(struct stream *s, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts)
{
    struct quant_linear args = args_of(act, parts[0].w);
    for (uint32_t i = 0; i < n_parts; i++)
        add_part(&args, act, &parts[i]);
    return run(s, act, &args);
}

int linear_quant_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                              const struct act *act, const struct weight *w)
{
    struct quant_linear args = args_of(act, w);
    add_part(&args, act, &(struct linear_part){.w = w});
    args.put = QUANT_PUT_PARTIAL;
    args.low = partial->data;
    args.low_stride = partial->row_stride;
    if (w->n_partial_planes == 2) {
        args.high = high->data;
        args.high_stride = high->row_stride;
    }
    return run(s, act, &args);
}

int linear_quant_finish_cuda(struct stream *stream, struct tensor *y, const struct tensor *partial,
                             const struct act *act, const struct weight *w)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct quant_linear args = args_of(act, w);
    add_part(&args, act, &(struct linear_part){.y = y, .w = w});
    int rc = device_stream_enter(s);
    if (rc != 0 || args.m == 0)
        return rc;
    return device_stream_check(s, "linear_finish",
                               cuda_launch_quant_rank_sums(s->handle, &args, partial->data,
                                                           partial->row_stride,
                                                           w->n_partial_planes == 2));
}

int embed_quant_cuda(struct stream *stream, struct tensor *y, const uint32_t *ids,
                     const struct weight *w)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct weight_quant *quant = weight_quant(w);
    struct quant_embedding table = {.data = quant->data,
                                    .units = weight_quant_units(quant),
                                    .layout = quant->layout,
                                    .n_rows = w->n_rows,
                                    .n_cols = y->n_cols};
    if (table.data == NULL)
        return device_stream_fail(s, STATUS_INTERNAL, "embed: the weight was not uploaded");
    int rc = device_stream_enter(s);
    if (rc != 0 || y->n_rows == 0)
        return rc;
    return device_stream_check(
        s, "embed",
        cuda_launch_embed_quant(s->handle, y->data, y->row_stride, ids, y->n_rows, &table));
}

bool linear_quant_same(const struct weight *a, const struct weight *b)
{
    return memcmp(&weight_quant(a)->layout, &weight_quant(b)->layout,
                  sizeof(struct quant_layout)) == 0;
}

static struct quant_linear gated_args(const struct act *act, const struct linear_part *gate,
                                      const struct linear_part *up)
{
    struct quant_linear args = args_of(act, gate->w);
    add_part(&args, act, gate);
    add_part(&args, act, up);
    args.put = QUANT_PUT_GATED;
    return args;
}

bool linear_quant_gates(const struct act *act, const struct linear_part *gate,
                        const struct linear_part *up)
{
    struct quant_linear args = gated_args(act, gate, up);
    struct quant_plan plan = plan_of(act, &args);
    /* both results of a row must be in one warp, or in the sum of splits */
    return quant_panels(args.layout.form, plan.kernel) == 2 || plan.n_splits > 1;
}

int linear_quant_gated(struct stream *s, const struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind)
{
    struct quant_linear args = gated_args(act, gate, up);
    args.kind = kind;
    return run(s, act, &args);
}
