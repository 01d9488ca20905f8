/* A stand-in for cuBLASLt on the emulated GPU: the functions that kernels/cuda/dense/cublaslt.h
 * opens, as far as linear_cublaslt.c uses them. SLUICE_CUBLASLT names the emulated module itself.
 * The stand-in implements worst cases of the real library's promises. Each algorithm adds in
 * another order. Where rows are no whole tiles, the order depends on the number of rows. The first
 * algorithms on offer split sums, in every possible way; with SIMT_CUBLASLT=split there are no
 * others. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/maths.h"

enum { TILE_ROWS = 128 };

/* Indices into an algorithm's words. Word 0 is the number of its order of addition. */
enum { ALGO_SPLITS = 1, ALGO_SCHEME, ALGO_WORKSPACE };

static const uint64_t offers[][4] = {
    {0, 4, CUBLASLT_REDUCTION_SCHEME_NONE, 0},
    {0, 1, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0},
    {0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 1 << 20},
    {0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0}, /* whole */
};
enum { N_OFFERS = sizeof(offers) / sizeof(offers[0]) };

struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};

struct job {
    struct layout a, b, d;
    const uint16_t *w, *x;
    float *y;
    uint64_t turn; /* index of the first product that a sum adds */
};

_Noreturn static void refuse(const char *what)
{
    fprintf(stderr, "simt: cuBLASLt: %s\n", what);
    abort();
}

static float widen(cudaDataType type, uint16_t half)
{
    return type == CUDA_R_16F ? maths_f16_to_f32(half) : maths_bf16_to_f32(half);
}

/* Computes column-major D[n, m] = Aᵀ·B. The rows of w, x and y are the columns of these matrices.
 */
static void run(void *context)
{
    struct job *j = context;
    uint64_t k = j->a.rows;
    for (uint64_t m = 0; m < j->d.cols; m++)
        for (uint64_t n = 0; n < j->d.rows; n++) {
            float sum = 0.0f;
            for (uint64_t i = 0; i < k; i++) {
                uint64_t at = (i + j->turn) % k;
                sum += widen(j->a.type, j->w[n * (uint64_t)j->a.ld + at]) *
                       widen(j->b.type, j->x[m * (uint64_t)j->b.ld + at]);
            }
            j->y[m * (uint64_t)j->d.ld + n] = sum;
        }
    free(j);
}

static void check(const struct job *j)
{
    if (j->a.rows != j->b.rows || j->a.cols != j->d.rows || j->b.cols != j->d.cols)
        refuse("shapes do not fit");
    if (j->a.type != j->b.type || (j->a.type != CUDA_R_16F && j->a.type != CUDA_R_16BF) ||
        j->d.type != CUDA_R_32F)
        refuse("a type is not f16 or bf16 to f32");
    if (((uintptr_t)j->w | (uintptr_t)j->x | (uintptr_t)j->y) % 16 != 0 ||
        (j->a.ld | j->b.ld) % 8 != 0 || j->d.ld % 4 != 0 || j->a.rows % 8 != 0)
        refuse("an operand is not aligned");
}

#define EXPORT __attribute__((visibility("default")))

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = calloc(1, 1);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "failure";
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t type,
                                               cudaDataType_t scale)
{
    if (type != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        refuse("sums are not f32");
    *out = calloc(1, sizeof(cublasOperation_t));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void *value, size_t n_bytes)
{
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        memcpy(desc, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld)
{
    struct layout *made = malloc(sizeof(*made));
    *made = (struct layout){type, rows, cols, ld};
    *out = (cublasLtMatrixLayout_t)(void *)made;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matrix)
{
    free(matrix);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matrix,
                                                       cublasLtMatrixLayoutAttribute_t attribute,
                                                       const void *value, size_t n_bytes)
{
    if (attribute != CUBLASLT_MATRIX_LAYOUT_COLS || n_bytes != sizeof(uint64_t))
        refuse("a layout's attribute is not known");
    memcpy(&((struct layout *)(void *)matrix)->cols, value, n_bytes);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = calloc(1, sizeof(uint32_t));
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

/* Stores the wish that sums are not split. */
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t n_bytes)
{
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        *(uint32_t *)(void *)preference =
            n_bytes == sizeof(none) && memcmp(value, &none, sizeof(none)) == 0;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int n, cublasLtMatmulHeuristicResult_t results[],
    int *n_found)
{
    static atomic_ullong n_asked;
    const char *mode = getenv("SIMT_CUBLASLT");
    int n_offers = mode && strcmp(mode, "split") == 0 ? N_OFFERS - 1 : N_OFFERS;
    (void)handle, (void)a, (void)b, (void)c, (void)d;
    if (*(cublasOperation_t *)(void *)desc != CUBLAS_OP_T || *(uint32_t *)(void *)preference != 1)
        refuse("an algorithm for other products");
    memset(results, 0, (size_t)n * sizeof(results[0]));
    for (*n_found = 0; *n_found < n && *n_found < n_offers; ++*n_found) {
        cublasLtMatmulHeuristicResult_t *found = &results[*n_found];
        memcpy(found->algo.data, offers[*n_found], sizeof(offers[0]));
        found->algo.data[0] = atomic_fetch_add(&n_asked, 1) + 1;
        found->workspaceSize = found->algo.data[ALGO_WORKSPACE];
    }
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
    size_t n_bytes, size_t *n_written)
{
    uint32_t is =
        (uint32_t)
            algo->data[attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? ALGO_SPLITS : ALGO_SCHEME];
    if (n_bytes != sizeof(is) || (attribute != CUBLASLT_ALGO_CONFIG_SPLITK_NUM &&
                                  attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME))
        refuse("an algorithm's attribute is not known");
    memcpy(value, &is, sizeof(is));
    *n_written = sizeof(is);
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                     const void *alpha, const void *w, cublasLtMatrixLayout_t a,
                                     const void *x, cublasLtMatrixLayout_t b, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t c_layout, void *y,
                                     cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                     void *workspace, size_t n_bytes, cudaStream_t stream)
{
    struct job *j = malloc(sizeof(*j));
    (void)handle, (void)desc, (void)alpha, (void)beta, (void)c, (void)c_layout, (void)workspace;
    if (memcmp(algo->data + 1, offers[N_OFFERS - 1] + 1, 2 * sizeof(offers[0][0])) != 0)
        refuse("an algorithm that splits sums");
    if (algo->data[ALGO_WORKSPACE] != n_bytes)
        refuse("an algorithm with another workspace than it asked for");
    *j = (struct job){.a = *(struct layout *)(void *)a,
                      .b = *(struct layout *)(void *)b,
                      .d = *(struct layout *)(void *)d,
                      .w = w,
                      .x = x,
                      .y = y,
                      .turn = algo->data[0] * 5};
    check(j);
    if (j->d.cols % TILE_ROWS != 0)
        j->turn += j->d.cols * 3;
    return cudaLaunchHostFunc(stream, run, j) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                             : CUBLAS_STATUS_EXECUTION_FAILED;
}

EXPORT size_t cublasLtGetVersion(void)
{
    return 1;
}
