/* Checks products of f8 weights by wgmma on a device, as prompts_cuda.c checks those of f16 and
 * bf16 weights. A device uses these products with "auto" if two things hold. The results equal the
 * tiled kernel's within the tensor core's rounding, and a row's bits do not depend on its place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/table_cuda.h"

enum {
    M = 130, /* a tile of 128, and two rows */
    N = 37,
    K = 200, /* a chain of 128, and one with a tail of 8 */
    PADDING = 128,
    CODES_BELOW_1 = 56 /* E4M3 codes of numbers in [0, 1) */
};

/* Operands are below 1 in magnitude, a row's sum of magnitudes is about 9. The tensor core keeps 14
 * bits of sums, so results differ by hundredths. Misplaced elements differ by whole numbers. */
static const float MOST_APART = 0x1p-4f;

/* The device memory of a check, and its results on the host. */
struct check {
    uint8_t *x;    /* [M + PADDING][dense_act_stride(K)] */
    uint8_t *w;    /* [N][dense_row_bytes(K)] */
    float *scales; /* [M] of rows, [N] of columns */
    float *y;      /* [M][N] */
    float own[M * N], whole[M * N], part[M * N];
};

static size_t x_bytes(void)
{
    return (M + PADDING) * dense_act_stride(K);
}

static size_t w_bytes(void)
{
    return N * dense_row_bytes(DENSE_F8, K);
}

static void fill(uint8_t *to, uint32_t n_rows, size_t stride, uint32_t seed)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < K; k++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t code = (seed >> 16) % CODES_BELOW_1;
            to[r * stride + k] = (uint8_t)(code | (seed >> 24 & 0x80u));
        }
}

static int upload(const struct check *c)
{
    float scales[M + N];
    uint8_t *host = calloc(1, x_bytes() + w_bytes());
    if (host == NULL)
        return cudaErrorMemoryAllocation;
    fill(host, M, dense_act_stride(K), 1);
    fill(host + x_bytes(), N, dense_row_bytes(DENSE_F8, K), 2);
    for (uint32_t i = 0; i < M + N; i++)
        scales[i] = 0.5f + 0.5f * (float)(i % 7) / 7.0f;
    int code = (int)cudaMemcpy(c->x, host, x_bytes(), cudaMemcpyHostToDevice);
    if (code == 0)
        code = (int)cudaMemcpy(c->w, host + x_bytes(), w_bytes(), cudaMemcpyHostToDevice);
    if (code == 0)
        code = (int)cudaMemcpy(c->scales, scales, sizeof(scales), cudaMemcpyHostToDevice);
    free(host);
    return code;
}

/* The job of rows [row, row + m). */
static struct dense_job job_of(const struct check *c, bool split, uint32_t row, uint32_t m)
{
    const uint32_t whole[2] = {0, K};
    return (struct dense_job){
        .parts = {{.w = c->w, .w_scale = c->scales + M, .y = c->y, .y_stride = N, .n = N}},
        .n_parts = 1,
        .x = c->x + row * dense_act_stride(K),
        .x_stride = dense_act_stride(K),
        .x_scale = c->scales + row,
        .m = m,
        .k = K,
        .w_row_bytes = dense_row_bytes(DENSE_F8, K),
        .slices = split ? dense_slices_of(K) : dense_slices_from(whole, 1),
    };
}

/* out[m, N] of rows [row, row + m); NaN where the kernel wrote nothing. */
static int multiply(const struct check *c, bool by_wgmma, bool split, uint32_t row, uint32_t m,
                    float *out)
{
    struct dense_job job = job_of(c, split, row, m);
    int code = (int)cudaMemset(c->y, 0xFF, sizeof(c->own));
    if (code == 0)
        code = by_wgmma ? cuda_launch_dense_ring(NULL, DENSE_F8, &job, 1)
                        : cuda_launch_dense_prompt(NULL, DENSE_F8, &job);
    return code != 0
               ? code
               : (int)cudaMemcpy(out, c->y, (size_t)m * N * sizeof(*out), cudaMemcpyDeviceToHost);
}

/* Checks that the rows from the second on, and the last row alone, keep their bits. */
static int check_places(struct check *c, bool split, bool *out_same)
{
    static const uint32_t first[] = {1, M - 1};
    int code = 0;
    *out_same = true;
    for (uint32_t i = 0; code == 0 && i < sizeof(first) / sizeof(first[0]); i++) {
        uint32_t m = M - first[i];
        code = multiply(c, true, split, first[i], m, c->part);
        *out_same =
            *out_same && memcmp(c->part, c->whole + first[i] * N, m * N * sizeof(*c->part)) == 0;
    }
    return code;
}

/* Checks that a product adds to a residual sum. Before, the sum is c->own. */
static int check_sum(struct check *c, const char **out_why_not)
{
    struct dense_job job = job_of(c, false, 0, M);
    job.parts[0].sum = c->y;
    job.parts[0].sum_stride = N;
    int code = (int)cudaMemcpy(c->y, c->own, sizeof(c->own), cudaMemcpyHostToDevice);
    if (code == 0)
        code = cuda_launch_dense_ring(NULL, DENSE_F8, &job, 1);
    if (code == 0)
        code = (int)cudaMemcpy(c->part, c->y, sizeof(c->part), cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; code == 0 && i < M * N; i++)
        if (c->part[i] != c->own[i] + c->whole[i])
            *out_why_not = "sums of fp8 by wgmma differ from those of separate operations";
    return code;
}

static int check_product(struct check *c, bool split, const char **out_why_not)
{
    bool same = false;
    int code = multiply(c, false, split, 0, M, c->own);
    if (code == 0)
        code = multiply(c, true, split, 0, M, c->whole);
    if (code == 0)
        code = check_places(c, split, &same);
    if (code == 0 && !same)
        *out_why_not = "the bits of fp8 by wgmma depend on a row's place";
    for (uint32_t i = 0; code == 0 && i < M * N; i++)
        if (!(fabsf(c->whole[i] - c->own[i]) <= MOST_APART))
            *out_why_not = "results of fp8 by wgmma differ from those of our tiled kernel";
    return code;
}

static int run_check(struct check *c, const char **out_why_not)
{
    int code = (int)cudaMalloc((void **)&c->x, x_bytes());
    if (code == 0)
        code = (int)cudaMalloc((void **)&c->w, w_bytes());
    if (code == 0)
        code = (int)cudaMalloc((void **)&c->scales, (M + N) * sizeof(*c->scales));
    if (code == 0)
        code = (int)cudaMalloc((void **)&c->y, sizeof(c->own));
    if (code == 0)
        code = upload(c);
    if (code == 0)
        code = check_product(c, true, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_product(c, false, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_sum(c, out_why_not);
    return code;
}

int fp8_check_cuda(uint32_t index, const char **out_why_not, struct error *err)
{
    struct check *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    int code = run_check(c, out_why_not);
    void *const memory[] = {c->x, c->w, c->scales, c->y};
    free(c);
    return prompts_end_check_cuda(index, code, memory, sizeof(memory) / sizeof(memory[0]),
                                  "the check of fp8 by wgmma could not be run", out_why_not, err);
}
