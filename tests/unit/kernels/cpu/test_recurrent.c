/* Tests of op_conv, op_delta_net and op_ssm. A sequence's rows and states have the same bits for
 * every set, piece, batch, slot and thread count. They lie near float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/kernels/support/support_recurrent_runs.h"

static const struct recurrent_shape *const shapes = recurrent_shapes;
enum { N_SHAPES = RECURRENT_N_SHAPES, N_TOKENS = RECURRENT_TOKENS, N_SLOTS = RECURRENT_SLOTS };

static void test_pieces_and_sets_give_equal_bits(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {1, 7, 64, 200, N_TOKENS};
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct recurrent_world w = recurrent_open(&shapes[i], 1, N_TOKENS, 40 + i);
        uint32_t turn = (uint32_t)i;
        for (const char *const *set = kernel_sets(); *set != NULL; set++)
            for (size_t p = 0; p < 5; p++, turn++) {
                struct rig rig = rig_open(*set, 1 + turn % 4);
                recurrent_run_pieces(&w, &rig, pieces[p], turn % 2, *set);
                rig_close(&rig);
            }
        recurrent_close(&w);
    }
}

static void test_threads_give_equal_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct recurrent_world w = recurrent_open(&shapes[i], 1, N_TOKENS, 80 + i);
        for (uint32_t threads = 1; threads <= 8; threads++) {
            struct rig rig = rig_open("auto", threads);
            recurrent_run_pieces(&w, &rig, threads % 2 ? N_TOKENS : 50, threads % 3, "threads");
            rig_close(&rig);
        }
        recurrent_close(&w);
    }
}

static void test_batches_give_the_bits_of_a_sequence_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (const char *const *set = kernel_sets(); *set != NULL; set++)
            for (uint32_t threads = 1; threads <= 8; threads += 3) {
                struct rig rig = rig_open(*set, threads);
                recurrent_check_batches(&shapes[i], &rig, NULL, *set, 100 + 10 * i + threads);
                rig_close(&rig);
            }
}

static void test_rows_of_drafts_keep_each_state(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (const char *const *set = kernel_sets(); *set != NULL; set++) {
            struct rig rig = rig_open(*set, 2);
            recurrent_check_drafts(&shapes[i], &rig, NULL, *set, 300 + i);
            rig_close(&rig);
        }
}

/* Heads of a rank have the bits of the whole model, with keys that wrap around too. */
static void test_ranks_give_the_bits_of_the_whole(void **state)
{
    (void)state;
    for (int tiled = 0; tiled < 2; tiled++) {
        const struct recurrent_shape shape = {.kind = KIND_DELTA,
                                              .n_keys = 2,
                                              .n_heads = 6,
                                              .dim = 8,
                                              .head_dim = 20,
                                              .tiled = tiled};
        struct recurrent_world w = recurrent_open(&shape, 1, 50, 7);
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct rig rig = rig_open("auto", 2);
            recurrent_check_rank(&w, &rig, 3 * rank, 3, 16);
            rig_close(&rig);
        }
        recurrent_close(&w);
    }
}

/* The largest error over 4,096 positions, relative to the largest value of the output. */
static void test_long_sequences_stay_near_float64(void **state)
{
    (void)state;
    static const struct recurrent_shape wide[] = {
        {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 128, .head_dim = 128},
        {.kind = KIND_SSM, .n_keys = 1, .n_heads = 2, .dim = 128, .head_dim = 64},
    };
    static const double bounds[] = {2e-6, 2e-6};
    for (int i = 0; i < 2; i++) {
        double error, state_error;
        recurrent_float64_error(&wide[i], 4096, &error, &state_error);
        printf("%s over 4096 positions: error of y %.2g, of the state %.2g\n",
               i == 0 ? "delta_net" : "ssm", error, state_error);
        assert_true(error <= bounds[i] && state_error <= bounds[i]);
    }
}

static void test_short_sequences_stay_near_float64(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        double error, state_error;
        recurrent_float64_error(&shapes[i], 64, &error, &state_error);
        if (!(error <= 5e-6 && state_error <= 5e-6))
            fail_msg("shape %zu: error of y %g, of the state %g", i, error, state_error);
    }
}

static void test_bad_slots_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t reads, writes;
    } bad[] = {{N_SLOTS, 0}, {0, N_SLOTS}, {RECURRENT_PREVIOUS, 0}, {0, RECURRENT_PREVIOUS}};
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct recurrent_world w = recurrent_open(&shapes[i], 1, 1, 3);
        struct rig rig = rig_open("auto", 1);
        float *pool = poisoned(N_SLOTS * w.slot_floats), *y = poisoned(w.y_cols);
        for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
            struct recurrent_row row = {0, bad[b].reads, bad[b].writes, y};
            assert_int_equal(recurrent_step(&w, &rig, pool, N_SLOTS, &row, 1, false),
                             STATUS_INTERNAL);
        }
        free(pool);
        free(y);
        rig_close(&rig);
        recurrent_close(&w);
    }
}

static void test_copied_heads_lie_at_their_columns(void **state)
{
    (void)state;
    enum { M = 3, HEADS = 4, WIDTH = 5, Y_HEAD = 8, FIRST = 2 };
    float x[M * HEADS * WIDTH], y[M * HEADS * Y_HEAD];
    struct rig rig = rig_open("auto", 2);
    struct tensor tx = tensor_view(x, DTYPE_F32, M, HEADS * WIDTH),
                  ty = tensor_view(y, DTYPE_F32, M, HEADS * Y_HEAD);
    for (int i = 0; i < M * HEADS * WIDTH; i++)
        x[i] = (float)i;
    for (int i = 0; i < M * HEADS * Y_HEAD; i++)
        y[i] = -1.0f;
    assert_int_equal(op_copy_heads(rig.stream, &ty, &tx, HEADS, WIDTH, Y_HEAD, FIRST), 0);
    for (int i = 0; i < M * HEADS * Y_HEAD; i++) {
        int j = i % Y_HEAD - FIRST, from = i / Y_HEAD * WIDTH + j;
        assert_true(y[i] == (j < 0 || j >= WIDTH ? -1.0f : (float)from));
    }
    assert_int_equal(op_copy_heads(rig.stream, &ty, &tx, HEADS, WIDTH, Y_HEAD, 4), STATUS_INTERNAL);
    assert_int_equal(op_copy_heads(rig.stream, &ty, &tx, HEADS, WIDTH + 1, Y_HEAD, 0),
                     STATUS_INTERNAL);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_and_sets_give_equal_bits),
        cmocka_unit_test(test_threads_give_equal_bits),
        cmocka_unit_test(test_batches_give_the_bits_of_a_sequence_alone),
        cmocka_unit_test(test_rows_of_drafts_keep_each_state),
        cmocka_unit_test(test_ranks_give_the_bits_of_the_whole),
        cmocka_unit_test(test_long_sequences_stay_near_float64),
        cmocka_unit_test(test_short_sequences_stay_near_float64),
        cmocka_unit_test(test_bad_slots_are_refused),
        cmocka_unit_test(test_copied_heads_lie_at_their_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
