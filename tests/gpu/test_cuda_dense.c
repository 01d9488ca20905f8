/* Tests of dense linears on CUDA. Every type and store is compared with f64 over odd shapes. A
 * row's bits do not depend on the other rows, on the path of generated tokens and on that of
 * prompts. Also tests ranks, and linears fused with biases, sums and gates. The same tests run on
 * an emulated GPU and on a real one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/gpu/support/support_dense.h"
#include "tests/gpu/support/support_seed.h"

enum { MAX_M = 130, N_PATHS = 2 };

static const uint32_t row_counts[] = {1, 2, 7, 8, 9, 16, 25, 33, 64, 65, MAX_M};
enum { N_COUNTS = sizeof(row_counts) / sizeof(row_counts[0]) };

static const struct {
    uint32_t n, k;
} shapes[] = {{1, 1}, {17, 15}, {33, 97}, {70, 288}, {131, 64}, {20, 1065}},
  tall_shape = {520, 160}, /* more tiles of results than an emulated GPU has blocks */
    wide_shapes[] = {{264, 14336}, {4100, 1032}, {128256, 64}}; /* shapes of real models */

static bool kind_runs[N_DENSE_KINDS];

static bool f8_by_wgmma(void)
{
    return strstr(gpu.module.op_table->numerics, "-fp8wgmma") != NULL;
}

/* Returns true if a kind's name, or the form in which it is kept, is a word of the list. */
static bool is_listed(const char *list, const char *name)
{
    const char *kept = strstr(name, " as ") != NULL ? strstr(name, " as ") + 4 : name;
    for (const char *word = list; word[0] != '\0'; word += strspn(word, ",")) {
        size_t n = strcspn(word, ",");
        if (strlen(kept) == n && memcmp(kept, word, n) == 0)
            return true;
        word += n;
    }
    return false;
}

/* SLUICE_TEST_KIND: only kinds that are kept in one of these forms, separated by commas. */
static int open_kinds(void **state)
{
    int rc = gpu_open(state);
    const char *list = getenv("SLUICE_TEST_KIND");
    for (int i = 0; rc == 0 && i < N_DENSE_KINDS; i++)
        kind_runs[i] = (list == NULL || is_listed(list, dense_kinds[i].name)) &&
                       dense_kind_runs(&dense_kinds[i]);
    return rc;
}

/* Path 0 is that of generated tokens. */
static struct role_run role_of(uint32_t path, uint32_t m)
{
    return (struct role_run){0, m, path == 0};
}

/* The bound is relative to the sum of magnitudes. Each multiplication of 16 columns, and of the
 * scales, rounds or truncates once. Tensor cores of some generations keep 14 bits of sums over f8.
 * With
 * wgmma a sum takes 4 multiplications of 32 columns. Each cuts its products to 14 bits of the sum
 * before, which is at most 1/4, 2/4, 3/4 of the magnitudes. A cut loses half a unit on average:
 * 2^-14 · 32 · (1 + 2 + 3) / 4 / 4 = 12 · 2^-14. The bound is five times that, for any k. */
static double bound_of(const struct dense_kind *kind, uint32_t path, uint32_t k)
{
    if (kind->store == WEIGHT_STORE_F8 && path == 1 && f8_by_wgmma())
        return 0x1p-8;
    if (kind->store == WEIGHT_STORE_F8 && !test_is_emulated())
        return (k / 32 + 4) * 0x1p-13;
    return (k / 16 + 12) * 0x1p-22;
}

static void assert_near(const float *y, const double *exact, const double *magnitude, size_t n,
                        double bound, const struct dense_kind *kind)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)y[i] - exact[i]) <= bound * magnitude[i] + 1e-37))
            fail_msg("%s: element %zu of %zu is %.9g, not %.9g", kind->name, i, n, (double)y[i],
                     exact[i]);
}

/* Rows alone, in other numbers, and further down have the bits of `all`. */
static void check_other_rows(const struct dense_weight *weight, const float *device_x,
                             uint32_t path, const float *all, const char *what)
{
    uint32_t n = weight->desc.n_rows, k = weight_k_local(weight->w);
    float *y = malloc((size_t)MAX_M * n * sizeof(float));
    for (uint32_t i = 0; i < N_COUNTS; i++) {
        uint32_t m = row_counts[i], from = i % 2 ? (MAX_M - m) * 5 / 7 : 0;
        struct role_run role = role_of(path, m);
        uint32_t n_roles = path == 0 && i % 2 ? 0 : 1; /* none: generated */
        dense_run(weight->w, device_x + (size_t)from * k, m, i % 3, &role, n_roles, y);
        assert_same_bits(y, all + (size_t)from * n, (size_t)m * n * sizeof(float), what);
    }
    free(y);
}

static void check_shape(const struct dense_kind *kind, bool by_row, uint32_t n, uint32_t k,
                        struct random *random)
{
    struct weight_desc desc =
        by_row ? row_desc(kind->type, n, k, 1, 0) : column_desc(kind->type, n, k);
    struct dense_weight weight =
        dense_weight_make(kind, &desc, random_rows(random, kind->type, n, k));
    float *x = random_floats(random, (size_t)MAX_M * k, 0.01f);
    double *exact = malloc((size_t)MAX_M * n * sizeof(double));
    double *magnitude = malloc((size_t)MAX_M * n * sizeof(double));
    float *all = malloc((size_t)MAX_M * n * sizeof(float));
    float *device_x = gpu_upload(x, (size_t)MAX_M * k * sizeof(float));
    dense_exact(&weight, x, MAX_M, exact, magnitude);
    for (uint32_t path = 0; path < N_PATHS; path++) {
        struct role_run role = role_of(path, MAX_M);
        dense_run(weight.w, device_x, MAX_M, 3, &role, 1, all);
        assert_near(all, exact, magnitude, (size_t)MAX_M * n, bound_of(kind, path, k), kind);
        check_other_rows(&weight, device_x, path, all, kind->name);
    }
    dense_weight_drop(&weight);
    gpu_drop(device_x, 0);
    free(x);
    free(exact);
    free(magnitude);
    free(all);
}

static void check_kinds(uint32_t from, uint32_t to)
{
    struct random random = test_random(from + 1);
    for (uint32_t i = from; i < to; i++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            for (int by_row = 0; by_row < 2; by_row++)
                if (kind_runs[i] && grid_takes(s + i))
                    check_shape(&dense_kinds[i], by_row, shapes[s].n, shapes[s].k, &random);
    for (uint32_t i = from; test_is_wide() && i < to; i++)
        for (size_t s = 0; s < sizeof(wide_shapes) / sizeof(wide_shapes[0]); s++)
            if (kind_runs[i])
                check_shape(&dense_kinds[i], s == 0, wide_shapes[s].n, wide_shapes[s].k, &random);
}

static void test_floats_are_near_f64_and_rows_keep_their_bits(void **state)
{
    (void)state;
    check_kinds(0, 3);
}

static void test_stored_weights_are_near_f64_and_rows_keep_their_bits(void **state)
{
    (void)state;
    check_kinds(3, N_DENSE_KINDS);
}

static void test_tall_weights_are_near_f64_and_rows_keep_their_bits(void **state)
{
    (void)state;
    struct random random = test_random(75);
    for (uint32_t i = 2; i <= 4; i += 2) /* bf16, f8 */
        if (kind_runs[i])
            check_shape(&dense_kinds[i], false, tall_shape.n, tall_shape.k, &random);
}

/* Numbers of one sign, so that the sum grows from column to column. A sum that keeps 14 bits over
 * all of k loses one to ten hundredths of it. */
static void test_f8_sums_over_long_rows_keep_more_than_fourteen_bits(void **state)
{
    (void)state;
    enum { M = 3, N = 5, K = 14336 };
    struct random random = test_random(79);
    if (!kind_runs[4])
        skip();
    uint16_t *raw = malloc((size_t)N * K * sizeof(*raw));
    float *x = random_floats(&random, (size_t)M * K, 0.0f), y[M * N];
    float *w = random_floats(&random, (size_t)N * K, 0.0f);
    double exact[M * N], magnitude[M * N];
    for (size_t i = 0; i < (size_t)M * K; i++)
        x[i] = 0.5f + fabsf(x[i]);
    for (size_t i = 0; i < (size_t)N * K; i++)
        raw[i] = maths_f32_to_bf16(0.5f + fabsf(w[i]));
    struct weight_desc desc = column_desc(dense_kinds[4].type, N, K);
    struct dense_weight weight = dense_weight_make(&dense_kinds[4], &desc, (uint8_t *)raw);
    float *device_x = gpu_upload(x, (size_t)M * K * sizeof(float));
    dense_exact(&weight, x, M, exact, magnitude);
    struct role_run role = role_of(1, M);
    dense_run(weight.w, device_x, M, 0, &role, 1, y);
    double bound = test_is_emulated() || f8_by_wgmma() ? 0x1p-8 : bound_of(&dense_kinds[4], 1, K);
    assert_near(y, exact, magnitude, M * N, bound, &dense_kinds[4]);
    dense_weight_drop(&weight);
    gpu_drop(device_x, 0);
    free(x);
    free(w);
}

static void test_runs_of_roles_take_their_path_each(void **state)
{
    (void)state;
    enum { M = 40, N = 37, K = 200 };
    static const struct role_run runs[] = {{0, 3, true},   {3, 0, false}, {3, 20, false},
                                           {23, 1, false}, {24, 9, true}, {33, 7, false}};
    struct random random = test_random(77);
    uint32_t n_others = 0; /* kinds whose two paths give different bits here */
    for (uint32_t i = 0; i < N_DENSE_KINDS; i++) {
        if (!kind_runs[i])
            continue;
        struct weight_desc desc = column_desc(dense_kinds[i].type, N, K);
        struct dense_weight weight = dense_weight_make(
            &dense_kinds[i], &desc, random_rows(&random, dense_kinds[i].type, N, K));
        float *x = random_floats(&random, (size_t)M * K, 0.01f);
        float *device_x = gpu_upload(x, (size_t)M * K * sizeof(float));
        float by_path[N_PATHS][M * N], mixed[M * N];
        for (uint32_t path = 0; path < N_PATHS; path++) {
            struct role_run role = role_of(path, M);
            dense_run(weight.w, device_x, M, 0, &role, 1, by_path[path]);
        }
        dense_run(weight.w, device_x, M, 1, runs, sizeof(runs) / sizeof(runs[0]), mixed);
        for (size_t r = 0; r < sizeof(runs) / sizeof(runs[0]); r++)
            assert_same_bits(mixed + runs[r].begin * N,
                             by_path[runs[r].generated ? 0 : 1] + runs[r].begin * N,
                             runs[r].n_rows * N * sizeof(float), dense_kinds[i].name);
        gpu.stream->mix_products = true; /* path P computes all products */
        dense_run(weight.w, device_x, M, 1, runs, sizeof(runs) / sizeof(runs[0]), mixed);
        gpu.stream->mix_products = false;
        assert_same_bits(mixed, by_path[1], sizeof(mixed), dense_kinds[i].name);
        n_others += memcmp(by_path[0], by_path[1], sizeof(mixed)) != 0;
        dense_weight_drop(&weight);
        gpu_drop(device_x, 0);
        free(x);
    }
    assert_true(n_others > 0);
}

/* --- ranks --- */

/* A rank's sums; x's columns [begin, begin + k_local) of rows of K. */
static void run_rank(const struct dense_weight *weight, float *device_x, uint32_t m, uint32_t begin,
                     uint32_t k_total, const struct role_run *role, float *device_y, bool finish)
{
    const struct op_table *ops = gpu.module.op_table;
    uint32_t n = weight->desc.n_rows, k = weight_k_local(weight->w);
    struct error err = {0};
    struct act *act = NULL;
    struct tensor x = tensor_view(device_x + begin, DTYPE_F32, m, k);
    struct tensor y = tensor_view(device_y, DTYPE_F32, m, n);
    x.row_stride = k_total;
    assert_int_equal(ops->act_create(gpu.device, m, k, &act, &err), 0);
    gpu.stream->roles = role;
    gpu.stream->n_roles = 1;
    assert_int_equal(op_act_prepare(gpu.stream, act, &x, weight_act_kind(weight->w), NULL, NULL),
                     0);
    if (finish)
        assert_int_equal(ops->linear_finish(gpu.stream, &y, &y, act, weight->w), 0);
    else
        assert_int_equal(ops->linear_partial(gpu.stream, &y, NULL, act, weight->w), 0);
    gpu_sync();
    gpu.stream->n_roles = 0;
    ops->act_destroy(act);
}

/* Returns x with its largest magnitude in every rank's share, because this test has no reduction
 * over ranks. */
static float *even_floats(struct random *random, uint32_t m, uint32_t k)
{
    float *x = random_floats(random, (size_t)m * k, 0.0f);
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t i = 0; i < k; i += 32)
            x[(size_t)r * k + i] = i % 64 ? 9.0f : -9.0f;
    return x;
}

static void check_ranks(const struct dense_kind *kind, uint32_t k, uint32_t tp, uint32_t path,
                        struct random *random)
{
    enum { M = 11, N = 35 };
    size_t raw_bytes = N * dtype_row_bytes(kind->type, k);
    uint8_t *raw = random_rows(random, kind->type, N, k);
    float *x = even_floats(random, M, k), whole[M * N], sums[8][M * N];
    float *device_x = gpu_upload(x, (size_t)M * k * sizeof(float));
    struct role_run role = role_of(path, M);
    for (uint32_t rank = 0; rank <= tp; rank++) { /* the last one is alone */
        uint8_t *own = malloc(raw_bytes);
        memcpy(own, raw, raw_bytes);
        struct weight_desc desc =
            rank == tp ? row_desc(kind->type, N, k, 1, 0) : row_desc(kind->type, N, k, tp, rank);
        struct dense_weight weight = dense_weight_make(kind, &desc, own);
        float *device_y = gpu_upload(NULL, sizeof(whole));
        if (rank < tp) {
            run_rank(&weight, device_x, M, segments_begin(&desc.k_segments), k, &role, device_y,
                     false);
            gpu_fetch(sums[rank], device_y, sizeof(whole));
        } else {
            dense_run(weight.w, device_x, M, 0, &role, 1, whole);
            for (uint32_t left = tp; left > 1; left /= 2)
                for (uint32_t i = 0; i < left / 2; i++)
                    for (uint32_t e = 0; e < M * N; e++)
                        sums[i][e] = sums[2 * i][e] + sums[2 * i + 1][e];
            assert_int_equal(
                gpu.module.device_ops->upload(gpu.stream, device_y, sums[0], sizeof(whole)), 0);
            run_rank(&weight, device_x, M, 0, k, &role, device_y, true);
            gpu_fetch(sums[0], device_y, sizeof(whole));
            assert_same_bits(sums[0], whole, sizeof(whole), kind->name);
        }
        gpu_drop(device_y, 0);
        dense_weight_drop(&weight);
    }
    gpu_drop(device_x, 0);
    free(raw);
    free(x);
}

/* Slices longer than the deepest ring. */
static void test_long_rows_have_the_bits_of_one_on_eight_ranks(void **state)
{
    (void)state;
    struct random random = test_random(93);
    for (uint32_t i = 0; i < 5; i++)
        if (kind_runs[i])
            check_ranks(&dense_kinds[i], 8704, 8, 0, &random);
}

static void test_ranks_have_the_bits_of_one(void **state)
{
    (void)state;
    struct random random = test_random(91);
    for (uint32_t i = 0; i < N_DENSE_KINDS; i++)
        for (uint32_t tp = 2; kind_runs[i] && tp <= 8; tp *= 2)
            for (uint32_t path = 0; path < N_PATHS; path++)
                check_ranks(&dense_kinds[i], tp == 4 ? 544 : 345, tp, path, &random);
}

/* --- several linears at once --- */

struct several {
    struct dense_weight w[LINEAR_MAX_PARTS];
    float *x, *bias, *sum;      /* the device's: [M][K], [MAX_N], [M][MAX_N] */
    float *y[LINEAR_MAX_PARTS]; /* results, and the sums after them: [2][M][MAX_N] */
    struct tensor y_of[LINEAR_MAX_PARTS], sum_of[LINEAR_MAX_PARTS];
    struct linear_part parts[LINEAR_MAX_PARTS];
    struct act *act;
};

enum { SEVERAL_M = 21, SEVERAL_K = 100, MAX_N = 80, RESULT = 2 * SEVERAL_M * MAX_N };

static void several_open(struct several *all, const uint8_t kinds[LINEAR_MAX_PARTS],
                         const uint32_t n[LINEAR_MAX_PARTS], struct random *random)
{
    struct error err = {0};
    float *x = random_floats(random, SEVERAL_M * SEVERAL_K, 0.01f);
    float *more = random_floats(random, SEVERAL_M * MAX_N, 0.0f);
    uint32_t act_kinds = 0;
    all->x = gpu_upload(x, SEVERAL_M * SEVERAL_K * sizeof(float));
    all->sum = gpu_upload(more, SEVERAL_M * MAX_N * sizeof(float));
    all->bias = gpu_upload(more, MAX_N * sizeof(float));
    for (int p = 0; p < LINEAR_MAX_PARTS; p++) {
        const struct dense_kind *kind = &dense_kinds[kinds[p]];
        struct weight_desc desc = column_desc(kind->type, n[p], SEVERAL_K);
        all->w[p] =
            dense_weight_make(kind, &desc, random_rows(random, kind->type, n[p], SEVERAL_K));
        all->y[p] = gpu_upload(NULL, RESULT * sizeof(float));
        act_kinds |= weight_act_kind(all->w[p].w);
    }
    assert_int_equal(
        gpu.module.op_table->act_create(gpu.device, SEVERAL_M, SEVERAL_K, &all->act, &err), 0);
    struct tensor t = tensor_view(all->x, DTYPE_F32, SEVERAL_M, SEVERAL_K);
    assert_int_equal(op_act_prepare(gpu.stream, all->act, &t, act_kinds, NULL, NULL), 0);
    free(x);
    free(more);
}

static void several_close(struct several *all)
{
    gpu.module.op_table->act_destroy(all->act);
    for (int p = 0; p < LINEAR_MAX_PARTS; p++) {
        dense_weight_drop(&all->w[p]);
        gpu_drop(all->y[p], 0);
    }
    gpu_drop(all->x, 0);
    gpu_drop(all->sum, 0);
    gpu_drop(all->bias, 0);
}

/* Part p has a bias where bit p of `extras` is set, a sum where bit 3 + p is. */
static void several_reset(struct several *all, uint32_t extras)
{
    float *poison = poisoned(RESULT);
    for (uint32_t p = 0; p < LINEAR_MAX_PARTS; p++) {
        uint32_t n = all->w[p].desc.n_rows;
        float *sum = all->y[p] + SEVERAL_M * MAX_N;
        gpu.module.device_ops->upload(gpu.stream, all->y[p], poison, RESULT * sizeof(float));
        gpu.module.device_ops->copy(gpu.stream, sum, all->sum, SEVERAL_M * MAX_N * sizeof(float));
        gpu_sync();
        all->y_of[p] = tensor_view(all->y[p], DTYPE_F32, SEVERAL_M, n);
        all->y_of[p].row_stride = MAX_N;
        all->sum_of[p] = tensor_view(sum, DTYPE_F32, SEVERAL_M, n);
        all->parts[p] = (struct linear_part){
            .y = &all->y_of[p],
            .w = all->w[p].w,
            .bias = extras >> p & 1 ? all->bias : NULL,
            .sum = extras >> (3 + p) & 1 ? &all->sum_of[p] : NULL,
        };
    }
    free(poison);
}

static void in_turn(const struct several *all, uint32_t n_parts)
{
    for (uint32_t p = 0; p < n_parts; p++) {
        const struct linear_part *part = &all->parts[p];
        assert_int_equal(op_linear(gpu.stream, part->y, all->act, part->w), 0);
        if (part->bias)
            assert_int_equal(op_add_bias(gpu.stream, part->y, part->bias), 0);
        if (part->sum)
            assert_int_equal(op_add(gpu.stream, part->sum, part->y), 0);
    }
}

/* The y of a part with a sum is scratch. */
static void compare_parts(struct several *all, const float *wanted, uint32_t n_parts)
{
    float found[RESULT];
    for (uint32_t p = 0; p < n_parts; p++) {
        uint32_t from = all->parts[p].sum ? RESULT / 2 : 0;
        gpu_fetch(found, all->y[p], sizeof(found));
        assert_same_bits(found + from, wanted + p * RESULT + from,
                         sizeof(found) - from * sizeof(float), "at once and in turn");
    }
}

static const struct role_run several_roles[][2] = {
    {{0, SEVERAL_M, true}, {SEVERAL_M, 0, true}},
    {{0, 6, false}, {6, SEVERAL_M - 6, true}},
};
static const uint8_t several_kinds[][LINEAR_MAX_PARTS] = {
    {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {3, 3, 3}, {4, 4, 4}, {2, 0, 3}, {1, 2, 4}};
static const uint32_t several_n[LINEAR_MAX_PARTS] = {70, 33, 1};

static void check_several(struct several *all, uint32_t extras)
{
    float *wanted = malloc(LINEAR_MAX_PARTS * RESULT * sizeof(float));
    several_reset(all, extras);
    in_turn(all, LINEAR_MAX_PARTS);
    for (uint32_t p = 0; p < LINEAR_MAX_PARTS; p++)
        gpu_fetch(wanted + p * RESULT, all->y[p], RESULT * sizeof(float));
    several_reset(all, extras);
    assert_int_equal(op_linear_parts(gpu.stream, all->act, all->parts, LINEAR_MAX_PARTS), 0);
    gpu_sync();
    compare_parts(all, wanted, LINEAR_MAX_PARTS);
    free(wanted);
}

static void test_parts_have_the_bits_of_linears_in_turn(void **state)
{
    (void)state;
    struct random random = test_random(101);
    for (size_t i = 0; i < sizeof(several_kinds) / sizeof(several_kinds[0]); i++) {
        struct several all = {0};
        if (!kind_runs[several_kinds[i][0]] || !kind_runs[several_kinds[i][2]])
            continue;
        several_open(&all, several_kinds[i], several_n, &random);
        for (uint32_t r = 0; r < 2; r++) {
            gpu.stream->roles = several_roles[r];
            gpu.stream->n_roles = 2;
            for (uint32_t extras = 0; extras < 64; extras += 9)
                check_several(&all, extras);
            gpu.stream->n_roles = 0;
        }
        several_close(&all);
    }
}

/* Prepares activations for different forms in turn. Each weight has the results of a preparation
 * for itself alone. */
static void test_one_preparation_serves_weights_of_any_form(void **state)
{
    (void)state;
    static const uint8_t kinds[LINEAR_MAX_PARTS] = {2, 3, 1};
    struct random random = test_random(105);
    struct several all = {0};
    float found[RESULT];
    several_open(&all, kinds, several_n, &random);
    several_reset(&all, 0);
    for (uint32_t i = 0; i < 2 * LINEAR_MAX_PARTS; i++) {
        uint32_t p = i % LINEAR_MAX_PARTS, n = several_n[p];
        float *alone = malloc(SEVERAL_M * n * sizeof(float));
        assert_int_equal(op_linear(gpu.stream, &all.y_of[p], all.act, all.w[p].w), 0);
        gpu_fetch(found, all.y[p], sizeof(found));
        dense_run(all.w[p].w, all.x, SEVERAL_M, 0, NULL, 0, alone);
        for (uint32_t r = 0; r < SEVERAL_M; r++)
            assert_same_bits(found + r * MAX_N, alone + r * n, n * sizeof(float), "forms");
        free(alone);
    }
    several_close(&all);
}

static void check_gated(struct several *all, enum activation kind, uint32_t extras)
{
    float *wanted = malloc(2 * RESULT * sizeof(float));
    several_reset(all, extras);
    in_turn(all, 2);
    assert_int_equal(op_act_mul(gpu.stream, &all->y_of[0], &all->y_of[0], &all->y_of[1], kind), 0);
    for (uint32_t p = 0; p < 2; p++)
        gpu_fetch(wanted + p * RESULT, all->y[p], RESULT * sizeof(float));
    several_reset(all, extras);
    assert_int_equal(op_linear_gated(gpu.stream, all->act, &all->parts[0], &all->parts[1], kind),
                     0);
    gpu_sync();
    compare_parts(all, wanted, 2);
    free(wanted);
}

static void test_gated_has_the_bits_of_linears_in_turn(void **state)
{
    (void)state;
    static const uint32_t n[LINEAR_MAX_PARTS] = {70, 70, 1};
    struct random random = test_random(103);
    for (size_t i = 0; i < sizeof(several_kinds) / sizeof(several_kinds[0]); i++) {
        struct several all = {0};
        if (!kind_runs[several_kinds[i][0]] || !kind_runs[several_kinds[i][2]])
            continue;
        several_open(&all, several_kinds[i], n, &random);
        for (uint32_t r = 0; r < 2; r++) {
            gpu.stream->roles = several_roles[r];
            gpu.stream->n_roles = 2;
            for (int kind = ACTIVATION_SILU; kind < N_ACTIVATIONS; kind++)
                check_gated(&all, (enum activation)kind, (uint32_t)kind % 4);
            gpu.stream->n_roles = 0;
        }
        several_close(&all);
    }
}

/* --- weights --- */

static void test_stored_heads_are_looked_up(void **state)
{
    (void)state;
    enum { N = 67, K = 50, M = 3 };
    static const uint32_t ids[M] = {66, 0, 13};
    struct random random = test_random(107);
    uint32_t *device_ids = gpu_upload(ids, sizeof(ids));
    float *device_y = gpu_upload(NULL, M * K * sizeof(float)), y[M * K];
    for (uint32_t i = 0; i < N_DENSE_KINDS; i++) {
        if (!kind_runs[i])
            continue;
        struct weight_desc desc = column_desc(dense_kinds[i].type, N, K);
        struct dense_weight weight = dense_weight_make(
            &dense_kinds[i], &desc, random_rows(&random, dense_kinds[i].type, N, K));
        struct tensor t = tensor_view(device_y, DTYPE_F32, M, K);
        assert_int_equal(op_embed(gpu.stream, &t, device_ids, weight.w), 0);
        gpu_fetch(y, device_y, sizeof(y));
        for (uint32_t e = 0; e < M * K; e++) {
            uint32_t n = ids[e / K];
            float wanted = weight.scales[n] * (float)weight.values[n * K + e % K];
            assert_true(y[e] == wanted);
        }
        dense_weight_drop(&weight);
    }
    gpu_drop(device_ids, 0);
    gpu_drop(device_y, 0);
}

static void test_rows_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    enum { N = 2, K = 40 };
    struct error err = {0};
    float raw[N * K] = {0};
    uint8_t slice[4096] __attribute__((aligned(64)));
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies;
    raw[K + 7] = INFINITY;
    for (int store = WEIGHT_STORE_SOURCE; store <= WEIGHT_STORE_F8; store++) {
        struct weight_desc desc = column_desc(DTYPE_F32, N, K);
        if (store == WEIGHT_STORE_F8 && !kind_runs[4])
            continue;
        desc.store = (enum weight_store)store;
        assert_true(weight_slice_bytes(gpu.module.op_table, &desc, N) <= sizeof(slice));
        assert_int_equal(weight_pack_slice(gpu.module.op_table, &desc, 0, N, raw, slice, copies,
                                           &n_copies, &err),
                         STATUS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, "row 1"));
    }
}

/* --- cuBLASLt, wgmma --- */

/* Products of one shape for all numbers of rows; fewer on the emulated GPU. */
struct call_grid {
    uint32_t rows, n, k, step;
};

/* Models' widths among them: an algorithm is chosen for each. */
static const struct call_grid real_grids[] = {{2048, 264, 320, 1},
                                              {2048, 264, 4096, 1},
                                              {2048, 136, 14336, 1}},
                              emulated_grids[] = {{300, 40, 104, 11}, {150, 24, 1032, 47}};

static void check_calls(const struct dense_weight *weight, const float *device_x,
                        struct call_grid grid)
{
    size_t n_bytes = (size_t)grid.rows * grid.n * sizeof(float);
    float *all = malloc(n_bytes), *some = malloc(n_bytes);
    struct role_run role = role_of(1, grid.rows);
    dense_run(weight->w, device_x, grid.rows, 0, &role, 1, all);
    for (uint32_t m = 1; m <= grid.rows; m += grid.step) { /* from the end, begin or between */
        uint32_t from = m % 2 ? grid.rows - m : m * 7 % (grid.rows - m + 1);
        role = role_of(1, m);
        dense_run(weight->w, device_x + (size_t)from * grid.k, m, m % 3 * 2, &role, 1, some);
        assert_same_bits(some, all + (size_t)from * grid.n, (size_t)m * grid.n * sizeof(float),
                         "a prompt's rows");
    }
    for (uint32_t from = 1; from < grid.rows; from += grid.step) {
        const struct role_run tail[] = {{0, 1, false}, {1, grid.rows - from - 1, true}};
        dense_run(weight->w, device_x + (size_t)from * grid.k, grid.rows - from, 4, tail, 2, some);
        assert_same_bits(some, all + (size_t)from * grid.n, grid.n * sizeof(float),
                         "a prompt's row alone");
    }
    free(all);
    free(some);
}

/* Returns true if the kind's product of path P is cuBLASLt's or wgmma's. */
static bool has_chosen_product(uint32_t kind)
{
    bool is_half = kind == 1 || kind == 2;
    bool half_is_own = strstr(gpu.module.op_table->numerics, "-own") != NULL;
    return kind_runs[kind] && (is_half ? !half_is_own : kind == 4 && f8_by_wgmma());
}

static void check_call_grid(struct random *random, struct call_grid grid)
{
    float *x = random_floats(random, (size_t)grid.rows * grid.k, 0.01f);
    float *device_x = gpu_upload(x, (size_t)grid.rows * grid.k * sizeof(float));
    for (uint32_t i = 1; i <= 4; i++)
        for (int by_row = 0; has_chosen_product(i) && by_row < 2; by_row++) {
            enum dtype type = dense_kinds[i].type;
            struct weight_desc desc =
                by_row ? row_desc(type, grid.n, grid.k, 1, 0) : column_desc(type, grid.n, grid.k);
            struct dense_weight weight = dense_weight_make(
                &dense_kinds[i], &desc, random_rows(random, type, grid.n, grid.k));
            check_calls(&weight, device_x, grid);
            dense_weight_drop(&weight);
        }
    gpu_drop(device_x, 0);
    free(x);
}

static void test_chosen_product_keeps_a_rows_bits_in_every_call(void **state)
{
    (void)state;
    bool emulated = test_is_emulated();
    const struct call_grid *grids = emulated ? emulated_grids : real_grids;
    size_t n_grids = emulated ? sizeof(emulated_grids) / sizeof(emulated_grids[0])
                              : sizeof(real_grids) / sizeof(real_grids[0]);
    if (!has_chosen_product(1) && !has_chosen_product(2) && !has_chosen_product(4)) {
        print_message("skipped: prompts are neither cuBLASLt's nor wgmma's here (%s)\n",
                      gpu.module.op_table->numerics);
        skip();
    }
    struct random random = test_random(109);
    for (size_t g = 0; g < n_grids; g++)
        check_call_grid(&random, grids[g]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats_are_near_f64_and_rows_keep_their_bits),
        cmocka_unit_test(test_stored_weights_are_near_f64_and_rows_keep_their_bits),
        cmocka_unit_test(test_tall_weights_are_near_f64_and_rows_keep_their_bits),
        cmocka_unit_test(test_f8_sums_over_long_rows_keep_more_than_fourteen_bits),
        cmocka_unit_test(test_runs_of_roles_take_their_path_each),
        cmocka_unit_test(test_ranks_have_the_bits_of_one),
        cmocka_unit_test(test_long_rows_have_the_bits_of_one_on_eight_ranks),
        cmocka_unit_test(test_parts_have_the_bits_of_linears_in_turn),
        cmocka_unit_test(test_one_preparation_serves_weights_of_any_form),
        cmocka_unit_test(test_gated_has_the_bits_of_linears_in_turn),
        cmocka_unit_test(test_stored_heads_are_looked_up),
        cmocka_unit_test(test_rows_that_are_not_finite_are_refused),
        cmocka_unit_test(test_chosen_product_keeps_a_rows_bits_in_every_call),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_kinds, gpu_close);
}
