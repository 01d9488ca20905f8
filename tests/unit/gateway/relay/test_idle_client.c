/* Tests of idle clients. A request that stays paused or without credit ends and frees its place at
 * the worker. A request that continues now and then, or waits for something else, does not end. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/client/stream.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

enum { LIMIT_MS = 600 };

static struct fixture f;
static struct client_bidi bidi;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void start(void)
{
    fixture_init(&f);
    f.config.limits.max_pause_ms = LIMIT_MS;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
}

static void finish(void)
{
    bidi_close(&bidi);
    fixture_stop(&f);
}

static void expect_ended(const char *id, int64_t since_ns)
{
    struct error err = bidi_wait_error(&bidi, id, 0);
    int64_t took_ms = (clock_now_ns() - since_ns) / NS_PER_MS;
    if (err.status != STATUS_DEADLINE_EXCEEDED || err.reason != REASON_PAUSED_TOO_LONG)
        fail_msg("%d %s %s", err.status, error_reason_name(&err), err.message);
    assert_true(bidi_answer(&bidi, id)->over);
    if (took_ms < LIMIT_MS - 10 || took_ms > LIMIT_MS + 3000)
        fail_msg("after %lld ms", (long long)took_ms);
}

static void test_pause_when_too_long_then_ended_and_the_others_go_on(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000}, slow = {.max_tokens = 1200};
    start();
    bidi_start(&bidi, "p", &endless);
    bidi_start(&bidi, "r", &slow);
    bidi_wait_tokens(&bidi, "p", 5);
    int64_t since_ns = clock_now_ns();
    bidi_pause(&bidi, "p", true);
    fixture_pause_ms(LIMIT_MS / 2);
    bidi_pause(&bidi, "p", true); /* a repeated pause does not extend the time */
    expect_ended("p", since_ns);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    bidi_expect_tokens(&bidi, "r", &slow, true);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PAUSE), 1);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.failed, 1);
    assert_int_equal(c.ok, 1);
    finish();
}

static void test_credit_when_none_comes_for_too_long_then_ended(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    start();
    int64_t since_ns = clock_now_ns();
    bidi_start_with(&bidi, "none", &endless, &(struct bidi_extra){.has_credit = true});
    bidi_start_with(&bidi, "some", &endless, &(struct bidi_extra){.has_credit = true, .credit = 7});
    bidi_wait_tokens(&bidi, "some", 7);
    expect_ended("none", since_ns);
    expect_ended("some", since_ns);
    assert_int_equal(bidi_answer(&bidi, "some")->n_tokens, 7);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PAUSE), 2);
    finish();
}

/* The answer is complete at the worker. The server keeps the answer for a client that never gives
 * credit. */
static void test_answer_when_complete_and_without_credit_then_ended(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 20, .seed = 3};
    start();
    int64_t since_ns = clock_now_ns();
    bidi_start_with(&bidi, "b", &request,
                    &(struct bidi_extra){.best_of = 3, .has_credit = true, .credit = 4});
    bidi_wait_tokens(&bidi, "b", 4);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    expect_ended("b", since_ns);
    assert_int_equal(bidi_answer(&bidi, "b")->n_tokens, 4);
    assert_int_equal(fixture_wait_rest(&f).failed, 1);
    finish();
}

/* The same after a half-close, when no credit can come. Symptom: the request waited for ever. */
static void test_answer_when_complete_and_half_closed_without_credit_then_ended(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 20, .seed = 3};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start_with(&bidi, "b", &request,
                    &(struct bidi_extra){.best_of = 3, .has_credit = true, .credit = 4});
    bidi_half_close(&bidi);
    struct error err = bidi_wait_error(&bidi, "b", 0);
    assert_int_equal(err.status, STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_STREAM_HALF_CLOSED);
    assert_int_equal(bidi_answer(&bidi, "b")->n_tokens, 4);
    assert_int_equal(bidi_wait_end(&bidi), 0);
    finish();
}

/* A request that often stops for a short time has not stopped for a long time. */
static void test_request_when_it_moves_now_and_then_then_it_lives(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 40, .seed = 9};
    start();
    bidi_start_with(&bidi, "c", &request, &(struct bidi_extra){.has_credit = true});
    for (unsigned n = 1; n <= 8; n++) {
        fixture_pause_ms(LIMIT_MS / 4);
        bidi_credit(&bidi, "c", 1);
        bidi_wait_tokens(&bidi, "c", n);
    }
    bidi_credit(&bidi, "c", 1000);
    bidi_expect_tokens(&bidi, "c", &request, true);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PAUSE), 0);
    finish();
}

/* The request waits only for its worker, not for its client. */
static void test_request_when_only_slow_then_it_lives(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 30, .seed = 9};
    start();
    fake_worker_hang(&f.workers[0], true, true);
    bidi_start_with(&bidi, "c", &request, &(struct bidi_extra){.has_credit = true, .credit = 30});
    fixture_pause_ms(2 * LIMIT_MS);
    fake_worker_hang(&f.workers[0], false, true);
    bidi_expect_tokens(&bidi, "c", &request, true);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PAUSE), 0);
    finish();
}

/* Waits until a worker carries the only request, and returns this worker. */
static struct fake_worker *busy_worker(unsigned n_workers)
{
    for (int wait = 0; wait < 2000; wait++) {
        for (unsigned i = 0; i < n_workers; i++)
            if (fake_worker_read(&f.workers[i], &f.workers[i].n_live))
                return &f.workers[i];
        fixture_pause_ms(5);
    }
    fail_msg("no worker has the request");
    return NULL;
}

/* Symptom: three replicas died while the request waited for its client. The request was ended as if
 * the request had killed the replicas. */
static void test_replicas_when_lost_during_a_standstill_then_it_is_not_to_blame(void **state)
{
    (void)state;
    static const struct bidi_extra extra[] = {{0}, {.credit = 10, .has_credit = true}};
    for (size_t i = 0; i < 2; i++) {
        struct client_request request = {.max_tokens = 60, .seed = i};
        fixture_init(&f);
        for (unsigned k = 0; k < 4; k++)
            f.workers[k].stop_after = 10;
        fixture_start(&f, 4);
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "s", &request, &extra[i]);
        bidi_wait_tokens(&bidi, "s", 10);
        if (!extra[i].has_credit)
            bidi_pause(&bidi, "s", true);
        for (unsigned n = 0; n < 3; n++) {
            struct fake_worker *victim = busy_worker(4);
            if (!extra[i].has_credit)
                assert_true(fake_worker_wait(victim, &victim->n_pauses, 1));
            fake_worker_kill(victim);
        }
        fake_worker_stop_after(busy_worker(4), UINT32_MAX);
        bidi_pause(&bidi, "s", false);
        if (extra[i].has_credit)
            bidi_credit(&bidi, "s", 50);
        bidi_expect_tokens(&bidi, "s", &request, true);
        assert_int_equal(bidi_answer(&bidi, "s")->n_resumes, 3);
        assert_int_equal(bidi_answer(&bidi, "s")->n_errors, 0);
        finish();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_pause_when_too_long_then_ended_and_the_others_go_on, forget),
        cmocka_unit_test_setup(test_credit_when_none_comes_for_too_long_then_ended, forget),
        cmocka_unit_test_setup(test_answer_when_complete_and_without_credit_then_ended, forget),
        cmocka_unit_test_setup(test_answer_when_complete_and_half_closed_without_credit_then_ended,
                               forget),
        cmocka_unit_test_setup(test_request_when_it_moves_now_and_then_then_it_lives, forget),
        cmocka_unit_test_setup(test_request_when_only_slow_then_it_lives, forget),
        cmocka_unit_test_setup(test_replicas_when_lost_during_a_standstill_then_it_is_not_to_blame,
                               forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
