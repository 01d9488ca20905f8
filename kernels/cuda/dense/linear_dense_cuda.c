/* Dense linears: rows by their role. Path D is the decode kernel. Path P is the prompt kernel. For
 * f16 and bf16 weights prompts_cuda.c may choose the wgmma kernel or cuBLASLt, for f8 weights the
 * wgmma kernel. Weights of f32 have a single path. */
#include "kernels/comm.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/cuda/weight_cuda.h"
#include "kernels/device.h"

bool linear_dense_same(const struct weight *a, const struct weight *b)
{
    return weight_cuda(a)->form == weight_cuda(b)->form && a->role == b->role &&
           a->k_local == b->k_local && weight_cuda(a)->n_parts == weight_cuda(b)->n_parts;
}

static struct dense_part part_of(const struct linear_part *part, enum dense_end end)
{
    const struct weight_cuda *w = weight_cuda(part->w);
    return (struct dense_part){.w = w->data,
                               .w_scale = end == DENSE_PARTIAL ? NULL : w->scales,
                               .bias = part->bias,
                               .y = part->y->data,
                               .sum = part->sum != NULL ? part->sum->data : NULL,
                               .y_stride = part->y->row_stride,
                               .sum_stride = part->sum != NULL ? part->sum->row_stride : 0,
                               .n = part->w->n_rows};
}

/* Returns the order of sums along k: a row-split matrix's segments, or that of the path. */
static struct dense_slices slices_of(const struct weight *weight, bool generated)
{
    const struct weight_cuda *w = weight_cuda(weight);
    const uint32_t whole[2] = {0, weight->k_local};
    if (weight->role == WEIGHT_LINEAR_ROW)
        return dense_slices_from(w->part_bounds, w->n_parts);
    return generated ? dense_slices_of(weight->k_local) : dense_slices_from(whole, 1);
}

/* Returns the job of rows [run->begin, + n_rows). */
static struct dense_job rows_of(const struct dense_job *all, const struct role_run *run,
                                enum dense_form form)
{
    struct dense_job job = *all;
    size_t row = run->begin;
    job.m = run->n_rows;
    job.x = (const uint8_t *)all->x + row * all->x_stride * dense_act_bytes(form);
    job.x_scale = all->x_scale != NULL ? all->x_scale + row : NULL;
    if (job.half != NULL)
        job.half += row * dense_act_stride(job.parts[0].n);
    for (uint32_t i = 0; i < job.n_parts; i++) {
        job.parts[i].y += row * job.parts[i].y_stride;
        if (job.parts[i].sum != NULL)
            job.parts[i].sum += row * job.parts[i].sum_stride;
    }
    return job;
}

/* Returns true if the decode kernel writes whole rows of activations. */
static bool decode_rounds(uint32_t n)
{
    return n % DENSE_ACT_MULTIPLE == 0;
}

static int run_decode(struct stream_cuda *s, enum dense_form form, const struct dense_job *job)
{
    const struct dense_part *gate = &job->parts[0];
    struct dense_job own = *job;
    if (!decode_rounds(gate->n))
        own.half = NULL;
    int rc = device_stream_check(
        s, "linear",
        cuda_launch_dense_decode(s->handle, form, &own, device_cuda(s->base.device)->max_shared));
    if (rc != 0 || own.half == job->half)
        return rc;
    return device_stream_check(
        s, "rounding activations",
        cuda_launch_act_half(s->handle, job->half, gate->y, gate->y_stride, job->m, gate->n, form));
}

/* Returns the code that computes prompts' products of a form. */
static enum cuda_prompts prompts_of(const struct stream_cuda *s, enum dense_form form)
{
    const struct device_cuda *device = device_cuda(s->base.device);
    if (form == DENSE_F16 || form == DENSE_BF16)
        return device->prompts;
    return form == DENSE_F8 && device->fp8 == CUDA_FP8_WGMMA ? CUDA_PROMPTS_WGMMA
                                                             : CUDA_PROMPTS_OWN;
}

/* Returns true if the job's parts can be one product, with the same bits. */
static bool joins(const struct stream_cuda *s, enum dense_form form, const struct dense_job *job)
{
    bool has_threads = device_cuda(s->base.device)->fetch == CUDA_FETCH_THREADS;
    return table_cuda_join() == CUDA_JOIN_PARTS && job->n_parts > 1 && job->slices.count == 1 &&
           form != DENSE_F8 && prompts_of(s, form) == CUDA_PROMPTS_WGMMA && has_threads;
}

static int launch_wgmma(const struct stream_cuda *s, enum dense_form form,
                        const struct dense_job *job)
{
    const struct device_cuda *device = device_cuda(s->base.device);
    bool by_engine = form == DENSE_F8 || device->fetch == CUDA_FETCH_ENGINE;
    if (job->half != NULL)
        return by_engine
                   ? cuda_launch_dense_ring_gated(s->handle, form, job, device->n_multiprocessors)
                   : cuda_launch_dense_wgmma_gated(s->handle, form, job);
    return by_engine ? cuda_launch_dense_ring(s->handle, form, job, device->n_multiprocessors)
                     : cuda_launch_dense_wgmma(s->handle, form, job);
}

static int run_product(struct stream_cuda *s, enum dense_form form, const struct dense_job *job)
{
    enum cuda_prompts prompts = prompts_of(s, form);
    if (prompts == CUDA_PROMPTS_LT && job->x_scale != NULL) /* widened weights; it has no scales */
        prompts = CUDA_PROMPTS_OWN;
    if (prompts == CUDA_PROMPTS_LT)
        return linear_cublaslt_prompt(s, device_cuda(s->base.device)->lt, form, job);
    return device_stream_check(s, "linear",
                               prompts == CUDA_PROMPTS_WGMMA
                                   ? launch_wgmma(s, form, job)
                                   : cuda_launch_dense_prompt(s->handle, form, job));
}

/* Runs the plain ops one after the other, except those that the product's kernel does. */
static int run_prompt(struct stream_cuda *s, enum dense_form form, const struct dense_job *job)
{
    bool adds = prompts_of(s, form) == CUDA_PROMPTS_WGMMA;
    int rc = 0;
    if (job->half != NULL)
        return device_stream_check(s, "linear", launch_wgmma(s, form, job));
    bool is_joined = joins(s, form, job);
    if (is_joined)
        rc = run_product(s, form, job);
    for (uint32_t i = 0; rc == 0 && !is_joined && i < job->n_parts; i++) {
        const struct dense_part *p = &job->parts[i];
        struct dense_job one = *job;
        one.parts[0] = *p;
        one.n_parts = 1;
        one.gated = 0;
        rc = run_product(s, form, &one);
        if (rc == 0 && !adds && p->bias != NULL)
            rc = device_stream_check(
                s, "add_bias",
                cuda_launch_add(s->handle, p->y, p->y_stride, p->bias, 0, job->m, p->n, 1.0f));
        if (rc == 0 && !adds && p->sum != NULL)
            rc = device_stream_check(s, "add",
                                     cuda_launch_add(s->handle, p->sum, p->sum_stride, p->y,
                                                     p->y_stride, job->m, p->n, 1.0f));
    }
    if (rc != 0 || !job->gated || job->gates_later)
        return rc;
    const struct dense_part *gate = &job->parts[0], *up = &job->parts[1];
    return device_stream_check(s, "act_mul",
                               cuda_launch_act_mul(s->handle, gate->y, gate->y_stride, gate->y,
                                                   gate->y_stride, up->y, up->y_stride, job->m,
                                                   gate->n, (int)job->activation));
}

int linear_dense_prompt(struct stream_cuda *s, enum dense_form form, const struct dense_job *job,
                        const struct role_run *run)
{
    struct dense_job rows = rows_of(job, run, form);
    return run_prompt(s, form, &rows);
}

static int run_rows(struct stream_cuda *s, enum dense_form form, const struct dense_job *all,
                    const struct role_run *run, const struct weight *w)
{
    bool generated = run->generated || form == DENSE_F32;
    struct dense_job job = rows_of(all, run, form);
    job.slices = slices_of(w, generated);
    if (run->n_rows == 0)
        return 0;
    return generated ? run_decode(s, form, &job) : run_prompt(s, form, &job);
}

/* Returns run i of m rows as products see the runs: with mixed products all rows are a prompt's.
 * *out_n: the number of runs. */
static struct role_run run_of(const struct stream *s, uint32_t m, uint32_t i, uint32_t *out_n)
{
    bool mixes = s->n_roles > 1 && s->mix_products;
    *out_n = mixes || s->n_roles == 0 ? 1 : s->n_roles;
    return s->n_roles > 0 && !mixes ? s->roles[i] : (struct role_run){0, m, s->n_roles == 0};
}

/* Runs the job by runs of roles, which must cover all rows. */
static int run_roles(struct stream_cuda *s, enum dense_form form, const struct dense_job *job,
                     const struct weight *w)
{
    const struct role_run all = {0, job->m, true};
    const struct role_run *runs = s->base.n_roles > 0 ? s->base.roles : &all;
    uint32_t n_runs = s->base.n_roles > 0 ? s->base.n_roles : 1, next = 0;
    for (uint32_t i = 0; i < n_runs; next = runs[i].begin + runs[i].n_rows, i++)
        if (runs[i].begin != next || runs[i].n_rows > job->m - next)
            return device_stream_fail(s, STATUS_INTERNAL, "linear: the roles do not fit the rows");
    if (next != job->m)
        return device_stream_fail(s, STATUS_INTERNAL, "linear: rows without a role");
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_runs; i++) {
        struct role_run run = run_of(&s->base, job->m, i, &n_runs);
        rc = run_rows(s, form, job, &run, w);
    }
    return rc;
}

int linear_dense(struct stream *stream, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts, enum dense_end end, enum activation kind)
{
    struct stream_cuda *s = stream_cuda(stream);
    const struct weight_cuda *w = weight_cuda(parts[0].w);
    enum dense_form form = w->form;
    struct dense_job job = {.n_parts = n_parts,
                            .gated = end != DENSE_WHOLE && end != DENSE_PARTIAL,
                            .gates_later = end == DENSE_LATER,
                            .activation = (uint32_t)kind,
                            .half = end == DENSE_PREPARED ? act_cuda(act)->other_half : NULL,
                            .m = act->n_rows,
                            .k = act->k,
                            .w_row_bytes = w->row_bytes};
    for (uint32_t i = 0; i < n_parts; i++) {
        job.parts[i] = part_of(&parts[i], end);
        if (job.parts[i].w == NULL)
            return device_stream_fail(s, STATUS_INTERNAL, "linear: the weight was not uploaded");
    }
    int rc = device_stream_enter(s);
    if (rc == 0)
        rc = linear_act_dense_rows(s, act, form, &job.x, &job.x_stride, &job.x_scale);
    if (end == DENSE_PARTIAL)
        job.x_scale = NULL;
    return rc != 0 ? rc : run_roles(s, form, &job, parts[0].w);
}

static bool has_prompts(const struct stream *s)
{
    for (uint32_t i = 0; i < s->n_roles; i++)
        if (!s->roles[i].generated && s->roles[i].n_rows > 0)
            return true;
    return false;
}

bool linear_dense_gates(struct stream *s, const struct linear_part *gate,
                        const struct linear_part *up, uint32_t kinds, const struct comm *comm)
{
    enum dense_form form = weight_cuda(gate->w)->form;
    uint32_t n = gate->w->n_rows, max_shared = device_cuda(s->device)->max_shared;
    if (kinds != linear_act_kind(form) || n != up->w->n_rows || gate->w->role == WEIGHT_LINEAR_ROW)
        return false;
    if (form == DENSE_F8) /* a row's largest value is that of all ranks */
        return has_prompts(s) && (comm == NULL || comm->size == 1) &&
               gate_bytes(n) <= gate_max_bytes(max_shared);
    if (form != DENSE_F16 && form != DENSE_BF16)
        return false;
    return has_prompts(s) ? prompts_of(stream_cuda(s), form) == CUDA_PROMPTS_WGMMA
                          : decode_rounds(n);
}

/* Makes the run's rows of gate.y (generated: gated already) and up.y f8 activations. */
static int gate_f8(struct stream_cuda *s, const struct act_cuda *act,
                   const struct linear_part *gate, const struct linear_part *up,
                   const struct role_run *run, enum activation kind)
{
    struct gate_rows job = {.gate = tensor_row_f32(gate->y, run->begin),
                            .up = tensor_row_f32(up->y, run->begin),
                            .gate_stride = gate->y->row_stride,
                            .up_stride = up->y->row_stride,
                            .n_rows = run->n_rows,
                            .n = gate->y->n_cols,
                            .kind = (uint32_t)kind};
    uint8_t *to = act->f8 + run->begin * dense_act_stride(job.n);
    float *scale = act->f8_scale + run->begin;
    if (run->n_rows == 0)
        return 0;
    if (run->generated)
        return device_stream_check(s, "rounding activations",
                                   cuda_launch_act_f8(s->handle, to, scale, NULL, job.gate,
                                                      job.gate_stride, job.n_rows, job.n));
    return device_stream_check(s, "act_mul",
                               cuda_launch_gate_scaled(s->handle, to, scale, &job, DENSE_F8));
}

/* All products come first, because the activations that they read are overwritten. */
static int gated_f8(struct stream *s, const struct act *act, const struct linear_part parts[2],
                    enum activation kind)
{
    int rc = linear_dense(s, act, parts, 2, DENSE_LATER, kind);
    uint32_t n = 1;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct role_run run = run_of(s, act->n_rows, i, &n);
        rc = gate_f8(stream_cuda(s), act_cuda(act), &parts[0], &parts[1], &run, kind);
    }
    return rc;
}

int linear_dense_gated(struct stream *s, struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind)
{
    const struct linear_part parts[2] = {*gate, *up};
    int rc = weight_cuda(gate->w)->form == DENSE_F8
                 ? gated_f8(s, act, parts, kind)
                 : linear_dense(s, act, parts, 2, DENSE_PREPARED, kind);
    if (rc == 0)
        linear_act_use(act, gate->w->n_rows, weight_cuda(gate->w)->form);
    return rc;
}

int linear_dense_finish(struct stream *stream, struct tensor *y, const struct tensor *partial,
                        const struct act *act, const struct weight *w)
{
    struct stream_cuda *s = stream_cuda(stream);
    const float *x_scale = weight_cuda(w)->form == DENSE_F8 ? act_cuda(act)->f8_scale : NULL;
    int rc = device_stream_enter(s);
    if (rc != 0)
        return rc;
    return device_stream_check(s, "linear_finish",
                               cuda_launch_dense_scale(s->handle, y->data, y->row_stride,
                                                       partial->data, partial->row_stride, x_scale,
                                                       weight_cuda(w)->scales, y->n_rows,
                                                       y->n_cols));
}
