/* Tests of the ways to divide a model over a group. Bytes are those of a load, and rules of
 * divisors refuse with the reason. Only splits that a load accepts are recommended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_splits.h"
#include "engine/forward/executor.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { BLOCK = 32, MAX_SEQS = 16 };

static struct engine_config config(void)
{
    struct engine_config cfg;
    engine_config_init(&cfg);
    cfg.executor.kv_block_size = BLOCK;
    cfg.executor.kv_dtype = DTYPE_BF16;
    cfg.executor.max_rows = cfg.max_batch_tokens;
    cfg.executor.max_seqs = MAX_SEQS;
    return cfg;
}

static struct engine_splits make(const struct tiny_spec *spec, const char *group, uint32_t tp,
                                 uint32_t pp, uint32_t n_requests)
{
    const struct engine_config cfg = config();
    const struct engine_splits_use use = {
        .tp = tp, .pp = pp, .n_requests = n_requests, .depth_tokens = 64};
    struct checkpoint *ckpt = tiny_open(spec);
    struct device_spec described;
    struct engine_splits splits;
    struct error err;
    if (device_spec_parse(group, strlen(group), &described, &err) != 0 ||
        engine_splits_make(&cfg, ckpt, &described, &use, &splits, &err) != 0)
        fail_msg("%s: %s", group, err.message);
    checkpoint_close(ckpt);
    return splits;
}

static const struct engine_split *row_of(const struct engine_splits *splits, uint32_t tp,
                                         uint32_t pp)
{
    for (uint32_t i = 0; i < splits->n; i++)
        if (splits->rows[i].tp == tp && splits->rows[i].pp == pp)
            return &splits->rows[i];
    fail_msg("no row for tp %u x pp %u", tp, pp);
    return NULL;
}

/* The text of a split that is refused. Symptom without the rule: the load fails later. */
static void expect_refusal(const struct tiny_spec *spec, const char *group, uint32_t tp,
                           uint32_t pp, const char *wanted)
{
    struct engine_splits splits = make(spec, group, tp, pp, 8);
    const struct engine_split *row = row_of(&splits, tp, pp);
    assert_int_not_equal(row->refusal.status, 0);
    assert_true(names_all(row->refusal.message, wanted));
    engine_splits_fini(&splits);
}

static void test_splits_divide_the_group_evenly(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits eight = make(&spec, "8xcpu", 0, 0, 8), six = make(&spec, "6xcpu", 0, 0, 8);
    (void)state;
    assert_int_equal(eight.n, 10); /* tp and pp of 1, 2, 4, 8 ranks */
    for (uint32_t i = 0; i < eight.n; i++)
        assert_int_equal(8 % (eight.rows[i].tp * eight.rows[i].pp), 0);
    assert_int_equal(six.n, 6); /* 1×1, 1×2, 2×1, 1×3, 1×6, 2×3 */
    (void)row_of(&six, 2, 3);
    engine_splits_fini(&eight);
    engine_splits_fini(&six);
}

/* The bytes of a split are those of a load on so many ranks. */
static void test_ranks_have_the_bytes_of_a_load(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits splits = make(&spec, "4xcpu", 0, 0, 8);
    struct engine_config cfg = config();
    struct checkpoint *ckpt = tiny_open(&spec);
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp *= 2)
        for (uint32_t pp = 1; pp <= 2 && tp * pp <= 4; pp++) {
            const struct engine_split *row = row_of(&splits, tp, pp);
            struct executor_plan plan;
            struct error err;
            cfg.executor.tp = tp;
            cfg.executor.pp = pp;
            cfg.executor.kv_tokens = BLOCK;
            assert_int_equal(executor_plan(ckpt, &cfg.executor, &plan, &err), 0);
            assert_int_equal(row->plan.n_ranks, tp * pp);
            for (uint32_t r = 0; r < tp * pp; r++)
                assert_int_equal(row->plan.ranks[r].weights_bytes, plan.ranks[r].weights_bytes);
            assert_int_equal(row->plan.kv_block_bytes, plan.kv_block_bytes);
        }
    checkpoint_close(ckpt);
    engine_splits_fini(&splits);
}

/* Columns that a rank sums: attention's output and the MLP's, in two layers. A tied embedding is
 * read as output matrix by the last stage alone. */
static void test_work_of_a_rank(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits splits = make(&spec, "4xcpu", 0, 0, 8);
    const struct engine_cost_split *one = &row_of(&splits, 1, 1)->plan.cost;
    const struct engine_cost_split *tp = &row_of(&splits, 2, 1)->plan.cost;
    const struct engine_cost_split *pp = &row_of(&splits, 1, 2)->plan.cost;
    (void)state;
    /* Q, K, V, output, gate, up and down, and the head */
    double layer = 64.0 * (8 + 4 + 4 + 8) * 32 + 3.0 * 64 * 256, head = 300.0 * 64;
    assert_true(one->ranks[0].multiplications == 2 * layer + head);
    assert_true(one->ranks[0].n_collectives == 0 && one->hidden_bytes == 256);
    assert_true(tp->ranks[0].n_collectives == 4 && tp->ranks[0].wire_bytes == 4 * 64 * 4);
    assert_true(tp->ranks[0].multiplications < one->ranks[0].multiplications);
    assert_true(pp->ranks[0].multiplications + pp->ranks[1].multiplications ==
                one->ranks[0].multiplications);
    assert_true(one->ranks[0].kv_bytes == 2.0 * 2 * 4 * 32 * 2); /* K and V, bf16 */
    engine_splits_fini(&splits);
}

/* Quantized inputs exchange each row's statistics before the sum; Q8_0 sums two planes. */
static void test_quantized_weights_have_more_messages(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    (void)state;
    spec.matrix_type = GGML_Q4_1;
    struct engine_splits splits = make(&spec, "2xcpu", 2, 1, 8);
    const struct engine_cost_rank *rank = &splits.rows[0].plan.cost.ranks[0];
    assert_true(rank->n_collectives == 8 && rank->wire_bytes == 4 * (64 * 4 + 8));
    engine_splits_fini(&splits);
    spec.matrix_type = GGML_Q8_0;
    splits = make(&spec, "2xcpu", 2, 1, 8);
    rank = &splits.rows[0].plan.cost.ranks[0];
    assert_true(rank->n_collectives == 12 && rank->wire_bytes == 4 * (2 * 64 * 4 + 8));
    engine_splits_fini(&splits);
}

static void test_fewer_kv_heads_than_ranks_are_copied(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits splits = make(&spec, "8xcpu", 0, 0, 8);
    (void)state;
    assert_int_equal(row_of(&splits, 4, 1)->kv_copies, 1); /* four KV heads */
    assert_int_equal(row_of(&splits, 8, 1)->kv_copies, 2);
    engine_splits_fini(&splits);
}

static void test_rules_of_divisors_refuse_with_their_reason(void **state)
{
    struct tiny_spec spec = tiny_spec_default(), few = spec, narrow = spec;
    (void)state;
    few.n_heads = few.n_kv_heads = 4;
    narrow.ffn = 96;
    narrow.matrix_type = GGML_Q4_1; /* three blocks of 32 columns */
    expect_refusal(&spec, "8xcpu", 3, 1, "tp|3|1, 2, 4, 8");
    expect_refusal(&few, "8xcpu", 8, 1, "layer 0|tp 8|the heads|8 ranks");
    expect_refusal(&narrow, "8xcpu", 8, 1, "layer 0|tp 8|the MLP|96|blocks of 32");
    expect_refusal(&spec, "8xcpu", 1, 4, "pp|4 stages|2 layers");
    expect_refusal(&spec, "4xcpu", 8, 1, "tp 8|8 ranks|4xcpu|4 cores");
    expect_refusal(&spec, "4x2xh100", 4, 1, "tp 4|share a machine|2 devices");
    expect_refusal(&spec, "8xcpu", 8, 8, "64 ranks|8 cores");
}

/* Splits that a load refuses today are marked, and not recommended. */
static void test_what_a_load_refuses_is_not_recommended(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits splits = make(&spec, "2x2xh100", 0, 0, 8);
    struct executor_config gpus = {.device = "cuda:0", .tp = 2, .pp = 1};
    struct error err;
    (void)state;
    const struct engine_split *one = row_of(&splits, 1, 1), *two = row_of(&splits, 2, 1);
    assert_int_equal(one->not_built.status, 0);
    assert_int_equal(one->n_replicas, 4);
    assert_int_equal(two->refusal.status, 0);
    int refused = executor_check_ranks(&gpus, &err);
    assert_int_equal(two->not_built.status, refused);
    assert_int_not_equal(row_of(&splits, 2, 2)->not_built.status, 0); /* two machines */
    engine_splits_fini(&splits);
    /* reading takes long: two ranks answer a request sooner */
    splits = make(&spec, "2x2xh100:read=1M:latency=0:step=0", 0, 0, 1);
    assert_true(splits.best < splits.n && splits.best_later < splits.n);
    assert_int_equal(splits.rows[splits.best].not_built.status, 0);
    assert_int_equal(splits.rows[splits.best_later].tp, 2);
    engine_splits_fini(&splits);
}

static void test_a_split_that_does_not_fit_names_the_missing_bytes(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    (void)state;
    struct engine_splits splits = make(&spec, "2xh100:memory=1M", 0, 0, 8);
    const struct engine_split *row = row_of(&splits, 1, 1);
    assert_false(row->fits);
    assert_true(row->missing_bytes > 1 << 20); /* the workspace needs more */
    assert_int_equal(splits.best, splits.n);
    engine_splits_fini(&splits);
    splits = make(&spec, "1xh100", 0, 0, 8);
    assert_true(splits.rows[0].fits && splits.best == 0);
    /* full contexts of all sequences at most */
    assert_int_equal(splits.rows[0].kv_tokens, (uint64_t)spec.context * MAX_SEQS);
    assert_int_equal(splits.rows[0].n_at_once, 8);
    engine_splits_fini(&splits);
}

/* Requests beyond the KV cache or beyond the limit of sequences do not run at once. */
static void test_requests_at_once_are_bounded(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    struct engine_splits splits = make(&spec, "2xh100", 0, 0, 1000);
    (void)state;
    assert_int_equal(row_of(&splits, 1, 1)->n_at_once, 2 * MAX_SEQS);
    assert_int_equal(row_of(&splits, 2, 1)->n_at_once, MAX_SEQS);
    engine_splits_fini(&splits);
}

/* Ranks of a stage use all cores. With a step in flight, cores of waiting stages are idle. */
static void test_waiting_stages_leave_cores_idle(void **state)
{
    struct tiny_spec spec = tiny_spec_default();
    (void)state;
    /* reading takes long, and sums cost little */
    const char *group = "2xcpu:read=1M:shared=2M:latency=0:step=0";
    struct engine_splits splits = make(&spec, group, 0, 0, 1);
    const struct engine_split *alone = row_of(&splits, 1, 1), *ranks = row_of(&splits, 2, 1);
    assert_true(ranks->cost.alone_tokens_s > 0.8 * alone->cost.alone_tokens_s);
    assert_true(row_of(&splits, 1, 2)->cost.alone_tokens_s < 0.6 * alone->cost.alone_tokens_s);
    engine_splits_fini(&splits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits_divide_the_group_evenly),
        cmocka_unit_test(test_ranks_have_the_bytes_of_a_load),
        cmocka_unit_test(test_work_of_a_rank),
        cmocka_unit_test(test_quantized_weights_have_more_messages),
        cmocka_unit_test(test_fewer_kv_heads_than_ranks_are_copied),
        cmocka_unit_test(test_rules_of_divisors_refuse_with_their_reason),
        cmocka_unit_test(test_what_a_load_refuses_is_not_recommended),
        cmocka_unit_test(test_a_split_that_does_not_fit_names_the_missing_bytes),
        cmocka_unit_test(test_requests_at_once_are_bounded),
        cmocka_unit_test(test_waiting_stages_leave_cores_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
