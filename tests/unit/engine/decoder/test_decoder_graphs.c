/* Tests of the buckets of captured steps: the bucket of each step, their planned memory, and
 * capture, replay and release. The device only counts. The decoder has no layers, so a step is
 * nothing but its capture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/decoder/decoder_private.h"

enum { MAX_ROWS = 600, N_LAYERS = 4, OPS_OF_A_GRAPH = N_LAYERS * 18 + 8 };

/* --- a device that counts --- */

struct graph {
    int unused;
};

static struct {
    uint32_t n_begun, n_ended, n_launched, n_destroyed;
    int end_rc; /* result of the next captures */
    size_t n_ops;
} device;

static int capture_begin(struct stream *stream, struct error *err)
{
    (void)stream, (void)err;
    device.n_begun++;
    return 0;
}

static int capture_end(struct stream *stream, struct graph **out_graph, struct error *err)
{
    (void)stream;
    device.n_ended++;
    if (device.end_rc)
        return error_set(err, device.end_rc, "no graph");
    *out_graph = malloc(sizeof(**out_graph));
    assert_non_null(*out_graph);
    return 0;
}

static int graph_launch(struct stream *stream, struct graph *graph)
{
    (void)stream;
    assert_non_null(graph);
    device.n_launched++;
    return 0;
}

static void graph_destroy(struct graph *graph)
{
    device.n_destroyed++;
    free(graph);
}

static size_t graph_n_ops(const struct graph *graph)
{
    (void)graph;
    return device.n_ops;
}

/* --- a decoder on it --- */

static const struct device_ops ops = {
    .name = "counts",
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .graph_n_ops = graph_n_ops,
};
static struct device counting = {.ops = &ops};
static struct stream stream = {.device = &counting};
static const struct model_shape shape = {.hidden_dim = 64};
static struct rank_plan plan;
static struct decoder decoder;
static struct step_batch *batch;

static int open_decoder(void **state)
{
    struct error err = {0};
    struct step_limits limits = {MAX_ROWS, MAX_ROWS, 64, 0, false};
    (void)state;
    memset(&device, 0, sizeof(device));
    device.n_ops = OPS_OF_A_GRAPH;
    plan = (struct rank_plan){
        .rank = {.tp = 1, .n_stages = 3, .stage = 1}, /* a middle stage: no embedding and no head */
        .split = {.n_layers = N_LAYERS},
        .steps = {.max_rows = MAX_ROWS,
                  .max_seqs = MAX_ROWS,
                  .max_logits = MAX_ROWS,
                  .max_blocks_per_seq = 64,
                  .block_size = 128},
        .graph_bytes = 1 << 30,
    };
    decoder = (struct decoder){.cfg = {.plan = &plan}, .shape = &shape, .stream = &stream};
    assert_int_equal(step_batch_create(&limits, &batch, &err), 0);
    return decoder_graphs_create(&decoder, &err);
}

static int close_decoder(void **state)
{
    (void)state;
    decoder_graphs_destroy(&decoder);
    step_batch_destroy(batch);
    return 0;
}

/* A step of n generated tokens, the last at `position`. */
static bool key_of(uint32_t n_rows, uint32_t position, struct decoder_graph_key *out_key)
{
    step_batch_clear(batch);
    for (uint32_t r = 0; r < n_rows; r++) {
        batch->is_generated[r] = 1;
        batch->positions[r] = r + 1 == n_rows ? position : 0;
    }
    batch->n_rows = batch->n_seqs = batch->n_sample_rows = n_rows;
    return decoder_graphs_key(&decoder, batch, out_key);
}

static void run(uint32_t n_rows, uint32_t position)
{
    struct decoder_graph_key key;
    struct error err = {0};
    assert_true(key_of(n_rows, position, &key));
    if (decoder_graphs_run(&decoder, &key, &err) != 0)
        fail_msg("%s", err.message);
}

/* --- buckets --- */

static void test_rows_go_to_the_next_bucket(void **state)
{
    static const uint32_t rows[][2] = {{1, 1},     {2, 2},     {3, 4},     {4, 4},     {5, 8},
                                       {8, 8},     {9, 16},    {16, 16},   {17, 24},   {64, 64},
                                       {65, 80},   {80, 80},   {81, 96},   {250, 256}, {256, 256},
                                       {257, 288}, {288, 288}, {500, 512}, {512, 512}};
    struct decoder_graph_key key;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(key_of(rows[i][0], 0, &key));
        assert_int_equal(key.n_rows, rows[i][1]);
    }
    assert_false(key_of(513, 0, &key));
    plan.steps.max_logits = 20; /* all rows of a bucket need logits */
    assert_true(key_of(16, 0, &key));
    assert_false(key_of(17, 0, &key));
}

static void test_positions_go_to_the_next_bucket(void **state)
{
    static const struct {
        uint32_t blocks, position, bucket;
    } rows[] = {{64, 0, 512},     {64, 511, 512},   {64, 512, 2048}, {64, 2047, 2048},
                {64, 2048, 8192}, {64, 8191, 8192}, {20, 511, 512},  {20, 512, 2048},
                {20, 2048, 2560}, {20, 2559, 2560}, {2, 0, 256},     {2, 255, 256}};
    struct decoder_graph_key key;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        plan.steps.max_blocks_per_seq = rows[i].blocks;
        assert_true(key_of(3, rows[i].position, &key));
        assert_int_equal(key.max_positions, rows[i].bucket);
    }
}

static void test_other_steps_have_no_bucket(void **state)
{
    struct decoder_graph_key key;
    struct decoder_graphs *graphs = decoder.graphs;
    (void)state;
    assert_true(key_of(4, 9, &key));
    batch->is_generated[2] = 0;
    assert_false(decoder_graphs_key(&decoder, batch, &key));
    batch->is_generated[2] = 1;
    batch->n_sample_rows = 5;
    assert_false(decoder_graphs_key(&decoder, batch, &key));
    batch->n_sample_rows = 4;
    decoder.graphs = NULL;
    assert_false(decoder_graphs_key(&decoder, batch, &key));
    decoder.graphs = graphs;
    assert_true(decoder_graphs_key(&decoder, batch, &key));
}

static void test_plan_has_all_buckets_up_to_the_places(void **state)
{
    static const struct {
        uint32_t rows, seqs, logits, blocks, graphs;
    } rows[] = {
        {600, 1, 600, 2, 3},   /* buckets of 1, 2 and 4 rows: drafts */
        {600, 4, 600, 4, 5},   /* to 16 rows */
        {600, 4, 6, 4, 3},     /* to 4: 8 would be above the logits */
        {3, 4, 600, 4, 2},     /* to 2 */
        {600, 4, 600, 5, 10},  /* buckets of 512 and 640 positions */
        {600, 4, 600, 64, 15}, /* to 512, 2048 and 8192 */
        {600, 300, 600, 64, 48},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        plan.steps.max_rows = rows[i].rows;
        plan.steps.max_seqs = rows[i].seqs;
        plan.steps.max_logits = rows[i].logits;
        plan.steps.max_blocks_per_seq = rows[i].blocks;
        assert_int_equal(decoder_graphs_bytes(&plan),
                         (uint64_t)rows[i].graphs * OPS_OF_A_GRAPH * GRAPH_OP_BYTES);
    }
}

/* --- capture and replay --- */

static void test_the_second_step_of_a_bucket_is_captured(void **state)
{
    (void)state;
    run(3, 0);
    assert_int_equal(device.n_begun, 0);
    run(4, 100); /* 3 and 4 rows have the same bucket */
    assert_int_equal(device.n_begun, 1);
    assert_int_equal(device.n_launched, 1);
    assert_int_equal(decoder_graphs_taken(&decoder), OPS_OF_A_GRAPH * GRAPH_OP_BYTES);
    run(3, 5);
    assert_int_equal(device.n_begun, 1);
    assert_int_equal(device.n_launched, 2);
    run(4, 600); /* another context */
    run(5, 5);   /* more rows */
    assert_int_equal(device.n_begun, 1);
    assert_int_equal(device.n_launched, 2);
}

static void capture(uint32_t n_rows, uint32_t position)
{
    uint32_t n_begun = device.n_begun;
    run(n_rows, position);
    run(n_rows, position);
    assert_int_equal(device.n_begun, n_begun + 1);
}

static void test_those_unused_for_longest_give_way_to_the_plan(void **state)
{
    (void)state;
    plan.graph_bytes = (uint64_t)2 * OPS_OF_A_GRAPH * GRAPH_OP_BYTES;
    capture(1, 0);
    capture(2, 0);
    run(1, 0); /* the graph of 2 rows is now the least recently used */
    capture(4, 0);
    assert_int_equal(device.n_destroyed, 1);
    assert_int_equal(decoder_graphs_taken(&decoder), plan.graph_bytes);
    uint32_t n_begun = device.n_begun, n_launched = device.n_launched;
    run(1, 0);
    run(4, 0);
    assert_int_equal(device.n_begun, n_begun);
    assert_int_equal(device.n_launched, n_launched + 2);
    capture(2, 0);
    assert_int_equal(device.n_destroyed, 2);
    assert_int_equal(decoder_graphs_taken(&decoder), plan.graph_bytes);
}

static void test_there_are_places_for_48(void **state)
{
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144},
                          positions[] = {0, 600, 3000};
    (void)state;
    for (uint32_t i = 0; i < 48; i++)
        capture(rows[i % 16], positions[i / 16]);
    assert_int_equal(device.n_destroyed, 0);
    capture(160, 0);
    assert_int_equal(device.n_destroyed, 1); /* the graph of one row, unused longest */
    uint32_t n_launched = device.n_launched;
    run(2, 0);
    assert_int_equal(device.n_launched, n_launched + 1);
    run(1, 0);
    assert_int_equal(device.n_launched, n_launched + 1);
    decoder_graphs_destroy(&decoder);
    assert_int_equal(device.n_destroyed, device.n_ended);
}

static void test_a_device_without_room_runs_op_by_op_and_is_asked_again(void **state)
{
    (void)state;
    device.end_rc = STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t i = 0; i < 1000; i++)
        run(2, 0);
    assert_int_equal(device.n_begun, 1);
    assert_int_equal(device.n_launched, 0);
    assert_int_equal(decoder_graphs_taken(&decoder), 0);
    device.end_rc = 0;
    for (uint32_t i = 0; i < 30; i++)
        run(2, 0);
    assert_int_equal(device.n_begun, 2);
    assert_in_range(device.n_launched, 1, 10);
}

static void test_other_failures_of_a_capture_are_told(void **state)
{
    struct decoder_graph_key key;
    struct error err = {0};
    (void)state;
    run(2, 0);
    device.end_rc = STATUS_INTERNAL;
    assert_true(key_of(2, 0, &key));
    assert_int_equal(decoder_graphs_run(&decoder, &key, &err), STATUS_INTERNAL);
    assert_string_equal(err.message, "no graph");
    assert_int_equal(device.n_launched, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_decoder, close_decoder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rows_go_to_the_next_bucket),
        TEST(test_positions_go_to_the_next_bucket),
        TEST(test_other_steps_have_no_bucket),
        TEST(test_plan_has_all_buckets_up_to_the_places),
        TEST(test_the_second_step_of_a_bucket_is_captured),
        TEST(test_those_unused_for_longest_give_way_to_the_plan),
        TEST(test_there_are_places_for_48),
        TEST(test_a_device_without_room_runs_op_by_op_and_is_asked_again),
        TEST(test_other_failures_of_a_capture_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
