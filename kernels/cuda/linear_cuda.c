/* Dense linears. Same bits for any number of rows: each shape takes one algorithm, chosen once for
 * PLAN_ROWS rows without split-K (a reduction scheme of NONE), and more rows are more tiles of it.
 * bf16 and f16 weights multiply activations rounded to their type and add in f32; f32 weights take
 * full f32 (never TF32). A row-split weight is one product per segment, summed by the contract's
 * tree. */
#include "kernels/cuda/linear_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/act_header.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/weight_cuda.h"

enum { PLAN_ROWS = 64, POINTER_ALIGN = 16 };

/* y[m, n] = x[m, k] · w[n, k]ᵀ, all row-major; strides in elements. */
struct product {
    cudaDataType_t type; /* of x and w; y is f32 */
    uint32_t m, n, k;
    const void *w, *x;
    float *y;
    size_t w_stride, x_stride, y_stride;
};

/* What a shape needs, made once. In cuBLASLt's column-major words: D[n, m] = op(A) · B with A the
 * weight transposed, B the activations. */
struct plan {
    struct plan *next;
    cudaDataType_t type;
    uint32_t n, k;
    size_t w_stride, x_stride, y_stride;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct cublaslt {
    pthread_mutex_t lock; /* all below */
    struct cublaslt_api api;
    cublasLtHandle_t handle;
    struct plan *plans;
};

struct act_cuda {
    struct act base;
    struct device *device;
    const float *x; /* [n_rows][x_stride], borrowed */
    size_t x_stride;
    uint16_t *narrow; /* [max_rows][max_k]: x rounded to narrow_type */
    int narrow_type;  /* cudaDataType_t, or -1: nothing converted yet */
};

int cublaslt_create(struct cublaslt **out_lt, struct error *err)
{
    struct cublaslt *lt = calloc(1, sizeof(*lt));
    if (lt == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda: out of memory");
    pthread_mutex_init(&lt->lock, NULL);
    *out_lt = lt;
    return 0;
}

static void plan_destroy(const struct cublaslt_api *api, struct plan *plan)
{
    if (plan->desc != NULL)
        api->desc_destroy(plan->desc);
    if (plan->a != NULL)
        api->layout_destroy(plan->a);
    if (plan->b != NULL)
        api->layout_destroy(plan->b);
    if (plan->d != NULL)
        api->layout_destroy(plan->d);
    free(plan);
}

void cublaslt_destroy(struct cublaslt *lt)
{
    if (lt == NULL)
        return;
    while (lt->plans != NULL) {
        struct plan *next = lt->plans->next;
        plan_destroy(&lt->api, lt->plans);
        lt->plans = next;
    }
    if (lt->handle != NULL)
        lt->api.destroy(lt->handle);
    pthread_mutex_destroy(&lt->lock);
    free(lt);
}

static int lt_check(struct stream_cuda *s, const struct cublaslt *lt, const char *what,
                    cublasStatus_t status)
{
    char text[160];
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    snprintf(text, sizeof(text), "cuBLASLt: %s: %s", what, lt->api.status_name(status));
    return stream_fail(
        s, status == CUBLAS_STATUS_NOT_SUPPORTED ? STATUS_UNIMPLEMENTED : STATUS_INTERNAL, text);
}

/* Opens library and handle on first use. */
static int lt_ready(struct stream_cuda *s, struct cublaslt *lt)
{
    struct error err = {0};
    if (lt->handle != NULL)
        return 0;
    int rc = lt->api.library != NULL ? 0 : cublaslt_load(&lt->api, &err);
    if (rc != 0)
        return stream_fail(s, rc, err.message);
    return lt_check(s, lt, "handle", lt->api.create(&lt->handle));
}

static int plan_layouts(struct stream_cuda *s, struct cublaslt *lt, const struct product *p,
                        struct plan *plan)
{
    bool full = p->type == CUDA_R_32F;
    cublasOperation_t transposed = CUBLAS_OP_T;
    const struct cublaslt_api *api = &lt->api;
    int rc = lt_check(s, lt, "descriptor",
                      api->desc_create(&plan->desc,
                                       full ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
                                       CUDA_R_32F));
    if (rc == 0)
        rc = lt_check(s, lt, "descriptor",
                      api->desc_set(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                    sizeof(transposed)));
    if (rc == 0)
        rc = lt_check(s, lt, "layout",
                      api->layout_create(&plan->a, p->type, p->k, p->n, (int64_t)p->w_stride));
    if (rc == 0)
        rc = lt_check(s, lt, "layout",
                      api->layout_create(&plan->b, p->type, p->k, PLAN_ROWS, (int64_t)p->x_stride));
    if (rc == 0)
        rc = lt_check(
            s, lt, "layout",
            api->layout_create(&plan->d, CUDA_R_32F, p->n, PLAN_ROWS, (int64_t)p->y_stride));
    return rc;
}

static int prefer(struct stream_cuda *s, struct cublaslt *lt, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t workspace = STREAM_WORKSPACE_BYTES;
    uint32_t align = POINTER_ALIGN, no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    int rc = lt_check(s, lt, "preference",
                      lt->api.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof(workspace)));
    if (rc == 0)
        rc = lt_check(s, lt, "preference",
                      lt->api.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &no_reduction, sizeof(no_reduction)));
    for (size_t i = 0; rc == 0 && i < sizeof(aligned) / sizeof(aligned[0]); i++)
        rc = lt_check(s, lt, "preference",
                      lt->api.preference_set(preference, aligned[i], &align, sizeof(align)));
    return rc;
}

static int plan_algorithm(struct stream_cuda *s, struct cublaslt *lt, struct plan *plan)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int n_found = 0;
    int rc = lt_check(s, lt, "preference", lt->api.preference_create(&preference));
    if (rc == 0)
        rc = prefer(s, lt, preference);
    if (rc == 0)
        rc = lt_check(s, lt, "algorithm",
                      lt->api.heuristic(lt->handle, plan->desc, plan->a, plan->b, plan->d, plan->d,
                                        preference, 1, &best, &n_found));
    if (rc == 0 && (n_found == 0 || best.state != CUBLAS_STATUS_SUCCESS))
        rc = stream_fail(s, STATUS_UNIMPLEMENTED, "cuBLASLt has no algorithm for a linear's shape");
    if (rc == 0)
        plan->algo = best.algo;
    if (preference != NULL)
        lt->api.preference_destroy(preference);
    return rc;
}

/* NULL where the stream has failed. */
static struct plan *find_plan(struct stream_cuda *s, struct cublaslt *lt, const struct product *p)
{
    for (struct plan *plan = lt->plans; plan != NULL; plan = plan->next)
        if (plan->type == p->type && plan->n == p->n && plan->k == p->k &&
            plan->w_stride == p->w_stride && plan->x_stride == p->x_stride &&
            plan->y_stride == p->y_stride)
            return plan;
    struct plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        stream_fail(s, STATUS_RESOURCE_EXHAUSTED, "linear: out of memory");
        return NULL;
    }
    plan->type = p->type;
    plan->n = p->n;
    plan->k = p->k;
    plan->w_stride = p->w_stride;
    plan->x_stride = p->x_stride;
    plan->y_stride = p->y_stride;
    int rc = plan_layouts(s, lt, p, plan);
    if (rc == 0)
        rc = plan_algorithm(s, lt, plan);
    if (rc != 0) {
        plan_destroy(&lt->api, plan);
        return NULL;
    }
    plan->next = lt->plans;
    lt->plans = plan;
    return plan;
}

static int run_product(struct stream_cuda *s, struct cublaslt *lt, const struct product *p)
{
    const float one = 1.0f, zero = 0.0f;
    uint64_t columns = p->m;
    if (((uintptr_t)p->w | (uintptr_t)p->x | (uintptr_t)p->y) % POINTER_ALIGN != 0)
        return stream_fail(s, STATUS_INTERNAL, "linear: an operand is not 16-byte aligned");
    struct plan *plan = find_plan(s, lt, p);
    if (plan == NULL)
        return s->sticky.status;
    int rc = lt_check(
        s, lt, "rows",
        lt->api.layout_set(plan->b, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns)));
    if (rc == 0)
        rc = lt_check(
            s, lt, "rows",
            lt->api.layout_set(plan->d, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns)));
    if (rc == 0)
        rc = lt_check(s, lt, "matmul",
                      lt->api.matmul(lt->handle, plan->desc, &one, p->w, plan->a, p->x, plan->b,
                                     &zero, p->y, plan->d, p->y, plan->d, &plan->algo,
                                     s->workspace.data, STREAM_WORKSPACE_BYTES, s->handle));
    return rc;
}

size_t act_bytes_cuda(uint32_t max_rows, uint32_t max_k)
{
    return (size_t)max_rows * max_k * sizeof(uint16_t);
}

int act_create_cuda(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                    struct error *err)
{
    struct act_cuda *act = calloc(1, sizeof(*act));
    void *narrow = NULL;
    if (act == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    int rc = device->ops->alloc(device, act_bytes_cuda(max_rows, max_k), &narrow, err);
    if (rc != 0) {
        free(act);
        return rc;
    }
    *act = (struct act_cuda){.base = {.max_rows = max_rows, .max_k = max_k},
                             .device = device,
                             .narrow = narrow,
                             .narrow_type = -1};
    *out_act = &act->base;
    return 0;
}

void act_destroy_cuda(struct act *act)
{
    struct act_cuda *cuda = (struct act_cuda *)act;
    if (cuda == NULL)
        return;
    cuda->device->ops->free(cuda->device, cuda->narrow, act_bytes_cuda(act->max_rows, act->max_k));
    free(cuda);
}

int act_prepare_cuda(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                     const struct segments *segments, struct comm *comm)
{
    struct act_cuda *cuda = (struct act_cuda *)act;
    (void)segments; /* f32 rows need no statistics of the whole row */
    (void)comm;
    if (kinds != ACT_F32)
        return stream_fail(stream_cuda(s), STATUS_UNIMPLEMENTED,
                           "integer activations are not built on CUDA");
    act->n_rows = x->n_rows;
    act->k = x->n_cols;
    act->kinds = kinds;
    cuda->x = x->data;
    cuda->x_stride = x->row_stride;
    cuda->narrow_type = -1;
    return 0;
}

static cudaDataType_t type_of(const struct weight *w)
{
    return w->source == DTYPE_F32 ? CUDA_R_32F : w->source == DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* The activations as the weight's type: x itself, or the rounded copy, made by the first linear
 * that reads it. */
static int narrow_act(struct stream_cuda *s, const struct act *base, cudaDataType_t type,
                      const void **out_x, size_t *out_stride)
{
    struct act_cuda *act = (struct act_cuda *)(uintptr_t)base;
    if (type == CUDA_R_32F) {
        *out_x = act->x;
        *out_stride = act->x_stride;
        return 0;
    }
    int rc = 0;
    if (act->narrow_type != (int)type) {
        int code = type == CUDA_R_16F ? cuda_launch_to_f16(s->handle, act->narrow, act->x,
                                                           act->x_stride, base->n_rows, base->k)
                                      : cuda_launch_to_bf16(s->handle, act->narrow, act->x,
                                                            act->x_stride, base->n_rows, base->k);
        rc = stream_check(s, "rounding activations", code);
    }
    if (rc == 0)
        act->narrow_type = (int)type;
    *out_x = act->narrow;
    *out_stride = base->k;
    return rc;
}

static const void *at_column(const void *data, cudaDataType_t type, uint32_t column)
{
    return (const uint8_t *)data + (size_t)column * (type == CUDA_R_32F ? 4 : 2);
}

/* One product per segment into planes, then the tree into y. */
static int run_parts(struct stream_cuda *s, struct cublaslt *lt, const struct product *whole,
                     const struct weight_cuda *w)
{
    size_t plane = cuda_round_up((size_t)whole->m * whole->n, POINTER_ALIGN);
    uint32_t present = 0;
    int rc = stream_grow(s, &s->planes, plane * w->n_parts * sizeof(float), "segment sums");
    for (uint32_t i = 0; rc == 0 && i < w->n_parts; i++) {
        struct product part = *whole;
        part.k = w->part_bounds[i + 1] - w->part_bounds[i];
        if (part.k == 0)
            continue;
        present |= 1u << i;
        part.w = at_column(whole->w, whole->type, w->part_bounds[i]);
        part.x = at_column(whole->x, whole->type, w->part_bounds[i]);
        part.y = (float *)s->planes.data + plane * i;
        part.y_stride = whole->n;
        rc = run_product(s, lt, &part);
    }
    if (rc != 0)
        return rc;
    return stream_check(s, "segment tree",
                        cuda_launch_tree_sum(s->handle, whole->y, whole->y_stride, s->planes.data,
                                             plane, present, w->n_parts, whole->m, whole->n));
}

static int run_linear(struct stream *stream, struct tensor *y, const struct act *act,
                      const struct weight *weight)
{
    struct stream_cuda *s = stream_cuda(stream);
    struct cublaslt *lt = device_cuda(stream->device)->lt;
    const struct weight_cuda *w = weight_cuda(weight);
    struct product p = {.type = type_of(weight),
                        .m = y->n_rows,
                        .n = weight->n_rows,
                        .k = weight->k_local,
                        .w = w->device,
                        .w_stride = weight->k_local,
                        .y = y->data,
                        .y_stride = y->row_stride};
    if (w->device == NULL)
        return stream_fail(s, STATUS_INTERNAL, "linear: the weight was not uploaded");
    int rc = stream_enter(s);
    if (rc == 0)
        rc = stream_grow(s, &s->workspace, STREAM_WORKSPACE_BYTES, "workspace");
    if (rc == 0)
        rc = narrow_act(s, act, p.type, &p.x, &p.x_stride);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&lt->lock);
    rc = lt_ready(s, lt);
    if (rc == 0)
        rc = w->n_parts > 1 ? run_parts(s, lt, &p, w) : run_product(s, lt, &p);
    pthread_mutex_unlock(&lt->lock);
    return rc;
}

int linear_cuda(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w)
{
    return run_linear(s, y, act, w);
}

int linear_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                        const struct act *act, const struct weight *w)
{
    (void)high; /* float sums have one plane */
    return run_linear(s, partial, act, w);
}

int linear_finish_cuda(struct stream *s, struct tensor *y, const struct tensor *partial,
                       const struct act *act, const struct weight *w)
{
    struct stream_cuda *cuda = stream_cuda(s);
    (void)act, (void)w;
    int rc = stream_enter(cuda);
    if (rc != 0)
        return rc;
    return stream_check(cuda, "linear_finish",
                        cudaMemcpy2DAsync(y->data, y->row_stride * sizeof(float), partial->data,
                                          partial->row_stride * sizeof(float),
                                          y->n_cols * sizeof(float), y->n_rows,
                                          cudaMemcpyDeviceToDevice, cuda->handle));
}
