/* Prepared activations: their memory, and the forms that dense weights read. */
#include <stdlib.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/linear_quant/linear_widen_cuda.h"
#include "kernels/cuda/norm_row.h"

enum { ALIGN = 256 };

/* Offsets of the planes, and the total size. cuBLASLt reads whole tiles of rows. */
struct planes {
    size_t half, other_half, half_scale, f8, f8_scale, end;
};

static struct planes lay_out(uint32_t max_rows, uint32_t max_k)
{
    size_t stride = dense_act_stride(max_k), half_rows = (size_t)max_rows + CUBLASLT_ROWS;
    struct planes at = {0};
    at.other_half = cuda_round_up(half_rows * stride * sizeof(uint16_t), ALIGN);
    at.half_scale = 2 * at.other_half;
    at.f8 = at.half_scale + cuda_round_up(max_rows * sizeof(float), ALIGN);
    at.f8_scale = at.f8 + cuda_round_up(max_rows * stride, ALIGN);
    at.end = at.f8_scale + cuda_round_up(max_rows * sizeof(float), ALIGN);
    return at;
}

size_t act_bytes_cuda(uint32_t max_rows, uint32_t max_k)
{
    return lay_out(max_rows, max_k).end + act_quant_bytes(max_rows, max_k);
}

struct act_quant *act_quant_of(const struct act *act)
{
    return &act_cuda(act)->quant;
}

int act_create_cuda(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                    struct error *err)
{
    struct planes at = lay_out(max_rows, max_k);
    struct act_cuda *act = calloc(1, sizeof(*act));
    void *memory = NULL;
    if (act == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    int rc = device->ops->alloc(device, at.end, &memory, err);
    if (rc != 0) {
        free(act);
        return rc;
    }
    *act = (struct act_cuda){.base = {.max_rows = max_rows, .max_k = max_k},
                             .device = device,
                             .memory = memory,
                             .half = memory,
                             .other_half = (uint16_t *)(void *)((uint8_t *)memory + at.other_half),
                             .half_form = N_DENSE_FORMS,
                             .half_scale = (float *)(void *)((uint8_t *)memory + at.half_scale),
                             .f8 = (uint8_t *)memory + at.f8,
                             .f8_scale = (float *)(void *)((uint8_t *)memory + at.f8_scale)};
    rc = act_quant_create(&act->quant, device, max_rows, max_k, err);
    if (rc != 0) {
        act_destroy_cuda(&act->base);
        return rc;
    }
    *out_act = &act->base;
    return 0;
}

void act_destroy_cuda(struct act *act)
{
    struct act_cuda *cuda = act_cuda(act);
    if (cuda == NULL)
        return;
    act_quant_destroy(&cuda->quant);
    cuda->device->ops->free(cuda->device, cuda->memory, lay_out(act->max_rows, act->max_k).end);
    free(cuda);
}

/* With several ranks, each has its own largest value of a row's columns; the largest of all
 * counts. */
static int prepare_f8(struct stream *stream, struct act_cuda *act, struct comm *comm)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct act *base = &act->base;
    const float *largest = NULL;
    int rc = device_stream_enter(s);
    if (rc == 0 && comm != NULL && comm->size > 1) {
        struct tensor t = tensor_view(act->f8_scale, DTYPE_F32, base->n_rows, 1);
        largest = act->f8_scale;
        rc = device_stream_check(s, "largest activations",
                                 cuda_launch_act_largest(s->handle, act->f8_scale, act->x,
                                                         act->x_stride, base->n_rows, base->k));
        if (rc == 0)
            rc = comm_all_reduce(comm, stream, &t, COMM_MAX_F32);
    }
    if (rc != 0)
        return rc;
    return device_stream_check(s, "rounding activations",
                               cuda_launch_act_f8(s->handle, act->f8, act->f8_scale, largest,
                                                  act->x, act->x_stride, base->n_rows, base->k));
}

/* Makes x the activations that linears read, until the next call. */
static int use_rows(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds)
{
    struct act_cuda *cuda = act_cuda(act);
    if ((kinds & ~(uint32_t)(ACT_F32 | ACT_F16 | ACT_BF16 | ACT_F8 | ACT_INT8)) != 0)
        return device_stream_fail(stream_cuda(s), STATUS_INTERNAL,
                                  "act_prepare: unknown kind of activations");
    act->n_rows = x->n_rows;
    act->k = x->n_cols;
    act->kinds = kinds;
    cuda->x = x->data;
    cuda->x_stride = x->row_stride;
    cuda->half_form = N_DENSE_FORMS;
    return 0;
}

/* Prepares the integers of the rows that need them. With several ranks all rows do. */
static int prepare_ints(struct stream *s, struct act_cuda *act, const struct tensor *x,
                        const struct segments *segments, struct comm *comm)
{
    struct role_run run = linear_widen_generated(s, x->n_rows);
    if (comm != NULL && comm->size > 1)
        run = (struct role_run){0, x->n_rows, true};
    struct tensor rows = tensor_rows(x, run.begin, run.n_rows);
    return act_quant_prepare(s, &act->quant, &rows, run.begin, segments, comm);
}

int act_prepare_cuda(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                     const struct segments *segments, struct comm *comm)
{
    struct act_cuda *cuda = act_cuda(act);
    int rc = use_rows(s, act, x, kinds);
    /* Integers need the segments; floats do not depend on their place in the whole row. */
    cuda->has_segments = segments != NULL;
    if (segments != NULL)
        cuda->segments = *segments;
    if (rc == 0 && (kinds & ACT_INT8) != 0)
        rc = prepare_ints(s, cuda, x, segments, comm);
    return rc == 0 && (kinds & ACT_F8) != 0 && x->n_rows > 0 ? prepare_f8(s, cuda, comm) : rc;
}

/* The norm is rounded where it is computed; there are no f32 rows. */
static struct norm_rows norm_of(const struct tensor *x, const struct norm_params *p)
{
    return (struct norm_rows){.x = x->data,
                              .w = p->w,
                              .bias = p->is_centred ? p->bias : NULL,
                              .x_stride = x->row_stride,
                              .n_rows = x->n_rows,
                              .n = x->n_cols,
                              .eps = p->eps,
                              .centred = p->is_centred};
}

static int norm_rounded(struct stream *stream, struct act_cuda *act, const struct tensor *y,
                        const struct tensor *x, const struct norm_params *p, enum dense_form form)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct norm_rows norm = norm_of(x, p);
    int rc = use_rows(stream, &act->base, y, linear_act_kind(form));
    act->x = NULL;
    if (rc == 0)
        rc = device_stream_enter(s);
    if (rc == 0)
        rc = device_stream_check(
            s, "norm_prepare",
            form == DENSE_F8
                ? cuda_launch_norm_scaled(s->handle, act->f8, act->f8_scale, &norm, form)
                : cuda_launch_norm_half(s->handle, act->half, &norm, form));
    if (form != DENSE_F8)
        act->half_form = (uint32_t)form;
    return rc;
}

/* Returns true if all rows are prompts' rows, and all their weights are widened. */
static bool is_widened(const struct stream *s, uint32_t n_rows, uint32_t kinds)
{
    for (uint32_t i = 0; i < s->n_roles; i++)
        if (s->roles[i].generated && s->roles[i].n_rows > 0 && !s->mix_products)
            return false;
    return kinds == ACT_INT8 && linear_widens(s) && n_rows > 0;
}

/* The same for widened weights. */
static int norm_widened(struct stream *stream, struct act_cuda *act, const struct tensor *y,
                        const struct tensor *x, const struct norm_params *p)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct norm_rows norm = norm_of(x, p);
    int rc = use_rows(stream, &act->base, y, ACT_INT8);
    act->x = NULL;
    act->has_segments = false;
    act->quant.n_rows = 0;
    if (rc == 0)
        rc = device_stream_enter(s);
    if (rc == 0)
        rc = device_stream_check(
            s, "norm_prepare",
            cuda_launch_norm_scaled(s->handle, act->half, act->half_scale, &norm, DENSE_F16));
    act->half_form = ACT_SCALED_F16;
    return rc;
}

bool linear_act_gates_widened(const struct stream *s, const struct act *act, uint32_t n,
                              uint32_t kinds, const struct comm *comm)
{
    size_t max_bytes = gate_max_bytes(device_cuda(s->device)->max_shared);
    return is_widened(s, act->n_rows, kinds) && (comm == NULL || comm->size == 1) &&
           gate_bytes(n) <= max_bytes;
}

int linear_act_gate_widened(struct stream *stream, struct act *base, const struct tensor *gate,
                            const struct tensor *up, enum activation kind)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct act_cuda *act = act_cuda(base);
    const struct gate_rows job = {.gate = gate->data,
                                  .up = up->data,
                                  .gate_stride = gate->row_stride,
                                  .up_stride = up->row_stride,
                                  .n_rows = gate->n_rows,
                                  .n = gate->n_cols,
                                  .kind = (uint32_t)kind};
    int rc = device_stream_check(
        s, "act_mul",
        cuda_launch_gate_scaled(s->handle, act->half, act->half_scale, &job, DENSE_F16));
    act->x = NULL;
    act->quant.n_rows = 0;
    act->half_form = ACT_SCALED_F16;
    base->k = job.n;
    base->kinds = ACT_INT8;
    return rc;
}

static int norm_some(struct stream *s, const struct tensor *y, const struct tensor *x,
                     uint32_t begin, uint32_t end, const struct norm_params *p)
{
    struct tensor to = tensor_rows(y, begin, end - begin);
    struct tensor from = tensor_rows(x, begin, end - begin);
    if (begin == end)
        return 0;
    return p->is_centred ? layer_norm_cuda(s, &to, &from, p->w, p->bias, 1, p->eps)
                         : rms_norm_cuda(s, &to, &from, p->w, 1, p->eps);
}

/* The norm of all rows, and the integers of the run's. */
static int norm_by_role(struct stream *s, struct act_cuda *act, const struct tensor *y,
                        const struct tensor *x, const struct role_run *run,
                        const struct norm_params *p)
{
    uint32_t end = run->begin + run->n_rows;
    struct tensor to = tensor_rows(y, run->begin, run->n_rows);
    struct tensor from = tensor_rows(x, run->begin, run->n_rows);
    int rc = norm_some(s, y, x, 0, run->begin, p);
    if (rc == 0 && run->n_rows > 0)
        rc = act_quant_norm(s, &act->quant, &to, &from, run->begin, p);
    else
        act->quant.n_rows = 0;
    return rc == 0 ? norm_some(s, y, x, end, x->n_rows, p) : rc;
}

/* The block that normalises a row also computes its integers, if the row needs them. The block
 * rounds the row if no other activations are wanted. Activations for other weights are
 * prepared as usual. */
int norm_prepare_cuda(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                      const struct norm_params *p, uint32_t kinds)
{
    struct act_cuda *cuda = act_cuda(act);
    int rc = 0;
    if (kinds == ACT_F16 || kinds == ACT_BF16 || kinds == ACT_F8)
        return norm_rounded(s, cuda, y, x, p,
                            kinds == ACT_F16    ? DENSE_F16
                            : kinds == ACT_BF16 ? DENSE_BF16
                                                : DENSE_F8);
    if ((kinds & ACT_INT8) == 0) {
        rc = p->is_centred ? layer_norm_cuda(s, y, x, p->w, p->bias, 1, p->eps)
                           : rms_norm_cuda(s, y, x, p->w, 1, p->eps);
        return rc == 0 ? act_prepare_cuda(s, act, y, kinds, NULL, NULL) : rc;
    }
    if (is_widened(s, x->n_rows, kinds))
        return norm_widened(s, cuda, y, x, p);
    struct role_run run = linear_widen_generated(s, x->n_rows);
    rc = use_rows(s, act, y, kinds);
    cuda->has_segments = false;
    if (rc == 0)
        rc = norm_by_role(s, cuda, y, x, &run, p);
    return rc == 0 && (kinds & ACT_F8) != 0 ? prepare_f8(s, cuda, NULL) : rc;
}

void linear_act_use(struct act *base, uint32_t k, enum dense_form form)
{
    struct act_cuda *act = act_cuda(base);
    if (form != DENSE_F8) {
        uint16_t *half = act->other_half;
        act->other_half = act->half;
        act->half = half;
        act->half_form = (uint32_t)form;
    }
    act->x = NULL;
    base->k = k;
    base->kinds = linear_act_kind(form);
}

int linear_act_dense_rows(struct stream_cuda *s, const struct act *base, enum dense_form form,
                          const void **out_x, size_t *out_stride, const float **out_scale)
{
    struct act_cuda *act = act_cuda(base);
    *out_scale = NULL;
    *out_stride = dense_act_stride(base->k);
    if (form == DENSE_F32) {
        *out_x = act->x;
        *out_stride = act->x_stride;
        return 0;
    }
    if (form == DENSE_F8) {
        *out_x = act->f8;
        *out_scale = act->f8_scale;
        return 0;
    }
    *out_x = act->half;
    if (act->half_form == (uint32_t)form)
        return 0;
    if (act->x == NULL)
        return device_stream_fail(s, STATUS_INTERNAL, "linear: activations of another form");
    int rc = device_stream_check(s, "rounding activations",
                                 cuda_launch_act_half(s->handle, act->half, act->x, act->x_stride,
                                                      base->n_rows, base->k, form));
    if (rc == 0)
        act->half_form = (uint32_t)form;
    return rc;
}

int linear_act_scaled_rows(struct stream_cuda *s, const struct act *base, const void **out_x,
                           size_t *out_stride, const float **out_scale)
{
    struct act_cuda *act = act_cuda(base);
    *out_x = act->half;
    *out_stride = dense_act_stride(base->k);
    *out_scale = act->half_scale;
    if (act->half_form == ACT_SCALED_F16)
        return 0;
    int rc = device_stream_check(s, "rounding activations",
                                 cuda_launch_act_f16(s->handle, act->half, act->half_scale, act->x,
                                                     act->x_stride, base->n_rows, base->k));
    if (rc == 0)
        act->half_form = ACT_SCALED_F16;
    return rc;
}

int linear_act_int_rows(struct stream *s, const struct act *base, const struct role_run *run)
{
    struct act_cuda *act = act_cuda(base);
    struct act_quant *q = &act->quant;
    if (q->row_begin == run->begin && q->n_rows == run->n_rows)
        return 0;
    struct tensor x = {(void *)(uintptr_t)act->x, DTYPE_F32, base->n_rows, base->k, act->x_stride};
    struct tensor rows = tensor_rows(&x, run->begin, run->n_rows);
    return act_quant_prepare(s, q, &rows, run->begin, act->has_segments ? &act->segments : NULL,
                             NULL);
}
