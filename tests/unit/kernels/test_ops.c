/* Tests of ops that work row by row. Every kernel set gives the bits of ref, close to float64, for
 * any width, batch and thread count. Bad shapes are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const uint32_t widths[] = {1, 15, 16, 17, 31, 64, 80, 576, 1000, 1536};
enum { N_WIDTHS = sizeof(widths) / sizeof(widths[0]), ROWS = 37 };

typedef void run_fn(const struct rig *rig, struct tensor *y, const struct tensor *x,
                    const float *w);

static void run_rms(const struct rig *rig, struct tensor *y, const struct tensor *x, const float *w)
{
    assert_int_equal(op_rms_norm(rig->stream, y, x, w, 1e-5f), 0);
}

static void run_layer(const struct rig *rig, struct tensor *y, const struct tensor *x,
                      const float *w)
{
    assert_int_equal(op_layer_norm(rig->stream, y, x, w, w, 1e-5f), 0);
}

static void run_layer_plain(const struct rig *rig, struct tensor *y, const struct tensor *x,
                            const float *w)
{
    assert_int_equal(op_layer_norm(rig->stream, y, x, w, NULL, 1e-5f), 0);
}

static void run_add(const struct rig *rig, struct tensor *y, const struct tensor *x, const float *w)
{
    for (uint32_t r = 0; r < y->n_rows; r++)
        memcpy(tensor_row_f32(y, r), w, y->n_cols * sizeof(float));
    assert_int_equal(op_add(rig->stream, y, x), 0);
}

static void run_bias(const struct rig *rig, struct tensor *y, const struct tensor *x,
                     const float *w)
{
    for (uint32_t r = 0; r < y->n_rows; r++)
        memcpy(tensor_row_f32(y, r), tensor_row_f32(x, r), y->n_cols * sizeof(float));
    assert_int_equal(op_add_bias(rig->stream, y, w), 0);
}

#define RUN_ACT(name, kind)                                                                        \
    static void name(const struct rig *rig, struct tensor *y, const struct tensor *x,              \
                     const float *w)                                                               \
    {                                                                                              \
        (void)w;                                                                                   \
        assert_int_equal(op_act_mul(rig->stream, y, x, x, kind), 0);                               \
    }
RUN_ACT(run_silu, ACTIVATION_SILU)
RUN_ACT(run_gelu_tanh, ACTIVATION_GELU_TANH)
RUN_ACT(run_gelu_erf, ACTIVATION_GELU_ERF)
RUN_ACT(run_relu, ACTIVATION_RELU)
RUN_ACT(run_relu2, ACTIVATION_RELU2)
RUN_ACT(run_oai, ACTIVATION_GATED_OAI)
RUN_ACT(run_sigmoid, ACTIVATION_SIGMOID)

/* The row's first elements give its factors: a table by position, and a gate. */
static void run_scaled(const struct rig *rig, struct tensor *y, const struct tensor *x,
                       float softcap)
{
    static const float by_position[3] = {1.0f, 1.25f, 1.5f};
    static const uint32_t positions[1] = {70};
    for (uint32_t r = 0; r < y->n_rows; r++) {
        struct tensor row = tensor_rows(y, r, 1), gate = tensor_rows(x, r, 1);
        gate.n_cols = 1;
        const struct scale_params p = {.factor = 3.5f,
                                       .softcap = softcap,
                                       .by_position = by_position,
                                       .period = 32,
                                       .gate = &gate};
        memcpy(tensor_row_f32(y, r), tensor_row_f32(x, r), y->n_cols * sizeof(float));
        assert_int_equal(op_scale(rig->stream, &row, positions, &p), 0);
    }
}

static void run_scale(const struct rig *rig, struct tensor *y, const struct tensor *x,
                      const float *w)
{
    (void)w;
    run_scaled(rig, y, x, 0.0f);
}

static void run_softcap(const struct rig *rig, struct tensor *y, const struct tensor *x,
                        const float *w)
{
    (void)w;
    run_scaled(rig, y, x, 4.0f);
}

static void run_softcap_wide(const struct rig *rig, struct tensor *y, const struct tensor *x,
                             const float *w)
{
    (void)w;
    run_scaled(rig, y, x, 400.0f);
}

static double want_rms(const float *x, const float *w, uint32_t n, uint32_t i)
{
    double sum = 0;
    for (uint32_t j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return (double)x[i] / sqrt(sum / n + 1e-5) * (double)w[i];
}

static double want_layer_plain(const float *x, const float *w, uint32_t n, uint32_t i)
{
    double mean = 0, var = 0;
    for (uint32_t j = 0; j < n; j++)
        mean += (double)x[j] / n;
    for (uint32_t j = 0; j < n; j++)
        var += ((double)x[j] - mean) * ((double)x[j] - mean) / n;
    return ((double)x[i] - mean) / sqrt(var + 1e-5) * (double)w[i];
}

static double want_layer(const float *x, const float *w, uint32_t n, uint32_t i)
{
    return want_layer_plain(x, w, n, i) + (double)w[i];
}

static double want_sum(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)n;
    return (double)x[i] + (double)w[i];
}

static double want_silu(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    double v = (double)x[i];
    return v / (1 + exp(-v)) * v;
}

static double want_gelu_tanh(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    double v = (double)x[i];
    return 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v))) * v;
}

static double want_gelu_erf(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    double v = (double)x[i];
    return 0.5 * v * erfc(-v / sqrt(2.0)) * v;
}

static double want_relu(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    return x[i] > 0 ? (double)x[i] * (double)x[i] : 0.0;
}

static double want_relu2(const float *x, const float *w, uint32_t n, uint32_t i)
{
    return want_relu(x, w, n, i) * (double)x[i];
}

static double want_sigmoid(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    return (double)x[i] / (1 + exp(-(double)x[i]));
}

/* gpt-oss: gate and up are both x. */
static double want_oai(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    double g = fmin((double)x[i], 7.0), u = fmax(-7.0, fmin((double)x[i], 7.0));
    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

static double want_scale(const float *x, const float *w, uint32_t n, uint32_t i)
{
    (void)w;
    (void)n;
    return (double)x[i] * 3.5 * 1.5 / (1 + exp(-(double)x[0]));
}

static double want_softcap(const float *x, const float *w, uint32_t n, uint32_t i)
{
    return 4 * tanh(want_scale(x, w, n, i) / 4);
}

static double want_softcap_wide(const float *x, const float *w, uint32_t n, uint32_t i)
{
    return 400 * tanh(want_scale(x, w, n, i) / 400);
}

static const struct op_case {
    const char *name;
    run_fn *run;
    double (*want)(const float *x, const float *w, uint32_t n, uint32_t i);
    double tolerance; /* relative to the largest |value| of the row, at least `least` */
    double least;
} cases[] = {
    {"rms_norm", run_rms, want_rms, 1e-6, 0},
    {"layer_norm", run_layer, want_layer, 4e-6, 0},
    {"layer_norm without bias", run_layer_plain, want_layer_plain, 4e-6, 0},
    {"add", run_add, want_sum, 1e-7, 0},
    {"add_bias", run_bias, want_sum, 1e-7, 0},
    {"silu", run_silu, want_silu, 5e-7, 0},
    {"gelu_tanh", run_gelu_tanh, want_gelu_tanh, 1e-6, 0},
    {"gelu_erf", run_gelu_erf, want_gelu_erf, 1e-6, 0},
    {"relu", run_relu, want_relu, 1e-7, 0},
    {"relu2", run_relu2, want_relu2, 2e-7, 0},
    {"gated_oai", run_oai, want_oai, 1e-6, 0},
    {"sigmoid", run_sigmoid, want_sigmoid, 5e-7, 0},
    {"scale", run_scale, want_scale, 5e-7, 0},
    {"softcap", run_softcap, want_softcap, 5e-7, 4.0}, /* the error is relative to the cap */
    /* Symptom: values far below the cap had the cap's rounding error. Logits of Gemma 2, whose cap
     * is 50, were wrong by 4e-5 of the largest. */
    {"softcap of small values", run_softcap_wide, want_softcap_wide, 5e-7, 0},
};

static void check_case(const struct op_case *c, uint32_t n, struct random *r)
{
    size_t n_bytes = (size_t)ROWS * n * sizeof(float);
    float *x = random_floats(r, (size_t)ROWS * n, 0.01f), *w = random_floats(r, n, 0.0f);
    float *first = malloc(n_bytes);
    struct tensor tx = tensor_view(x, DTYPE_F32, ROWS, n);
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        for (uint32_t threads = 1; threads <= 2; threads++) {
            struct rig rig = rig_open(*set, threads);
            float *y = poisoned((size_t)(ROWS + 1) * n);
            struct tensor ty = tensor_view(y, DTYPE_F32, ROWS, n);
            c->run(&rig, &ty, &tx, w);
            assert_true(isnan(y[(size_t)ROWS * n]));
            if (set == kernel_sets() && threads == 1)
                memcpy(first, y, n_bytes);
            assert_same_bits(first, y, n_bytes, c->name);
            struct tensor one_x = tensor_view(x + 5 * n, DTYPE_F32, 1, n),
                          one_y = tensor_view(y, DTYPE_F32, 1, n);
            c->run(&rig, &one_y, &one_x, w);
            assert_same_bits(first + 5 * n, y, n * sizeof(float), c->name);
            free(y);
            rig_close(&rig);
        }
    for (uint32_t row = 0; row < ROWS; row++) {
        double top = fmax(1e-3, c->least);
        for (uint32_t i = 0; i < n; i++)
            top = fmax(top, fabs((double)first[row * n + i]));
        for (uint32_t i = 0; i < n; i++) {
            double want = c->want(x + (size_t)row * n, w, n, i);
            if (!(fabs((double)first[row * n + i] - want) <= c->tolerance * top))
                fail_msg("%s n=%u row %u [%u]: %g, float64 %g", c->name, n, row, i,
                         (double)first[row * n + i], want);
        }
    }
    free(first);
    free(w);
    free(x);
}

static void test_row_ops_of_every_set_agree(void **state)
{
    (void)state;
    struct random r = {21};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
        for (int i = 0; i < N_WIDTHS; i++)
            if (widths[i] > 1 || c > 2)
                check_case(&cases[c], widths[i], &r);
}

/* The whole range of exp: no NaN, no overflow where the result is finite. */
static void test_silu_over_the_whole_range_is_accurate(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++)
        x[i] = ((float)i - N / 2) * 0.1f;
    x[0] = -INFINITY;
    x[1] = INFINITY;
    x[2] = -3e38f;
    x[3] = NAN;
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        struct tensor tx = tensor_view(x, DTYPE_F32, 1, N), ty = tensor_view(y, DTYPE_F32, 1, N);
        assert_int_equal(op_act_mul(rig.stream, &ty, &tx, NULL, ACTIVATION_SILU), 0);
        assert_true(y[1] == INFINITY && isnan(y[3]));
        for (int i = 4; i < N; i++) {
            double want = (double)x[i] / (1 + exp(-(double)x[i]));
            assert_true(fabs((double)y[i] - want) <= 3e-7 * fabs(want) + 1e-35);
        }
        rig_close(&rig);
    }
}

static void test_rope_of_both_styles_turns_pairs_by_their_angle(void **state)
{
    (void)state;
    enum { HEADS = 3, N = 6 };
    static const uint32_t positions[N] = {0, 1, 17, 2047, 65535, 1000000};
    static const uint32_t tables[N] = {1, 0, 1, 1, 0, 1};
    static const struct {
        uint32_t head_dim, n_rot;
    } dims[] = {{64, 64}, {80, 32}, {128, 128}, {256, 200}};
    struct random r = {22};
    for (size_t i = 0; i < 2 * (sizeof(dims) / sizeof(dims[0])); i++)
        for (int style = ROPE_INTERLEAVED; style <= ROPE_HALF; style++) {
            bool two = i % 2;
            uint32_t d = dims[i / 2].head_dim, n_rot = dims[i / 2].n_rot, cols = HEADS * d;
            float *x = random_floats(&r, (size_t)N * cols, 0.0f), inv_freq[2 * 128];
            for (uint32_t j = 0; j < n_rot; j++) /* the second table turns a third as fast */
                inv_freq[j] = powf(10000.0f, -2.0f * (float)(j % (n_rot / 2)) / (float)n_rot) /
                              (j < n_rot / 2 ? 1.0f : 3.0f);
            struct rope_params params = {(enum rope_style)style, d, n_rot, inv_freq, 1.25f,
                                         two ? tables : NULL};
            float *first = NULL;
            for (const char *const *set = kernel_sets(); *set != NULL; set++) {
                struct rig rig = rig_open(*set, 2);
                float *y = malloc((size_t)N * cols * sizeof(float));
                memcpy(y, x, (size_t)N * cols * sizeof(float));
                struct tensor ty = tensor_view(y, DTYPE_F32, N, cols);
                assert_int_equal(op_rope(rig.stream, &ty, positions, &params), 0);
                if (first == NULL) {
                    first = y;
                } else {
                    assert_same_bits(first, y, (size_t)N * cols * sizeof(float), *set);
                    free(y);
                }
                rig_close(&rig);
            }
            for (uint32_t row = 0; row < N; row++)
                for (uint32_t h = 0; h < HEADS; h++)
                    for (uint32_t j = 0; j < n_rot / 2; j++) {
                        size_t at = (size_t)row * cols + h * d;
                        size_t a = at + (style == ROPE_HALF ? j : 2 * j),
                               b = at + (style == ROPE_HALF ? j + n_rot / 2 : 2 * j + 1);
                        uint32_t j_table = two ? tables[row] * (n_rot / 2) + j : j;
                        double angle = (double)((float)positions[row] * inv_freq[j_table]);
                        double c = cos(angle) * 1.25, s = sin(angle) * 1.25;
                        assert_true(fabs((double)first[a] - ((double)x[a] * c - (double)x[b] * s)) <
                                    2e-6);
                        assert_true(fabs((double)first[b] - ((double)x[a] * s + (double)x[b] * c)) <
                                    2e-6);
                    }
            for (uint32_t j = n_rot; j < d; j++)
                assert_true(first[j] == x[j]);
            free(first);
            free(x);
        }
}

static void test_embed_reads_rows_of_every_packing(void **state)
{
    (void)state;
    enum { N = 50, K = 256, M = 5 };
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                       DTYPE_Q8_0, DTYPE_Q4_1, DTYPE_Q6_K};
    static const uint32_t ids[M] = {49, 0, 7, 7, 33};
    struct random r = {23};
    struct rig rig = rig_open("auto", 2);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        uint8_t *raw = random_rows(&r, types[t], N, K);
        for (int tied = 0; tied < 2; tied++) {
            struct weight_desc desc = column_desc(types[t], N, K);
            desc.role = tied ? WEIGHT_LINEAR_COLUMN : WEIGHT_EMBEDDING;
            struct weight *w = pack_weight(rig.ops, &desc, raw);
            float y[M * K], want[K];
            struct tensor ty = tensor_view(y, DTYPE_F32, M, K);
            assert_int_equal(op_embed(rig.stream, &ty, ids, w), 0);
            for (uint32_t m = 0; m < M; m++) {
                dtype_to_f32(types[t], raw + ids[m] * dtype_row_bytes(types[t], K), K, want);
                if (!tied || !dtype_is_quantized(types[t])) {
                    assert_same_bits(want, y + m * K, sizeof(want), dtype_name(types[t]));
                    continue;
                }
                double difference = 0, norm = 0;
                for (uint32_t k = 0; k < K; k++) {
                    difference += pow((double)want[k] - (double)y[m * K + k], 2);
                    norm += pow((double)want[k], 2);
                }
                assert_true(difference <= 1e-4 * norm); /* block scales of 8 bits and more */
            }
            const uint32_t beyond[M] = {0, 0, N, 0, 0};
            assert_int_equal(op_embed(rig.stream, &ty, beyond, w), STATUS_INTERNAL);
            free(w);
        }
        free(raw);
    }
    rig_close(&rig);
}

static void test_gather_and_vectors(void **state)
{
    (void)state;
    enum { K = 33 };
    float x[4 * K], y[3 * K];
    for (int i = 0; i < 4 * K; i++)
        x[i] = (float)i;
    static const uint32_t index[3] = {3, 0, 3}, beyond[3] = {0, 4, 0};
    struct rig rig = rig_open("auto", 1);
    struct tensor tx = tensor_view(x, DTYPE_F32, 4, K), ty = tensor_view(y, DTYPE_F32, 3, K);
    assert_int_equal(op_gather_rows(rig.stream, &ty, &tx, index), 0);
    for (int i = 0; i < 3; i++)
        assert_same_bits(y + i * K, x + index[i] * K, K * sizeof(float), "gather");
    assert_int_equal(op_gather_rows(rig.stream, &ty, &tx, beyond), STATUS_INTERNAL);
    uint16_t halves[K];
    for (int i = 0; i < K; i++)
        halves[i] = dtype_f32_to_f16((float)i);
    struct weight_desc desc = {
        .role = WEIGHT_VECTOR, .source = DTYPE_F16, .n_rows = 1, .k_total = K};
    struct weight *w = pack_weight(rig.ops, &desc, halves);
    assert_same_bits(weight_vector(w), x, sizeof(halves) * 2, "vector");
    assert_int_equal(weight_act_kind(w), 0);
    free(w);
    rig_close(&rig);
}

static void test_shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct rig rig = rig_open("auto", 1);
    float data[256] = {0};
    struct tensor a = tensor_view(data, DTYPE_F32, 2, 32), b = tensor_view(data, DTYPE_F32, 2, 31),
                  wide = tensor_view(data, DTYPE_F32, 1, 128),
                  half = tensor_view(data, DTYPE_F16, 2, 32);
    struct rope_params rope = {ROPE_HALF, 24, 24, data, 1.0f, NULL};
    uint32_t positions[2] = {0, 1};
    assert_int_equal(op_add(rig.stream, &a, &b), STATUS_INTERNAL);
    assert_int_equal(op_rms_norm(rig.stream, &a, &half, data, 1e-5f), STATUS_INTERNAL);
    assert_int_equal(op_rope(rig.stream, &a, positions, &rope), STATUS_INTERNAL);
    struct act *act = make_act(&rig, 2, 64);
    assert_int_equal(op_act_prepare(rig.stream, act, &wide, ACT_INT8, NULL, NULL), STATUS_INTERNAL);
    struct random r = {24};
    uint8_t *raw = random_rows(&r, DTYPE_Q4_0, 16, 32);
    struct weight_desc desc = column_desc(DTYPE_Q4_0, 16, 32);
    struct weight *w = pack_weight(rig.ops, &desc, raw);
    struct tensor y = tensor_view(data, DTYPE_F32, 2, 16);
    assert_int_equal(op_act_prepare(rig.stream, act, &a, ACT_F32, NULL, NULL), 0);
    assert_int_equal(op_linear(rig.stream, &y, act, w), STATUS_INTERNAL); /* wrong preparation */
    assert_int_equal(op_act_prepare(rig.stream, act, &a, ACT_INT8 | ACT_F32, NULL, NULL), 0);
    assert_int_equal(op_linear(rig.stream, &y, act, w), 0);
    assert_int_equal(op_linear(rig.stream, &a, act, w), STATUS_INTERNAL); /* wrong width */
    free(w);
    free(raw);
    rig.ops->act_destroy(act);
    rig_close(&rig);
}

/* Each head has weights of its own. The bits are those of a norm per head. */
static void test_norm_of_heads_equals_norms_head_by_head(void **state)
{
    enum { HEADS = 5 };
    static const uint32_t dims[] = {8, 16, 33, 128};
    struct random random = {21};
    (void)state;
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        for (size_t i = 0; i < 2 * sizeof(dims) / sizeof(dims[0]); i++) {
            uint32_t dim = dims[i / 2], n = HEADS * dim;
            struct rig rig = rig_open(*set, 3);
            float *x = random_floats(&random, (size_t)ROWS * n, 0.0f), *want = poisoned(dim),
                  *copy = malloc((size_t)ROWS * n * sizeof(*copy));
            float *w = random_floats(&random, n, 0.0f), *bias = random_floats(&random, n, 0.0f);
            const struct norm_params p = {
                .is_centred = i % 2 != 0, .w = w, .bias = i % 2 != 0 ? bias : NULL, .eps = 1e-5f};
            struct tensor all = tensor_view(x, DTYPE_F32, ROWS, n);
            memcpy(copy, x, (size_t)ROWS * n * sizeof(*copy));
            assert_int_equal(op_norm_heads(rig.stream, &all, HEADS, &p), 0);
            for (uint32_t r = 0; r < ROWS * HEADS; r++) {
                struct tensor from = tensor_view(copy + (size_t)r * dim, DTYPE_F32, 1, dim),
                              to = tensor_view(want, DTYPE_F32, 1, dim);
                const float *w_of = w + r % HEADS * dim;
                assert_int_equal(p.is_centred ? op_layer_norm(rig.stream, &to, &from, w_of,
                                                              bias + r % HEADS * dim, 1e-5f)
                                              : op_rms_norm(rig.stream, &to, &from, w_of, 1e-5f),
                                 0);
                assert_same_bits(x + (size_t)r * dim, want, dim * sizeof(*want), *set);
            }
            all.row_stride++;
            assert_int_equal(op_norm_heads(rig.stream, &all, HEADS, &p), STATUS_INTERNAL);
            free(x), free(copy), free(want), free(w), free(bias);
            rig_close(&rig);
        }
}

static void test_scaled_sum_equals_scale_and_add(void **state)
{
    enum { N = 100 };
    struct random random = {22};
    (void)state;
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 2);
        float *x = random_floats(&random, ROWS * N, 0.0f), *y = random_floats(&random, ROWS * N, 0),
              *x2 = malloc(ROWS * N * sizeof(*x2)), *y2 = malloc(ROWS * N * sizeof(*y2));
        struct tensor tx = tensor_view(x, DTYPE_F32, ROWS, N), ty = tx, tx2 = tx, ty2 = tx;
        const struct scale_params scale = {.factor = 0.22f};
        ty.data = y, tx2.data = x2, ty2.data = y2;
        memcpy(x2, x, ROWS * N * sizeof(*x));
        memcpy(y2, y, ROWS * N * sizeof(*y));
        assert_int_equal(op_scale(rig.stream, &tx2, NULL, &scale), 0);
        assert_int_equal(op_add(rig.stream, &ty2, &tx2), 0);
        assert_int_equal(op_add_scaled(rig.stream, &ty, &tx, 0.22f), 0);
        assert_same_bits(y, y2, ROWS * N * sizeof(*y), *set);
        free(x), free(x2), free(y), free(y2);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_of_heads_equals_norms_head_by_head),
        cmocka_unit_test(test_scaled_sum_equals_scale_and_add),
        cmocka_unit_test(test_row_ops_of_every_set_agree),
        cmocka_unit_test(test_silu_over_the_whole_range_is_accurate),
        cmocka_unit_test(test_rope_of_both_styles_turns_pairs_by_their_angle),
        cmocka_unit_test(test_embed_reads_rows_of_every_packing),
        cmocka_unit_test(test_gather_and_vectors),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
