/* Tests that heads_linear gives the bits of a linear for each head. Covers every kernel set, types
 * of weights, rows and threads. Columns between heads stay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kernels/act_header.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { HEADS = 5, N = 40, K = 96, Y_HEAD = 47, MAX_M = 3, COLS = HEADS * Y_HEAD };

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_1};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

struct heads {
    struct weight *w[HEADS];
    uint8_t *raw[HEADS];
    float *x; /* [MAX_M][HEADS · K] */
};

static struct heads make(struct random *r, enum dtype type)
{
    struct heads h = {.x = random_floats(r, (size_t)MAX_M * HEADS * K, 0.02f)};
    for (uint32_t i = 0; i < HEADS; i++)
        h.raw[i] = random_rows(r, type, N, K);
    return h;
}

static void drop(struct heads *h)
{
    for (uint32_t i = 0; i < HEADS; i++)
        free(h->raw[i]);
    free(h->x);
}

typedef int heads_fn(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                     const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);

/* Returns y[m][COLS]; columns that no head has are poisoned. */
static float *run(struct rig *rig, const struct heads *h, uint32_t m, uint32_t max_rows,
                  heads_fn *fn)
{
    struct act *act = make_act(rig, max_rows, K);
    float *y = poisoned((size_t)m * COLS);
    struct tensor tx = tensor_view(h->x, DTYPE_F32, m, HEADS * K),
                  ty = tensor_view(y, DTYPE_F32, m, COLS);
    assert_int_equal(
        fn(rig->stream, act, &ty, &tx, (const struct weight *const *)h->w, HEADS, Y_HEAD), 0);
    rig->ops->act_destroy(act);
    return y;
}

static void check(const char *set, enum dtype type, struct heads *h, uint32_t n_threads)
{
    struct rig rig = rig_open(set, n_threads);
    struct weight_desc desc = column_desc(type, N, K);
    for (uint32_t i = 0; i < HEADS; i++)
        h->w[i] = pack_weight(rig.ops, &desc, h->raw[i]);
    for (uint32_t m = 1; m <= MAX_M; m++)
        for (uint32_t max_rows = MAX_M; max_rows <= 8;
             max_rows += 5) { /* room for one head or all */
            char what[80];
            float *y = run(&rig, h, m, max_rows, op_heads_linear);
            float *wanted = run(&rig, h, m, max_rows, op_heads_in_turn);
            snprintf(what, sizeof(what), "%s, %s, %u rows of %u, %u threads", set, dtype_name(type),
                     m, max_rows, n_threads);
            assert_same_bits(y, wanted, (size_t)m * COLS * sizeof(float), what);
            free(y);
            free(wanted);
        }
    for (uint32_t i = 0; i < HEADS; i++)
        free(h->w[i]);
    rig_close(&rig);
}

static void test_all_heads_have_the_bits_of_linears_in_turn(void **state)
{
    struct random r = {7};
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        struct heads h = make(&r, types[t]);
        for (const char *const *set = linear_sets(); *set != NULL; set++)
            for (uint32_t threads = 1; threads <= 3; threads += 2)
                check(*set, types[t], &h, threads);
        drop(&h);
    }
}

/* Wrong shapes are errors of the caller. */
static void test_shapes_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        uint32_t x_cols, y_cols, y_head, n_heads, max_rows;
    } bad[] = {{HEADS * K - 1, COLS, Y_HEAD, HEADS, 2},
               {HEADS * K, COLS - N, Y_HEAD, HEADS, 2},
               {HEADS * K, COLS, N - 1, HEADS, 2},
               {HEADS * K, COLS, Y_HEAD, 0, 2},
               {HEADS * K, COLS, Y_HEAD, HEADS, 1}};
    struct random r = {9};
    struct rig rig = rig_open("auto", 1);
    struct heads h = make(&r, DTYPE_Q8_0);
    struct weight_desc desc = column_desc(DTYPE_Q8_0, N, K);
    float *y = poisoned((size_t)2 * COLS);
    (void)state;
    for (uint32_t i = 0; i < HEADS; i++)
        h.w[i] = pack_weight(rig.ops, &desc, h.raw[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct act *act = make_act(&rig, bad[i].max_rows, K);
        struct tensor tx = tensor_view(h.x, DTYPE_F32, 2, bad[i].x_cols),
                      ty = tensor_view(y, DTYPE_F32, 2, bad[i].y_cols);
        assert_int_equal(op_heads_linear(rig.stream, act, &ty, &tx,
                                         (const struct weight *const *)h.w, bad[i].n_heads,
                                         bad[i].y_head),
                         STATUS_INTERNAL);
        rig.ops->act_destroy(act);
    }
    for (uint32_t i = 0; i < HEADS; i++)
        free(h.w[i]);
    free(y);
    drop(&h);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_heads_have_the_bits_of_linears_in_turn),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
