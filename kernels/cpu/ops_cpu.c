#include "kernels/cpu/ops_cpu.h"

#include <string.h>

#include "base/status.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MIN_PARALLEL = 4096, /* a job of fewer elements runs on the calling thread alone: about 1 µs */
    SHARES_PER_THREAD = 4,
};

void ops_run_job(struct stream *s, thread_pool_fn *fn, void *job, bool parallel)
{
    if (parallel)
        thread_pool_run(stream_cpu(s)->pool, fn, job);
    else
        fn(job, 0, 1);
}

/* The arguments of every op that computes row by row. */
struct rows_job {
    const struct cpu_inner *inner;
    struct tensor *y;
    const struct tensor *x, *x2;
    const float *w, *b;
    uint32_t n_w; /* rows of w and b */
    float eps, factor;
    enum activation kind;
    const uint32_t *ids;
    const struct weight_cpu *weight;
    const struct rope_params *rope;
    const struct scale_params *scale;
    thread_pool_fn *fn;
    uint32_t n_shares;
};

static void run_share(void *arg, uint32_t item, uint32_t member)
{
    struct rows_job *job = arg;
    (void)member;
    job->fn(job, item, job->n_shares);
}

/* Runs fn on shares of the rows; each thread has a few shares. */
static void run_rows(struct stream *s, thread_pool_fn *fn, struct rows_job *job)
{
    struct thread_pool *pool = stream_cpu(s)->pool;
    uint32_t n_rows = job->y->n_rows, most = SHARES_PER_THREAD * thread_pool_size(pool);
    job->inner = inner_of(s->ops);
    job->fn = fn;
    job->n_shares = n_rows < most ? n_rows : most;
    if ((uint64_t)n_rows * job->y->n_cols < MIN_PARALLEL)
        job->n_shares = 1;
    thread_pool_run_items(pool, job->n_shares, run_share, job);
}

/* Returns the first row of y in this share; *out_end is the end. */
static uint32_t share_rows(const struct rows_job *job, uint32_t index, uint32_t n_threads,
                           uint32_t *out_end)
{
    uint32_t begin;
    thread_pool_share(job->y->n_rows, 1, index, n_threads, &begin, out_end);
    return begin;
}

/* Expands row `row` of an embedding, or of a linear weight used as an embedding. */
static void embed_row(const struct weight_cpu *w, uint32_t row, float *y)
{
    const uint8_t *data = weight_data(w) + w->row_bytes * row;
    switch ((enum pack_format)w->format) {
    case PACK_INT4:
    case PACK_INT4_PLAIN:
    case PACK_INT8:
    case PACK_SUPER:
        for (uint32_t k = 0; k < w->base.k_local; k++)
            y[k] = (float)weight_at(w, row, k) * weight_units(w)[row];
        break;
    case PACK_F32:
    case PACK_F16:
    case PACK_BF16:
        dense_row(w, row, y);
        break;
    default:
        dtype_to_f32((enum dtype)w->base.source, data, w->base.k_local, y);
        if (w->base.source == DTYPE_BF16)
            dense_flush(y, w->base.k_local);
        break;
    }
}

static void embed_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        embed_row(job->weight, job->ids[r], tensor_row_f32(job->y, r));
}

int embed_cpu(struct stream *s, struct tensor *y, const uint32_t *ids, const struct weight *w)
{
    for (uint32_t r = 0; r < y->n_rows; r++)
        if (ids[r] >= w->n_rows)
            return STATUS_INTERNAL;
    struct rows_job job = {.y = y, .ids = ids, .weight = weight_cpu(w)};
    run_rows(s, embed_rows, &job);
    return 0;
}

/* Returns the place in w, and in b, of a row's weights. */
static size_t norm_at(const struct rows_job *job, uint32_t r)
{
    return (size_t)(r % job->n_w) * job->y->n_cols;
}

static void rms_norm_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        job->inner->rms_norm(tensor_row_f32(job->y, r), tensor_row_f32(job->x, r),
                             job->w + norm_at(job, r), job->y->n_cols, job->eps);
}

int rms_norm_cpu(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                 uint32_t n_w, float eps)
{
    struct rows_job job = {.y = y, .x = x, .w = w, .n_w = n_w, .eps = eps};
    run_rows(s, rms_norm_rows, &job);
    return 0;
}

static void layer_norm_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        job->inner->layer_norm(
            tensor_row_f32(job->y, r), tensor_row_f32(job->x, r), job->w + norm_at(job, r),
            job->b != NULL ? job->b + norm_at(job, r) : NULL, job->y->n_cols, job->eps);
}

int layer_norm_cpu(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                   const float *b, uint32_t n_w, float eps)
{
    struct rows_job job = {.y = y, .x = x, .w = w, .b = b, .n_w = n_w, .eps = eps};
    run_rows(s, layer_norm_rows, &job);
    return 0;
}

static void add_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++) {
        float *x = job->x != NULL ? tensor_row_f32(job->x, r) : NULL;
        if (x != NULL && job->factor != 1.0f)
            job->inner->scale(x, job->y->n_cols, job->factor, 0.0f);
        job->inner->add(tensor_row_f32(job->y, r), x != NULL ? x : job->b, job->y->n_cols);
    }
}

int add_cpu(struct stream *s, struct tensor *y, const struct tensor *x, float factor)
{
    struct rows_job job = {.y = y, .x = x, .factor = factor};
    run_rows(s, add_rows, &job);
    return 0;
}

int add_bias_cpu(struct stream *s, struct tensor *y, const float *bias)
{
    struct rows_job job = {.y = y, .b = bias, .factor = 1.0f};
    run_rows(s, add_rows, &job);
    return 0;
}

static float row_factor(const struct rows_job *job, uint32_t r)
{
    const struct scale_params *p = job->scale;
    float factor = p->factor;
    if (p->by_position)
        factor *= p->by_position[(job->ids[r] + p->offset) / p->period];
    if (p->gate)
        factor *= maths_sigmoid(*tensor_row_f32(p->gate, r));
    return factor;
}

static void scale_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        job->inner->scale(tensor_row_f32(job->y, r), job->y->n_cols, row_factor(job, r),
                          job->scale->softcap);
}

int scale_cpu(struct stream *s, struct tensor *x, const uint32_t *positions,
              const struct scale_params *params)
{
    struct rows_job job = {.y = x, .ids = positions, .scale = params};
    run_rows(s, scale_rows, &job);
    return 0;
}

static void act_mul_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        job->inner->act_mul(tensor_row_f32(job->y, r), tensor_row_f32(job->x, r),
                            job->x2 != NULL ? tensor_row_f32(job->x2, r) : NULL, job->y->n_cols,
                            job->kind);
}

int act_mul_cpu(struct stream *s, struct tensor *y, const struct tensor *gate,
                const struct tensor *up, enum activation kind)
{
    struct rows_job job = {.y = y, .x = gate, .x2 = up, .kind = kind};
    run_rows(s, act_mul_rows, &job);
    return 0;
}

static void rope_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++) {
        struct rope_params of_row = *job->rope;
        if (of_row.row_tables)
            of_row.inv_freq += (size_t)of_row.row_tables[r] * (of_row.n_rot / 2);
        job->inner->rope(tensor_row_f32(job->y, r), job->y->n_cols / of_row.head_dim, job->ids[r],
                         &of_row);
    }
}

int rope_cpu(struct stream *s, struct tensor *x, const uint32_t *positions,
             const struct rope_params *params)
{
    struct rows_job job = {.y = x, .ids = positions, .rope = params};
    run_rows(s, rope_rows, &job);
    return 0;
}

static void gather_some_rows(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct rows_job *job = arg;
    uint32_t end;
    for (uint32_t r = share_rows(job, index, n_threads, &end); r < end; r++)
        memcpy(tensor_row_f32(job->y, r), tensor_row_f32(job->x, job->ids[r]),
               job->y->n_cols * sizeof(float));
}

int gather_rows_cpu(struct stream *s, struct tensor *y, const struct tensor *x,
                    const uint32_t *index)
{
    for (uint32_t r = 0; r < y->n_rows; r++)
        if (index[r] >= x->n_rows)
            return STATUS_INTERNAL;
    struct rows_job job = {.y = y, .x = x, .ids = index};
    run_rows(s, gather_some_rows, &job);
    return 0;
}

/* The columns of each head of x go to y. */
struct heads_job {
    const struct tensor *y, *x;
    uint32_t n_heads, width, y_head, y_first;
};

static void copy_some_heads(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct heads_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->y->n_rows, 1, index, n_threads, &begin, &end);
    for (uint32_t r = begin; r < end; r++)
        for (uint32_t h = 0; h < job->n_heads; h++)
            memcpy(tensor_row_f32(job->y, r) + (size_t)h * job->y_head + job->y_first,
                   tensor_row_f32(job->x, r) + (size_t)h * job->width, job->width * sizeof(float));
}

int copy_heads_cpu(struct stream *s, struct tensor *y, const struct tensor *x, uint32_t n_heads,
                   uint32_t width, uint32_t y_head, uint32_t y_first)
{
    struct heads_job job = {y, x, n_heads, width, y_head, y_first};
    ops_run_job(s, copy_some_heads, &job, (uint64_t)x->n_rows * x->n_cols >= MIN_PARALLEL);
    return 0;
}
