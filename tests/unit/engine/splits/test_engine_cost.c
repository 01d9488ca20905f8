/* Tests of the cost model: each term alone, against figures computed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/engine_cost.h"

/* A device that reads 1 GB/s and computes 1 Top/s, with links of 100 MB/s and 10 µs. */
static const struct engine_cost_device device = {.read_bytes_s = 1e9,
                                                 .ops_s = 1e12,
                                                 .link_bytes_s = 1e8,
                                                 .latency_s = 10e-6,
                                                 .hop_bytes_s = 1e8,
                                                 .hop_latency_s = 20e-6};

/* A rank that reads 1 MB, so 1 ms. */
static struct engine_cost_split split_of(uint32_t tp, uint32_t n_stages)
{
    struct engine_cost_split split = {.tp = tp, .n_stages = n_stages};
    for (uint32_t r = 0; r < tp * n_stages; r++)
        split.ranks[r] = (struct engine_cost_rank){.dense_bytes = 1e6};
    return split;
}

static struct engine_cost predict(const struct engine_cost_split *split,
                                  const struct engine_cost_use *use)
{
    struct engine_cost cost;
    engine_cost_predict(split, &device, use, &cost);
    return cost;
}

static void expect(double value, double wanted)
{
    if (value < wanted * 0.9999 - 1e-12 || value > wanted * 1.0001 + 1e-12)
        fail_msg("%.9g, wanted %.9g", value, wanted);
}

static const struct engine_cost_use one = {.n_seqs = 1, .prompt_rows = 1, .n_parts = 1};

static void test_weights_are_read_once_a_step(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    struct engine_cost_use use = one;
    (void)state;
    use.n_seqs = 10;
    expect(predict(&split, &use).alone_tokens_s, 1000);
    expect(predict(&split, &use).tokens_s, 10000);
}

static void test_keys_and_values_are_read_for_each_sequence(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    struct engine_cost_use use = {.n_seqs = 4, .depth_tokens = 100, .prompt_rows = 1};
    (void)state;
    split.ranks[0].kv_bytes = 1000; /* 0.1 ms a sequence */
    expect(predict(&split, &use).alone_tokens_s, 1 / 1.1e-3);
    expect(predict(&split, &use).tokens_s, 4 / 1.4e-3);
    split.ranks[0].window_bytes = 1000; /* 20 of the 100 positions: 0.02 ms a sequence */
    split.window_tokens = 20;
    split.ranks[0].state_bytes = 50e3; /* 0.05 ms */
    expect(predict(&split, &use).alone_tokens_s, 1 / 1.17e-3);
}

/* 2 of 8 experts: a row reads a quarter of them, many rows read all. */
static void test_rows_read_the_experts_that_they_use(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    struct engine_cost_use use = one;
    (void)state;
    split.experts_used = 0.25;
    split.ranks[0].expert_bytes = 8e6;
    expect(predict(&split, &use).alone_tokens_s, 1 / 3e-3);
    use.n_seqs = 2; /* 1 − 0.75² of 8 ms */
    expect(predict(&split, &use).tokens_s, 2 / 4.5e-3);
    use.n_seqs = 1000;
    expect(predict(&split, &use).tokens_s, 1000 / 9e-3);
}

static void test_long_prompts_are_bound_by_operations(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    struct engine_cost_use use = {.n_seqs = 1, .prompt_rows = 100, .n_parts = 1};
    (void)state;
    split.ranks[0].multiplications = 50e6; /* 100 rows: 10 ms, more than 1 ms of reading */
    expect(predict(&split, &use).prompt_tokens_s, 100 / 10e-3);
    expect(predict(&split, &use).alone_tokens_s, 1000);
}

/* Small messages are pushed to all ranks; large ones are exchanged in two halves. */
static void test_sums_cost_latency_and_bytes(void **state)
{
    struct engine_cost_split split = split_of(8, 1);
    struct engine_cost_use use = one;
    (void)state;
    for (uint32_t r = 0; r < 8; r++) {
        split.ranks[r].n_collectives = 10;
        split.ranks[r].wire_bytes = 10 * 100; /* 100 bytes a message: 1 µs to each of 7 ranks */
    }
    expect(predict(&split, &use).alone_tokens_s, 1 / (1e-3 + 10 * 17e-6));
    expect(predict(&split, &use).sums_share, 170e-6 / 1170e-6);
    expect(predict(&split, &use).wire_token_bytes, 7 * 1000);
    use.n_seqs = 100; /* 100 µs: 710 µs pushed, 20 + 175 µs in halves */
    expect(predict(&split, &use).tokens_s, 100 / (1e-3 + 10 * 195e-6));
}

static void test_one_rank_has_no_sums(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    (void)state;
    split.ranks[0].n_collectives = 10;
    expect(predict(&split, &one).alone_tokens_s, 1000);
    expect(predict(&split, &one).sums_share, 0);
    expect(predict(&split, &one).wire_token_bytes, 0);
}

/* The slowest rank of a stage decides. */
static void test_ranks_wait_for_the_slowest(void **state)
{
    struct engine_cost_split split = split_of(2, 1);
    (void)state;
    split.ranks[1].dense_bytes = 3e6;
    expect(predict(&split, &one).alone_tokens_s, 1 / 3e-3);
}

/* Stages work one after the other with a step in flight, and together with several. */
static void test_steps_in_flight_keep_stages_busy(void **state)
{
    struct engine_cost_split split = split_of(1, 4);
    struct engine_cost_use use = {.n_seqs = 8, .prompt_rows = 1, .in_flight = 1};
    (void)state;
    split.hidden_bytes = 100; /* a row: 1 µs, beside 20 µs of latency */
    expect(predict(&split, &use).alone_tokens_s, 1 / (4e-3 + 3 * 21e-6));
    expect(predict(&split, &use).tokens_s, 8 / (4e-3 + 3 * 28e-6));
    expect(predict(&split, &use).wire_token_bytes, 100);
    use.in_flight = 4; /* two rows in each of the steps */
    expect(predict(&split, &use).tokens_s, 8 / (4 * (1e-3 + 22e-6)));
    use.in_flight = 16; /* no more than stages */
    expect(predict(&split, &use).tokens_s, 8 / (4 * (1e-3 + 22e-6)));
    use.n_seqs = 1; /* nor than sequences */
    expect(predict(&split, &use).tokens_s, predict(&split, &use).alone_tokens_s);
}

/* m parts on P equal stages take m + P − 1 turns, of which a stage works m. */
static void test_parts_of_prompts_fill_the_stages(void **state)
{
    struct engine_cost_split split = split_of(1, 4);
    struct engine_cost_use use = {.n_seqs = 1, .prompt_rows = 80, .n_parts = 1};
    struct engine_cost_device no_hops = device;
    struct engine_cost cost;
    (void)state;
    no_hops.hop_latency_s = 0;
    engine_cost_predict(&split, &no_hops, &use, &cost);
    expect(cost.prompt_tokens_s, 80 / 4e-3);
    expect(cost.bubble, 0.75);
    use.n_parts = 5;
    engine_cost_predict(&split, &no_hops, &use, &cost);
    expect(cost.prompt_tokens_s, 80 / 8e-3);
    expect(cost.bubble, 3 / 8.0);
}

/* Cores that read one memory share its bandwidth. */
static void test_ranks_share_a_memory(void **state)
{
    struct engine_cost_split split = split_of(2, 2);
    struct engine_cost_use use = {.n_seqs = 4, .prompt_rows = 1, .n_parts = 1, .in_flight = 2};
    struct engine_cost_device shared = device;
    struct engine_cost cost;
    (void)state;
    shared.hop_latency_s = 0;
    shared.shared_bytes_s = 3e9; /* enough for the two ranks of a stage, not for all four */
    engine_cost_predict(&split, &shared, &use, &cost);
    expect(cost.alone_tokens_s, 1 / 2e-3);
    expect(cost.tokens_s, 4 / (2 * 1e-3 * 4 / 3));
}

static void test_a_step_has_a_fixed_part(void **state)
{
    struct engine_cost_split split = split_of(1, 1);
    struct engine_cost_device slow = device;
    struct engine_cost cost;
    (void)state;
    slow.step_s = 1e-3;
    engine_cost_predict(&split, &slow, &one, &cost);
    expect(cost.alone_tokens_s, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_are_read_once_a_step),
        cmocka_unit_test(test_keys_and_values_are_read_for_each_sequence),
        cmocka_unit_test(test_rows_read_the_experts_that_they_use),
        cmocka_unit_test(test_long_prompts_are_bound_by_operations),
        cmocka_unit_test(test_sums_cost_latency_and_bytes),
        cmocka_unit_test(test_one_rank_has_no_sums),
        cmocka_unit_test(test_ranks_wait_for_the_slowest),
        cmocka_unit_test(test_steps_in_flight_keep_stages_busy),
        cmocka_unit_test(test_parts_of_prompts_fill_the_stages),
        cmocka_unit_test(test_ranks_share_a_memory),
        cmocka_unit_test(test_a_step_has_a_fixed_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
