/* Tests when a worker counts as stalled: without any sign of life, or without progress. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/stall.h"

enum { LIMIT_MS = 10000, HEARTBEAT_MS = 1000 };

static int64_t at(int64_t ms)
{
    return ms * NS_PER_MS;
}

/* Feeds a frame with a load to the watch, as the link does. */
static bool told(struct stall_watch *watch, uint64_t progress, uint32_t n_ready, int64_t ms)
{
    stall_heard(watch, at(ms));
    return stall_on_load(watch, progress, n_ready, at(ms));
}

static bool found(struct stall_watch *watch, int64_t ms)
{
    return stall_found(watch, at(ms), LIMIT_MS);
}

static struct stall_watch greeted(void)
{
    struct stall_watch watch = {0};
    stall_hello(&watch, HEARTBEAT_MS, at(0));
    told(&watch, 7, 0, 0);
    return watch;
}

static void test_silence_when_over_the_limit_then_stalled_once(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    for (int64_t ms = 1000; ms <= 5000; ms += 1000)
        told(&watch, 7, 0, ms);
    assert_false(found(&watch, 15000));
    assert_true(found(&watch, 15050));
    assert_true(watch.stalled);
    assert_false(found(&watch, 15100)); /* a stall is reported once */
}

static void test_progress_when_it_stands_still_with_requests_then_stalled(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    for (int64_t ms = 200; ms <= 12000; ms += 200) {
        told(&watch, ms <= 2000 ? (uint64_t)ms : 2000, 3, ms);
        assert_false(found(&watch, ms) && ms <= 12000);
    }
    told(&watch, 2000, 3, 12100);
    assert_true(found(&watch, 12100));
}

/* A long prefill that finishes a layer now and then makes progress. */
static void test_progress_when_slow_then_not_stalled(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    for (int64_t ms = 200; ms <= 90000; ms += 200) {
        told(&watch, (uint64_t)(ms / 9000), 1, ms);
        assert_false(found(&watch, ms));
    }
}

static void test_progress_when_nothing_is_ready_then_standing_still_is_right(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    for (int64_t ms = 1000; ms <= 60000; ms += 1000) {
        told(&watch, 7, 0, ms);
        assert_false(found(&watch, ms));
    }
    /* After an idle time, a request has the full limit for its first layer. */
    told(&watch, 7, 1, 60200);
    told(&watch, 7, 1, 70100);
    assert_false(found(&watch, 70150));
    told(&watch, 7, 1, 70300);
    assert_true(found(&watch, 70300));
}

/* An engine that hangs answers a new hello like any other: only layers count. */
static void test_stalled_when_greeted_again_then_only_progress_ends_it(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    told(&watch, 9, 2, 100);
    told(&watch, 9, 2, 10200);
    assert_true(found(&watch, 10200));
    stall_hello(&watch, HEARTBEAT_MS, at(10300));
    assert_false(told(&watch, 9, 2, 10300));
    assert_true(watch.stalled);
    assert_true(told(&watch, 10, 2, 10500));
    assert_false(watch.stalled);
}

static void test_stalled_when_nothing_is_left_to_do_then_over(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    assert_true(found(&watch, 20000)); /* was stopped */
    stall_hello(&watch, HEARTBEAT_MS, at(20100));
    assert_true(told(&watch, 7, 0, 20100));
    assert_false(found(&watch, 20200));
}

static void test_worker_when_it_promises_nothing_then_not_watched(void **state)
{
    struct stall_watch watch = {0};
    (void)state;
    stall_hello(&watch, 0, at(0));
    told(&watch, 7, 4, 0);
    assert_false(found(&watch, 1000000));
}

static void test_silence_when_the_limit_is_below_the_promise_then_the_promise_counts(void **state)
{
    struct stall_watch watch = greeted();
    (void)state;
    assert_false(stall_found(&watch, at(1900), 500));
    assert_true(stall_found(&watch, at(2100), 500));
}

/* F30: everything was paused for five minutes; no worker counts as stalled for that. */
static void test_clock_when_all_was_paused_then_the_pause_does_not_count(void **state)
{
    struct awake_clock clock;
    awake_clock_init(&clock);
    struct stall_watch watch = {0};
    int64_t awake_ns = 0, now_ms = 1000;
    (void)state;
    for (; now_ms < 3000; now_ms += 50)
        awake_ns = awake_clock_tick(&clock, at(now_ms));
    assert_int_equal(awake_ns, 1 + at(1950));
    stall_hello(&watch, HEARTBEAT_MS, awake_ns);
    stall_on_load(&watch, 7, 1, awake_ns);
    now_ms += 300000;
    awake_ns = awake_clock_tick(&clock, at(now_ms));
    assert_int_equal(awake_ns, 1 + at(1950 + 250));
    assert_false(stall_found(&watch, awake_ns, LIMIT_MS));
    for (int i = 0; i < 240; i++) /* 12 s later the worker counts as stalled */
        awake_ns = awake_clock_tick(&clock, at(now_ms += 50));
    assert_true(stall_found(&watch, awake_ns, LIMIT_MS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silence_when_over_the_limit_then_stalled_once),
        cmocka_unit_test(test_progress_when_it_stands_still_with_requests_then_stalled),
        cmocka_unit_test(test_progress_when_slow_then_not_stalled),
        cmocka_unit_test(test_progress_when_nothing_is_ready_then_standing_still_is_right),
        cmocka_unit_test(test_stalled_when_greeted_again_then_only_progress_ends_it),
        cmocka_unit_test(test_stalled_when_nothing_is_left_to_do_then_over),
        cmocka_unit_test(test_worker_when_it_promises_nothing_then_not_watched),
        cmocka_unit_test(test_silence_when_the_limit_is_below_the_promise_then_the_promise_counts),
        cmocka_unit_test(test_clock_when_all_was_paused_then_the_pause_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
