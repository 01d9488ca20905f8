/* Tests of deadlines that pass, and of requests that are refused because they would miss theirs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/engine/support/support_engine.h"

static void test_deadline_in_queue_prefill_and_decode(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    cfg.max_concurrent = 2;
    cfg.prefill_chunk_tokens = 1;
    cfg.max_batch_tokens = 2;
    struct engine *engine = run_open(&cfg);
    struct run_result r[3];
    struct engine_request req[] = {run_simple(4, 500), run_simple(500, 5), run_simple(4, 4)};
    run_slow_steps(4 * NS_PER_MS); /* 500 steps take twice the deadline */
    int64_t begin = clock_now_ns();
    for (uint32_t i = 0; i < 3;
         i++) { /* the first decodes slowly, the second is in prefill, the third waits */
        req[i].deadline_ns = begin + NS_PER_S;
        run_submit(engine, &req[i], &r[i]);
    }
    run_wait(engine, r, 3);
    assert_true(clock_now_ns() - begin < 6 * NS_PER_S);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(r[i].choices[0].reason, FINISH_DEADLINE);
        assert_int_equal(r[i].usage.n_prompt_tokens, req[i].n_prompt_ids);
    }
    assert_true(r[0].choices[0].n_ids > 0 && r[0].started);
    assert_true(r[1].choices[0].n_ids == 0 && r[1].started);
    assert_true(!r[2].started);
    run_wait_idle(engine);
    assert_int_equal(run_stats(engine).n_expired, 3);
    assert_int_equal(run_stats(engine).n_blocks_free, run_stats(engine).n_blocks);
    for (uint32_t i = 0; i < 3; i++)
        run_result_fini(&r[i]);
    run_close(engine);
}

static void test_deadline_that_cannot_be_met_is_refused(void **state)
{
    (void)state;
    struct engine_config cfg = run_config("q4_1");
    struct engine *engine = run_open(&cfg);
    struct run_result r;
    struct error err;
    uint64_t id;
    struct engine_request req = run_simple(400, 2);
    req.deadline_ns = clock_now_ns() - 1;
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_DEADLINE_EXCEEDED);
    req.deadline_ns = 0;
    for (int i = 0; i < 3; i++) { /* the engine measures the speed of prefill */
        req.cache_salt = i ? (i == 1 ? "x" : "y") : "z";
        run_submit(engine, &req, &r);
        run_wait(engine, &r, 1);
        run_result_fini(&r);
    }
    req.deadline_ns = clock_now_ns() + 200 * NS_PER_US; /* 400 tokens take longer */
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEADLINE_UNREACHABLE);
    assert_true(err.retry_after_ms > 0);
    req.deadline_ns = clock_now_ns() + 20 * NS_PER_S;
    run_submit(engine, &req, &r);
    run_wait(engine, &r, 1);
    assert_int_equal(r.choices[0].reason, FINISH_LENGTH);
    run_result_fini(&r);
    assert_int_equal(run_stats(engine).n_refused, 2);
    run_close(engine);
}

/* The queue of one caller makes only its own deadlines unreachable. */
static void test_a_flood_leaves_others_their_deadlines(void **state)
{
    (void)state;
    enum { N = 60 };
    static struct run_result results[N];
    struct engine_config cfg = run_config("q4_1");
    cfg.max_concurrent = 2;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = run_simple(300, 2);
    struct run_result r;
    struct error err;
    int64_t longest = 0;
    uint64_t id;
    char salt[8];
    req.cache_salt = salt;
    run_slow_steps(10 * NS_PER_MS);
    for (uint32_t i = 0; i < N; i++) {
        int64_t begin = clock_now_ns();
        snprintf(salt, sizeof(salt), "%u", i); /* nothing is found in the cache */
        req.caller = "flood";
        run_submit(engine, &req, &results[i]);
        if (i >= 3)
            continue;
        run_wait(engine, &results[i], 1); /* the engine measures the time of a request */
        begin = clock_now_ns() - begin;
        longest = begin > longest ? begin : longest;
    }
    while (run_stats(engine).queued_prompt_tokens < N / 2 * 300)
        run_pause();
    snprintf(salt, sizeof(salt), "new");
    req.deadline_ns = clock_now_ns() + 5 * longest;
    assert_int_equal(engine_submit(engine, &req, &id, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEADLINE_UNREACHABLE);
    req.caller = "other";
    run_submit(engine, &req, &r);
    engine_cancel(engine, r.id);
    run_wait(engine, &r, 1);
    run_result_fini(&r);
    for (uint32_t i = 3; i < N; i++)
        engine_cancel(engine, results[i].id);
    run_wait(engine, results, N);
    for (uint32_t i = 0; i < N; i++)
        run_result_fini(&results[i]);
    run_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadline_in_queue_prefill_and_decode),
        cmocka_unit_test(test_deadline_that_cannot_be_met_is_refused),
        cmocka_unit_test(test_a_flood_leaves_others_their_deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
