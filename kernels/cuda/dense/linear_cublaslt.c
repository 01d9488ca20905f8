/* Path P by cuBLASLt. A row's bits depend neither on the number of rows in a call nor on the row's
 * place. Each type and k has one algorithm, chosen once for a fixed shape and any n, so that ranks
 * agree too. The algorithm adds along k in one place (is_whole()). Every call has a multiple of
 * CUBLASLT_ROWS rows; rows after the last are scratch. A row-split weight is one product per
 * segment, summed by the contract's tree. tests/gpu/test_cuda_dense.c checks this on a GPU. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/dense/cublaslt.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_cuda.h"

enum {
    PLAN_ROWS = 512, /* the shape for which an algorithm is chosen */
    PLAN_COLS = 4096,
    CANDIDATES = 16,  /* algorithms to consider */
    PLANE_ROWS = 512, /* rows of a pass through planes */
    POINTER_ALIGN = 16,
    FLOATS_ALIGN = POINTER_ALIGN / 4,
    K_MULTIPLE = 8, /* rows are padded with zeros */
};

/* y[m, n] = x[m, k] · w[n, k]ᵀ, all row-major; strides in elements; m a multiple of CUBLASLT_ROWS.
 */
struct product {
    cudaDataType_t type; /* type of x and w; y is f32 */
    uint32_t m, n, k;
    const void *w, *x;
    float *y;
    size_t w_stride, x_stride, y_stride;
};

/* The cuBLASLt descriptors of a shape, made once. In cuBLASLt's column-major terms: D[n, m] = op(A)
 * · B with A the transposed weight, B the activations. */
struct plan {
    struct plan *next;
    cudaDataType_t type;
    uint32_t n, k;
    size_t w_stride, x_stride, y_stride;
    cublasLtMatrixLayout_t a, b, d;
    const struct choice *choice;
};

/* The algorithm for a type and k. */
struct choice {
    struct choice *next;
    cudaDataType_t type;
    uint32_t k;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulAlgo_t algo;
};

struct cublaslt {
    pthread_mutex_t lock; /* guards all fields below */
    struct cublaslt_api api;
    cublasLtHandle_t handle;
    struct plan *plans;
    struct choice *choices;
};

int linear_cublaslt_create(struct cublaslt **out_lt, struct error *err)
{
    struct cublaslt *lt = calloc(1, sizeof(*lt));
    if (lt == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda: out of memory");
    pthread_mutex_init(&lt->lock, NULL);
    *out_lt = lt;
    return 0;
}

static void drop_layouts(const struct cublaslt_api *api, cublasLtMatrixLayout_t *layouts[3])
{
    for (int i = 0; i < 3; i++)
        if (*layouts[i] != NULL)
            api->layout_destroy(*layouts[i]);
}

static void plan_destroy(const struct cublaslt_api *api, struct plan *plan)
{
    cublasLtMatrixLayout_t *layouts[3] = {&plan->a, &plan->b, &plan->d};
    drop_layouts(api, layouts);
    free(plan);
}

static void choice_destroy(const struct cublaslt_api *api, struct choice *choice)
{
    if (choice->desc != NULL)
        api->desc_destroy(choice->desc);
    free(choice);
}

void linear_cublaslt_destroy(struct cublaslt *lt)
{
    if (lt == NULL)
        return;
    for (struct plan *plan = lt->plans, *next; plan != NULL; plan = next) {
        next = plan->next;
        plan_destroy(&lt->api, plan);
    }
    for (struct choice *choice = lt->choices, *next; choice != NULL; choice = next) {
        next = choice->next;
        choice_destroy(&lt->api, choice);
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
    snprintf(text, sizeof(text), "cuBLASLt: %s: %s (SLUICE_CUDA_PROMPTS=own does without it)", what,
             lt->api.status_name(status));
    return device_stream_fail(
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
        return device_stream_fail(s, rc, err.message);
    return lt_check(s, lt, "handle", lt->api.create(&lt->handle));
}

/* Returns true if an algorithm computes each sum in one place. Then k is not split, no results are
 * reduced, and the algorithm has no workspace for partial sums. The workspace rule excludes
 * stream-K, which no attribute reveals. */
static bool is_whole(const struct cublaslt_api *api, const cublasLtMatmulHeuristicResult_t *found)
{
    int32_t n_splits = 0;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t n_bytes;
    return found->state == CUBLAS_STATUS_SUCCESS && found->workspaceSize == 0 &&
           api->algo_get(&found->algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &n_splits, sizeof(n_splits),
                         &n_bytes) == CUBLAS_STATUS_SUCCESS &&
           api->algo_get(&found->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                         sizeof(scheme), &n_bytes) == CUBLAS_STATUS_SUCCESS &&
           n_splits <= 1 && scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static int prefer(struct stream_cuda *s, struct cublaslt *lt, cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t workspace = 0;
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

static int choose_algorithm(struct stream_cuda *s, struct cublaslt *lt, struct choice *choice,
                            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                            cublasLtMatrixLayout_t d)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n_found = 0, i = 0;
    int rc = lt_check(s, lt, "preference", lt->api.preference_create(&preference));
    if (rc == 0)
        rc = prefer(s, lt, preference);
    if (rc == 0)
        rc = lt_check(s, lt, "algorithm",
                      lt->api.heuristic(lt->handle, choice->desc, a, b, d, d, preference,
                                        CANDIDATES, found, &n_found));
    while (rc == 0 && i < n_found && !is_whole(&lt->api, &found[i]))
        i++;
    if (rc == 0 && i == n_found)
        rc = device_stream_fail(
            s, STATUS_UNIMPLEMENTED,
            "cuBLASLt has no algorithm for a linear's shape that does not split sums "
            "(SLUICE_CUDA_PROMPTS=own does without it)");
    if (rc == 0)
        choice->algo = found[i].algo;
    if (preference != NULL)
        lt->api.preference_destroy(preference);
    return rc;
}

static int make_layouts(struct stream_cuda *s, struct cublaslt *lt, const struct product *p,
                        cublasLtMatrixLayout_t *layouts[3])
{
    const struct cublaslt_api *api = &lt->api;
    int rc = lt_check(s, lt, "layout",
                      api->layout_create(layouts[0], p->type, p->k, p->n, (int64_t)p->w_stride));
    if (rc == 0)
        rc = lt_check(s, lt, "layout",
                      api->layout_create(layouts[1], p->type, p->k, p->m, (int64_t)p->x_stride));
    if (rc == 0)
        rc = lt_check(s, lt, "layout",
                      api->layout_create(layouts[2], CUDA_R_32F, p->n, p->m, (int64_t)p->y_stride));
    return rc;
}

static int fill_choice(struct stream_cuda *s, struct cublaslt *lt, struct choice *choice)
{
    size_t k_stride = dense_act_stride(choice->k);
    const struct product usual = {.type = choice->type,
                                  .m = PLAN_ROWS,
                                  .n = PLAN_COLS,
                                  .k = choice->k,
                                  .w_stride = k_stride,
                                  .x_stride = k_stride,
                                  .y_stride = PLAN_COLS};
    cublasLtMatrixLayout_t a = NULL, b = NULL, d = NULL, *layouts[3] = {&a, &b, &d};
    cublasOperation_t transposed = CUBLAS_OP_T;
    const struct cublaslt_api *api = &lt->api;
    int rc = lt_check(s, lt, "descriptor",
                      api->desc_create(&choice->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    if (rc == 0)
        rc = lt_check(s, lt, "descriptor",
                      api->desc_set(choice->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                    sizeof(transposed)));
    if (rc == 0)
        rc = make_layouts(s, lt, &usual, layouts);
    if (rc == 0)
        rc = choose_algorithm(s, lt, choice, a, b, d);
    drop_layouts(api, layouts);
    return rc;
}

/* Returns NULL if the stream has failed. */
static const struct choice *find_choice(struct stream_cuda *s, struct cublaslt *lt,
                                        const struct product *p)
{
    for (struct choice *choice = lt->choices; choice != NULL; choice = choice->next)
        if (choice->type == p->type && choice->k == p->k)
            return choice;
    struct choice *choice = calloc(1, sizeof(*choice));
    if (choice == NULL) {
        device_stream_fail(s, STATUS_RESOURCE_EXHAUSTED, "linear: out of memory");
        return NULL;
    }
    choice->type = p->type;
    choice->k = p->k;
    if (fill_choice(s, lt, choice) != 0) {
        choice_destroy(&lt->api, choice);
        return NULL;
    }
    choice->next = lt->choices;
    lt->choices = choice;
    return choice;
}

/* Returns NULL if the stream has failed. */
static struct plan *find_plan(struct stream_cuda *s, struct cublaslt *lt, const struct product *p)
{
    for (struct plan *plan = lt->plans; plan != NULL; plan = plan->next)
        if (plan->type == p->type && plan->n == p->n && plan->k == p->k &&
            plan->w_stride == p->w_stride && plan->x_stride == p->x_stride &&
            plan->y_stride == p->y_stride)
            return plan;
    const struct choice *choice = find_choice(s, lt, p);
    if (choice == NULL)
        return NULL;
    struct plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        device_stream_fail(s, STATUS_RESOURCE_EXHAUSTED, "linear: out of memory");
        return NULL;
    }
    *plan = (struct plan){.type = p->type,
                          .n = p->n,
                          .k = p->k,
                          .w_stride = p->w_stride,
                          .x_stride = p->x_stride,
                          .y_stride = p->y_stride,
                          .choice = choice};
    cublasLtMatrixLayout_t *layouts[3] = {&plan->a, &plan->b, &plan->d};
    if (make_layouts(s, lt, p, layouts) != 0) {
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
        return device_stream_fail(s, STATUS_INTERNAL, "linear: an operand is not 16-byte aligned");
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
                      lt->api.matmul(lt->handle, plan->choice->desc, &one, p->w, plan->a, p->x,
                                     plan->b, &zero, p->y, plan->d, p->y, plan->d,
                                     &plan->choice->algo, NULL, 0, s->handle));
    return rc;
}

size_t linear_cublaslt_planes_bytes(uint32_t max_rows, uint32_t max_n, uint32_t max_row_n)
{
    size_t rows = max_rows < PLANE_ROWS ? max_rows : PLANE_ROWS;
    size_t whole = cuda_round_up(max_n, FLOATS_ALIGN);
    size_t split = cuda_round_up(max_row_n, FLOATS_ALIGN) * N_SEGMENTS;
    return cuda_round_up(rows, CUBLASLT_ROWS) * (whole > split ? whole : split) * sizeof(float);
}

/* Computes at most PLANE_ROWS rows: one product per segment of K, each into its own plane, then the
 * tree over the planes. Planes have whole tiles of rows, so the last tile may compute unused
 * rows. */
static int run_planes(struct stream_cuda *s, struct cublaslt *lt, const struct product *rows,
                      const struct dense_slices *slices)
{
    struct product part = *rows;
    part.m = (uint32_t)cuda_round_up(rows->m, CUBLASLT_ROWS);
    part.y_stride = cuda_round_up(rows->n, FLOATS_ALIGN);
    size_t plane = part.m * part.y_stride;
    int rc =
        device_stream_grow(s, &s->planes, plane * slices->count * sizeof(float), "segment sums");
    for (uint32_t i = 0; rc == 0 && i < slices->count; i++) {
        uint32_t begin = slices->bounds[i];
        if (!(slices->present >> i & 1))
            continue;
        part.k = (uint32_t)cuda_round_up(slices->bounds[i + 1] - begin, K_MULTIPLE);
        part.w = (const uint16_t *)rows->w + begin;
        part.x = (const uint16_t *)rows->x + begin;
        part.y = (float *)s->planes.data + plane * i;
        rc = run_product(s, lt, &part);
    }
    if (rc != 0)
        return rc;
    return device_stream_check(s, "segment tree",
                               cuda_launch_tree_sum(s->handle, rows->y, rows->y_stride,
                                                    s->planes.data, plane, part.y_stride,
                                                    slices->present, rows->m, rows->n));
}

/* Rows [begin, begin + n_rows) of a product. */
static struct product rows_of(const struct product *all, uint32_t begin, uint32_t n_rows)
{
    struct product rows = *all;
    rows.m = n_rows;
    rows.x = (const uint16_t *)all->x + begin * all->x_stride;
    rows.y = all->y + begin * all->y_stride;
    return rows;
}

/* Computes whole tiles of rows directly into y if there is nothing to add; the others through
 * planes. */
static int run_all(struct stream_cuda *s, struct cublaslt *lt, const struct product *all,
                   const struct dense_slices *slices)
{
    bool direct = slices->count == 1 && all->y_stride % FLOATS_ALIGN == 0 &&
                  (uintptr_t)all->y % POINTER_ALIGN == 0;
    uint32_t done = direct ? all->m / CUBLASLT_ROWS * CUBLASLT_ROWS : 0;
    int rc = 0;
    if (done > 0) {
        struct product rows = rows_of(all, 0, done);
        rc = run_product(s, lt, &rows);
    }
    while (rc == 0 && done < all->m) {
        uint32_t left = all->m - done, n_rows = left < PLANE_ROWS ? left : PLANE_ROWS;
        struct product rows = rows_of(all, done, n_rows);
        rc = run_planes(s, lt, &rows, slices);
        done += n_rows;
    }
    return rc;
}

int linear_cublaslt_prompt(struct stream_cuda *s, struct cublaslt *lt, enum dense_form form,
                           const struct dense_job *job)
{
    const struct dense_part *part = &job->parts[0];
    const struct product all = {.type = form == DENSE_F16 ? CUDA_R_16F : CUDA_R_16BF,
                                .m = job->m,
                                .n = part->n,
                                .k = (uint32_t)cuda_round_up(job->k, K_MULTIPLE),
                                .w = part->w,
                                .x = job->x,
                                .y = part->y,
                                .w_stride = job->w_row_bytes / sizeof(uint16_t),
                                .x_stride = job->x_stride,
                                .y_stride = part->y_stride};
    pthread_mutex_lock(&lt->lock);
    int rc = lt_ready(s, lt);
    if (rc == 0)
        rc = run_all(s, lt, &all, &job->slices);
    pthread_mutex_unlock(&lt->lock);
    return rc;
}
