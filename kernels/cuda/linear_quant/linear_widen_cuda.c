/* Rows of prompts: widens weights to f16 in the stream's scratch and multiplies them as dense
 * weights (path P). As many rows of the parts as fit are widened and multiplied at once. A call
 * widens every weight once. A result is the same sum for any share of its matrix. */
#include "kernels/cuda/linear_quant/linear_widen_cuda.h"

#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_quant/linear_quant_cuda.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/linear_quant/widen.h"
#include "kernels/device.h"

enum {
    ALIGN = 256,
    SHARE_ROWS = 256, /* shares of a matrix are multiples of this, a tile of the product */
};

static size_t rows_bytes(uint32_t n, uint32_t k)
{
    return cuda_round_up(n * dense_row_bytes(DENSE_F16, k), ALIGN);
}

static size_t units_bytes(uint32_t n)
{
    return cuda_round_up(n * sizeof(float), ALIGN);
}

/* Bytes of n widened rows with their units. */
static size_t share_bytes(uint32_t n, uint32_t k)
{
    return rows_bytes(n, k) + units_bytes(n);
}

size_t linear_widen_scratch_bytes(uint32_t n, uint32_t k, uint32_t max_n)
{
    size_t all = rows_bytes(n, k) + units_bytes(n > max_n ? n : max_n);
    return all < WIDEN_MOST_BYTES ? all : WIDEN_MOST_BYTES;
}

/* Returns how many of the `left` rows fit into `room` bytes. */
static uint32_t rows_that_fit(uint32_t left, uint32_t k, size_t room)
{
    if (share_bytes(left, k) <= room)
        return left;
    size_t n = room / (dense_row_bytes(DENSE_F16, k) + sizeof(float)) / SHARE_ROWS * SHARE_ROWS;
    while (n > 0 && share_bytes((uint32_t)n, k) > room)
        n -= SHARE_ROWS;
    return (uint32_t)n;
}

/* --- roles --- */

bool linear_widens(const struct stream *s)
{
    return s->prompts_f16 && s->n_roles > 0;
}

/* Returns run i of the roles; with mix_products all rows are one run of prompts. */
static struct role_run run_of(const struct stream *s, uint32_t i, uint32_t n_rows)
{
    if (s->mix_products && s->n_roles > 1)
        return (struct role_run){0, n_rows, false};
    return s->roles[i];
}

static uint32_t n_runs_of(const struct stream *s)
{
    return s->mix_products ? 1 : s->n_roles;
}

struct role_run linear_widen_generated(const struct stream *s, uint32_t n_rows)
{
    struct role_run found = {0, 0, true};
    if (!linear_widens(s))
        return (struct role_run){0, n_rows, true};
    for (uint32_t i = 0; i < n_runs_of(s); i++) {
        struct role_run run = run_of(s, i, n_rows);
        if (!run.generated || run.n_rows == 0)
            continue;
        if (found.n_rows > 0)
            return (struct role_run){0, 0, true};
        found = run;
    }
    return found;
}

static bool roles_cover(const struct stream *s, uint32_t n_rows)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < n_runs_of(s); i++) {
        struct role_run run = run_of(s, i, n_rows);
        if (run.begin != next || run.n_rows > n_rows - next)
            return false;
        next += run.n_rows;
    }
    return next == n_rows;
}

static int gate_rows(struct stream *s, const struct linear_part *parts, const struct role_run *run,
                     enum activation kind)
{
    struct tensor gate = tensor_rows(parts[0].y, run->begin, run->n_rows);
    struct tensor up = tensor_rows(parts[1].y, run->begin, run->n_rows);
    return act_mul_cuda(s, &gate, &gate, &up, kind);
}

/* --- generated tokens --- */

static int generated_rows(struct stream *s, const struct act *act, const struct linear_part *parts,
                          uint32_t n_parts, bool gated, enum activation kind,
                          const struct role_run *run)
{
    int rc = linear_act_int_rows(s, act, run);
    if (rc != 0)
        return rc;
    if (gated && linear_quant_gates(act, &parts[0], &parts[1]))
        return linear_quant_gated(s, act, &parts[0], &parts[1], kind);
    rc = linear_quant(s, act, parts, n_parts);
    return rc == 0 && gated ? gate_rows(s, parts, run, kind) : rc;
}

/* --- prompts --- */

/* Shares of parts whose rows are widened and not multiplied yet. */
struct batch {
    struct dense_job job;
    size_t n_bytes;
};

static int multiply(struct stream_cuda *s, struct batch *batch, uint32_t n_rows)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && batch->job.n_parts > 0 && i < n_runs_of(&s->base); i++) {
        struct role_run run = run_of(&s->base, i, n_rows);
        if (!run.generated && run.n_rows > 0)
            rc = linear_dense_prompt(s, DENSE_F16, &batch->job, &run);
    }
    batch->job.n_parts = 0;
    batch->n_bytes = 0;
    return rc;
}

/* Widens rows [row, row + n) of a part, and adds them to the batch. */
static int widen(struct stream_cuda *s, struct batch *batch, const struct linear_part *part,
                 uint32_t row, uint32_t n)
{
    const struct weight_quant *w = weight_quant(part->w);
    uint8_t *to = (uint8_t *)s->widened.data + batch->n_bytes;
    float *units = (float *)(void *)(to + rows_bytes(n, batch->job.k));
    const struct widen_job job = {
        .data = w->data + row / QUANT_ROWS * w->layout.panel_bytes,
        .units = weight_quant_units(w) + row,
        .layout = w->layout,
        .n_rows = n,
        .k = batch->job.k,
        .to = (uint16_t *)(void *)to,
        .stride = batch->job.w_row_bytes / sizeof(uint16_t),
        .to_units = units,
    };
    batch->job.parts[batch->job.n_parts++] = (struct dense_part){
        .w = to,
        .w_scale = units,
        .bias = part->bias != NULL ? part->bias + row : NULL,
        .y = (float *)part->y->data + row,
        .y_stride = part->y->row_stride,
        .sum = part->sum != NULL ? (float *)part->sum->data + row : NULL,
        .sum_stride = part->sum != NULL ? part->sum->row_stride : 0,
        .n = n,
    };
    batch->n_bytes += share_bytes(n, batch->job.k);
    return device_stream_check(s, "widening weights", cuda_launch_widen(s->handle, &job));
}

static int reserve(struct stream_cuda *s, const struct linear_part *parts, uint32_t n_parts,
                   uint32_t k)
{
    size_t most = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        if (weight_quant(parts[i].w)->data == NULL)
            return device_stream_fail(s, STATUS_INTERNAL, "linear: the weight was not uploaded");
        size_t n_bytes = linear_widen_scratch_bytes(parts[i].w->n_rows, k, 0);
        most = n_bytes > most ? n_bytes : most;
    }
    return s->widened.reserved ? 0 : device_stream_grow(s, &s->widened, most, "widened weights");
}

/* The order of sums along k is that of dense weights on path P. */
static struct dense_slices slices_of(const struct weight_quant *w)
{
    return dense_slices_from(w->part_bounds, w->n_parts);
}

static int prompt_rows(struct stream_cuda *s, const struct act *act,
                       const struct linear_part *parts, uint32_t n_parts)
{
    struct batch batch = {.job = {.m = act->n_rows,
                                  .k = act->k,
                                  .w_row_bytes = dense_row_bytes(DENSE_F16, act->k),
                                  .slices = slices_of(weight_quant(parts[0].w))}};
    int rc = device_stream_enter(s);
    if (rc == 0)
        rc = reserve(s, parts, n_parts, act->k);
    if (rc == 0)
        rc = linear_act_scaled_rows(s, act, &batch.job.x, &batch.job.x_stride, &batch.job.x_scale);
    for (uint32_t i = 0; rc == 0 && i < n_parts; i++) {
        uint32_t n_rows = parts[i].w->n_rows, n = 0;
        for (uint32_t row = 0; rc == 0 && row < n_rows; row += n) {
            n = rows_that_fit(n_rows - row, act->k, s->widened.n_bytes - batch.n_bytes);
            if (n > 0 && batch.job.n_parts < DENSE_MAX_PARTS)
                rc = widen(s, &batch, &parts[i], row, n);
            else if (batch.job.n_parts > 0)
                n = 0, rc = multiply(s, &batch, act->n_rows);
            else
                rc = device_stream_fail(s, STATUS_INTERNAL, "linear: no row fits the scratch");
        }
    }
    return rc == 0 ? multiply(s, &batch, act->n_rows) : rc;
}

int linear_widen(struct stream *stream, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts, bool gated, enum activation kind)
{
    struct stream_cuda *s = stream_cuda(stream);
    bool has_prompts = false;
    int rc = 0;
    if (!roles_cover(stream, act->n_rows))
        return device_stream_fail(s, STATUS_INTERNAL, "linear: the roles do not fit the rows");
    for (uint32_t i = 0; rc == 0 && i < n_runs_of(stream); i++) {
        struct role_run run = run_of(stream, i, act->n_rows);
        has_prompts |= !run.generated && run.n_rows > 0;
        if (run.generated && run.n_rows > 0)
            rc = generated_rows(stream, act, parts, n_parts, gated, kind, &run);
    }
    if (rc == 0 && has_prompts)
        rc = prompt_rows(s, act, parts, n_parts);
    for (uint32_t i = 0; rc == 0 && gated && i < n_runs_of(stream); i++) {
        struct role_run run = run_of(stream, i, act->n_rows);
        if (!run.generated && run.n_rows > 0)
            rc = gate_rows(stream, parts, &run, kind);
    }
    return rc;
}
