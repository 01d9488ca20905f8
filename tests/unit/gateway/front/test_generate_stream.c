/* Tests of GenerateStream: many requests share one call. A client that errs, reads slowly or
 * disappears does not disturb other clients. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

static struct fixture f;
static struct client_bidi bidi;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void finish(void)
{
    bidi_close(&bidi);
    fixture_stop(&f);
}

static void test_requests_when_many_then_each_is_whole_and_none_waits_for_the_others(void **state)
{
    (void)state;
    enum { N = 64 };
    static struct client_request requests[N];
    static char ids[N][16];
    fixture_init(&f);
    f.workers[0].hold = 2;
    fixture_start(&f, 2);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(ids[i], sizeof(ids[i]), "r%u", i);
        requests[i] = (struct client_request){
            .seed = i, .text = ids[i], .max_tokens = 40 + i, .n = 1 + i % 3, .logprobs = i % 2};
        bidi_start(&bidi, ids[i], &requests[i]);
    }
    bidi_half_close(&bidi);
    assert_int_equal(bidi_wait_end(&bidi), 0);
    unsigned n_turns = 0;
    for (unsigned i = 0; i < N; i++) {
        bidi_expect_tokens(&bidi, ids[i], &requests[i], true);
        assert_int_equal(bidi_answer(&bidi, ids[i])->n_infos, 1);
        assert_int_equal(bidi_answer(&bidi, ids[i])->n_errors, 0);
    }
    for (unsigned i = 1; i < bidi.n_order; i++)
        n_turns += bidi.order[i] != bidi.order[i - 1];
    assert_true(n_turns > bidi.n_order / 2);
    assert_int_equal(fixture_wait_rest(&f).ok, N);
    finish();
}

/* A client that reads again after a rest gets the waiting messages in turn, one per request. */
static void test_requests_when_the_reader_rests_then_they_take_turns(void **state)
{
    (void)state;
    enum { N = 8 };
    char id[8];
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_pending_bytes = 4096;
    f.workers[0].text_bytes = 500; /* 500 bytes a token, as the connection buffers megabytes */
    f.workers[0].tokens_per_step = 40;
    f.workers[0].step_us = 5000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        bidi_start(&bidi, id, &endless);
        bidi_wait_tokens(&bidi, id, 1);
    }
    rpc_stream_pause_reads(bidi.stream);
    /* All N requests are paused, because each has its own limit. */
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, N));
    pthread_mutex_lock(&bidi.lock);
    unsigned n_before = bidi.n_order;
    pthread_mutex_unlock(&bidi.lock);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        const struct client_answer *answer = bidi_answer(&bidi, id);
        pthread_mutex_lock(&bidi.lock);
        unsigned n_more = answer->n_tokens + 100;
        pthread_mutex_unlock(&bidi.lock);
        bidi_wait_tokens(&bidi, id, n_more);
    }
    pthread_mutex_lock(&bidi.lock);
    unsigned seen[N] = {0}, most = 0, least = UINT32_MAX;
    for (unsigned i = n_before; i < bidi.n_order; i++)
        seen[bidi.order[i] % N]++;
    for (unsigned i = 0; i < N; i++) {
        most = seen[i] > most ? seen[i] : most;
        least = seen[i] < least ? seen[i] : least;
    }
    pthread_mutex_unlock(&bidi.lock);
    assert_true(least * 3 + 10 > most);
    finish();
}

/* With tokens of a few bytes, thousands would wait before the limit of 64 KiB. */
static void test_requests_when_the_reader_rests_then_so_many_tokens_wait_and_no_more(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_pending_tokens = 100;
    f.config.limits.max_pending_bytes = 1 << 30;
    f.config.limits.max_stream_pending_bytes = 1 << 30;
    f.workers[0].text_bytes = 500; /* 500 bytes a token, as the connection buffers megabytes */
    f.workers[0].tokens_per_step = 40;
    f.workers[0].step_us = 5000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "e0", &endless);
    bidi_wait_tokens(&bidi, "e0", 1);
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, 1));
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PENDING_BYTES), 0);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_PENDING_TOKENS), 1);
    rpc_stream_resume_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_resumes, 1));
    bidi_wait_tokens(&bidi, "e0", 2000);
    finish();
}

static void test_requests_when_all_together_are_too_much_then_they_pause(void **state)
{
    (void)state;
    enum { N = 6 };
    char id[8];
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_stream_pending_bytes = 65536;
    f.config.limits.max_pending_bytes = 1 << 30; /* no single request reaches this limit */
    f.workers[0].text_bytes = 500;
    f.workers[0].tokens_per_step = 40;
    f.workers[0].step_us = 5000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        bidi_start(&bidi, id, &endless);
        bidi_wait_tokens(&bidi, id, 1);
    }
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, N));
    assert_true(gateway_n_refusals(f.gateway, LIMIT_STREAM_PENDING_BYTES) >= 1);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        pthread_mutex_lock(&bidi.lock);
        unsigned n = bidi.answers[i].n_tokens;
        pthread_mutex_unlock(&bidi.lock);
        bidi_wait_tokens(&bidi, id, n + 400);
    }
    assert_true(fake_worker_read(&f.workers[0], &f.workers[0].n_resumes) >= N);
    finish();
}

static void send_empty(const char *id)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    frame.request_id = (char *)(uintptr_t)id;
    bidi_send(&bidi, &frame);
}

static void test_frames_when_bad_then_answered_and_the_others_go_on(void **state)
{
    (void)state;
    static char long_id[131];
    struct client_request request = {.max_tokens = 40, .seed = 3};
    memset(long_id, 'x', sizeof(long_id) - 1);
    fixture_init(&f);
    f.workers[0].stop_after = 10;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "good", &request);
    bidi_wait_tokens(&bidi, "good", 10);
    send_empty("a");
    bidi_expect_error(&bidi, "a", 0, STATUS_INVALID_ARGUMENT, "", "frame", false);
    send_empty("");
    bidi_expect_error(&bidi, "", 0, STATUS_INVALID_ARGUMENT, "", "frame", false);
    bidi_cancel(&bidi, "");
    bidi_expect_error(&bidi, "", 1, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_cancel(&bidi, long_id);
    bidi_expect_error(&bidi, "", 2, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_start(&bidi, "", &request);
    bidi_expect_error(&bidi, "", 3, STATUS_INVALID_ARGUMENT, "", "request_id", false);
    bidi_start(&bidi, "b", &(struct client_request){.request_id = "c"});
    bidi_expect_error(&bidi, "b", 0, STATUS_INVALID_ARGUMENT, "", "start.request_id", false);
    bidi_start(&bidi, "d", &(struct client_request){.model = "nobody"});
    bidi_expect_error(&bidi, "d", 0, STATUS_NOT_FOUND, "MODEL_NOT_FOUND", "", false);
    bidi_start(&bidi, "e", &(struct client_request){.n = 9});
    bidi_expect_error(&bidi, "e", 0, STATUS_INVALID_ARGUMENT, "", "sampling.n", false);
    bidi_start_with(&bidi, "w", &request, &(struct bidi_extra){.window_ms = 30001});
    bidi_expect_error(&bidi, "w", 0, STATUS_INVALID_ARGUMENT, "", "reattach_window_ms", false);
    bidi_start(&bidi, "good", &request);
    bidi_expect_error(&bidi, "good", 0, STATUS_ALREADY_EXISTS, "REQUEST_ID_LIVE", "", true);
    bidi_update(&bidi, "good", 9);
    bidi_expect_error(&bidi, "good", 1, STATUS_INVALID_ARGUMENT, "", "update.max_tokens", true);
    bidi_credit(&bidi, "good", 9);
    bidi_expect_error(&bidi, "good", 2, STATUS_FAILED_PRECONDITION, "NO_CREDIT_NEEDED", "", true);
    bidi_credit(&bidi, "good", 0);
    bidi_expect_error(&bidi, "good", 3, STATUS_INVALID_ARGUMENT, "", "credit.n_tokens", true);
    bidi_reattach(&bidi, "good", 0, NULL);
    bidi_expect_error(&bidi, "good", 4, STATUS_FAILED_PRECONDITION, "NOT_REATTACHABLE", "", true);
    bidi_cancel(&bidi, "nobody");
    bidi_pause(&bidi, "nobody", true);
    bidi_credit(&bidi, "nobody", 1);
    bidi_update(&bidi, "nobody", 1);
    bidi_reattach(&bidi, "nobody", 0, NULL);
    for (unsigned i = 0; i < 5; i++)
        bidi_expect_error(&bidi, "nobody", i, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&bidi, "good", &request, true);
    finish();
}

/* More bad frames come than answers may wait. The server reads the next frames when the client has
 * taken answers. */
static void test_frames_when_bad_without_end_then_reading_waits(void **state)
{
    (void)state;
    enum { N = 4 * 64 };
    struct client_request request = {.seed = 1};
    char id[16];
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    rpc_stream_pause_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "n%u", i);
        bidi_cancel(&bidi, id);
    }
    bidi_start(&bidi, "good", &request);
    fixture_pause_ms(100);
    rpc_stream_resume_reads(bidi.stream);
    for (unsigned i = 0; i < N; i++) {
        snprintf(id, sizeof(id), "n%u", i);
        bidi_expect_error(&bidi, id, 0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    }
    bidi_expect_tokens(&bidi, "good", &request, true);
    finish();
}

static void test_cancel_ends_one_and_frees_its_id(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000},
                          request = {.seed = 2, .max_tokens = 50};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "x", &endless);
    bidi_start(&bidi, "y", &request);
    bidi_wait_tokens(&bidi, "x", 5);
    int64_t since_ns = clock_now_ns();
    bidi_cancel(&bidi, "x");
    bidi_expect_error(&bidi, "x", 0, STATUS_CANCELLED, "", "", false);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    assert_true(f.workers[0].cancel_ns - since_ns < NS_PER_S);
    bidi_expect_tokens(&bidi, "y", &request, true);
    bidi_cancel(&bidi, "x");
    bidi_expect_error(&bidi, "x", 1, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "", false);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.cancelled, 1);
    assert_int_equal(c.ok, 1);
    finish();
}

static void test_half_close_lets_requests_finish_but_for_those_that_cannot(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 1}, endless = {.max_tokens = 100000};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "r", &request);
    bidi_start(&bidi, "p", &endless);
    bidi_start_with(&bidi, "c", &endless, &(struct bidi_extra){.has_credit = true, .credit = 33});
    bidi_wait_tokens(&bidi, "p", 1);
    bidi_pause(&bidi, "p", true);
    bidi_half_close(&bidi);
    assert_int_equal(bidi_wait_end(&bidi), 0);
    bidi_expect_tokens(&bidi, "r", &request, true);
    assert_int_equal(bidi_answer(&bidi, "c")->n_tokens, 33);
    bidi_expect_error(&bidi, "c", 0, STATUS_FAILED_PRECONDITION, "STREAM_HALF_CLOSED", "", false);
    bidi_expect_error(&bidi, "p", 0, STATUS_FAILED_PRECONDITION, "STREAM_HALF_CLOSED", "", false);
    finish();
}

/* The last token takes the last credit. The end frame after it needs no credit. */
static void test_half_close_when_the_credit_is_just_enough_then_all_is_well(void **state)
{
    (void)state;
    enum { N = 200 };
    fixture_init(&f);
    f.workers[0].split_ends = true;
    fixture_start(&f, 1);
    for (unsigned i = 0; i < N; i++) {
        struct client_request request = {.max_tokens = 5, .n = 8, .seed = i};
        bidi_open(&f, NULL, 0, &bidi);
        bidi_start_with(&bidi, "c", &request,
                        &(struct bidi_extra){.has_credit = true, .credit = 40});
        bidi_half_close(&bidi);
        bidi_expect_tokens(&bidi, "c", &request, true);
        assert_int_equal(bidi_wait_end(&bidi), 0);
        bidi_close(&bidi);
    }
    fixture_stop(&f);
}

static void test_stream_when_it_ends_then_all_its_requests_do(void **state)
{
    (void)state;
    enum { N = 5 };
    for (int how = 0; how < 3; how++) {
        struct client_request endless = {.max_tokens = 1000000};
        char id[8];
        fixture_start(&f, 1);
        bidi_open(&f, NULL, how == 2 ? 400 : 0, &bidi);
        for (unsigned i = 0; i < N; i++) {
            snprintf(id, sizeof(id), "e%u", i);
            bidi_start(&bidi, id, &endless);
            bidi_wait_tokens(&bidi, id, 1);
        }
        int64_t since_ns = clock_now_ns();
        if (how == 0)
            rpc_stream_cancel(bidi.stream);
        if (how == 1) {
            rpc_client_destroy(f.client);
            f.client = NULL;
        }
        if (how == 2)
            assert_int_equal(bidi_wait_end(&bidi), STATUS_DEADLINE_EXCEEDED);
        assert_true(fake_worker_wait_live(&f.workers[0], 0));
        assert_true(how == 2 || f.workers[0].cancel_ns - since_ns < NS_PER_S);
        struct gateway_counters c = fixture_wait_rest(&f);
        assert_int_equal(how == 2 ? c.failed : c.cancelled, N);
        finish();
    }
}

static void test_requests_when_too_many_then_the_next_is_refused(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.config.limits.max_stream_requests = 2;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "a", &endless);
    bidi_start(&bidi, "b", &endless);
    bidi_start(&bidi, "c", &endless);
    bidi_expect_error(&bidi, "c", 0, STATUS_RESOURCE_EXHAUSTED, "STREAM_REQUESTS", "", false);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_STREAM_REQUESTS), 1);
    bidi_cancel(&bidi, "a");
    bidi_expect_error(&bidi, "a", 0, STATUS_CANCELLED, "", "", false);
    bidi_start(&bidi, "d", &(struct client_request){.max_tokens = 3});
    bidi_wait_tokens(&bidi, "d", 3);
    finish();
}

static void test_reader_when_it_takes_nothing_then_the_stream_ends(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000}, other = {.max_tokens = 200, .seed = 9};
    fixture_init(&f);
    f.config.limits.slow_reader_ms = 500;
    f.workers[0].text_bytes = 2000;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_start(&bidi, "s", &endless);
    bidi_wait_tokens(&bidi, "s", 1);
    rpc_stream_pause_reads(bidi.stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, 1));
    other.text_bytes = 2000;
    client_run(&f, &other);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.slow_readers, 1);
    assert_int_equal(c.ok, 1);
    rpc_stream_resume_reads(bidi.stream);
    assert_int_equal(bidi_wait_end(&bidi), STATUS_RESOURCE_EXHAUSTED);
    finish();
}

/* Drains as the program does at SIGTERM. Symptom: an idle stream delayed the exit for the whole
 * grace time, and streams could still start requests. */
static void *drain_gateway(void *arg)
{
    struct fixture *fixture = arg;
    gateway_drain(fixture->gateway, 20000);
    gateway_destroy(fixture->gateway, 0);
    return NULL;
}

static void test_drain_refuses_what_is_new_and_ends_with_the_last_request(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 5};
    static struct client_bidi idle;
    pthread_t thread;
    fixture_init(&f);
    f.workers[0].stop_after = 20;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &bidi);
    bidi_open(&f, NULL, 0, &idle);
    bidi_start(&bidi, "r", &request);
    bidi_wait_tokens(&bidi, "r", 20);
    int64_t since_ns = clock_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, drain_gateway, &f), 0);
    assert_int_equal(bidi_wait_end(&idle), STATUS_UNAVAILABLE);
    assert_int_equal(idle.status.reason, REASON_DRAINING);
    bidi_start(&bidi, "late", &request);
    bidi_expect_error(&bidi, "late", 0, STATUS_UNAVAILABLE, "DRAINING", "", false);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&bidi, "r", &request, true);
    assert_int_equal(bidi_wait_end(&bidi), STATUS_UNAVAILABLE);
    pthread_join(thread, NULL);
    assert_true(clock_now_ns() - since_ns < 10 * NS_PER_S);
    f.gateway = NULL;
    bidi_close(&idle);
    bidi_close(&bidi);
    rpc_client_destroy(f.client);
    f.client = NULL;
    fixture_stop(&f);
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(
            test_requests_when_many_then_each_is_whole_and_none_waits_for_the_others, forget),
        cmocka_unit_test_setup(test_requests_when_the_reader_rests_then_they_take_turns, forget),
        cmocka_unit_test_setup(
            test_requests_when_the_reader_rests_then_so_many_tokens_wait_and_no_more, forget),
        cmocka_unit_test_setup(test_requests_when_all_together_are_too_much_then_they_pause,
                               forget),
        cmocka_unit_test_setup(test_frames_when_bad_then_answered_and_the_others_go_on, forget),
        cmocka_unit_test_setup(test_frames_when_bad_without_end_then_reading_waits, forget),
        cmocka_unit_test_setup(test_cancel_ends_one_and_frees_its_id, forget),
        cmocka_unit_test_setup(test_half_close_lets_requests_finish_but_for_those_that_cannot,
                               forget),
        cmocka_unit_test_setup(test_half_close_when_the_credit_is_just_enough_then_all_is_well,
                               forget),
        cmocka_unit_test_setup(test_stream_when_it_ends_then_all_its_requests_do, forget),
        cmocka_unit_test_setup(test_requests_when_too_many_then_the_next_is_refused, forget),
        cmocka_unit_test_setup(test_reader_when_it_takes_nothing_then_the_stream_ends, forget),
        cmocka_unit_test_setup(test_drain_refuses_what_is_new_and_ends_with_the_last_request,
                               forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
