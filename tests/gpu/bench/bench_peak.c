/* bench_peak.c: the card's matrix rate, measured with cuBLASLt. The algorithm is its first choice
 * among those that add along k in one place. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/cuda/dense/cublaslt.h"
#include "kernels/cuda/host/device_cuda.h"
#include "tests/gpu/bench/bench_gpu.h"

enum { WORKSPACE_BYTES = 32 << 20, CANDIDATES = 16 };

struct peak {
    struct cublaslt_api api;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    void *w, *x, *y, *workspace;
};

static int call_product(struct bench *b, void *ctx, uint32_t i)
{
    struct peak *p = ctx;
    const float one = 1.0F, zero = 0.0F;
    (void)i;
    return (int)p->api.matmul(p->handle, p->desc, &one, p->w, p->in, p->x, p->in, &zero, p->y,
                              p->out, p->y, p->out, &p->best.algo, p->workspace,
                              p->best.workspaceSize, stream_cuda(b->stream)->handle);
}

static bool has(const struct cublaslt_api *api, const cublasLtMatmulAlgo_t *algo,
                cublasLtMatmulAlgoConfigAttributes_t attribute, uint32_t wanted)
{
    uint32_t is = UINT32_MAX;
    size_t n = 0;
    return api->algo_get(algo, attribute, &is, sizeof(is), &n) == CUBLAS_STATUS_SUCCESS &&
           is == wanted;
}

/* Chooses the first algorithm that does not split the sums over k, or the first where all split
 * them. */
static cublasStatus_t choose(struct peak *p)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n_found = 0, best = 0;
    cublasStatus_t status = p->api.heuristic(p->handle, p->desc, p->in, p->in, p->out, p->out,
                                             p->preference, CANDIDATES, found, &n_found);
    if (status || n_found == 0)
        return status ? status : CUBLAS_STATUS_NOT_SUPPORTED;
    while (best < n_found &&
           !(has(&p->api, &found[best].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 1) &&
             has(&p->api, &found[best].algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                 CUBLASLT_REDUCTION_SCHEME_NONE)))
        best++;
    p->best = found[best < n_found ? best : 0];
    return CUBLAS_STATUS_SUCCESS;
}

/* The first status that is no success. */
static cublasStatus_t prepare(struct peak *p, uint32_t n)
{
    const struct cublaslt_api *api = &p->api;
    cublasOperation_t transposed = CUBLAS_OP_T;
    uint64_t workspace = WORKSPACE_BYTES;
    uint32_t whole = CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasStatus_t status = api->create(&p->handle);
    if (!status)
        status = api->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!status)
        status =
            api->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
    if (!status)
        status = api->layout_create(&p->in, CUDA_R_16BF, n, n, n);
    if (!status)
        status = api->layout_create(&p->out, CUDA_R_32F, n, n, n);
    if (!status)
        status = api->preference_create(&p->preference);
    if (!status)
        status = api->preference_set(p->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                     &workspace, sizeof(workspace));
    if (!status)
        status = api->preference_set(p->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                     &whole, sizeof(whole));
    return status ? status : choose(p);
}

static void release(struct peak *p)
{
    const struct cublaslt_api *api = &p->api;
    if (p->preference)
        api->preference_destroy(p->preference);
    if (p->in)
        api->layout_destroy(p->in);
    if (p->out)
        api->layout_destroy(p->out);
    if (p->desc)
        api->desc_destroy(p->desc);
    if (p->handle)
        api->destroy(p->handle);
}

static double product_seconds(struct bench *b, struct peak *p, uint32_t n, cublasStatus_t *status)
{
    size_t half = (size_t)n * n * 2;
    uint8_t *rows = bench_rows(DTYPE_BF16, n, n);
    double s = 0.0;
    p->w = bench_allocate(b, half);
    p->x = bench_allocate(b, half);
    p->y = bench_allocate(b, 2 * half);
    p->workspace = bench_allocate(b, WORKSPACE_BYTES);
    bench_upload(b, p->w, rows, half);
    bench_upload(b, p->x, rows, half);
    *status = (cublasStatus_t)call_product(b, p, 0);
    if (*status == CUBLAS_STATUS_SUCCESS)
        s = bench_time_queued(b, call_product, p, 1).median;
    bench_sync(b);
    bench_drop(b, p->w, half);
    bench_drop(b, p->x, half);
    bench_drop(b, p->y, 2 * half);
    bench_drop(b, p->workspace, WORKSPACE_BYTES);
    free(rows);
    return s;
}

double bench_peak(struct bench *b, uint32_t n, struct error *err)
{
    struct peak p = {.handle = NULL};
    double s = 0.0;
    if (cublaslt_load(&p.api, err) != 0)
        return 0.0;
    cublasStatus_t status = prepare(&p, n);
    if (status == CUBLAS_STATUS_SUCCESS)
        s = product_seconds(b, &p, n, &status);
    if (status != CUBLAS_STATUS_SUCCESS)
        error_set(err, STATUS_INTERNAL, "cuBLASLt: %s", p.api.status_name(status));
    release(&p);
    return s > 0.0 ? 2.0 * n * n * n / s : 0.0;
}
