/* Chooses the products for prompts with f16 and bf16 weights, per device. Hopper's wgmma is likely
 * one and a half times as fast as our tiled kernel. But no compiler checks its code: layouts in
 * shared memory, fences, data in flight. So before a device uses wgmma by default, a test must
 * pass. The results must equal the tiled kernel's within rounding, and a row's bits must not depend
 * on its place. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/table_cuda.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/maths.h"

enum {
    M = 130, /* a tile of 128, and two rows */
    N = 37,
    K = 200, /* three steps of 64, and a tail of 8 */
    PADDING = 128,
    PAIR = 18, /* rows of gate, and of up */
    PAIR_STRIDE = DENSE_ACT_MULTIPLE,
    MAX_DEVICES = 64
};

/* Sums of K products of numbers below 1 in magnitude, in another order and with a tensor core's
 * rounding, differ by about 1e-5. Misplaced elements differ by whole numbers. */
static const float MOST_APART = 1e-3f;

typedef int launch_fn(void *stream, enum dense_form form, const struct dense_job *job);

/* The device memory of a check, and its results on the host. */
struct check {
    uint16_t *x; /* [M + PADDING][dense_act_stride(K)] */
    uint8_t *w;  /* [N][dense_row_bytes(K)] */
    float *y;    /* [M][N] */
    float own[M * N], whole[M * N], part[M * N];
    launch_fn *wgmma, *gated;
};

int prompts_end_check_cuda(uint32_t index, int code, void *const *memory, size_t n_memory,
                           const char *not_run, const char **out_why_not, struct error *err)
{
    int rc = cuda_check(err, index, not_run, code);
    for (size_t i = 0; i < n_memory && !cuda_is_lost(index); i++)
        cuda_note(index, cudaFree(memory[i]));
    if (rc == 0 || cuda_is_lost(index))
        return rc;
    error_clear(err);
    *out_why_not = not_run;
    return 0;
}

static size_t x_bytes(void)
{
    return (M + PADDING) * dense_act_stride(K) * sizeof(uint16_t);
}

static size_t w_bytes(void)
{
    return N * dense_row_bytes(DENSE_BF16, K);
}

/* Fills with numbers in [−1, 1) of 8 bits and 8 magnitudes. They are exact in both formats; sums of
 * their products are not. */
static void fill(uint16_t *to, uint32_t n_rows, size_t stride, enum dense_form form, uint32_t seed)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < K; k++) {
            seed = seed * 1664525u + 1013904223u;
            float v = (float)((int)(seed >> 24) - 128) / (float)(128 << (seed >> 16 & 7));
            to[r * stride + k] = form == DENSE_F16 ? maths_f32_to_f16(v) : maths_f32_to_bf16(v);
        }
}

static int upload(const struct check *c, enum dense_form form)
{
    const size_t w_stride = dense_row_bytes(form, K) / sizeof(uint16_t);
    uint16_t *host = calloc(1, x_bytes() + w_bytes());
    if (host == NULL)
        return cudaErrorMemoryAllocation;
    uint16_t *w = host + x_bytes() / sizeof(*host);
    fill(host, M, dense_act_stride(K), form, 1);
    fill(w, N, w_stride, form, 2);
    int code = (int)cudaMemcpy(c->x, host, x_bytes(), cudaMemcpyHostToDevice);
    if (code == 0)
        code = (int)cudaMemcpy(c->w, w, w_bytes(), cudaMemcpyHostToDevice);
    free(host);
    return code;
}

/* out[m, N] of rows [row, row + m); NaN where the kernel wrote nothing. */
static int multiply(const struct check *c, launch_fn *launch, enum dense_form form, bool split,
                    uint32_t row, uint32_t m, float *out)
{
    const uint32_t whole[2] = {0, K};
    struct dense_job job = {
        .parts = {{.w = c->w, .y = c->y, .y_stride = N, .n = N}},
        .n_parts = 1,
        .x = c->x + row * dense_act_stride(K),
        .x_stride = dense_act_stride(K),
        .m = m,
        .k = K,
        .w_row_bytes = dense_row_bytes(form, K),
        .slices = split ? dense_slices_of(K) : dense_slices_from(whole, 1),
    };
    int code = (int)cudaMemset(c->y, 0xFF, sizeof(c->own));
    if (code == 0)
        code = launch(NULL, form, &job);
    return code != 0
               ? code
               : (int)cudaMemcpy(out, c->y, (size_t)m * N * sizeof(*out), cudaMemcpyDeviceToHost);
}

static bool is_near(const struct check *c)
{
    for (uint32_t i = 0; i < M * N; i++)
        if (!(fabsf(c->whole[i] - c->own[i]) <= MOST_APART))
            return false;
    return true;
}

static bool has_same_bits(const void *a, const void *b, size_t n_bytes)
{
    return memcmp(a, b, n_bytes) == 0;
}

/* Checks that the rows from the second on, and the last row alone, keep their bits. */
static int check_places(struct check *c, enum dense_form form, bool split, bool *out_same)
{
    static const uint32_t first[] = {1, M - 1};
    int code = 0;
    *out_same = true;
    for (uint32_t i = 0; code == 0 && i < sizeof(first) / sizeof(first[0]); i++) {
        uint32_t m = M - first[i];
        code = multiply(c, c->wgmma, form, split, first[i], m, c->part);
        *out_same =
            *out_same && has_same_bits(c->part, c->whole + first[i] * N, m * N * sizeof(float));
    }
    return code;
}

/* The job of all rows along one chain. */
static struct dense_job whole_job(const struct check *c, enum dense_form form)
{
    const uint32_t whole[2] = {0, K};
    return (struct dense_job){.n_parts = 1,
                              .x = c->x,
                              .x_stride = dense_act_stride(K),
                              .m = M,
                              .k = K,
                              .w_row_bytes = dense_row_bytes(form, K),
                              .slices = dense_slices_from(whole, 1)};
}

/* Checks that a product adds to a residual sum. Before, the sum is c->own. */
static int check_sum(struct check *c, enum dense_form form, bool *out_same)
{
    struct dense_job job = whole_job(c, form);
    job.parts[0] = (struct dense_part){
        .w = c->w, .y = c->y, .y_stride = N, .sum = c->y, .sum_stride = N, .n = N};
    int code = (int)cudaMemcpy(c->y, c->own, sizeof(c->own), cudaMemcpyHostToDevice);
    if (code == 0)
        code = c->wgmma(NULL, form, &job);
    if (code == 0)
        code = (int)cudaMemcpy(c->part, c->y, sizeof(c->part), cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; code == 0 && i < M * N; i++)
        *out_same = *out_same && c->part[i] == c->own[i] + c->whole[i];
    return code;
}

/* Checks gate and up as one product: rows [0, PAIR) and [PAIR, 2 · PAIR) of the matrix. */
static int check_gated(struct check *c, enum dense_form form, bool *out_same)
{
    uint16_t found[M * PAIR_STRIDE];
    struct dense_job job = whole_job(c, form);
    job.n_parts = 2;
    job.gated = 1;
    job.activation = ACTIVATION_SILU;
    job.half = (uint16_t *)c->y;
    job.parts[0] = (struct dense_part){.w = c->w, .n = PAIR};
    job.parts[1] = (struct dense_part){.w = c->w + PAIR * job.w_row_bytes, .n = PAIR};
    int code = (int)cudaMemset(c->y, 0xFF, sizeof(c->own));
    if (code == 0)
        code = c->gated(NULL, form, &job);
    if (code == 0)
        code = (int)cudaMemcpy(found, c->y, sizeof(found), cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; code == 0 && i < M * PAIR_STRIDE; i++) {
        const float *row = c->whole + i / PAIR_STRIDE * N, *gate = row + i % PAIR_STRIDE;
        uint32_t wanted = 0;
        if (i % PAIR_STRIDE < PAIR)
            wanted = act_half(dense_gated(gate[0], gate[PAIR], ACTIVATION_SILU), form);
        *out_same = *out_same && found[i] == wanted;
    }
    return code;
}

/* Checks what the products do beside multiplying. c->own and c->whole are those of the form. */
static int check_ends(struct check *c, enum dense_form form, const char **out_why_not)
{
    bool same = true;
    int code = check_sum(c, form, &same);
    if (code == 0)
        code = check_gated(c, form, &same);
    if (code == 0 && !same)
        *out_why_not = "wgmma's sums or gated results differ from those of separate operations";
    return code;
}

static int check_form(struct check *c, enum dense_form form, bool split, const char **out_why_not)
{
    bool same = false;
    int code = upload(c, form);
    if (code == 0)
        code = multiply(c, cuda_launch_dense_prompt, form, split, 0, M, c->own);
    if (code == 0)
        code = multiply(c, c->wgmma, form, split, 0, M, c->whole);
    if (code == 0)
        code = check_places(c, form, split, &same);
    if (code == 0)
        code = multiply(c, cuda_launch_dense_wgmma, form, split, 0, M, c->part);
    if (code == 0 && !is_near(c))
        *out_why_not = "wgmma's results differ from those of our tiled kernel";
    else if (code == 0 && !same)
        *out_why_not = "wgmma's bits depend on a row's place";
    else if (code == 0 && !has_same_bits(c->part, c->whole, sizeof(c->part)))
        *out_why_not = "wgmma's bits depend on the copy engine";
    return code;
}

static int run_check(struct check *c, const char **out_why_not)
{
    int code = (int)cudaMalloc((void **)&c->x, x_bytes());
    if (code == 0)
        code = (int)cudaMalloc((void **)&c->w, w_bytes());
    if (code == 0)
        code = (int)cudaMalloc((void **)&c->y, sizeof(c->own));
    if (code == 0)
        code = check_form(c, DENSE_BF16, false, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_ends(c, DENSE_BF16, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_form(c, DENSE_F16, true, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_form(c, DENSE_F16, false, out_why_not);
    if (code == 0 && *out_why_not == NULL)
        code = check_ends(c, DENSE_F16, out_why_not);
    return code;
}

static int launch_ring(void *stream, enum dense_form form, const struct dense_job *job)
{
    return cuda_launch_dense_ring(stream, form, job, 1);
}

static int launch_ring_gated(void *stream, enum dense_form form, const struct dense_job *job)
{
    return cuda_launch_dense_ring_gated(stream, form, job, 1);
}

static int check_wgmma(uint32_t index, const char **out_why_not, struct error *err)
{
    struct check *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", index);
    bool by_engine = table_cuda_fetch() == CUDA_FETCH_ENGINE;
    c->wgmma = by_engine ? launch_ring : cuda_launch_dense_wgmma;
    c->gated = by_engine ? launch_ring_gated : cuda_launch_dense_wgmma_gated;
    int code = run_check(c, out_why_not);
    void *const memory[] = {c->x, c->w, c->y};
    free(c);
    return prompts_end_check_cuda(index, code, memory, sizeof(memory) / sizeof(memory[0]),
                                  "the check of wgmma could not be run", out_why_not, err);
}

/* Sets *out_is_built if this build has wgmma code for the current device. That code is for compute
 * capability 9.0a alone. The build has no PTX of it that a driver could compile for another
 * device. */
static int wgmma_is_built(uint32_t index, bool *out_is_built, struct error *err)
{
    uint32_t told = 0;
    void *on_device = NULL;
    int rc = cuda_check(err, index, "wgmma", cudaMalloc(&on_device, sizeof(told)));
    if (rc != 0)
        return rc;
    rc = cuda_check(err, index, "wgmma", cuda_launch_wgmma_is_built(NULL, on_device));
    if (rc == 0)
        rc = cuda_check(err, index, "wgmma",
                        cudaMemcpy(&told, on_device, sizeof(told), cudaMemcpyDeviceToHost));
    if (!cuda_is_lost(index))
        cuda_note(index, cudaFree(on_device));
    *out_is_built = told == 1;
    return rc;
}

static const char *const not_hopper = "wgmma needs compute capability 9.0";

static int capability_of(uint32_t index, int *out_major, int *out_minor, struct error *err)
{
    int rc = cuda_check(
        err, index, "wgmma",
        cudaDeviceGetAttribute(out_major, cudaDevAttrComputeCapabilityMajor, (int)index));
    return rc != 0 ? rc
                   : cuda_check(err, index, "wgmma",
                                cudaDeviceGetAttribute(out_minor, cudaDevAttrComputeCapabilityMinor,
                                                       (int)index));
}

/* Fails if the user chose wgmma by `variable` and this build does not have it. */
static int need_built(uint32_t index, const char *variable, struct error *err)
{
    bool is_built = false;
    int rc = wgmma_is_built(index, &is_built, err);
    if (rc == 0 && !is_built)
        rc = error_set(err, STATUS_FAILED_PRECONDITION,
                       "%s=wgmma: cuda:%u has it, but this build is not for 90a", variable, index);
    return rc;
}

static int demand_wgmma(uint32_t index, struct error *err)
{
    int rc = need_built(index, "SLUICE_CUDA_PROMPTS", err);
    return rc != 0 ? rc : cuda_check(err, index, "shared memory", cuda_dense_allow_wgmma());
}

/* Fails if `choice` needs the copy engine and the driver cannot describe matrices for the engine.
 */
static int demand_engine(uint32_t index, const char *choice, struct error *err)
{
    if (!tensor_map_is_known())
        return error_set(err, STATUS_FAILED_PRECONDITION,
                         "%s: cuda:%u needs a driver of CUDA 12.0 or newer", choice, index);
    return cuda_check(err, index, "shared memory", cuda_dense_allow_ring());
}

/* Fails if the user made a choice that is not available; no other code replaces it. */
static int demand_choices(const struct device_cuda *device, struct error *err)
{
    uint32_t index = device->base.index;
    bool multiplies = device->prompts == CUDA_PROMPTS_AUTO || device->prompts == CUDA_PROMPTS_WGMMA;
    int rc = 0;
    if (device->attention == CUDA_ATTENTION_WGMMA)
        rc = need_built(index, "SLUICE_CUDA_ATTENTION", err);
    if (rc == 0 && device->fp8 == CUDA_FP8_WGMMA)
        rc = need_built(index, "SLUICE_CUDA_FP8", err);
    if (rc == 0 && device->fp8 == CUDA_FP8_WGMMA)
        rc = demand_engine(index, "SLUICE_CUDA_FP8=wgmma", err);
    if (rc == 0 && device->prompts == CUDA_PROMPTS_WGMMA)
        rc = demand_wgmma(index, err);
    if (rc == 0 && multiplies && device->fetch == CUDA_FETCH_ENGINE)
        rc = demand_engine(index, "SLUICE_CUDA_FETCH=engine", err);
    return rc;
}

/* The checks that "auto" runs. */
enum trial { TRY_PRODUCTS, TRY_ATTENTION, TRY_FP8, N_TRIALS };

static int try_fp8(uint32_t index, const char **out_why_not, struct error *err)
{
    if (!tensor_map_is_known()) {
        *out_why_not = "wgmma of fp8 needs a driver of CUDA 12.0 or newer";
        return 0;
    }
    int rc = cuda_check(err, index, "shared memory", cuda_dense_allow_ring());
    return rc == 0 ? fp8_check_cuda(index, out_why_not, err) : rc;
}

static int try_wgmma(uint32_t index, enum trial trial, const char **out_why_not, struct error *err)
{
    bool is_built = false;
    int rc = wgmma_is_built(index, &is_built, err);
    if (rc == 0 && !is_built)
        *out_why_not = "this build has no wgmma: it is not for 90a";
    if (rc != 0 || !is_built)
        return rc;
    if (trial == TRY_ATTENTION)
        return attention_check_cuda(index, out_why_not, err);
    if (trial == TRY_FP8)
        return try_fp8(index, out_why_not, err);
    rc = cuda_check(err, index, "shared memory", cuda_dense_allow_wgmma());
    return rc == 0 ? check_wgmma(index, out_why_not, err) : rc;
}

/* A check runs once per process and device. */
static pthread_mutex_t tried_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool done;
    const char *why_not;
} tried[MAX_DEVICES][N_TRIALS];

static int try_once(uint32_t index, enum trial trial, const char **out_why_not, struct error *err)
{
    int rc = 0;
    if (index >= MAX_DEVICES)
        return try_wgmma(index, trial, out_why_not, err);
    pthread_mutex_lock(&tried_lock);
    if (!tried[index][trial].done) {
        rc = try_wgmma(index, trial, &tried[index][trial].why_not, err);
        tried[index][trial].done = rc == 0;
    }
    *out_why_not = tried[index][trial].why_not;
    pthread_mutex_unlock(&tried_lock);
    return rc;
}

static int refuse_wgmma(uint32_t index, const char *variable, int major, int minor,
                        struct error *err)
{
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "%s=wgmma needs compute capability 9.0 and a build for 90a; cuda:%u has %d.%d",
                     variable, index, major, minor);
}

/* Ends "auto": attention by wgmma if `why_not` is NULL. */
static void settle_attention(struct device_cuda *device, const char *why_not)
{
    device->why_no_attention = why_not;
    device->attention = why_not == NULL ? CUDA_ATTENTION_WGMMA : CUDA_ATTENTION_MMA;
    table_cuda_settle_attention(device->attention);
}

/* The same for products of f8 weights. */
static void settle_fp8(struct device_cuda *device, const char *why_not)
{
    device->why_no_fp8 = why_not;
    device->fp8 = why_not == NULL ? CUDA_FP8_WGMMA : CUDA_FP8_OWN;
    table_cuda_settle_fp8(device->fp8);
}

int prompts_open_cuda(struct device_cuda *device, struct error *err)
{
    uint32_t index = device->base.index;
    int major = 0, minor = 0;
    device->prompts = table_cuda_prompts();
    device->attention = table_cuda_attention();
    device->fp8 = table_cuda_fp8();
    device->fetch = table_cuda_fetch();
    bool attends = device->attention != CUDA_ATTENTION_MMA;
    bool multiplies = device->prompts == CUDA_PROMPTS_AUTO || device->prompts == CUDA_PROMPTS_WGMMA;
    if (!attends && !multiplies && device->fp8 == CUDA_FP8_OWN)
        return 0;
    int rc = capability_of(index, &major, &minor, err);
    if (rc != 0 || (major == 9 && minor == 0))
        return rc;
    if (device->attention == CUDA_ATTENTION_WGMMA)
        return refuse_wgmma(index, "SLUICE_CUDA_ATTENTION", major, minor, err);
    if (device->prompts == CUDA_PROMPTS_WGMMA)
        return refuse_wgmma(index, "SLUICE_CUDA_PROMPTS", major, minor, err);
    if (device->fp8 == CUDA_FP8_WGMMA)
        return refuse_wgmma(index, "SLUICE_CUDA_FP8", major, minor, err);
    if (attends)
        settle_attention(device, not_hopper);
    if (device->fp8 == CUDA_FP8_AUTO)
        settle_fp8(device, not_hopper);
    if (multiplies) {
        device->why_no_wgmma = not_hopper;
        device->prompts = CUDA_PROMPTS_OWN;
        table_cuda_settle(device->prompts);
    }
    return 0;
}

int prompts_try_cuda(struct device_cuda *device, struct error *err)
{
    uint32_t index = device->base.index;
    const char *why_no_attention = NULL, *why_no_fp8 = NULL;
    int rc = demand_choices(device, err);
    if (rc == 0 && device->attention == CUDA_ATTENTION_AUTO) {
        rc = try_once(index, TRY_ATTENTION, &why_no_attention, err);
        if (rc == 0)
            settle_attention(device, why_no_attention);
    }
    if (rc == 0 && device->fp8 == CUDA_FP8_AUTO) {
        rc = try_once(index, TRY_FP8, &why_no_fp8, err);
        if (rc == 0)
            settle_fp8(device, why_no_fp8);
    }
    if (rc != 0 || device->prompts != CUDA_PROMPTS_AUTO)
        return rc;
    rc = try_once(index, TRY_PRODUCTS, &device->why_no_wgmma, err);
    if (rc != 0)
        return rc;
    device->prompts = device->why_no_wgmma == NULL ? CUDA_PROMPTS_WGMMA : CUDA_PROMPTS_OWN;
    table_cuda_settle(device->prompts);
    return 0;
}
