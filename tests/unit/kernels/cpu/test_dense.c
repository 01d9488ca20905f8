/* Tests of dense linears (kernels/cpu/dense.h). The contract's chains are computed again from
 * the raw rows. Covers numbers of every size, any cut of the rows, and tied embeddings. Another
 * test, test_linear.c, compares dense linears with float64 and over ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/cpu.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const enum dtype dense_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
enum { N_DENSE = 3 };

static float without_tiny(float x)
{
    return fabsf(x) < 0x1p-55f ? 0.0f : x;
}

/* Sum of a run as a tile of AMX adds it: a chain of even and a chain of odd columns. */
static float run_of_tile(const float *x, const float *w, uint32_t begin, uint32_t end)
{
    float chain[2] = {0.0f, 0.0f};
    for (uint32_t k = begin; k < end; k++)
        chain[k % 2] = fmaf(without_tiny(w[k]),
                            dtype_bf16_to_f32(dtype_f32_to_bf16(without_tiny(x[k]))), chain[k % 2]);
    return chain[0] + chain[1];
}

/* An output of a column weight by tiles: run after run, in one sum. */
static float contract_of_tiles(const float *x, const float *w, uint32_t k_total)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < k_total; k += ACT_RUN)
        sum += run_of_tile(x, w, k, k_total < k + ACT_RUN ? k_total : k + ACT_RUN);
    return sum;
}

/* An output: 8 segments of a chain each, added in pairs. */
static float contract(enum dtype type, const float *x, const float *w, uint32_t k_total)
{
    struct segments seg;
    struct error *none = NULL;
    float sum[N_SEGMENTS];
    bool there[N_SEGMENTS];
    assert_int_equal(segments_init(&seg, k_total, 1, 1, 0, none), 0);
    for (int s = 0; s < N_SEGMENTS; s++) {
        uint32_t begin = seg.bounds[s], end = seg.bounds[s + 1];
        there[s] = begin < end;
        sum[s] = 0.0f;
        for (uint32_t i = 0; type == DTYPE_BF16 && begin + i < end; i += 2) {
            for (uint32_t odd = 2; odd-- > 0;) {
                uint32_t k = begin + i + odd;
                if (k < end)
                    sum[s] = fmaf(without_tiny(w[k]),
                                  dtype_bf16_to_f32(dtype_f32_to_bf16(without_tiny(x[k]))), sum[s]);
            }
        }
        for (uint32_t k = begin; type != DTYPE_BF16 && k < end; k++)
            sum[s] = fmaf(w[k], x[k], sum[s]);
    }
    for (int width = 1; width < N_SEGMENTS; width *= 2)
        for (int s = 0; s < N_SEGMENTS; s += 2 * width) {
            if (there[s] && there[s + width])
                sum[s] += sum[s + width];
            else if (there[s + width])
                sum[s] = sum[s + width];
            there[s] = there[s] || there[s + width];
        }
    return sum[0];
}

static void check(enum dtype type, const float *x, const uint8_t *raw, uint32_t m, uint32_t n,
                  uint32_t k)
{
    float *want = malloc((size_t)m * n * sizeof(*want)), *y = malloc((size_t)m * n * sizeof(*y)),
          *w = malloc(k * sizeof(*w));
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        char what[96];
        struct rig rig = rig_open(*set, 2);
        bool tiles = type == DTYPE_BF16 && inner_of(rig.ops)->bf16_tile_rows > 0;
        for (uint32_t j = 0; j < n; j++) {
            assert_true(dtype_to_f32(type, raw + j * dtype_row_bytes(type, k), k, w));
            for (uint32_t i = 0; i < m; i++)
                want[(size_t)i * n + j] = tiles ? contract_of_tiles(x + (size_t)i * k, w, k)
                                                : contract(type, x + (size_t)i * k, w, k);
        }
        struct weight_desc desc = column_desc(type, n, k);
        struct weight *packed = pack_weight(rig.ops, &desc, raw);
        run_linear_op(&rig, packed, x, m, k, y);
        snprintf(what, sizeof(what), "%s %s m=%u n=%u k=%u", *set, dtype_name(type), m, n, k);
        assert_same_bits(want, y, (size_t)m * n * sizeof(*y), what);
        free(packed);
        rig_close(&rig);
    }
    free(w);
    free(y);
    free(want);
}

static void test_dense_linear_equals_the_contract_formula(void **state)
{
    (void)state;
    static const struct {
        uint32_t m, n, k;
    } shapes[] = {{1, 16, 1},    {2, 3, 2},    {5, 17, 31},    {12, 33, 33},  {14, 32, 100},
                  {25, 47, 255}, {7, 64, 256}, {13, 130, 577}, {9, 40, 1001}, {49, 20, 2048}};
    struct random r = {41};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int t = 0; t < N_DENSE; t++) {
            uint32_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
            float *x = random_floats(&r, (size_t)m * k, 0.02f);
            uint8_t *raw = random_rows(&r, dense_types[t], n, k);
            check(dense_types[t], x, raw, m, n, k);
            free(raw);
            free(x);
        }
}

/* On a processor with vdpbf16ps, the instruction must pass the check of the kernel set. */
static void test_vdpbf16ps_is_tried(void **state)
{
    (void)state;
    if (cpu_features()->avx512 && cpu_features()->avx512_bf16)
        assert_true(dense_dot_bf16_checks());
}

/* vdpbf16ps takes subnormal numbers for 0, FMA does not: none may occur. */
static void test_bf16_of_every_size_gives_the_same_bits(void **state)
{
    (void)state;
    enum { M = 14, N = 48, K = 160 };
    struct random r = {42};
    float x[M * K];
    uint16_t raw[N * K];
    for (int round = 0; round < 20; round++) {
        int low = -149 + (int)(random_u32(&r) % 130), span = 1 + (int)(random_u32(&r) % 40);
        for (int i = 0; i < M * K; i++)
            x[i] = ldexpf(random_normal(&r), low + (int)(random_u32(&r) % (uint32_t)span));
        low = -149 + (int)(random_u32(&r) % 130);
        for (int i = 0; i < N * K; i++)
            raw[i] = dtype_f32_to_bf16(
                ldexpf(random_normal(&r), low + (int)(random_u32(&r) % (uint32_t)span)));
        check(DTYPE_BF16, x, (const uint8_t *)raw, M, N, K);
    }
    /* sums that cancel to the smallest difference there can be */
    for (int i = 0; i < M * K; i++)
        x[i] = ldexpf(i % 2 == 0 ? 1.0078125f : -1.0f, -55 + i % 3);
    for (int i = 0; i < N * K; i++)
        raw[i] = dtype_f32_to_bf16(ldexpf(i % 5 == 0 ? 1.0078125f : 1.0f, -55 + i % 2));
    check(DTYPE_BF16, x, (const uint8_t *)raw, M, N, K);
}

/* Rows get the same bits at whatever row an item begins and ends. */
static void test_rows_cut_anywhere_give_the_same_bits(void **state)
{
    (void)state;
    enum { M = 29, N = 70, K = 96 };
    struct random r = {43};
    float *x = random_floats(&r, M * K, 0.0f), want[M * N], y[M * N];
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        for (int t = 0; t < N_DENSE; t++) {
            struct rig rig = rig_open(*set, 1);
            struct weight_desc desc = column_desc(dense_types[t], N, K);
            uint8_t *raw = random_rows(&r, dense_types[t], N, K);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            struct act *act = make_act(&rig, M, K);
            struct tensor tx = tensor_view(x, DTYPE_F32, M, K),
                          ty = tensor_view(want, DTYPE_F32, M, N);
            assert_int_equal(op_act_prepare(rig.stream, act, &tx, weight_act_kind(w), NULL, NULL),
                             0);
            assert_int_equal(op_linear(rig.stream, &ty, act, w), 0);
            struct linear_job job = {
                .act = act_cpu(act), .w = weight_cpu(w), .y = y, .y_stride = N};
            for (uint32_t begin = 0; begin < M; begin += 5)
                for (uint32_t end = begin + 1; end <= M; end += 4) {
                    for (int i = 0; i < M * N; i++)
                        y[i] = NAN;
                    struct linear_share share = {.row_begin = begin,
                                                 .row_end = end,
                                                 .n_begin = 16,
                                                 .n_end = N,
                                                 .scratch =
                                                     stream_scratch(stream_cpu(rig.stream), 0)};
                    inner_of(rig.ops)->linear_dense(&job, &share);
                    for (uint32_t m = 0; m < M; m++)
                        for (uint32_t n = 0; n < N; n++) {
                            bool inside = m >= begin && m < end && n >= 16;
                            if (inside)
                                assert_same_bits(&want[m * N + n], &y[m * N + n], 4, *set);
                            else
                                assert_true(isnan(y[m * N + n]));
                        }
                }
            rig.ops->act_destroy(act);
            free(w);
            free(raw);
            rig_close(&rig);
        }
    free(x);
}

/* Looking up rows of a tied head gives the values of a separate embedding. */
static void test_dense_head_embeds_like_an_embedding(void **state)
{
    (void)state;
    enum { N = 40, K = 97 };
    struct random r = {44};
    static const uint32_t ids[] = {0, 39, 17, 16, 15};
    float a[5 * K], b[5 * K];
    for (int t = 0; t < N_DENSE; t++) {
        uint8_t *raw = random_rows(&r, dense_types[t], N, K);
        if (dense_types[t] == DTYPE_BF16)
            memset(raw + 17 * K * 2, 0x21, 8); /* subnormal values */
        struct rig rig = rig_open("auto", 1);
        struct weight_desc head = column_desc(dense_types[t], N, K), table = head;
        table.role = WEIGHT_EMBEDDING;
        struct weight *w = pack_weight(rig.ops, &head, raw), *e = pack_weight(rig.ops, &table, raw);
        struct tensor ta = tensor_view(a, DTYPE_F32, 5, K), tb = tensor_view(b, DTYPE_F32, 5, K);
        assert_int_equal(op_embed(rig.stream, &ta, ids, w), 0);
        assert_int_equal(op_embed(rig.stream, &tb, ids, e), 0);
        assert_same_bits(a, b, sizeof(a), dtype_name(dense_types[t]));
        float row[K];
        assert_true(
            dtype_to_f32(dense_types[t], raw + 39 * dtype_row_bytes(dense_types[t], K), K, row));
        assert_same_bits(row, a + K, sizeof(row), "row");
        free(e);
        free(w);
        free(raw);
        rig_close(&rig);
    }
}

/* A row that is not finite leaves the other rows as they are. */
static void test_not_finite_activations_stay_in_their_row(void **state)
{
    (void)state;
    enum { M = 13, N = 20, K = 64 };
    struct random r = {45};
    float *x = random_floats(&r, M * K, 0.0f), good[M * N], y[M * N];
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        for (int t = 0; t < N_DENSE; t++) {
            struct rig rig = rig_open(*set, 1);
            uint8_t *raw = random_rows(&r, dense_types[t], N, K);
            struct weight_desc desc = column_desc(dense_types[t], N, K);
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            run_linear_op(&rig, w, x, M, K, good);
            float kept = x[3 * K + 7], large = x[12 * K];
            x[3 * K + 7] = NAN;
            x[12 * K] = INFINITY;
            run_linear_op(&rig, w, x, M, K, y);
            x[3 * K + 7] = kept;
            x[12 * K] = large;
            for (uint32_t n = 0; n < N; n++)
                assert_true(isnan(y[3 * N + n]) && !isfinite(y[12 * N + n]));
            assert_same_bits(good, y, 3 * N * sizeof(*y), *set);
            assert_same_bits(good + 4 * N, y + 4 * N, 8 * N * sizeof(*y), *set);
            free(w);
            free(raw);
            rig_close(&rig);
        }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_linear_equals_the_contract_formula),
        cmocka_unit_test(test_vdpbf16ps_is_tried),
        cmocka_unit_test(test_bf16_of_every_size_gives_the_same_bits),
        cmocka_unit_test(test_rows_cut_anywhere_give_the_same_bits),
        cmocka_unit_test(test_dense_head_embeds_like_an_embedding),
        cmocka_unit_test(test_not_finite_activations_stay_in_their_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
