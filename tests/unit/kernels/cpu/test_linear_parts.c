/* Tests that fused linears give the bits of linear, bias, sum and activation one after the other.
 * Covers every kernel set, weights of different types and heights beside each other, any number of
 * rows and threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kernels/act_header.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { MAX_N = 200, MAX_M = 60, K = 96 };

struct part_case {
    enum dtype types[LINEAR_MAX_PARTS];
    uint32_t n[LINEAR_MAX_PARTS], n_parts;
};

static const struct part_case cases[] = {
    {{DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1}, {96, 32, 32}, 3},
    {{DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_BF16}, {17, 1, 50}, 3},
    {{DTYPE_F32, DTYPE_Q5_0}, {3, 200}, 2},
    {{DTYPE_Q8_0}, {129}, 1},
};
static const uint32_t row_counts[] = {1, 2, 7, MAX_M};

/* Buffers of one run: results, the sums that results are added to, and biases. */
struct buffers {
    float *y[LINEAR_MAX_PARTS], *sum[LINEAR_MAX_PARTS];
    struct tensor y_of[LINEAR_MAX_PARTS], sum_of[LINEAR_MAX_PARTS];
    struct linear_part parts[LINEAR_MAX_PARTS];
};

struct inputs {
    struct weight *w[LINEAR_MAX_PARTS];
    float *x, *bias, *sum; /* [MAX_M][K], [MAX_N], [MAX_M][MAX_N] */
};

/* Part i has a bias where bit i of `extras` is set, a sum where bit 3 + i is. */
static void make_buffers(struct buffers *b, const struct inputs *in, uint32_t n_parts, uint32_t m,
                         uint32_t extras)
{
    for (uint32_t p = 0; p < n_parts; p++) {
        uint32_t n = weight_n_rows(in->w[p]);
        b->y[p] = poisoned((size_t)m * n);
        b->sum[p] = malloc((size_t)m * n * sizeof(float));
        memcpy(b->sum[p], in->sum, (size_t)m * n * sizeof(float));
        b->y_of[p] = tensor_view(b->y[p], DTYPE_F32, m, n);
        b->sum_of[p] = tensor_view(b->sum[p], DTYPE_F32, m, n);
        b->parts[p] = (struct linear_part){
            .y = &b->y_of[p],
            .w = in->w[p],
            .bias = extras >> p & 1 ? in->bias : NULL,
            .sum = extras >> (3 + p) & 1 ? &b->sum_of[p] : NULL,
            .sum_factor = p == 1 ? 0.22f : 0.0f,
        };
    }
}

static void free_buffers(struct buffers *b)
{
    for (uint32_t p = 0; p < LINEAR_MAX_PARTS; p++) {
        free(b->y[p]);
        free(b->sum[p]);
    }
}

static void run_in_turn(struct rig *rig, const struct act *act, const struct linear_part *part)
{
    assert_int_equal(op_linear(rig->stream, part->y, act, part->w), 0);
    if (part->bias != NULL)
        assert_int_equal(op_add_bias(rig->stream, part->y, part->bias), 0);
    if (part->sum != NULL)
        assert_int_equal(op_add_scaled(rig->stream, part->sum, part->y,
                                       part->sum_factor != 0 ? part->sum_factor : 1.0f),
                         0);
}

static struct act *prepare(struct rig *rig, const struct inputs *in, uint32_t m)
{
    struct act *act = make_act(rig, m, K);
    struct tensor x = tensor_view(in->x, DTYPE_F32, m, K);
    assert_int_equal(
        op_act_prepare(rig->stream, act, &x, ACT_F32 | ACT_BF16 | ACT_INT8, NULL, NULL), 0);
    return act;
}

static void check_parts(struct rig *rig, const struct inputs *in, const struct part_case *c,
                        uint32_t m, const char *what)
{
    struct act *act = prepare(rig, in, m);
    const struct weight *next[LINEAR_MAX_PARTS] = {in->w[0], in->w[1], in->w[2]};
    for (uint32_t extras = 0; extras < 64; extras += 9) {
        struct buffers want = {0}, got = {0};
        make_buffers(&want, in, c->n_parts, m, extras);
        make_buffers(&got, in, c->n_parts, m, extras);
        for (uint32_t p = 0; p < c->n_parts; p++)
            run_in_turn(rig, act, &want.parts[p]);
        op_will_read(rig->stream, next, c->n_parts);
        assert_int_equal(op_linear_parts(rig->stream, act, got.parts, c->n_parts), 0);
        for (uint32_t p = 0; p < c->n_parts; p++) {
            size_t n_bytes = (size_t)m * weight_n_rows(in->w[p]) * sizeof(float);
            assert_same_bits(want.y[p], got.y[p], n_bytes, what);
            assert_same_bits(want.sum[p], got.sum[p], n_bytes, what);
        }
        free_buffers(&want);
        free_buffers(&got);
    }
    rig->ops->act_destroy(act);
}

/* Compares y[m, n] of a second layer, n inputs and outputs, with that of op_gated_prepare(). */
static void check_prepared(struct rig *rig, const struct inputs *in, const struct buffers *gated,
                           uint32_t m, enum activation kind)
{
    uint32_t n = weight_n_rows(in->w[0]);
    struct random r = {17};
    struct weight_desc desc = column_desc(DTYPE_BF16, n, n);
    uint8_t *raw = random_rows(&r, DTYPE_BF16, n, n);
    struct weight *w = pack_weight(rig->ops, &desc, raw);
    struct act *act = make_act(rig, m, K > MAX_N ? K : MAX_N);
    struct tensor x = tensor_view(in->x, DTYPE_F32, m, K);
    struct buffers got = {0};
    float *y = calloc((size_t)m * n, sizeof(float)), *wanted = calloc((size_t)m * n, sizeof(float));
    struct tensor to = tensor_view(wanted, DTYPE_F32, m, n);
    make_buffers(&got, in, 2, m, (uint32_t)kind % 4);
    assert_int_equal(
        op_act_prepare(rig->stream, act, gated->parts[0].y, weight_act_kind(w), NULL, NULL), 0);
    assert_int_equal(op_linear(rig->stream, &to, act, w), 0);
    to.data = y;
    assert_int_equal(
        op_act_prepare(rig->stream, act, &x, ACT_F32 | ACT_BF16 | ACT_INT8, NULL, NULL), 0);
    assert_int_equal(op_gated_prepare(rig->stream, act, &got.parts[0], &got.parts[1], kind,
                                      weight_act_kind(w), NULL, NULL),
                     0);
    assert_int_equal(op_linear(rig->stream, &to, act, w), 0);
    assert_same_bits(wanted, y, (size_t)m * n * sizeof(float), "gated and prepared");
    free_buffers(&got);
    free(wanted);
    free(y);
    free(w);
    free(raw);
    rig->ops->act_destroy(act);
}

static void check_gated(struct rig *rig, const struct inputs *in, uint32_t m, const char *what)
{
    struct act *act = prepare(rig, in, m);
    size_t n_bytes = (size_t)m * weight_n_rows(in->w[0]) * sizeof(float);
    for (int kind = ACTIVATION_SILU; kind < N_ACTIVATIONS; kind++) {
        struct buffers want = {0}, got = {0};
        make_buffers(&want, in, 2, m, (uint32_t)kind % 4);
        make_buffers(&got, in, 2, m, (uint32_t)kind % 4);
        run_in_turn(rig, act, &want.parts[0]);
        run_in_turn(rig, act, &want.parts[1]);
        assert_int_equal(op_act_mul(rig->stream, want.parts[0].y, want.parts[0].y, want.parts[1].y,
                                    (enum activation)kind),
                         0);
        assert_int_equal(
            op_linear_gated(rig->stream, act, &got.parts[0], &got.parts[1], (enum activation)kind),
            0);
        assert_same_bits(want.y[0], got.y[0], n_bytes, what);
        check_prepared(rig, in, &want, m, (enum activation)kind);
        free_buffers(&want);
        free_buffers(&got);
    }
    rig->ops->act_destroy(act);
}

static void make_inputs(struct inputs *in, struct random *r, const struct op_table *ops,
                        const struct part_case *c)
{
    *in = (struct inputs){.x = random_floats(r, (size_t)MAX_M * K, 0.02f),
                          .bias = random_floats(r, MAX_N, 0),
                          .sum = random_floats(r, (size_t)MAX_M * MAX_N, 0)};
    for (uint32_t p = 0; p < c->n_parts; p++) {
        struct weight_desc desc = column_desc(c->types[p], c->n[p], K);
        uint8_t *raw = random_rows(r, c->types[p], c->n[p], K);
        in->w[p] = pack_weight(ops, &desc, raw);
        free(raw);
    }
}

static void free_inputs(struct inputs *in)
{
    for (uint32_t p = 0; p < LINEAR_MAX_PARTS; p++)
        free(in->w[p]);
    free(in->sum);
    free(in->bias);
    free(in->x);
}

static void test_parts_equal_linears_in_turn(void **state)
{
    (void)state;
    struct random r = {11};
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (uint32_t threads = 1; threads <= 3; threads++)
            for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                struct rig rig = rig_open(*set, threads);
                struct inputs in;
                make_inputs(&in, &r, rig.ops, &cases[i]);
                for (size_t m = 0; m < sizeof(row_counts) / sizeof(row_counts[0]); m++) {
                    char what[80];
                    snprintf(what, sizeof(what), "%s, case %zu, %u rows, %u threads", *set, i,
                             row_counts[m], threads);
                    check_parts(&rig, &in, &cases[i], row_counts[m], what);
                }
                free_inputs(&in);
                rig_close(&rig);
            }
}

static void test_gated_equals_linears_and_activation(void **state)
{
    (void)state;
    static const struct part_case gated[] = {
        {{DTYPE_Q4_1, DTYPE_Q4_1}, {192, 192}, 2},
        {{DTYPE_Q8_0, DTYPE_F16}, {77, 77}, 2},
    };
    struct random r = {12};
    for (const char *const *set = linear_sets(); *set != NULL; set++)
        for (uint32_t threads = 1; threads <= 3; threads++)
            for (size_t i = 0; i < 2; i++) {
                struct rig rig = rig_open(*set, threads);
                struct inputs in;
                make_inputs(&in, &r, rig.ops, &gated[i]);
                for (size_t m = 0; m < sizeof(row_counts) / sizeof(row_counts[0]); m++)
                    check_gated(&rig, &in, row_counts[m], *set);
                free_inputs(&in);
                rig_close(&rig);
            }
}

static void test_parts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct random r = {13};
    struct rig rig = rig_open("auto", 1);
    struct inputs in;
    make_inputs(&in, &r, rig.ops, &cases[0]);
    struct act *act = prepare(&rig, &in, 2);
    struct buffers b = {0};
    make_buffers(&b, &in, 3, 2, 0);
    struct tensor narrow = tensor_view(b.sum[0], DTYPE_F32, 2, 95);
    assert_int_equal(op_linear_parts(rig.stream, act, b.parts, 0), STATUS_INTERNAL);
    assert_int_equal(op_linear_parts(rig.stream, act, b.parts, LINEAR_MAX_PARTS + 1),
                     STATUS_INTERNAL);
    b.parts[0].sum = &narrow;
    assert_int_equal(op_linear_parts(rig.stream, act, b.parts, 1), STATUS_INTERNAL);
    b.parts[0].sum = NULL;
    assert_int_equal(op_gated_prepare(rig.stream, act, &b.parts[0], &b.parts[1], ACTIVATION_SILU,
                                      ACT_INT8, NULL, NULL),
                     STATUS_INTERNAL);
    assert_int_equal(op_linear_gated(rig.stream, act, &b.parts[0], &b.parts[1], ACTIVATION_SILU),
                     STATUS_INTERNAL); /* 96 and 32 outputs */
    b.y_of[1].n_cols = 31;
    assert_int_equal(op_linear_parts(rig.stream, act, b.parts, 3), STATUS_INTERNAL);
    free_buffers(&b);
    rig.ops->act_destroy(act);
    free_inputs(&in);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_equal_linears_in_turn),
        cmocka_unit_test(test_gated_equals_linears_and_activation),
        cmocka_unit_test(test_parts_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
