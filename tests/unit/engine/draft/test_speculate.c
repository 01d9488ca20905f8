/* Tests of speculation in the engine: a step gives several tokens. Answers are the same with
 * every kind of end and disturbance. The tests of support_same.c also compare 64 requests of
 * all kinds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/engine/support/support_engine.h"

static uint32_t prompt[64];

static struct engine_request simple(uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 64; i++)
        prompt[i] = 40 + i % 7;
    return run_request(prompt, 64, max_tokens);
}

/* Runs without and with drafts; the answers are equal. Returns decode steps of both. */
static void both(struct engine *engine, struct engine_request *req, const char *what,
                 uint64_t out_steps[2], struct engine_usage *out_usage)
{
    struct run_result results[2];
    for (int i = 0; i < 2; i++) {
        uint64_t before = run_stats(engine).n_decode_steps;
        req->speculate.drafter = i ? ENGINE_DRAFTER_NGRAM : ENGINE_DRAFTER_NONE;
        req->speculate.max_draft_tokens = i ? 8 : 0;
        run_submit(engine, req, &results[i]);
        run_wait(engine, &results[i], 1);
        out_steps[i] = run_stats(engine).n_decode_steps - before;
        assert_true(i || !results[i].usage.n_drafted_tokens);
    }
    run_assert_same(&results[1], &results[0], what);
    *out_usage = results[1].usage;
    run_result_fini(&results[0]);
    run_result_fini(&results[1]);
}

/* If a single token is allowed, every draft is right, so an answer takes few steps. */
static void test_foretold_tokens_come_several_to_a_step(void **state)
{
    static const uint32_t only[] = {45};
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_usage usage;
    uint64_t steps[2];
    (void)state;
    for (int sampled = 0; sampled < 2; sampled++) {
        struct engine_request req = simple(150);
        req.sampling.allowed_ids = only;
        req.sampling.n_allowed_ids = 1;
        req.sampling.temperature = sampled ? 1.0f : 0.0f;
        both(engine, &req, "one token", steps, &usage);
        assert_int_equal(steps[0], 149);
        assert_true(steps[1] < 60);
        assert_int_equal(usage.n_generated_tokens, 150);
        assert_int_equal(usage.n_accepted_tokens, 149 - steps[1]);
        assert_true(usage.n_drafted_tokens >= usage.n_accepted_tokens);
    }
    run_close(engine);
}

/* Four bytes of the answer from `begin` on. */
static void text_of(struct engine *engine, struct engine_request *req, uint32_t begin, char *out)
{
    struct run_result result;
    run_submit(engine, req, &result);
    run_wait(engine, &result, 1);
    assert_true(result.choices[0].n_text >= begin + 4);
    snprintf(out, 5, "%s", result.choices[0].text + begin);
    run_result_fini(&result);
}

static void test_every_way_to_end_is_the_same(void **state)
{
    static const uint32_t only[] = {45, 46}, stop_ids[] = {46};
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_usage usage;
    static const uint32_t word[] = {45, 45, 45, 46};
    static const struct engine_bad_word bad_word = {word, 4, 0};
    uint64_t steps[2], n_accepted = 0, n_generated = 0;
    (void)state;
    for (uint32_t i = 0; i < 120; i++) {
        struct engine_request req = simple(20 + i);
        struct sample_bias bias = {46, -2.0f - (float)(i % 5)};
        char text[8], what[64];
        const char *stop = text;
        req.sampling.allowed_ids = only;
        req.sampling.n_allowed_ids = 2;
        req.sampling.logit_bias = &bias;
        req.sampling.n_logit_bias = 1;
        req.sampling.temperature = i % 3 ? 1.0f : 0.0f;
        req.sampling.seed = i;
        req.sampling.n = 1 + i % 3;
        req.sampling.repetition_penalty = i % 4 == 3 ? 1.3f : 1.0f;
        req.sampling.presence_penalty = i % 8 == 5 ? 0.7f : 0.0f;
        req.sampling.frequency_penalty = i % 8 == 6 ? 0.02f : 0.0f;
        req.sampling.watermark = i % 6 == 4;
        req.sampling.typical_p = i % 9 == 4 ? 0.9f : 1.0f;
        req.sampling.top_p = i % 4 == 1 ? 0.95f : 1.0f;
        req.sampling.bad_words = &bad_word;
        req.sampling.n_bad_words = i % 7 == 4;
        req.want_prompt_logprobs = i % 10 == 9;
        req.want_logprobs = i % 2;
        req.n_top_logprobs = i % 2 ? 2 : 0;
        req.stopping.min_tokens = i % 7;
        if (i % 5 == 1) {
            req.stopping.stop_token_ids = stop_ids;
            req.stopping.n_stop_token_ids = 1;
        } else if (i % 5 == 2) { /* the stop string lies within drafted tokens */
            text_of(engine, &req, 6 + i % 11, text);
            req.stopping.stop = &stop;
            req.stopping.n_stop = 1;
            req.stopping.include_stop = i % 10 == 2;
        }
        snprintf(what, sizeof(what), "request %u", i);
        both(engine, &req, what, steps, &usage);
        assert_true(usage.n_accepted_tokens < usage.n_generated_tokens);
        n_accepted += usage.n_accepted_tokens;
        n_generated += usage.n_generated_tokens;
    }
    print_message("%llu of %llu tokens were drafted\n", (unsigned long long)n_accepted,
                  (unsigned long long)n_generated);
    assert_true(n_accepted > n_generated / 5);
    assert_int_equal(run_stats(engine).n_blocks_free, run_stats(engine).n_blocks);
    run_close(engine);
}

/* On random text, drafting soon stops. */
static void test_what_cannot_be_foretold_costs_few_rows(void **state)
{
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct engine_request req = simple(400);
    struct engine_usage usage;
    uint64_t steps[2];
    (void)state;
    req.sampling.temperature = 100.0f;
    req.sampling.seed = 5;
    both(engine, &req, "noise", steps, &usage);
    assert_true(steps[1] <= steps[0]);
    assert_true(usage.n_drafted_tokens < 80); /* drafts of the first matches */
    run_close(engine);
}

/* Requests are cancelled, paused and shortened while steps give several tokens. */
static void test_disturbed_drafts_lose_no_block_and_no_token(void **state)
{
    static const uint32_t only[] = {45};
    static struct run_result results[24];
    struct engine_config cfg = run_config("q4_1");
    cfg.draft_tokens = 8;
    cfg.executor.kv_tokens = 1024;
    struct engine *engine = run_open(&cfg);
    (void)state;
    run_slow_steps(NS_PER_MS / 4);
    for (uint32_t i = 0; i < 24; i++) {
        struct engine_request req = simple(120);
        char salt[2] = {(char)('a' + i), 0};
        req.cache_salt = salt; /* without different salts all requests would share blocks */
        req.sampling.allowed_ids = only;
        req.sampling.n_allowed_ids = 1;
        req.sampling.n = 1 + i % 2;
        run_submit(engine, &req, &results[i]);
    }
    run_disturb(engine, results, 24);
    for (uint32_t i = 0; i < 24; i++) {
        for (uint32_t c = 0; c < results[i].n_choices; c++) {
            const struct run_choice *choice = &results[i].choices[c];
            if (i % 3)
                assert_int_equal(choice->reason, FINISH_LENGTH);
            if (i % 3 == 1)
                assert_int_equal(choice->n_ids, 120);
            assert_true(choice->n_ids >= (i % 3 == 2 ? 100 : 1));
            for (uint32_t k = 0; k < choice->n_ids; k++)
                assert_int_equal(choice->ids[k], 45);
        }
        run_result_fini(&results[i]);
    }
    struct engine_stats s = run_stats(engine);
    assert_true(s.n_preemptions > 0 && s.n_accepted_tokens > 20);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_foretold_tokens_come_several_to_a_step),
        cmocka_unit_test(test_every_way_to_end_is_the_same),
        cmocka_unit_test(test_what_cannot_be_foretold_costs_few_rows),
        cmocka_unit_test(test_disturbed_drafts_lose_no_block_and_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
