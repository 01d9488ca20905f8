/* Tests of conv, delta_net and ssm on the CUDA backend. Rows and states have the bits of the kernel
 * set "ref" for each piece and batch. Runs on a GPU, or on the emulated GPU. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/gpu/support/support_gpu.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/kernels/support/support_recurrent_runs.h"

static const struct recurrent_memory memory = {gpu_upload, gpu_fetch, gpu_drop};

/* Shapes beyond those of the CPU's test: S in registers and in shared memory, keys of any length.
 */
static const struct recurrent_shape more_shapes[] = {
    {.kind = KIND_DELTA, .n_keys = 2, .n_heads = 4, .dim = 64, .head_dim = 40},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 2, .dim = 128, .head_dim = 200, .tiled = true},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 256, .head_dim = 33},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 300, .head_dim = 20},
    {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 1024, .head_dim = 9},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 3, .dim = 64, .head_dim = 33},
    {.kind = KIND_SSM, .n_keys = 1, .n_heads = 1, .dim = 1000, .head_dim = 5},
};
enum {
    N_MORE = sizeof(more_shapes) / sizeof(more_shapes[0]),
    N_ALL = RECURRENT_N_SHAPES + N_MORE,
};

static const struct recurrent_shape *shape_of(size_t i)
{
    return i < RECURRENT_N_SHAPES ? &recurrent_shapes[i] : &more_shapes[i - RECURRENT_N_SHAPES];
}

static struct rig gpu_rig(void)
{
    return (struct rig){.device = gpu.device, .stream = gpu.stream};
}

static void test_pieces_have_the_references_bits(void **state)
{
    (void)state;
    static const uint32_t pieces[] = {1, 7, 64, 200, RECURRENT_TOKENS};
    const struct rig rig = gpu_rig();
    for (size_t i = 0; i < N_ALL; i++) {
        struct recurrent_world w =
            recurrent_open(shape_of(i), 1, RECURRENT_TOKENS, test_random(40 + i).state);
        w.memory = &memory;
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++)
            if (grid_takes(i + p))
                recurrent_run_pieces(&w, &rig, pieces[p], (i + p) % 2, "pieces on the GPU");
        recurrent_close(&w);
    }
}

static void test_batches_have_the_references_bits(void **state)
{
    (void)state;
    const struct rig rig = gpu_rig();
    for (size_t i = 0; i < N_ALL; i++)
        if (grid_takes(i))
            recurrent_check_batches(shape_of(i), &rig, &memory, "batches on the GPU",
                                    test_random(100 + i).state);
}

static void test_rows_of_drafts_keep_each_state(void **state)
{
    (void)state;
    const struct rig rig = gpu_rig();
    for (size_t i = 0; i < N_ALL; i++)
        if (grid_takes(i))
            recurrent_check_drafts(shape_of(i), &rig, &memory, "drafts on the GPU",
                                   test_random(300 + i).state);
}

/* More heads than fit a GPU at once: a block has all columns of a head. */
static void test_wide_blocks_have_the_references_bits(void **state)
{
    (void)state;
    const struct recurrent_shape shape = {
        .kind = KIND_DELTA, .n_keys = 2, .n_heads = 16, .dim = 64, .head_dim = 128};
    const struct rig rig = gpu_rig();
    struct recurrent_world w = recurrent_open(&shape, 1, 30, test_random(9).state);
    w.memory = &memory;
    recurrent_run_pieces(&w, &rig, 30, true, "wide blocks"); /* 480 rows · heads */
    recurrent_run_pieces(&w, &rig, 3, true, "narrow blocks");
    recurrent_close(&w);
}

/* More rows than blocks share a head: each block takes the runs that begin at several rows. */
static void test_more_runs_than_blocks_have_the_references_bits(void **state)
{
    (void)state;
    enum { RUNS = 300 };
    static const struct recurrent_shape kinds[] = {
        {.kind = KIND_CONV, .dim = 4, .head_dim = 70, .silu = true},
        {.kind = KIND_DELTA, .n_keys = 1, .n_heads = 1, .dim = 64, .head_dim = 8},
        {.kind = KIND_SSM, .n_keys = 1, .n_heads = 1, .dim = 5, .head_dim = 8},
    };
    const struct rig rig = gpu_rig();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct recurrent_world w = recurrent_open(&kinds[i], RUNS, 2, test_random(i).state);
        float *pool = poisoned(RUNS * w.slot_floats), *y = poisoned((size_t)2 * RUNS * w.y_cols);
        struct recurrent_row rows[RUNS];
        w.memory = &memory;
        for (uint32_t token = 0; token < 2; token++) {
            for (uint32_t r = 0; r < RUNS; r++)
                rows[r] = (struct recurrent_row){2 * r + token, token > 0 ? r : RECURRENT_NONE, r,
                                                 y + (size_t)(2 * r + token) * w.y_cols};
            assert_int_equal(recurrent_step(&w, &rig, pool, RUNS, rows, RUNS, false), 0);
        }
        assert_same_bits(w.y, y, (size_t)2 * RUNS * w.y_cols * sizeof(float), "many runs");
        for (uint32_t r = 0; r < RUNS; r++)
            assert_same_bits(recurrent_state(&w, r, 1), pool + r * w.slot_floats,
                             w.state_floats * sizeof(float), "many runs");
        free(pool);
        free(y);
        recurrent_close(&w);
    }
}

static void test_ranks_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    const struct rig rig = gpu_rig();
    for (int i = 0; i < 4; i++) {
        const struct recurrent_shape shape = {.kind = KIND_DELTA,
                                              .n_keys = 2,
                                              .n_heads = 6,
                                              .dim = i < 2 ? 8 : 64,
                                              .head_dim = 20,
                                              .tiled = i % 2};
        struct recurrent_world w = recurrent_open(&shape, 1, 50, 7);
        w.memory = &memory;
        for (uint32_t rank = 0; rank < 2; rank++)
            recurrent_check_rank(&w, &rig, 3 * rank, 3, 16);
        recurrent_close(&w);
    }
}

/* The host cannot see the slots. So a slot beyond the pool is read as zeros, and is not written. */
static void test_slots_beyond_the_pool_are_not_touched(void **state)
{
    (void)state;
    enum { SLOTS = 2 };
    const struct rig rig = gpu_rig();
    for (size_t i = 0; i < N_ALL; i++) {
        struct recurrent_world w = recurrent_open(shape_of(i), 1, 1, 3);
        float *pool = poisoned(SLOTS * w.slot_floats), *y = poisoned(w.y_cols);
        const struct recurrent_row row = {0, SLOTS, SLOTS, y};
        w.memory = &memory;
        assert_int_equal(recurrent_step(&w, &rig, pool, SLOTS, &row, 1, false), 0);
        assert_same_bits(w.y, y, w.y_cols * sizeof(float), "no such slot");
        for (size_t f = 0; f < SLOTS * w.slot_floats; f++)
            assert_true(pool[f] != pool[f]);
        free(pool);
        free(y);
        recurrent_close(&w);
    }
}

/* --- captured steps --- */

enum { GRAPH_ROWS = 4, GRAPH_COLS = 33, GRAPH_WIDTH = 4, GRAPH_SLOTS = 6 };

/* A step of padding, new sequences and sequences with a state in any slot. */
struct graph_step {
    uint32_t reads[GRAPH_ROWS], writes[GRAPH_ROWS];
};

/* A captured convolution reads the slots of the present step. Symptom of a fault: a replayed step
 * reads and writes the slots of the captured step. */
static void test_a_captured_step_replays_with_other_slots(void **state)
{
    (void)state;
    static const struct graph_step steps[] = {
        {{RECURRENT_NONE, RECURRENT_NONE, RECURRENT_NONE, RECURRENT_NONE}, {0, 1, 2, 3}},
        {{3, RECURRENT_NONE, 0, RECURRENT_NONE}, {3, 5, 4, RECURRENT_NONE}},
        {{5, RECURRENT_PREVIOUS, 4, RECURRENT_PREVIOUS}, {RECURRENT_NONE, 5, 1, 4}},
    };
    const struct recurrent_shape shape = {
        .kind = KIND_CONV, .dim = GRAPH_WIDTH, .head_dim = GRAPH_COLS, .silu = true};
    struct recurrent_world w = recurrent_open(&shape, 1, GRAPH_ROWS, 5);
    struct rig cpu = rig_open("ref", 1);
    size_t n_x = (size_t)GRAPH_ROWS * GRAPH_COLS * sizeof(float),
           n_pool = GRAPH_SLOTS * w.slot_floats * sizeof(float), n_ids = sizeof(steps[0].reads);
    float *pool = poisoned(GRAPH_SLOTS * w.slot_floats), *found_pool = malloc(n_pool),
          *y = malloc(n_x), *found = malloc(n_x);
    assert_non_null(found_pool);
    assert_non_null(y);
    assert_non_null(found);
    uint32_t *reads = gpu_upload(NULL, n_ids), *writes = gpu_upload(NULL, n_ids);
    struct tensor x = tensor_view(gpu_upload(w.x, n_x), DTYPE_F32, GRAPH_ROWS, GRAPH_COLS),
                  own = tensor_view(gpu_upload(NULL, n_x), DTYPE_F32, GRAPH_ROWS, GRAPH_COLS),
                  host_x = tensor_view(w.x, DTYPE_F32, GRAPH_ROWS, GRAPH_COLS),
                  host_y = tensor_view(y, DTYPE_F32, GRAPH_ROWS, GRAPH_COLS);
    const struct state_view view = {gpu_upload(pool, n_pool), w.slot_floats, GRAPH_SLOTS},
                            host_view = {pool, w.slot_floats, GRAPH_SLOTS};
    const struct state_rows rows = {reads, writes, GRAPH_ROWS};
    struct conv_params p = {GRAPH_COLS, GRAPH_WIDTH, w.w, NULL, true}, host_p = p;
    p.w = gpu_upload(w.w, (size_t)GRAPH_COLS * GRAPH_WIDTH * sizeof(float));
    struct graph *graph = NULL;
    struct error err = {0};
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        const struct state_rows host_rows = {steps[i].reads, steps[i].writes, GRAPH_ROWS};
        gpu_write(reads, steps[i].reads, n_ids);
        gpu_write(writes, steps[i].writes, n_ids);
        if (i == 1) { /* the first step has loaded the kernel */
            assert_int_equal(gpu.module.device_ops->capture_begin(gpu.stream, &err), 0);
            assert_int_equal(op_conv(gpu.stream, &own, &x, &view, &rows, &p), 0);
            assert_int_equal(gpu.module.device_ops->capture_end(gpu.stream, &graph, &err), 0);
        }
        if (graph)
            assert_int_equal(gpu.module.device_ops->graph_launch(gpu.stream, graph), 0);
        else
            assert_int_equal(op_conv(gpu.stream, &own, &x, &view, &rows, &p), 0);
        memset(y, 0xFF, n_x);
        assert_int_equal(op_conv(cpu.stream, &host_y, &host_x, &host_view, &host_rows, &host_p), 0);
        gpu_fetch(found, own.data, n_x);
        gpu_fetch(found_pool, view.base, n_pool);
        for (uint32_t r = 0; r < GRAPH_ROWS; r++)
            if (steps[i].reads[r] != RECURRENT_NONE || steps[i].writes[r] != RECURRENT_NONE)
                assert_same_bits(y + (size_t)r * GRAPH_COLS, found + (size_t)r * GRAPH_COLS,
                                 GRAPH_COLS * sizeof(float), "captured step");
        assert_same_bits(pool, found_pool, n_pool, "captured step's pool");
    }
    gpu.module.device_ops->graph_destroy(graph);
    gpu_drop(reads, n_ids);
    gpu_drop(writes, n_ids);
    gpu_drop(x.data, n_x);
    gpu_drop(own.data, n_x);
    gpu_drop(view.base, n_pool);
    gpu_drop((void *)(uintptr_t)p.w, (size_t)GRAPH_COLS * GRAPH_WIDTH * sizeof(float));
    free(pool);
    free(found_pool);
    free(y);
    free(found);
    rig_close(&cpu);
    recurrent_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_have_the_references_bits),
        cmocka_unit_test(test_batches_have_the_references_bits),
        cmocka_unit_test(test_rows_of_drafts_keep_each_state),
        cmocka_unit_test(test_wide_blocks_have_the_references_bits),
        cmocka_unit_test(test_more_runs_than_blocks_have_the_references_bits),
        cmocka_unit_test(test_ranks_have_the_bits_of_the_whole),
        cmocka_unit_test(test_slots_beyond_the_pool_are_not_touched),
        cmocka_unit_test(test_a_captured_step_replays_with_other_slots),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
