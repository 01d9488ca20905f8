/* Tests of linear layers of every format and kernel set. The sets ref, avx2, avx512 and amx give
 * the same bits, for any other rows, threads and ranks. On a processor without AMX, amx runs over a
 * model of its instructions. Results are close to float64. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/comm.h"
#include "kernels/dequant.h"
#include "tests/support/names.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const enum dtype all_types[] = {
    DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q8_0,  DTYPE_Q4_0, DTYPE_Q4_1,
    DTYPE_Q5_0, DTYPE_Q5_1,   DTYPE_Q2_K,   DTYPE_Q3_K,  DTYPE_Q4_K, DTYPE_Q5_K,
    DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4,
};
enum { N_TYPES = sizeof(all_types) / sizeof(all_types[0]) };

static const struct shape {
    uint32_t m, n, k;
} shapes[] = {
    {1, 1, 32},     {1, 17, 64},   {2, 33, 96},    {3, 16, 160},     {4, 48, 256},
    {5, 31, 576},   {6, 47, 32},   {7, 65, 512},   {13, 96, 768},    {11, 40, 512},
    {67, 35, 1536}, {1, 192, 576}, {19, 50, 2304}, {103, 133, 1280},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Returns the error of y against float64 over the dequantized weights, in the 2-norm. With
 * `rounded`, activations are rounded to bf16. The error is relative to y, or to the random size of
 * its terms where they cancel. */
static double error_over(const float *y, const float *x, bool rounded, const uint8_t *raw,
                         enum dtype type, const struct shape *s)
{
    float *w = malloc(s->k * sizeof(*w));
    double difference = 0, norm = 0;
    for (uint32_t n = 0; n < s->n; n++) {
        assert_true(dtype_to_f32(type, raw + n * dtype_row_bytes(type, s->k), s->k, w));
        for (uint32_t m = 0; m < s->m; m++) {
            double exact = 0, squares = 0;
            for (uint32_t k = 0; k < s->k; k++) {
                float xk = x[(size_t)m * s->k + k];
                double term = (double)w[k] *
                              (double)(rounded ? dtype_bf16_to_f32(dtype_f32_to_bf16(xk)) : xk);
                exact += term;
                squares += term * term;
            }
            double d = (double)y[(size_t)m * s->n + n] - exact;
            difference += d * d;
            norm += fmax(exact * exact, squares);
        }
    }
    free(w);
    return sqrt(difference / norm);
}

/* The error that is to be below bound_of(): BF16 weights take activations rounded to bf16. */
static double error_of(const float *y, const float *x, const uint8_t *raw, enum dtype type,
                       const struct shape *s)
{
    return error_over(y, x, type == DTYPE_BF16, raw, type, s);
}

/* A chain of K/8 FMAs has an error of about √K · 2^-26. */
static double bound_of(enum dtype type)
{
    return dtype_is_quantized(type) ? 0.03 : 1e-6;
}

/* Returns true if results may differ from the set before. Only BF16 may differ, and only where the
 * set's numerics differ. */
static bool starts_over(const char *const *set, const char *numerics, enum dtype type)
{
    if (set == linear_sets())
        return true;
    struct rig before = rig_open(set[-1], 1);
    bool differs = strcmp(before.ops->numerics, numerics) != 0;
    rig_close(&before);
    return differs && type == DTYPE_BF16;
}

static void check_shape(enum dtype type, const struct shape *s, struct random *r)
{
    float *x = random_floats(r, (size_t)s->m * s->k, 0.02f);
    uint8_t *raw = random_rows(r, type, s->n, s->k);
    struct weight_desc desc = column_desc(type, s->n, s->k);
    size_t n_bytes = (size_t)s->m * s->n * sizeof(float);
    float *first = malloc(n_bytes), *y = malloc(n_bytes), *row = malloc(s->n * sizeof(float));
    char what[96];
    for (const char *const *set = linear_sets(); *set != NULL; set++) {
        for (uint32_t threads = 1; threads <= 3; threads++) {
            struct rig rig = rig_open(*set, threads);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            run_linear_op(&rig, w, x, s->m, s->k, y);
            snprintf(what, sizeof(what), "%s %s m=%u n=%u k=%u, %u threads", *set, dtype_name(type),
                     s->m, s->n, s->k, threads);
            if (threads == 1 && starts_over(set, rig.ops->numerics, type)) {
                memcpy(first, y, n_bytes);
                double error = error_of(y, x, raw, type, s);
                if (!(error < bound_of(type)))
                    fail_msg("%s: relative error %g", what, error);
                if (type == DTYPE_BF16 && s->m * s->n > 50) /* 2^-9 at most for each of many */
                    assert_true(error_over(y, x, false, raw, type, s) < 0x1p-8);
            }
            assert_same_bits(first, y, n_bytes, what);
            if (threads == 1 && s->m > 1)
                for (uint32_t m = 0; m < s->m; m += 3) { /* the same row alone */
                    run_linear_op(&rig, w, x + (size_t)m * s->k, 1, s->k, row);
                    assert_same_bits(first + (size_t)m * s->n, row, s->n * sizeof(float), what);
                }
            free(w);
            rig_close(&rig);
        }
    }
    free(row);
    free(y);
    free(first);
    free(raw);
    free(x);
}

static void test_linear_of_every_type_and_set_gives_the_same_bits(void **state)
{
    (void)state;
    struct random r = {1};
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < N_SHAPES; i++)
            if (shapes[i].k % dtype_block_elems(all_types[t]) == 0 && grid_takes((size_t)(t + i)))
                check_shape(all_types[t], &shapes[i], &r);
}

static void test_dense_with_a_k_of_no_multiple_is_padded(void **state)
{
    (void)state;
    static const struct shape odd[] = {{3, 5, 1}, {7, 9, 31}, {2, 4, 47}, {5, 3, 81}};
    struct random r = {2};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 4; i++)
            check_shape(all_types[t], &odd[i], &r);
}

/* s of a row by the contract's formula. */
static float activation_scale(const float *x, uint32_t n)
{
    float lanes[16] = {0}, max = 0.0f;
    for (uint32_t k = 0; k < n; k++) {
        lanes[k % 16] += fabsf(x[k]);
        max = fmaxf(max, fabsf(x[k]));
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return fmaxf(fmaxf(lanes[0] / (float)n * 0.034539763f, max / 32000.0f), 1e-30f);
}

/* Independent of the packed form: T from the raw blocks by the contract's formulas. */
static void test_integer_linear_equals_the_contract_formula(void **state)
{
    (void)state;
    enum { M = 5, N = 19, K = 576 };
    struct random r = {3};
    float *x = random_floats(&r, M * K, 0.03f), y[M * N];
    uint8_t *raw = random_rows(&r, DTYPE_Q4_1, N, K);
    struct rig rig = rig_open("auto", 2);
    struct weight_desc desc = column_desc(DTYPE_Q4_1, N, K);
    struct weight *w = pack_weight(rig.ops, &desc, raw);
    run_linear_op(&rig, w, x, M, K, y);
    for (uint32_t m = 0; m < M; m++) {
        float s = activation_scale(x + (size_t)m * K, K), inv = 1.0f / s;
        for (uint32_t n = 0; n < N; n++) {
            const uint8_t *block = raw + (size_t)n * K / 32 * 20;
            float d[K / 32], mins[K / 32], top = 0.0f;
            for (uint32_t b = 0; b < K / 32; b++) {
                d[b] = dtype_f16_to_f32((uint16_t)(block[b * 20] | block[b * 20 + 1] << 8));
                mins[b] = dtype_f16_to_f32((uint16_t)(block[b * 20 + 2] | block[b * 20 + 3] << 8));
                top = fmaxf(top, fmaxf(fabsf(mins[b]), fabsf(mins[b] + 15.0f * d[b])));
            }
            float u = top / 2032.0f;
            int64_t total = 0;
            for (uint32_t k = 0; k < K; k++) {
                uint32_t b = k / 32, i = k % 32;
                int q = block[b * 20 + 4 + i % 16] >> i / 16 * 4 & 15;
                int64_t weight = (q - 8) * (int64_t)rintf(d[b] / u) +
                                 (int64_t)rintf((mins[b] + 8.0f * d[b]) / u);
                total += weight * (int64_t)rintf(x[m * K + k] * inv);
            }
            assert_true(y[m * N + n] == (float)total * (u * s));
        }
    }
    free(w);
    rig_close(&rig);
    free(raw);
    free(x);
}

/* Sets the f16 scale and offset of a block, where the type has them. */
static void set_scales(uint8_t *block, enum dtype type, uint16_t d, uint16_t m)
{
    if (type == DTYPE_MXFP4) {
        block[0] = 126; /* 2^-2 */
        return;
    }
    size_t at = type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
    memcpy(block + at, &d, 2);
    if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q2_K || type == DTYPE_Q5_K)
        memcpy(block + at + 2, &m, 2);
}

static const enum dtype super_types[] = {DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q2_K,
                                         DTYPE_Q3_K,   DTYPE_Q5_K,   DTYPE_Q6_K,
                                         DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
enum { N_SUPER_TYPES = sizeof(super_types) / sizeof(super_types[0]) };

/* W of a whole row by the formula of super-blocks; its unit. */
static float super_row(enum dtype type, const uint8_t *raw, uint32_t k, int64_t *w)
{
    struct dequant_run run;
    float top = 0.0f;
    for (uint32_t i = 0; i < k / 32; i++) {
        dequant_run_exact(type, raw, i, &run);
        top = fmaxf(top, fmaxf(fabsf(run.d), fabsf(run.m)));
    }
    float u = top / (type == DTYPE_IQ4_NL   ? 255.0f
                     : type == DTYPE_IQ4_XS ? 2047.0f
                     : type == DTYPE_MXFP4  ? 2048.0f
                                            : 8191.0f);
    const int8_t *table = dequant_table(type);
    for (uint32_t i = 0; i < k; i++) {
        dequant_run_exact(type, raw, i / 32, &run);
        int64_t isd = (int64_t)rintf(run.d / u), ism = (int64_t)rintf(run.m / u);
        int h = i % 32 / 16, code = run.q[i % 32],
            q = table != NULL ? table[code] : code - (int)dequant_zero(type);
        w[i] = isd * run.scales[h] * q + ism * run.mins[h];
    }
    return u;
}

static void test_linear_of_super_blocks_equals_the_contract_formula(void **state)
{
    (void)state;
    enum { M = 9, N = 35, K = 512 };
    struct random r = {9};
    for (int t = 0; t < N_SUPER_TYPES; t++) {
        enum dtype type = super_types[t];
        float *x = random_floats(&r, M * K, 0.03f), y[M * N];
        uint8_t *raw = random_rows(&r, type, N, K);
        int64_t w_row[K];
        struct rig rig = rig_open("auto", 2);
        struct weight_desc desc = column_desc(type, N, K);
        struct weight *w = pack_weight(rig.ops, &desc, raw);
        run_linear_op(&rig, w, x, M, K, y);
        for (uint32_t n = 0; n < N; n++) {
            float u = super_row(type, raw + n * dtype_row_bytes(type, K), K, w_row);
            for (uint32_t m = 0; m < M; m++) {
                float s = activation_scale(x + (size_t)m * K, K), inv = 1.0f / s;
                int64_t total = 0;
                for (uint32_t k = 0; k < K; k++)
                    total += w_row[k] * (int64_t)rintf(x[m * K + k] * inv);
                assert_true(y[m * N + n] == (float)total * (u * s));
            }
        }
        free(w);
        rig_close(&rig);
        free(raw);
        free(x);
    }
}

/* The last rows of a batch alone, however many, have the bits they have in the whole. */
static void test_linear_of_any_number_of_rows_gives_the_same_bits(void **state)
{
    (void)state;
    enum { M = 27, N = 83, K = 256 };
    struct random r = {10};
    float *x = random_floats(&r, M * K, 0.02f), *whole = malloc(M * N * 4),
          *part = malloc(M * N * 4);
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        for (int t = 0; t < N_TYPES; t++) {
            uint8_t *raw = random_rows(&r, all_types[t], N, K);
            struct weight_desc desc = column_desc(all_types[t], N, K);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            run_linear_op(&rig, w, x, M, K, whole);
            for (uint32_t m = 1; m < M; m++) {
                if (!grid_takes(m + (size_t)t))
                    continue;
                run_linear_op(&rig, w, x + (size_t)(M - m) * K, m, K, part);
                assert_same_bits(whole + (size_t)(M - m) * N, part, (size_t)m * N * 4,
                                 dtype_name(all_types[t]));
            }
            free(w);
            free(raw);
        }
        rig_close(&rig);
    }
    free(part);
    free(whole);
    free(x);
}

struct rank_job {
    const char *set;
    enum dtype type;
    const struct shape *s;
    const float *x;
    const uint8_t *raw;
    uint32_t tp, index;
    struct comm *comm;
    float *y;
};

static void *run_rank(void *arg)
{
    struct rank_job *job = arg;
    const struct shape *s = job->s;
    struct rig rig = rig_open(job->set, 1);
    struct weight_desc desc = row_desc(job->type, s->n, s->k, job->tp, job->index);
    struct weight *w = pack_weight(rig.ops, &desc, job->raw);
    uint32_t begin = segments_begin(&desc.k_segments), len = segments_len(&desc.k_segments);
    struct act *act = make_act(&rig, s->m, len);
    struct tensor x = {(void *)(uintptr_t)(job->x + begin), DTYPE_F32, s->m, len, s->k};
    struct tensor y = tensor_view(job->y, DTYPE_F32, s->m, s->n);
    float *scratch = poisoned((size_t)s->m * s->n);
    struct tensor partial = tensor_view(scratch, DTYPE_F32, s->m, s->n);
    assert_int_equal(
        op_act_prepare(rig.stream, act, &x, weight_act_kind(w), &desc.k_segments, job->comm), 0);
    assert_int_equal(op_linear_row(rig.stream, &y, act, w, &partial, job->comm), 0);
    rig.ops->act_destroy(act);
    free(scratch);
    free(w);
    rig_close(&rig);
    return NULL;
}

static void run_ranks(struct rank_job base, uint32_t tp, float *out)
{
    struct comm *comms[8] = {NULL};
    struct rank_job jobs[8];
    pthread_t threads[8];
    struct error err = {0};
    size_t n = (size_t)base.s->m * base.s->n;
    assert_int_equal(comm_shm_create(tp, 4096, comms, &err),
                     0); /* small, so that messages need several pieces */
    for (uint32_t i = 0; i < tp; i++) {
        jobs[i] = base;
        jobs[i].tp = tp;
        jobs[i].index = i;
        jobs[i].comm = comms[i];
        jobs[i].y = poisoned(n);
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < tp; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < tp; i++) {
        assert_same_bits(jobs[0].y, jobs[i].y, n * sizeof(float), "ranks");
        comm_destroy(comms[i]);
    }
    memcpy(out, jobs[0].y, n * sizeof(float));
    for (uint32_t i = 0; i < tp; i++)
        free(jobs[i].y);
}

static void test_row_linear_over_ranks_equals_one_rank(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_BF16, DTYPE_Q4_1, DTYPE_Q8_0,
                                       DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q5_0, DTYPE_Q4_0,
                                       DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q5_K};
    static const struct shape row_shapes[] = {
        {1, 33, 256}, {5, 64, 512}, {3, 49, 1536}, {2, 20, 768}};
    struct random r = {4};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < sizeof(row_shapes) / sizeof(row_shapes[0]); i++) {
            const struct shape *s = &row_shapes[i];
            float *x = random_floats(&r, (size_t)s->m * s->k, 0.02f);
            uint8_t *raw = random_rows(&r, types[t], s->n, s->k);
            size_t n_bytes = (size_t)s->m * s->n * sizeof(float);
            float *one = malloc(n_bytes), *many = malloc(n_bytes);
            for (const char *const *set = linear_sets(); *set != NULL; set++) {
                struct rank_job job = {*set, types[t], s, x, raw, 1, 0, NULL, NULL};
                run_ranks(job, 1, one);
                double error = error_of(one, x, raw, types[t], s);
                assert_true(error < bound_of(types[t]));
                for (uint32_t tp = 2; tp <= 8; tp *= 2) {
                    run_ranks(job, tp, many);
                    assert_same_bits(one, many, n_bytes, dtype_name(types[t]));
                }
            }
            free(many);
            free(one);
            free(raw);
            free(x);
        }
}

/* Every weight and activation is as large as the format allows, all of one sign. The sums come near
 * their bounds and must still equal 64-bit arithmetic. */
static void test_integer_linear_at_the_edge_of_its_range_does_not_overflow(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        uint32_t k;
    } edges[] = {{DTYPE_Q4_1, 8192},     {DTYPE_Q4_1, 32768},    {DTYPE_Q8_0, 8192},
                 {DTYPE_Q8_0, 32768},    {DTYPE_Q8_0, 131072},   {DTYPE_Q4_0, 32768},
                 {DTYPE_Q5_0, 131072},   {DTYPE_Q5_1, 131072},   {DTYPE_Q2_K, 131072},
                 {DTYPE_Q3_K, 131072},   {DTYPE_Q5_K, 131072},   {DTYPE_Q6_K, 131072},
                 {DTYPE_IQ4_NL, 131072}, {DTYPE_IQ4_XS, 131072}, {DTYPE_MXFP4, 131072},
                 {DTYPE_IQ4_XS, 8192},   {DTYPE_MXFP4, 32768}};
    enum { M = 15, N = 3, KINDS = 5 }; /* each kind three times: many rows use another path */
    for (size_t e = 0; e < sizeof(edges) / sizeof(edges[0]); e++) {
        uint32_t k = edges[e].k;
        size_t block = dtype_block_bytes(edges[e].type), row = dtype_row_bytes(edges[e].type, k);
        uint8_t *raw = malloc(row * N);
        uint16_t d = dtype_f32_to_f16(0.25f), half = dtype_f32_to_f16(-4.0f);
        for (size_t at = 0; at < row * N; at += block) {
            int n = (int)(at / row);
            memset(raw + at, n == 0 ? 0xFF : n == 1 ? 0x00 : 0x80, block);
            if (edges[e].type == DTYPE_Q8_0 && n == 0)
                memset(raw + at, 0x7F, block);
            if (edges[e].type == DTYPE_Q6_K && n == 1)
                memset(raw + at + 192, 0x80, 16); /* −128·−32: the largest W */
            set_scales(raw + at, edges[e].type, d, half);
        }
        float *x = malloc((size_t)M * k * sizeof(*x));
        for (uint32_t i = 0; i < k; i++) {
            x[i] = 1.0f;                                  /* all a = 29 */
            x[k + i] = i % 2 == 0 ? 1.0f : -1.0f;         /* cancels */
            x[2 * k + i] = i % 8 == 0 ? 1.0f : 0.001f;    /* an eighth at the outlier threshold */
            x[3 * (size_t)k + i] = i == 7 ? -1.0f : 0.0f; /* a = 32000 in one column */
            x[4 * (size_t)k + i] = i < k * 0.22797 ? 1.0f : 0.0f; /* a = 127, then 0 */
        }
        for (size_t m = KINDS; m < M; m++)
            memcpy(x + m * k, x + (m - KINDS) * k, k * sizeof(*x));
        float want[M * N], y[M * N];
        for (const char *const *set = linear_sets(); *set != NULL; set++) {
            struct rig rig = rig_open(*set, 1);
            struct weight_desc desc = column_desc(edges[e].type, N, k);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            run_linear_op(&rig, w, x, M, k, y);
            if (set == linear_sets())
                memcpy(want, y, sizeof(y));
            assert_same_bits(want, y, sizeof(y), *set);
            struct shape s = {1, N, k};
            for (uint32_t i = 0; i < KINDS; i += 2)
                assert_true(error_of(y + i * N, x + (size_t)i * k, raw, edges[e].type, &s) < 0.01);
            free(w);
            rig_close(&rig);
        }
        free(x);
        free(raw);
    }
}

/* A row of activations reads each weight once: packed bytes are close to those of the file. */
static void test_packed_bytes_stay_near_those_of_the_file(void **state)
{
    (void)state;
    enum { N = 1024, K = 2048 };
    struct rig rig = rig_open("auto", 1);
    for (int t = 0; t < N_TYPES; t++) {
        enum dtype type = all_types[t];
        struct error err = {0};
        struct weight_desc desc = column_desc(type, N, K);
        double most = type == DTYPE_Q2_K    ? 1.20
                      : type == DTYPE_Q4_K  ? 1.12
                      : type == DTYPE_MXFP4 ? 1.07
                                            : 1.05;
        size_t file = dtype_row_bytes(type, K) * N, ours = weight_bytes(rig.ops, &desc, &err);
        if ((double)ours > most * (double)file)
            fail_msg("%s: %zu bytes packed, %zu in a file", dtype_name(type), ours, file);
    }
    rig_close(&rig);
}

static void test_weight_wider_than_the_sums_allow_is_refused(void **state)
{
    (void)state;
    struct rig rig = rig_open("auto", 1);
    struct error err = {0};
    struct weight_desc wide4 = column_desc(DTYPE_Q4_1, 1, 32768 + 32),
                       wide8 = column_desc(DTYPE_Q8_0, 1, 131072 + 32),
                       wide6 = column_desc(DTYPE_Q6_K, 1, 131072 + 256);
    assert_int_equal(weight_bytes(rig.ops, &wide4, &err), 0);
    assert_int_equal(err.status, STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "32768"));
    assert_int_equal(weight_bytes(rig.ops, &wide8, &err), 0);
    assert_non_null(strstr(err.message, "131072"));
    err = (struct error){0};
    assert_int_equal(weight_bytes(rig.ops, &wide6, &err), 0);
    assert_true(names_all(err.message, "Q6_K|131072"));
    rig_close(&rig);
}

static void test_rows_that_are_not_finite_give_nan_and_zero_rows_zero(void **state)
{
    (void)state;
    enum { M = 4, N = 16, K = 64 };
    struct random r = {5};
    uint8_t *raw = random_rows(&r, DTYPE_Q4_0, N, K);
    for (const char *const *set = linear_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        struct weight_desc desc = column_desc(DTYPE_Q4_0, N, K);
        struct weight *w = pack_weight(rig.ops, &desc, raw);
        float x[M * K] = {0}, y[M * N];
        x[0] = NAN;
        x[K + 3] = INFINITY;
        x[3 * K] = 1e-42f;
        run_linear_op(&rig, w, x, M, K, y);
        for (uint32_t n = 0; n < N; n++) {
            assert_true(isnan(y[n]) && isnan(y[N + n]));
            assert_true(y[2 * N + n] == 0.0f && fabsf(y[3 * N + n]) < 1e-30f);
        }
        free(w);
        rig_close(&rig);
    }
    free(raw);
}

static void test_pack_of_a_row_that_is_not_finite_names_the_row(void **state)
{
    (void)state;
    enum { N = 70, K = 256, BAD = 66 };
    struct random r = {6};
    struct rig rig = rig_open("auto", 1);
    for (int t = 0; t < N_TYPES; t++) {
        enum dtype type = all_types[t];
        uint8_t *raw = random_rows(&r, type, N, K);
        size_t row_bytes = dtype_row_bytes(type, K);
        uint8_t *row = raw + BAD * row_bytes;
        const uint16_t inf = type == DTYPE_BF16 || type == DTYPE_F32 ? 0x7F80 : 0x7C00;
        size_t at = type == DTYPE_Q2_K   ? 80
                    : type == DTYPE_Q3_K ? 108
                    : type == DTYPE_Q6_K ? 208
                    : type == DTYPE_F32  ? 2
                                         : 0;
        if (type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K ||
            type == DTYPE_Q6_K)
            memset(row, 0x7F, at > 0 ? at : row_bytes); /* no scale is zero */
        memcpy(row + at, &inf, sizeof(inf));
        if (type == DTYPE_MXFP4)
            row[0] = 0xFF; /* E8M0's NaN */
        struct weight_desc desc = column_desc(type, N, K);
        struct error err = {0};
        size_t n_bytes = weight_bytes(rig.ops, &desc, &err);
        void *memory = NULL;
        assert_int_equal(posix_memalign(&memory, 64, n_bytes), 0);
        memset(memory, 0, n_bytes);
        struct weight *w = NULL;
        assert_int_equal(weight_init(rig.ops, &desc, memory, &w, &err), 0);
        assert_int_equal(weight_pack_rows(rig.ops, w, 0, 64, raw, &err), 0);
        assert_int_equal(weight_pack_rows(rig.ops, w, 64, N - 64, raw + 64 * row_bytes, &err),
                         STATUS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, "row 66"));
        free(memory);
        free(raw);
    }
    rig_close(&rig);
}

static void test_f32_set_expands_every_format_and_is_close_to_float64(void **state)
{
    (void)state;
    struct random r = {7};
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 3; i < N_SHAPES; i += 2) {
            const struct shape *s = &shapes[i];
            if (s->k % dtype_block_elems(all_types[t]) != 0)
                continue;
            float *x = random_floats(&r, (size_t)s->m * s->k, 0.02f);
            uint8_t *raw = random_rows(&r, all_types[t], s->n, s->k);
            float *y = malloc((size_t)s->m * s->n * sizeof(*y));
            struct rig rig = rig_open("f32", 2);
            struct weight_desc desc = column_desc(all_types[t], s->n, s->k);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            run_linear_op(&rig, w, x, s->m, s->k, y);
            assert_true(error_over(y, x, false, raw, all_types[t], s) < 1e-6);
            free(w);
            rig_close(&rig);
            free(y);
            free(raw);
            free(x);
        }
}

/* A packed weight may be mapped elsewhere: moved bytes give the same results. */
static void test_packed_memory_is_position_independent(void **state)
{
    (void)state;
    enum { M = 3, N = 40, K = 256 };
    struct random r = {8};
    struct rig rig = rig_open("auto", 1);
    for (int t = 0; t < N_TYPES; t++) {
        struct error err = {0};
        float *x = random_floats(&r, M * K, 0.02f), a[M * N], b[M * N];
        uint8_t *raw = random_rows(&r, all_types[t], N, K);
        struct weight_desc desc = column_desc(all_types[t], N, K);
        struct weight *w = pack_weight(rig.ops, &desc, raw);
        size_t n_bytes = weight_bytes(rig.ops, &desc, &err);
        void *moved = NULL;
        assert_int_equal(posix_memalign(&moved, 4096, n_bytes), 0);
        run_linear_op(&rig, w, x, M, K, a);
        memcpy(moved, w, n_bytes);
        memset(w, 0, n_bytes);
        run_linear_op(&rig, moved, x, M, K, b);
        assert_same_bits(a, b, sizeof(a), dtype_name(all_types[t]));
        free(moved);
        free(w);
        free(raw);
        free(x);
    }
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_of_every_type_and_set_gives_the_same_bits),
        cmocka_unit_test(test_dense_with_a_k_of_no_multiple_is_padded),
        cmocka_unit_test(test_integer_linear_equals_the_contract_formula),
        cmocka_unit_test(test_linear_of_super_blocks_equals_the_contract_formula),
        cmocka_unit_test(test_linear_of_any_number_of_rows_gives_the_same_bits),
        cmocka_unit_test(test_row_linear_over_ranks_equals_one_rank),
        cmocka_unit_test(test_integer_linear_at_the_edge_of_its_range_does_not_overflow),
        cmocka_unit_test(test_packed_bytes_stay_near_those_of_the_file),
        cmocka_unit_test(test_weight_wider_than_the_sums_allow_is_refused),
        cmocka_unit_test(test_rows_that_are_not_finite_give_nan_and_zero_rows_zero),
        cmocka_unit_test(test_pack_of_a_row_that_is_not_finite_names_the_row),
        cmocka_unit_test(test_f32_set_expands_every_format_and_is_close_to_float64),
        cmocka_unit_test(test_packed_memory_is_position_independent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
