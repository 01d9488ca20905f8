/* Tests of rows of prompts whose quantized weights are widened to f16 (linear_widen_cuda.h). The
 * oracle multiplies the same f16 numbers in f64. Rows of generated tokens keep the bits of
 * integers. A row's bits do not depend on the other rows. Runs on a GPU, or on the emulated GPU. */
#include <stdio.h>

#include "kernels/cuda/dense/dense_maths.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/cuda/linear_quant/widen.h"
#include "tests/gpu/support/support_quant.h"

enum { MAX_M = 131, SCRATCH_N = 600, SCRATCH_K = 1024 };

/* --- the oracle --- */

/* The integers of a weight, and the unit of each row. */
struct plain {
    uint32_t form, n, k;
    int32_t *w; /* [n][k] */
    float *units;
};

static struct plain plain_of(const struct both *both)
{
    const struct weight_quant *w = weight_quant(both->gpu);
    struct plain p = {w->layout.form, w->base.n_rows, w->base.k_local, NULL, NULL};
    uint8_t *data = malloc(w->n_bytes);
    fetch(data, w->data, w->n_bytes);
    p.w = calloc((size_t)p.n * p.k, sizeof(*p.w));
    p.units = calloc(p.n, sizeof(*p.units));
    for (uint32_t r = 0; r < p.n; r++)
        for (uint32_t c = 0; c < p.k; c++)
            p.w[(size_t)r * p.k + c] = quant_weight_at(
                &w->layout, data + r / QUANT_ROWS * w->layout.panel_bytes, r % QUANT_ROWS, c);
    memcpy(p.units, data + w->units_at, p.n * sizeof(*p.units));
    free(data);
    return p;
}

static void plain_free(struct plain *p)
{
    free(p->w);
    free(p->units);
}

static double half_weight(const struct plain *p, uint32_t row, uint32_t column)
{
    float w = widen_float(p->form, p->w[(size_t)row * p->k + column]);
    return (double)maths_f16_to_f32(maths_f32_to_f16(w));
}

static float top_of(const float *x, uint32_t k)
{
    float top = ACT_TINY;
    for (uint32_t i = 0; i < k; i++)
        top = fmaxf(top, fabsf(x[i]));
    return top;
}

/* The sum of products of f16 numbers and its bound. In a product of f16 numbers nothing is rounded.
 * A tensor core adds 16 products to the sum so far, and the tree adds 8 times. Each of the k/16 + 8
 * additions loses at most 2^-22 of the sum of magnitudes. Unit and scale add three roundings of
 * 2^-24. */
static double oracle(const struct plain *p, const float *x, uint32_t row, double *out_bound)
{
    float top = top_of(x, p->k);
    double sum = 0.0, magnitude = 0.0;
    for (uint32_t c = 0; c < p->k; c++) {
        double w = half_weight(p, row, c);
        double a = (double)maths_f16_to_f32(maths_f32_to_f16(act_f16_scaled(x[c], top)));
        sum += w * a;
        magnitude += fabs(w * a);
    }
    double scale = (double)widen_unit(p->form, p->units[row]) * (double)act_f16_unit(top);
    uint32_t n_additions = p->k / 16 + 8;
    *out_bound = scale * magnitude * (n_additions + 1) * 0x1p-22;
    return sum * scale;
}

static void check_oracle(const struct plain *p, const float *x, uint32_t m, const float *y,
                         const char *what)
{
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t n = 0; n < p->n; n++) {
            double bound, wanted = oracle(p, x + (size_t)r * p->k, n, &bound);
            double got = (double)y[(size_t)r * p->n + n];
            if (isnan(wanted) ? !isnan(got) : !(fabs(got - wanted) <= bound))
                fail_msg("%s: row %u, output %u is %.9g, not %.9g within %.3g", what, r, n, got,
                         wanted, bound);
        }
}

/* --- running --- */

/* y[m][n] of rows with roles; n_roles 0: all rows are prompts. */
static void run_roles(const struct both *w, const float *x, uint32_t m,
                      const struct role_run *roles, uint32_t n_roles, float *y)
{
    uint32_t n = w->desc.n_rows, k = weight_k_local(w->cpu);
    const struct role_run prompts = {0, m, false};
    const struct segments *seg = w->desc.role == WEIGHT_LINEAR_ROW ? &w->desc.k_segments : NULL;
    size_t y_bytes = (size_t)m * n * sizeof(float);
    float *device_y = poison_on_device((size_t)m * n);
    stream->prompts_f16 = true;
    stream->roles = n_roles > 0 ? roles : &prompts;
    stream->n_roles = n_roles > 0 ? n_roles : 1;
    struct prepared p = prepare(x, m, k, seg, NULL);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, m, n);
    assert_int_equal(op_linear(stream, &ty, p.act, w->gpu), 0);
    fetch(y, device_y, y_bytes);
    stream->prompts_f16 = false;
    stream->n_roles = 0;
    prepared_free(&p);
    drop(device_y, y_bytes);
}

static const uint32_t row_counts[] = {1, 2, 9, 128, MAX_M};

static void test_prompts_are_the_product_of_f16_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, blocks;
    } shapes[] = {{1, 1}, {17, 2}, {70, 3}, {261, 5}};
    struct random random = test_random(141);
    size_t i_case = 0;
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            uint32_t block = dtype_block_elems(formats[f]), n = shapes[s].n;
            uint32_t k = shapes[s].blocks * block * (block == 32 && s > 0 ? 3 : 1);
            struct both w = random_both(&random, column_desc(formats[f], n, k));
            struct plain p = plain_of(&w);
            float *x = activations(&random, (enum pattern)(s % N_PATTERNS), MAX_M, k);
            float *all = poisoned((size_t)MAX_M * n), *some = poisoned((size_t)MAX_M * n);
            char what[80];
            snprintf(what, sizeof(what), "%s %u x %u", dtype_name(formats[f]), n, k);
            break_rows(x, MAX_M, k);
            run_roles(&w, x, MAX_M, NULL, 0, all);
            check_oracle(&p, x, s == 3 ? 12 : MAX_M, all, what);
            for (size_t i = 0; i < sizeof(row_counts) / sizeof(row_counts[0]); i++) {
                uint32_t m = row_counts[i], from = i % 2 ? MAX_M - m : 0;
                if (!grid_takes(i_case++))
                    continue;
                run_roles(&w, x + (size_t)from * k, m, NULL, 0, some);
                assert_same_bits(some, all + (size_t)from * n, (size_t)m * n * sizeof(float), what);
            }
            plain_free(&p);
            both_free(&w);
            free(x);
            free(all);
            free(some);
        }
}

/* A dense f16 weight with the same numbers uses the same arithmetic. So the bits before the scales
 * are equal. */
static void test_sums_have_the_bits_of_dense_weights(void **state)
{
    (void)state;
    enum { N = 37, M = 9, K = 5 * 256 };
    struct random random = test_random(143);
    for (size_t f = 0; f < N_FORMATS; f++) {
        bool is_row = f % 2 == 1;
        struct weight_desc desc =
            is_row ? row_desc(formats[f], N, K, 1, 0) : column_desc(formats[f], N, K);
        struct both w = random_both(&random, desc);
        struct plain p = plain_of(&w);
        float *x = activations(&random, SOME_OUTLIERS, M, K),
              *scaled = malloc(sizeof(float) * M * K);
        static float got[M * N], sums[M * N];
        uint16_t *raw = malloc(sizeof(*raw) * N * K);
        void *data = NULL;
        for (uint32_t i = 0; i < N * K; i++)
            raw[i] = maths_f32_to_f16(widen_float(p.form, p.w[i]));
        for (uint32_t r = 0; r < M; r++)
            for (uint32_t c = 0; c < K; c++)
                scaled[r * K + c] = act_f16_scaled(x[r * K + c], top_of(x + r * K, K));
        desc.source = DTYPE_F16;
        struct weight *dense = upload_weight(&desc, raw, &data);
        const struct role_run prompts = {0, M, false};
        float *device_x = on_device(scaled, sizeof(float) * M * K);
        float *device_y = poison_on_device(M * N);
        struct act *act = NULL;
        struct error err = {0};
        struct tensor tx = tensor_view(device_x, DTYPE_F32, M, K);
        struct tensor ty = tensor_view(device_y, DTYPE_F32, M, N);
        stream->roles = &prompts;
        stream->n_roles = 1;
        assert_int_equal(module.op_table->act_create(device, M, K, &act, &err), 0);
        assert_int_equal(op_act_prepare(stream, act, &tx, weight_act_kind(dense), NULL, NULL), 0);
        assert_int_equal(op_linear(stream, &ty, act, dense), 0);
        fetch(sums, device_y, sizeof(sums));
        stream->n_roles = 0;
        run_roles(&w, x, M, NULL, 0, got);
        for (uint32_t r = 0; r < M; r++)
            for (uint32_t n = 0; n < N; n++)
                sums[r * N + n] =
                    dense_scaled_by(sums[r * N + n], act_f16_unit(top_of(x + r * K, K)),
                                    widen_unit(p.form, p.units[n]));
        assert_same_bits(got, sums, sizeof(got), dtype_name(formats[f]));
        module.op_table->act_destroy(act);
        weight_unbind(module.op_table, dense);
        drop(data, 0);
        drop(device_x, 0);
        drop(device_y, 0);
        plain_free(&p);
        both_free(&w);
        free(raw);
        free(scaled);
        free(x);
    }
}

/* --- roles --- */

enum { MIXED_M = 45, MIXED_N = 50 };

static const struct role_run mixes[][5] = {
    {{0, 3, true}, {3, 42, false}},
    {{0, 20, false}, {20, 25, true}},
    {{0, 9, true}, {9, 1, false}, {10, 17, true}, {27, 0, true}, {27, 18, false}},
    {{0, 45, true}},
    {{0, 5, false}, {5, 40, false}},
};
static const uint32_t n_runs[] = {2, 2, 5, 1, 2};
enum { N_MIXES = sizeof(n_runs) / sizeof(n_runs[0]) };

static bool is_generated(size_t mix, uint32_t row)
{
    for (uint32_t i = 0; i < n_runs[mix]; i++)
        if (row >= mixes[mix][i].begin && row < mixes[mix][i].begin + mixes[mix][i].n_rows)
            return mixes[mix][i].generated;
    return false;
}

/* Compares each row with the bits of its role. */
static void check_mix(size_t mix, const float *y, const float *by_d, const float *by_p,
                      const char *what)
{
    for (uint32_t r = 0; r < MIXED_M; r++)
        assert_same_bits(y + r * MIXED_N, (is_generated(mix, r) ? by_d : by_p) + r * MIXED_N,
                         MIXED_N * sizeof(float), what);
}

static void test_rows_of_mixed_steps_have_the_bits_of_their_role(void **state)
{
    (void)state;
    enum { K = 512 };
    static float by_d[MIXED_M * MIXED_N], by_p[MIXED_M * MIXED_N], y[MIXED_M * MIXED_N];
    struct random random = test_random(145);
    for (size_t f = 0; f < N_FORMATS; f++) {
        struct both w = random_both(&random, f % 2 ? row_desc(formats[f], MIXED_N, K, 1, 0)
                                                   : column_desc(formats[f], MIXED_N, K));
        float *x = activations(&random, SOME_OUTLIERS, MIXED_M, K);
        const struct role_run generated = {0, MIXED_M, true};
        run_roles(&w, x, MIXED_M, &generated, 1, by_d);
        run_roles(&w, x, MIXED_M, NULL, 0, by_p);
        if (f % 2 == 0) {
            run_linear_op(&cpu, w.cpu, x, MIXED_M, K, y);
            assert_same_bits(by_d, y, sizeof(y), "generated rows have the CPU's bits");
        }
        assert_memory_not_equal(by_d, by_p, sizeof(by_d));
        for (size_t mix = 0; mix < N_MIXES; mix++) {
            run_roles(&w, x, MIXED_M, mixes[mix], n_runs[mix], y);
            check_mix(mix, y, by_d, by_p, dtype_name(formats[f]));
        }
        stream->mix_products = true;
        run_roles(&w, x, MIXED_M, mixes[0], n_runs[0], y);
        stream->mix_products = false;
        assert_same_bits(y, by_p, sizeof(y), "one product for all rows");
        both_free(&w);
        free(x);
    }
}

/* Computes three parts with bias and sum in one op, after a norm. Compares with each part alone and
 * plain ops. */
static void check_parts(struct random *random, enum dtype type, size_t mix, bool gated)
{
    enum { K = 256 };
    static const uint32_t n_of[] = {300, 17, MIXED_N};
    uint32_t n_parts = gated ? 2 : 3;
    struct both w[3];
    float *y[3], *sum[3], *alone[3], *bias[3];
    float *x = activations(random, NO_OUTLIERS, MIXED_M, K), *norm_w = random_floats(random, K, 0);
    float *device_x = on_device(x, MIXED_M * K * sizeof(float));
    float *device_w = on_device(norm_w, K * sizeof(float));
    float *device_h = poison_on_device(MIXED_M * K);
    struct tensor tx = tensor_view(device_x, DTYPE_F32, MIXED_M, K);
    struct tensor th = tensor_view(device_h, DTYPE_F32, MIXED_M, K), ty[3], tsum[3], talone[3];
    struct linear_part parts[3];
    struct act *act = NULL;
    struct error err = {0};
    assert_int_equal(module.op_table->act_create(device, MIXED_M, K, &act, &err), 0);
    stream->prompts_f16 = true;
    stream->roles = mixes[mix];
    stream->n_roles = n_runs[mix];
    const struct norm_params norm = {.w = device_w, .eps = 1e-5f};
    assert_int_equal(op_norm_prepare(stream, act, &th, &tx, &norm, ACT_INT8), 0);
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t n = gated ? MIXED_N : n_of[i];
        float *host_bias = random_floats(random, n, 0), *zeros = calloc(MIXED_M, n * sizeof(float));
        w[i] = random_both(random, column_desc(type, n, K));
        y[i] = poison_on_device((size_t)MIXED_M * n);
        alone[i] = poison_on_device((size_t)MIXED_M * n);
        sum[i] = on_device(zeros, (size_t)MIXED_M * n * sizeof(float));
        bias[i] = on_device(host_bias, n * sizeof(float));
        ty[i] = tensor_view(y[i], DTYPE_F32, MIXED_M, n);
        tsum[i] = tensor_view(sum[i], DTYPE_F32, MIXED_M, n);
        talone[i] = tensor_view(alone[i], DTYPE_F32, MIXED_M, n);
        parts[i] = (struct linear_part){
            .y = &ty[i], .w = w[i].gpu, .bias = bias[i], .sum = gated ? NULL : &tsum[i]};
        assert_int_equal(op_linear(stream, &talone[i], act, w[i].gpu), 0);
        assert_int_equal(op_add_bias(stream, &talone[i], bias[i]), 0);
        free(host_bias);
        free(zeros);
    }
    if (gated) {
        assert_int_equal(op_act_mul(stream, &talone[0], &talone[0], &talone[1], ACTIVATION_SILU),
                         0);
        assert_int_equal(op_linear_gated(stream, act, &parts[0], &parts[1], ACTIVATION_SILU), 0);
    } else {
        assert_int_equal(op_linear_parts(stream, act, parts, n_parts), 0);
    }
    for (uint32_t i = 0; i < (gated ? 1 : n_parts); i++) {
        size_t n = (size_t)MIXED_M * ty[i].n_cols;
        float *got = malloc(n * sizeof(float)), *wanted = malloc(n * sizeof(float));
        /* a part with a sum may leave y unwritten */
        fetch(got, gated ? y[i] : sum[i], n * sizeof(float));
        fetch(wanted, alone[i], n * sizeof(float));
        assert_same_bits(got, wanted, n * sizeof(float), gated ? "gated" : "sum");
        free(got);
        free(wanted);
    }
    stream->prompts_f16 = false;
    stream->n_roles = 0;
    sync_stream();
    module.op_table->act_destroy(act);
    for (uint32_t i = 0; i < n_parts; i++) {
        both_free(&w[i]);
        drop(y[i], 0), drop(alone[i], 0), drop(sum[i], 0), drop(bias[i], 0);
    }
    drop(device_x, 0), drop(device_w, 0), drop(device_h, 0);
    free(x);
    free(norm_w);
}

static void test_parts_in_one_op_equal_parts_in_turn(void **state)
{
    (void)state;
    struct random random = test_random(147);
    for (size_t mix = 0; mix < N_MIXES; mix++) {
        check_parts(&random, DTYPE_Q4_K, mix, false);
        check_parts(&random, DTYPE_Q8_0, mix, true);
        check_parts(&random, DTYPE_Q6_K, mix, mix % 2 == 0);
    }
}

/* --- accuracy --- */

struct errors {
    double squares, wanted;
};

static void add_errors(struct errors *e, const float *y, const double *wanted, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double d = (double)y[i] - wanted[i];
        e->squares += d * d;
        e->wanted += wanted[i] * wanted[i];
    }
}

static double relative(const struct errors *e)
{
    return sqrt(e->squares / e->wanted);
}

/* Both forms against f64, of the weights as packed. Activations have outliers as in models. */
static void test_error_is_below_that_of_integers(void **state)
{
    (void)state;
    enum { N = 48, M = 16, K = 1024 };
    static float by_d[M * N], by_p[M * N];
    static double wanted[M * N];
    struct random random = test_random(149);
    const struct role_run generated = {0, M, true};
    for (size_t f = 0; f < N_FORMATS; f++) {
        struct both w = random_both(&random, column_desc(formats[f], N, K));
        struct plain p = plain_of(&w);
        float *x = activations(&random, SOME_OUTLIERS, M, K);
        struct errors integers = {0}, halves = {0};
        for (uint32_t r = 0; r < M; r++)
            for (uint32_t n = 0; n < N; n++) {
                double sum = 0.0;
                for (uint32_t c = 0; c < K; c++)
                    sum += (double)p.w[n * K + c] * (double)x[r * K + c];
                wanted[r * N + n] = sum * (double)p.units[n];
            }
        run_roles(&w, x, M, &generated, 1, by_d);
        run_roles(&w, x, M, NULL, 0, by_p);
        add_errors(&integers, by_d, wanted, M * N);
        add_errors(&halves, by_p, wanted, M * N);
        print_message("%-5s relative error: f16 %.2e, integers %.2e (%.0f times)\n",
                      dtype_name(formats[f]), relative(&halves), relative(&integers),
                      relative(&integers) / relative(&halves));
        assert_true(relative(&halves) < 0.5 * relative(&integers));
        plain_free(&p);
        both_free(&w);
        free(x);
    }
}

/* More than the scratch holds: by shares of rows. */
static void test_matrix_beyond_the_scratch_is_multiplied_by_shares(void **state)
{
    (void)state;
    enum { N = 2 * SCRATCH_N + 100, K = SCRATCH_K, M = 3, PART = 150 };
    struct random random = test_random(151);
    uint8_t *raw = random_rows(&random, DTYPE_Q4_0, N, K);
    size_t row_bytes = dtype_row_bytes(DTYPE_Q4_0, K);
    struct both whole = both_of(column_desc(DTYPE_Q4_0, N, K), raw);
    struct both last =
        both_of(column_desc(DTYPE_Q4_0, PART, K), raw + (size_t)(N - PART) * row_bytes);
    float *x = activations(&random, SOME_OUTLIERS, M, K);
    float *all = poisoned((size_t)M * N), *part = poisoned((size_t)M * PART);
    run_roles(&whole, x, M, NULL, 0, all);
    run_roles(&last, x, M, NULL, 0, part);
    for (uint32_t r = 0; r < M; r++)
        assert_same_bits(all + (size_t)r * N + N - PART, part + (size_t)r * PART,
                         PART * sizeof(float), "the last rows");
    both_free(&whole);
    both_free(&last);
    free(raw);
    free(x);
    free(all);
    free(part);
}

/* The scratch holds several of the matrices here, but not the largest. */
static int open_with_scratch(void **state)
{
    const struct op_needs needs = {.widened_n = SCRATCH_N, .widened_k = SCRATCH_K};
    struct error err = {0};
    int rc = open_gpu(state);
    return rc != 0 ? rc : module.op_table->stream_reserve(stream, &needs, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_are_the_product_of_f16_numbers),
        cmocka_unit_test(test_sums_have_the_bits_of_dense_weights),
        cmocka_unit_test(test_rows_of_mixed_steps_have_the_bits_of_their_role),
        cmocka_unit_test(test_parts_in_one_op_equal_parts_in_turn),
        cmocka_unit_test(test_error_is_below_that_of_integers),
        cmocka_unit_test(test_matrix_beyond_the_scratch_is_multiplied_by_shares),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_with_scratch, close_gpu);
}
