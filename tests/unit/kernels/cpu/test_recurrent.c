/* Tests of op_conv, op_delta_net and op_ssm. A sequence's rows and states have the same bits for
 * every set, piece, batch, slot and thread count. They lie near float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/kernels/support/support_recurrent.h"

static const struct recurrent_shape shapes[] = {
    {.kind = KIND_CONV, .dim = 2, .head_dim = 1, .has_bias = true},
    {.kind = KIND_CONV, .dim = 3, .head_dim = 33, .silu = true},
    {.kind = KIND_CONV, .dim = 4, .head_dim = 100, .silu = true},
    {.kind = KIND_CONV, .dim = 4, .head_dim = 1300, .silu = true, .has_bias = true},
    {.kind = KIND_CONV, .dim = 5, .head_dim = 16},
    {.kind = KIND_CONV, .dim = 6, .head_dim = 31, .has_bias = true, .silu = true},
    {.kind = KIND_CONV, .dim = 7, .head_dim = 64, .has_bias = true},
    {.kind = KIND_CONV, .dim = 8, .head_dim = 80, .silu = true},
    {.kind = KIND_CONV, .dim = 16, .head_dim = 17, .silu = true},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 1, .head_dim = 1},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 8, .head_dim = 12},
    {.kind = KIND_DELTA, .n_keys = 2, .n_heads = 6, .dim = 8, .head_dim = 24, .tiled = true},
    {.kind = KIND_DELTA, .n_keys = 3, .n_heads = 3, .dim = 20, .head_dim = 65},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 7, .head_dim = 200},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 128, .head_dim = 128},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 1, .dim = 1, .head_dim = 1},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 3, .dim = 16, .head_dim = 64},
    {.kind = KIND_SSM, .n_keys = 2, .n_heads = 4, .dim = 9, .head_dim = 33},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 2, .dim = 40, .head_dim = 130},
    {.kind = KIND_SSM, .n_keys = 2, .n_heads = 2, .dim = 128, .head_dim = 64},
};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]), N_TOKENS = 211, N_SLOTS = 12 };

/* Compares y and the state of positions [0, n) of a sequence. */
static void assert_sequence(const struct recurrent_world *w, uint32_t seq, const float *y,
                            const float *state, uint32_t n, const char *what)
{
    assert_same_bits(w->y + (size_t)seq * w->n_tokens * w->y_cols, y,
                     (size_t)n * w->y_cols * sizeof(float), what);
    assert_same_bits(recurrent_state(w, seq, n - 1), state, w->state_floats * sizeof(float), what);
}

/* The whole of sequence 0 in pieces. In place, or each piece into the next slot. */
static void run_pieces(struct recurrent_world *w, const struct rig *rig, uint32_t piece,
                       bool in_place, const char *set)
{
    float *pool = poisoned(N_SLOTS * w->slot_floats),
          *y = poisoned((size_t)w->n_tokens * w->y_cols);
    struct recurrent_row rows[N_TOKENS];
    uint32_t slot = 3;
    for (uint32_t begin = 0, n; begin < w->n_tokens; begin += n) {
        n = w->n_tokens - begin < piece ? w->n_tokens - begin : piece;
        uint32_t next = in_place ? slot : (slot + 1) % N_SLOTS;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct recurrent_row){
                .token = begin + i,
                .reads = i > 0       ? RECURRENT_PREVIOUS
                         : begin > 0 ? slot
                                     : RECURRENT_NONE,
                .writes = i + 1 == n ? next : RECURRENT_NONE,
                .y = y + (size_t)(begin + i) * w->y_cols,
            };
        assert_int_equal(recurrent_step(w, rig, pool, N_SLOTS, rows, n, in_place), 0);
        slot = next;
    }
    assert_sequence(w, 0, y, pool + slot * w->slot_floats, w->n_tokens, set);
    free(pool);
    free(y);
}

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
                run_pieces(&w, &rig, pieces[p], turn % 2, *set);
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
            run_pieces(&w, &rig, threads % 2 ? N_TOKENS : 50, threads % 3, "threads");
            rig_close(&rig);
        }
        recurrent_close(&w);
    }
}

/* A running sequence of the random batches. */
struct running {
    uint32_t seq, next, slot; /* slot N_SLOTS: no state yet */
};

/* Adds a piece of random length of a sequence to the step, and sometimes a snapshot within.
 * Returns the number of rows. */
static uint32_t add_piece(struct recurrent_world *w, struct random *r, struct running *run,
                          struct recurrent_row *rows, uint32_t free_slot, float *y,
                          uint32_t *out_snapshot)
{
    uint32_t left = w->n_tokens - run->next, n = 1 + random_u32(r) % (random_u32(r) % 2 ? 1 : 40),
             at = random_u32(r) % 4;
    n = n < left ? n : left;
    *out_snapshot = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = run->seq * w->n_tokens + run->next + i;
        rows[i] = (struct recurrent_row){
            .token = token,
            .reads = i > 0                 ? RECURRENT_PREVIOUS
                     : run->slot < N_SLOTS ? run->slot
                                           : RECURRENT_NONE,
            .writes = RECURRENT_NONE,
        };
        rows[i].y = y + (size_t)token * w->y_cols;
    }
    bool in_place = run->slot < N_SLOTS && random_u32(r) % 2;
    rows[n - 1].writes = in_place ? run->slot : free_slot;
    if (in_place && at + 1 < n) { /* the free slot gets the state within the piece */
        rows[at].writes = free_slot;
        *out_snapshot = token_position(w, rows[at].token);
    }
    run->next += n;
    run->slot = rows[n - 1].writes;
    return n;
}

/* Steps of random pieces of several sequences, with padding rows and snapshots. */
static void check_batches(const struct recurrent_shape *shape, const char *set, uint32_t threads,
                          uint64_t seed)
{
    enum { SEQS = 5, MOST_ROWS = SEQS * 42 };
    struct recurrent_world w = recurrent_open(shape, SEQS, 90, seed);
    struct random r = {seed};
    struct rig rig = rig_open(set, threads);
    float *pool = poisoned(N_SLOTS * w.slot_floats),
          *y = poisoned((size_t)SEQS * w.n_tokens * w.y_cols), *spare = poisoned(w.y_cols);
    struct running runs[SEQS];
    for (uint32_t s = 0; s < SEQS; s++)
        runs[s] = (struct running){s, 0, N_SLOTS};
    for (bool more = true; more;) {
        struct recurrent_row rows[MOST_ROWS];
        uint32_t n = 0, snapshots[SEQS], free_slots[SEQS];
        bool in_step[SEQS] = {false}, used[N_SLOTS] = {false};
        for (uint32_t s = 0; s < SEQS; s++)
            if (runs[s].slot < N_SLOTS)
                used[runs[s].slot] = true;
        for (uint32_t s = 0; s < SEQS; s++) {
            if (runs[s].next == w.n_tokens || random_u32(&r) % 3 == 0)
                continue;
            for (free_slots[s] = 0; used[free_slots[s]];)
                free_slots[s]++;
            used[free_slots[s]] = in_step[s] = true;
            n += add_piece(&w, &r, &runs[s], rows + n, free_slots[s], y, &snapshots[s]);
            if (random_u32(&r) % 2)
                rows[n++] = (struct recurrent_row){0, RECURRENT_NONE, RECURRENT_NONE, spare};
        }
        assert_int_equal(recurrent_step(&w, &rig, pool, N_SLOTS, rows, n, random_u32(&r) % 2), 0);
        more = false;
        for (uint32_t s = 0; s < SEQS; s++) {
            more |= runs[s].next < w.n_tokens;
            if (in_step[s] && snapshots[s] != UINT32_MAX)
                assert_same_bits(recurrent_state(&w, s, snapshots[s]),
                                 pool + free_slots[s] * w.slot_floats,
                                 w.state_floats * sizeof(float), set);
            if (in_step[s])
                assert_same_bits(recurrent_state(&w, s, runs[s].next - 1),
                                 pool + runs[s].slot * w.slot_floats,
                                 w.state_floats * sizeof(float), set);
        }
    }
    assert_same_bits(w.y, y, (size_t)SEQS * w.n_tokens * w.y_cols * sizeof(float), set);
    free(pool);
    free(y);
    free(spare);
    rig_close(&rig);
    recurrent_close(&w);
}

static void test_batches_give_the_bits_of_a_sequence_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++)
        for (const char *const *set = kernel_sets(); *set != NULL; set++)
            for (uint32_t threads = 1; threads <= 8; threads += 3)
                check_batches(&shapes[i], *set, threads, 100 + 10 * i + threads);
}

/* Each row writes a slot, as rows of drafts do; then a sequence goes on from a middle slot. */
static void test_rows_of_drafts_keep_each_state(void **state)
{
    (void)state;
    enum { ROWS = 9 };
    for (size_t i = 0; i < N_SHAPES; i++)
        for (const char *const *set = kernel_sets(); *set != NULL; set++) {
            struct recurrent_world w = recurrent_open(&shapes[i], 1, 2 * ROWS, 300 + i);
            struct rig rig = rig_open(*set, 2);
            float *pool = poisoned(N_SLOTS * w.slot_floats), *y = poisoned(ROWS * w.y_cols);
            struct recurrent_row rows[ROWS];
            for (uint32_t r = 0; r < ROWS; r++)
                rows[r] = (struct recurrent_row){r, r > 0 ? RECURRENT_PREVIOUS : RECURRENT_NONE, r,
                                                 y + r * w.y_cols};
            assert_int_equal(recurrent_step(&w, &rig, pool, N_SLOTS, rows, ROWS, true), 0);
            for (uint32_t r = 0; r < ROWS; r++)
                assert_sequence(&w, 0, y, pool + r * w.slot_floats, r + 1, *set);
            for (uint32_t r = 0; r < ROWS; r++)
                rows[r] =
                    (struct recurrent_row){5 + r, r > 0 ? RECURRENT_PREVIOUS : 4,
                                           r + 1 == ROWS ? 4 : RECURRENT_NONE, y + r * w.y_cols};
            assert_int_equal(recurrent_step(&w, &rig, pool, N_SLOTS, rows, ROWS, false), 0);
            assert_same_bits(w.y + 5 * w.y_cols, y, ROWS * w.y_cols * sizeof(float), *set);
            assert_same_bits(recurrent_state(&w, 0, 4 + ROWS), pool + 4 * w.slot_floats,
                             w.state_floats * sizeof(float), *set);
            free(pool);
            free(y);
            rig_close(&rig);
            recurrent_close(&w);
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
