/* 64 requests on a single rank give the same tokens as the same 64 at once in pipeline stages.
 * Prefix hits, choices, drafts and preemption change nothing, for quantized and dense weights,
 * windows, experts and recurrent layers. A request resumes on another split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_same.h"

static const struct same_variant variants[] = {
    {"stages", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"tp 2, chunks of 5", 2, 2, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"whole prompts", 1, 2, 16, 4096, 512, 512, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, false, true, 0.0, 0, 0, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
    {"drafts by a model", 1, 2, 16, 4096, 32, 128, 3, false, false, 0.0, 0, 8, "q4_1", 0.1},
};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

static void test_64_alone_equal_64_in_stages_quantized(void **state)
{
    (void)state;
    same_check_stages("q4_1", DTYPE_BF16, 2, variants, N_VARIANTS, 44);
}

static void test_64_alone_equal_64_in_stages_dense(void **state)
{
    (void)state;
    same_check_stages("bf16", DTYPE_BF16, 2, variants, 4, 44);
}

static void test_64_alone_equal_64_in_stages_windows(void **state)
{
    (void)state;
    same_check_stages("exaone4", DTYPE_BF16, 2, variants, 5, 44);
    same_check_stages("exaone4", DTYPE_I8, 4, variants, 2, 44);
}

static void test_64_alone_equal_64_in_stages_experts(void **state)
{
    (void)state;
    same_check_stages("gpt_oss", DTYPE_BF16, 2, variants, 5, 44);
}

/* Tensor-parallel ranks of its shapes are more than two for some dimensions, so tp is 1. */
static void test_64_alone_equal_64_in_stages_recurrent(void **state)
{
    static const struct same_variant some[] = {
        {"stages", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
        {"small pool", 1, 2, 4, 320, 32, 64, 64, true, true, 0.0, 0, 0, NULL, 0},
        {"drafts", 1, 2, 16, 4096, 32, 128, 16, false, false, 0.0, 0, 16, NULL, 0},
    };
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/qwen35", golden_source_dir());
    same_check_stages(path, DTYPE_BF16, 2, some, sizeof(some) / sizeof(some[0]), 44);
}

/* --- steps in flight --- */

/* Decode rows per step of 8 requests. */
static double rows_per_step(uint32_t max_flights, struct run_result *results)
{
    struct engine_config cfg = run_config("q4_1");
    cfg.executor.pp = 2;
    cfg.max_flights = max_flights;
    cfg.target_itl_ms = 0;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = run_simple(8, 60);
    run_slow_steps(NS_PER_MS); /* all requests arrive within a few steps */
    for (uint32_t i = 0; i < 8; i++)
        run_submit(engine, &req, &results[i]);
    run_wait(engine, results, 8);
    run_wait_idle(engine);
    struct engine_stats s = run_stats(engine);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    run_close(engine);
    return (double)s.n_decode_rows / (double)s.n_decode_steps;
}

/* With two steps in flight each has half of the sequences. */
static void test_two_steps_in_flight_share_the_sequences(void **state)
{
    struct run_result one[8], two[8];
    (void)state;
    assert_true(rows_per_step(1, one) > 6);
    double rows = rows_per_step(0, two);
    assert_true(rows > 3 && rows < 4.5);
    for (uint32_t i = 0; i < 8; i++) {
        run_assert_same(&one[i], &two[i], "two steps in flight");
        run_result_fini(&one[i]);
        run_result_fini(&two[i]);
    }
}

/* --- resume --- */

static struct engine *open_split(uint32_t tp, uint32_t pp)
{
    struct engine_config cfg = run_config("q4_1");
    cfg.executor.tp = tp;
    cfg.executor.pp = pp;
    return run_open(&cfg);
}

/* A request begins on one split, and resumes on the other after half of its tokens. */
static void test_resume_on_another_split(void **state)
{
    struct engine *one = open_split(1, 1), *other = open_split(2, 2);
    (void)state;
    same_make_jobs(engine_model_info(one)->vocab_size, 44);
    for (uint32_t i = 0; i < same_n_jobs(); i += 5) {
        struct run_result whole, rest;
        struct engine_request req = *same_job(i);
        if (req.sampling.n > 1 || req.want_prompt_logprobs)
            continue;
        bool from_one = i % 2;
        run_submit(from_one ? one : other, &req, &whole);
        run_wait(from_one ? one : other, &whole, 1);
        const struct run_choice *w = &whole.choices[0];
        struct run_cut at = {0};
        if (w->n_cuts > 1)
            at = w->cuts[w->n_cuts / 2 - 1];
        struct engine_resume resume = {w->ids, at.n_ids, (uint32_t)at.n_text, false};
        req.resume = &resume;
        run_submit(from_one ? other : one, &req, &rest);
        run_wait(from_one ? other : one, &rest, 1);
        const struct run_choice *r = &rest.choices[0];
        assert_int_equal(at.n_ids + r->n_ids, w->n_ids);
        if (r->n_ids)
            assert_memory_equal(r->ids, w->ids + at.n_ids, r->n_ids * sizeof(*r->ids));
        run_result_fini(&rest);
        run_result_fini(&whole);
    }
    run_close(one);
    run_close(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_in_stages_quantized),
        cmocka_unit_test(test_64_alone_equal_64_in_stages_dense),
        cmocka_unit_test(test_64_alone_equal_64_in_stages_windows),
        cmocka_unit_test(test_64_alone_equal_64_in_stages_experts),
        cmocka_unit_test(test_64_alone_equal_64_in_stages_recurrent),
        cmocka_unit_test(test_two_steps_in_flight_share_the_sequences),
        cmocka_unit_test(test_resume_on_another_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
