/* Tests that an engine that writes the next step's inputs while a step runs gives the same answers.
 * Requests come, stop, end and are cancelled at any time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_engine.h"

enum { N_REQUESTS = 30, MAX_PROMPT = 70 };

static bool is_cancelled(uint32_t i)
{
    return i % 7 == 5;
}

static struct engine_request make_request(uint32_t i)
{
    static uint32_t prompt[MAX_PROMPT];
    static const char *const stop[] = {"the", "a"};
    uint32_t n_prompt = 3 + i * 13 % (MAX_PROMPT - 3);
    run_random_prompt(100 + i, prompt, n_prompt, 280);
    struct engine_request req = run_request(prompt, n_prompt, 17 + i * 11 % 60);
    req.sampling.temperature = i % 3 ? 1.0f : 0.0f;
    req.sampling.seed = i;
    req.sampling.n = i % 6 == 1 ? 2 : 1;
    req.sampling.repetition_penalty = i % 4 ? 1.0f : 1.2f;
    req.want_logprobs = i % 5 == 2;
    req.stopping.ignore_eos = i % 2;
    req.stopping.min_tokens = i % 8;
    if (i % 4 == 3) {
        req.stopping.stop = stop;
        req.stopping.n_stop = 2;
    }
    if (is_cancelled(i))
        req.stopping.max_tokens = 300;
    return req;
}

/* Runs all requests. Each is submitted once the one before has some tokens; some are cancelled at
 * that moment. */
static struct engine_stats run_mix(bool defer_text, struct run_result *results)
{
    struct engine_config cfg = run_config("q4_1");
    cfg.defer_text = defer_text;
    cfg.max_concurrent = 9;
    struct engine *engine = run_open(&cfg);
    uint32_t n_free = run_stats(engine).n_blocks_free;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct engine_request req = make_request(i);
        run_submit(engine, &req, &results[i]);
        if (is_cancelled(i)) {
            run_wait_ids(engine, &results[i], 3);
            engine_cancel(engine, results[i].id);
        } else if (i % 3 == 0) {
            run_wait_ids(engine, &results[i], 6);
        }
    }
    run_wait(engine, results, N_REQUESTS);
    run_wait_idle(engine);
    struct engine_stats stats = run_stats(engine);
    assert_int_equal(stats.n_blocks_free, n_free);
    run_close(engine);
    return stats;
}

static void assert_same_end(const struct run_result *a, const struct run_result *b, uint32_t i)
{
    char what[32];
    snprintf(what, sizeof(what), "request %u", i);
    if (!is_cancelled(i)) {
        run_assert_same(a, b, what);
        assert_int_equal(a->usage.n_generated_tokens, b->usage.n_generated_tokens);
    } else { /* cancelled: equal up to the shorter answer */
        uint32_t n = a->choices[0].n_ids, m = b->choices[0].n_ids;
        assert_memory_equal(a->choices[0].ids, b->choices[0].ids, (n < m ? n : m) * 4);
    }
    assert_int_equal(a->usage.n_prompt_tokens, b->usage.n_prompt_tokens);
    assert_int_equal(a->usage.n_cached_tokens, b->usage.n_cached_tokens);
}

static void test_answers_are_those_of_an_engine_that_does_not_look_ahead(void **state)
{
    static struct run_result plain[N_REQUESTS], ahead[N_REQUESTS];
    uint32_t n_stopped = 0;
    (void)state;
    struct engine_stats without = run_mix(false, plain), with = run_mix(true, ahead);
    assert_int_equal(without.n_ahead, 0);
    print_message("%llu of %llu steps were as expected\n", (unsigned long long)with.n_ahead,
                  (unsigned long long)with.n_steps);
    assert_true(with.n_ahead > with.n_steps / 8);
    assert_int_equal(with.n_cancelled + with.n_finished, without.n_cancelled + without.n_finished);
    assert_true(with.n_cancelled > 0 && without.n_cancelled > 0);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_same_end(&plain[i], &ahead[i], i);
        n_stopped += plain[i].choices[0].reason == FINISH_STOP;
        run_result_fini(&plain[i]);
        run_result_fini(&ahead[i]);
    }
    assert_true(n_stopped >= 3);
}

/* For a single request every step but the first is announced in advance. This is the usual case of
 * a quiet server. */
static void test_one_alone_every_step_is_as_expected(void **state)
{
    struct engine_config cfg = run_config("q4_1");
    struct run_result r;
    (void)state;
    cfg.defer_text = true;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = run_simple(20, 100);
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    run_wait_idle(engine);
    struct engine_stats stats = run_stats(engine);
    assert_int_equal(stats.n_steps, 100);
    assert_int_equal(stats.n_ahead, 99);
    assert_int_equal(stats.n_between, 0); /* no wait between the steps */
    run_result_fini(&r);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_an_engine_that_does_not_look_ahead),
        cmocka_unit_test(test_one_alone_every_step_is_as_expected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
