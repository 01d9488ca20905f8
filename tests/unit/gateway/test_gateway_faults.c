/* Tests of workers that die, drain, come back or are replaced by another process. A stream
 * continues with the same tokens on another replica, or ends with a clear status. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/relay/relay.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

static struct fixture f;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void test_a_stream_goes_on_at_another_replica(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, hold, died_after;
        bool logprobs;
    } rows[] = {
        {1, 0, 40, false}, {3, 0, 20, false}, {1, 3, 40, true}, {3, 2, 1, true}, {1, 0, 79, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client_request request = {
            .seed = i, .max_tokens = 80, .n = rows[i].n, .logprobs = rows[i].logprobs};
        struct client_stream stream;
        fixture_init(&f);
        for (unsigned k = 0; k < 2; k++) {
            f.workers[k].hold = rows[i].hold;
            f.workers[k].stop_after = rows[i].died_after + rows[i].hold;
        }
        fixture_start(&f, 2);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, rows[i].n * (rows[i].died_after));
        unsigned first = fixture_busy_worker(&f, 2);
        fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
        fake_worker_kill(&f.workers[first]);
        client_expect_whole(&stream, &request);
        assert_string_equal(stream.receipt_replica, f.workers[1 - first].replica_id);
        assert_int_equal(stream.n_resumes, 1);
        assert_false(stream.numerics_changed);
        assert_int_equal(f.workers[1 - first].n_resumed, 1);
        client_close(&stream);
        fixture_stop(&f);
    }
}

static void test_before_the_first_token_the_request_is_simply_moved(void **state)
{
    (void)state;
    struct client_request request = {.seed = 5};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = f.workers[1].stop_after = 0;
    snprintf(f.workers[0].numerics_id, sizeof(f.workers[0].numerics_id), "another");
    fixture_start(&f, 2);
    client_open(&f, &request, &stream);
    for (int i = 0; i < 1000 && f.workers[0].n_submits + f.workers[1].n_submits == 0; i++)
        fixture_pause_ms(5);
    unsigned first = fixture_busy_worker(&f, 2);
    fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
    fake_worker_kill(&f.workers[first]);
    client_expect_whole(&stream, &request);
    assert_int_equal(f.workers[1 - first].n_resumed, 0);
    assert_false(stream.numerics_changed);
    client_close(&stream);
    fixture_stop(&f);
}

static void test_a_stream_goes_on_at_the_restarted_replica(void **state)
{
    (void)state;
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    struct client_request request = {.seed = 6, .max_tokens = 90};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = 30;
    fixture_start(&f, 1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 30);
    fake_worker_kill(&f.workers[0]);
    fixture_pause_ms(300);
    f.workers[0].stop_after = UINT32_MAX;
    f.workers[0].epoch = 2;
    fake_worker_start(&f.workers[0]);
    fixture_routes(&f, &row, 1);
    client_expect_whole(&stream, &request);
    assert_int_equal(stream.n_resumes, 1);
    client_close(&stream);
    fixture_wait_usable(&f, 1);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.resumes, 1);
    fixture_stop(&f);
}

static void test_many_streams_survive_one_death_each(void **state)
{
    (void)state;
    enum { N = 24 };
    static struct client_stream streams[N];
    static struct client_request requests[N];
    fixture_init(&f);
    for (unsigned i = 0; i < 3; i++)
        f.workers[i].hold = 1;
    fixture_start(&f, 3);
    for (unsigned i = 0; i < N; i++) {
        requests[i] = (struct client_request){.seed = i, .max_tokens = 400, .n = 1 + i % 2};
        client_open(&f, &requests[i], &streams[i]);
    }
    client_wait_tokens(&streams[N - 1], 20);
    fake_worker_kill(&f.workers[0]);
    client_wait_tokens(&streams[0], 100);
    fake_worker_kill(&f.workers[1]);
    for (unsigned i = 0; i < N; i++) {
        client_expect_whole(&streams[i], &requests[i]);
        client_close(&streams[i]);
    }
    fixture_stop(&f);
}

static void test_no_replica_in_time_is_told_with_the_tokens_sent(void **state)
{
    (void)state;
    static const uint32_t sent[] = {0, 12};
    for (size_t i = 0; i < 2; i++) {
        struct client_request request = {.seed = 6, .max_tokens = 90};
        struct client_stream stream;
        char text[64];
        fixture_init(&f);
        f.config.limits.resume_ms = 300;
        f.workers[0].stop_after = sent[i];
        fixture_start(&f, 1);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, sent[i]);
        assert_true(fake_worker_wait_live(&f.workers[0], 1));
        int64_t since_ns = clock_now_ns();
        fake_worker_kill(&f.workers[0]);
        assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
        assert_true(clock_now_ns() - since_ns >= 300 * NS_PER_MS);
        assert_int_equal(stream.status.reason, REASON_REPLICA_LOST);
        assert_true(stream.status.retry_after_ms > 0);
        snprintf(text, sizeof(text), "tokens sent: %u", sent[i]);
        assert_non_null(strstr(stream.status.message, text));
        assert_true(stream.status.has_tokens_sent);
        assert_int_equal(stream.status.n_tokens_sent, sent[i]);
        assert_int_equal(stream.n_tokens, sent[i]);
        assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_RESUME), 1);
        client_close(&stream);
        assert_int_equal(fixture_wait_rest(&f).failed, 1);
        fixture_stop(&f);
    }
}

static void test_a_version_that_is_unloaded_is_not_waited_for(void **state)
{
    (void)state;
    static const struct fixture_route gone = {"m", "1", false, 0, 0};
    struct client_request request = {.seed = 6, .max_tokens = 90};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = 5;
    fixture_start(&f, 1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 5);
    fixture_routes(&f, &gone, 1);
    fixture_wait_health(&f, "model/m/1", 0);
    int64_t since_ns = clock_now_ns();
    fake_worker_kill(&f.workers[0]);
    assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
    assert_true(clock_now_ns() - since_ns < 5 * NS_PER_S);
    client_close(&stream);
    fixture_stop(&f);
}

/* The routes know a replica before the link to it is up: a request in between waits for it. */
static void test_a_new_request_waits_for_a_replica_that_comes_up(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0}, {"n", "1", true, 2, 0}};
    struct client_request request = {.model = "n", .seed = 6, .max_tokens = 20};
    struct client_stream stream;
    struct timespec pause = {0, 200 * NS_PER_MS};
    fixture_start(&f, 1);
    fixture_routes(&f, routes, 2);
    fixture_wait_health(&f, "model/n/1", 0);
    client_open(&f, &request, &stream);
    nanosleep(&pause, NULL);
    assert_int_equal(stream.n_tokens, 0);
    assert_false(client_is_over(&stream));
    fake_worker_start(&f.workers[1]);
    client_expect_whole(&stream, &request);
    client_close(&stream);
    fixture_stop(&f);
}

static void test_a_replica_that_does_not_come_up_is_told(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0}, {"n", "1", true, 2, 0}};
    struct client_request request = {.model = "n", .seed = 6, .max_tokens = 20};
    struct error err;
    fixture_init(&f);
    f.config.limits.replica_wait_ms = 300;
    fixture_start(&f, 1);
    fixture_routes(&f, routes, 2);
    fixture_wait_health(&f, "model/n/1", 0);
    int64_t since_ns = clock_now_ns();
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    assert_true(clock_now_ns() - since_ns >= 300 * NS_PER_MS);
    assert_int_equal(err.reason, REASON_NO_REPLICA_READY);
    assert_true(err.retry_after_ms > 0);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_REPLICA_WAIT), 1);
    fixture_stop(&f);
}

static void test_a_waiting_request_can_be_cancelled_and_expires(void **state)
{
    (void)state;
    struct client_request plain = {.max_tokens = 90}, timed = {.max_tokens = 90, .timeout_ms = 800};
    struct client_stream streams[2];
    fixture_init(&f);
    f.workers[0].stop_after = 5;
    fixture_start(&f, 1);
    client_open(&f, &plain, &streams[0]);
    client_open(&f, &timed, &streams[1]);
    client_wait_tokens(&streams[0], 5);
    client_wait_tokens(&streams[1], 5);
    fake_worker_kill(&f.workers[0]);
    fixture_pause_ms(100);
    rpc_stream_cancel(streams[0].stream);
    assert_int_equal(client_wait_end(&streams[0]), STATUS_CANCELLED);
    assert_int_equal(client_wait_end(&streams[1]), STATUS_DEADLINE_EXCEEDED);
    for (int i = 0; i < 2; i++)
        client_close(&streams[i]);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.cancelled, 1);
    assert_int_equal(c.failed, 1);
    fixture_stop(&f);
}

static void test_a_request_that_takes_replicas_with_it_gets_no_fourth(void **state)
{
    (void)state;
    struct client_request request = {.text = "poison"};
    struct client_stream stream;
    fixture_init(&f);
    for (unsigned i = 0; i < 4; i++) {
        f.workers[i].stop_after = 0;
        f.workers[i].starts = true;
    }
    fixture_start(&f, 4);
    client_open(&f, &request, &stream);
    for (unsigned i = 0; i < 3; i++) {
        fixture_wait_stage(&f, RELAY_IN_STEPS);
        fake_worker_kill(&f.workers[fixture_busy_worker(&f, 4)]);
    }
    assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
    assert_int_equal(stream.status.reason, REASON_REPLICA_LOST);
    client_close(&stream);
    fixture_stop(&f);
}

/* Symptom: three workers died before the replayed request was in a step of theirs. The server ended
 * the request with REPLICA_LOST, though no step with the request had killed a worker. */
static void test_a_request_that_was_in_no_step_outlives_any_three_replicas(void **state)
{
    (void)state;
    for (unsigned accepts = 0; accepts < 2; accepts++) {
        struct client_request request = {.seed = 4, .max_tokens = 60};
        struct client_stream stream;
        fixture_init(&f);
        for (unsigned i = 0; i < 4; i++) {
            f.workers[i].stop_after = 8;
            f.workers[i].accepts = accepts;
        }
        fixture_start(&f, 4);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, 8);
        for (unsigned i = 0; i < 3; i++) {
            fixture_wait_stage(&f, !i ? RELAY_IN_STEPS : accepts ? RELAY_ACCEPTED : RELAY_SENT);
            unsigned busy = fixture_busy_worker(&f, 4);
            for (unsigned k = 0; i == 2 && k < 4; k++)
                fake_worker_stop_after(&f.workers[k], k == busy ? 8 : UINT32_MAX);
            fake_worker_kill(&f.workers[busy]);
        }
        client_expect_whole(&stream, &request);
        assert_int_equal(stream.n_resumes, 3);
        client_close(&stream);
        fixture_stop(&f);
    }
}

/* A worker may die of a request before it can report the first step. */
static void test_a_request_that_is_lost_five_times_without_a_token_ends(void **state)
{
    (void)state;
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    struct client_request request = {.text = "poison"};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = 0;
    f.workers[0].accepts = true;
    fixture_start(&f, 1);
    client_open(&f, &request, &stream);
    for (unsigned i = 1; i <= 5; i++) {
        fixture_wait_stage(&f, RELAY_ACCEPTED);
        assert_false(client_is_over(&stream));
        fake_worker_kill(&f.workers[0]);
        f.workers[0].epoch++;
        fake_worker_start(&f.workers[0]);
        fixture_routes(&f, &row, 1);
    }
    assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
    assert_int_equal(stream.status.reason, REASON_REPLICA_LOST);
    client_close(&stream);
    fixture_stop(&f);
}

static void test_a_draining_worker_gets_nothing_new_and_gives_back_what_runs(void **state)
{
    (void)state;
    struct client_request request = {.seed = 8, .max_tokens = 60, .n = 2};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = f.workers[1].stop_after = 10;
    fixture_start(&f, 2);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 20);
    unsigned first = fixture_busy_worker(&f, 2);
    fake_worker_stop_after(&f.workers[1 - first], UINT32_MAX);
    fake_worker_drain(&f.workers[first], false);
    fixture_wait_usable(&f, 1);
    unsigned n_before = f.workers[first].n_submits;
    for (int i = 0; i < 4; i++)
        client_run(&f, &request);
    assert_int_equal(f.workers[first].n_submits, n_before);
    assert_false(client_is_over(&stream));
    fake_worker_drain(&f.workers[first], true);
    client_expect_whole(&stream, &request);
    assert_int_equal(stream.n_resumes, 1);
    client_close(&stream);
    fixture_stop(&f);
}

/* Between the failure of its engine and its end, a worker can be linked again and refuse requests.
 * Symptom: the client got the text of the device's error, though another replica serves. */
static void test_a_worker_whose_engine_failed_is_passed_over_until_it_ends(void **state)
{
    (void)state;
    struct client_request request = {.seed = 8, .max_tokens = 60};
    fixture_init(&f);
    f.workers[0].fail_status = STATUS_UNAVAILABLE;
    f.workers[0].fail_reason = "ENGINE_FAILED";
    fixture_start(&f, 2);
    for (int i = 0; i < 8; i++)
        client_run(&f, &request);
    assert_int_equal(f.workers[0].n_submits, 1);
    assert_int_equal(f.workers[1].n_submits, 8);
    fixture_stop(&f);
}

/* A request without any answer reached a version that was just taken out of the traffic. Symptom:
 * the request ended REPLICA_LOST, though another version could serve. A request that names the
 * version still gets the error. */
static void test_a_version_that_goes_away_then_its_unbegun_requests_go_to_another(void **state)
{
    (void)state;
    static const struct fixture_route both[] = {{"m", "1", true, 1, 0}, {"m", "2", true, 2, 0}};
    static const struct fixture_route gone[] = {{"m", "1", true, 1, 0}, {"m", "2", false, 0, 2}};
    struct client_request any = {.seed = 8, .max_tokens = 60}, named = {.seed = 9, .version = "2"};
    struct client_stream moved, lost;
    fixture_init(&f);
    fixture_start(&f, 1);
    fake_worker_start(&f.workers[1]);
    fake_worker_hang(&f.workers[1], true, true);
    fixture_routes(&f, both, 2);
    fixture_wait_health(&f, "model/m/2", 1);
    client_open(&f, &any, &moved);
    client_open(&f, &named, &lost);
    assert_true(fake_worker_wait(&f.workers[1], &f.workers[1].n_submits, 2));
    fixture_routes(&f, gone, 2);
    fixture_wait_health(&f, "model/m/2", 0);
    fake_worker_drain(&f.workers[1], true);
    client_expect_whole(&moved, &any);
    assert_int_equal(client_wait_end(&lost), STATUS_UNAVAILABLE);
    assert_int_equal(lost.status.reason, REASON_VERSION_UNLOADED);
    client_close(&moved);
    client_close(&lost);
    fixture_stop(&f);
}

/* --- calls for text --- */

struct text_answer {
    _Atomic bool over;
    int status;
    size_t n_ids;
};

static void on_text(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    struct text_answer *answer = arg;
    answer->status = status->status;
    answer->n_ids = response ? ((const Sluice__V1__TokenizeResponse *)response)->n_ids : 0;
    answer->over = true;
}

static struct rpc_stream *ask_for_text(const char *model, struct text_answer *answer)
{
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    struct error err;
    *answer = (struct text_answer){0};
    request.model = (char *)(uintptr_t)model;
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = (char *)(uintptr_t) "xyz";
    assert_int_equal(rpc_client_unary_open(f.client, &sluice__v1__inference__descriptor, "Tokenize",
                                           &request.base, NULL, on_text, answer, &stream, &err),
                     0);
    return stream;
}

static void wait_text(struct text_answer *answer)
{
    for (int i = 0; i < 2000 && !answer->over; i++)
        fixture_pause_ms(5);
    assert_true(answer->over);
}

/* Symptom: the client got DRAINING as if this server ended, though another replica serves. */
static void test_a_text_call_at_a_worker_that_ends_is_asked_elsewhere(void **state)
{
    (void)state;
    struct text_answer answer;
    fixture_start(&f, 2);
    for (unsigned i = 0; i < 2; i++)
        fake_worker_stop(&f.workers[i], true);
    struct rpc_stream *stream = ask_for_text("m", &answer);
    unsigned first = 2;
    for (int i = 0; i < 2000 && first == 2; i++) {
        for (unsigned k = 0; k < 2; k++)
            if (fake_worker_read(&f.workers[k], &f.workers[k].n_texts))
                first = k;
        fixture_pause_ms(5);
    }
    assert_true(first < 2);
    fake_worker_drain(&f.workers[first], false);
    fixture_wait_usable(&f, 1);
    for (unsigned i = 0; i < 2; i++)
        fake_worker_stop(&f.workers[i], false);
    wait_text(&answer);
    assert_int_equal(answer.status, 0);
    assert_int_equal(answer.n_ids, 3);
    assert_int_equal(f.workers[1 - first].n_texts, 1);
    rpc_stream_release(stream);
    fixture_stop(&f);
}

static bool texts_wait(void)
{
    pthread_mutex_lock(&f.gateway->service.texts.lock);
    bool any = f.gateway->service.texts.waiting != NULL;
    pthread_mutex_unlock(&f.gateway->service.texts.lock);
    return any;
}

/* Symptom: after repeated calls that were cancelled, the server kept every request until its time
 * to wait was over. */
static void test_a_text_call_that_waits_and_is_cancelled_is_not_kept(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0}, {"n", "1", true, 2, 0}};
    struct text_answer answer;
    /* checks in a row without a waiting call; each tick takes the list away for a moment */
    int n_without = 0;
    fixture_init(&f);
    f.config.limits.replica_wait_ms = 120000;
    fixture_start(&f, 1);
    fixture_routes(&f, routes, 2);
    fixture_wait_health(&f, "model/n/1", 0);
    struct rpc_stream *stream = ask_for_text("n", &answer);
    for (int i = 0; i < 2000 && !texts_wait(); i++)
        fixture_pause_ms(5);
    assert_true(texts_wait());
    rpc_stream_cancel(stream);
    wait_text(&answer);
    assert_int_equal(answer.status, STATUS_CANCELLED);
    for (int i = 0; i < 1000 && n_without < 20; i++) {
        n_without = texts_wait() ? 0 : n_without + 1;
        fixture_pause_ms(5);
    }
    assert_int_equal(n_without, 20);
    rpc_stream_release(stream);
    fixture_stop(&f);
}

static void test_a_replica_the_routes_drain_finishes_what_it_has(void **state)
{
    (void)state;
    static const struct fixture_route draining = {"m", "1", true, 2, 1};
    static const struct fixture_route without = {"m", "1", true, 2, 0};
    static const struct fixture_route both = {"m", "1", true, 3, 0};
    struct client_request request = {.seed = 8, .max_tokens = 60};
    struct client_stream stream;
    fixture_init(&f);
    f.workers[0].stop_after = 10;
    fixture_start(&f, 1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 10);
    fake_worker_start(&f.workers[1]);
    fixture_routes(&f, &draining, 1);
    for (int i = 0; i < 1000 && !fake_worker_read(&f.workers[1], &f.workers[1].n_hellos); i++)
        fixture_pause_ms(5);
    fixture_wait_usable(&f, 1);
    client_run(&f, &request);
    assert_int_equal(f.workers[1].n_submits, 1);
    fixture_routes(&f, &without, 1);
    fixture_pause_ms(100);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    client_expect_whole(&stream, &request);
    assert_int_equal(stream.n_resumes, 0);
    client_close(&stream);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_streams_ended, 1));
    fixture_routes(&f, &both, 1); /* the routes name the same process again */
    fixture_wait_usable(&f, 2);
    fixture_stop(&f);
}

static void test_another_process_behind_the_socket_is_not_used(void **state)
{
    (void)state;
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    struct client_request request = {.seed = 8};
    struct error err;
    fixture_init(&f);
    f.config.limits.replica_wait_ms = 1500; /* the good routes come within this, too */
    f.workers[0].epoch = 7;
    fake_worker_start(&f.workers[0]);
    fixture_routes(&f, &row, 1);
    pthread_mutex_lock(&f.workers[0].lock);
    f.workers[0].epoch = 8; /* refuses the epoch the routes know */
    pthread_mutex_unlock(&f.workers[0].lock);
    fixture_start_gateway(&f);
    fixture_pause_ms(1500);
    unsigned n_hellos = fake_worker_read(&f.workers[0], &f.workers[0].n_hellos);
    assert_true(n_hellos >= 2 && n_hellos <= 12); /* retries with backoff, not in a tight loop */
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    fixture_routes(&f, &row, 1);
    fixture_wait_usable(&f, 1);
    client_run(&f, &request);
    fixture_stop(&f);
}

static void test_a_hello_of_the_wrong_epoch_is_refused(void **state)
{
    (void)state;
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    struct client_request request = {.seed = 8};
    struct error err;
    fixture_init(&f);
    f.config.limits.replica_wait_ms = 1000;
    f.workers[0].hello_epoch = 9;
    fake_worker_start(&f.workers[0]);
    fixture_routes(&f, &row, 1);
    fixture_start_gateway(&f);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_streams_ended, 2));
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    fixture_stop(&f);
}

static void test_a_resume_prefers_the_same_arithmetic(void **state)
{
    (void)state;
    struct client_request request = {.seed = 2, .max_tokens = 50};
    struct client_stream stream;
    for (unsigned same = 0; same < 2; same++) {
        fixture_init(&f);
        for (unsigned i = 0; i < 3; i++) {
            f.workers[i].stop_after = 10;
            snprintf(f.workers[i].numerics_id, sizeof(f.workers[i].numerics_id), "set %u", i);
        }
        fixture_start(&f, 3);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, 10);
        unsigned first = fixture_busy_worker(&f, 3), last = (first + 2) % 3;
        if (same) { /* the last worker comes back with the numerics id of the first one */
            static const struct fixture_route row = {"m", "1", true, 7, 0};
            fake_worker_kill(&f.workers[last]);
            f.workers[last].epoch = 2;
            snprintf(f.workers[last].numerics_id, sizeof(f.workers[last].numerics_id), "set %u",
                     first);
            fake_worker_start(&f.workers[last]);
            fixture_routes(&f, &row, 1);
            assert_true(fake_worker_wait(&f.workers[last], &f.workers[last].n_hellos, 2));
            fixture_wait_usable(&f, 3);
        }
        for (unsigned i = 0; i < 3; i++)
            fake_worker_stop_after(&f.workers[i], i == first ? 10 : UINT32_MAX);
        fake_worker_kill(&f.workers[first]);
        client_expect_whole(&stream, &request);
        assert_int_equal(stream.numerics_changed, !same);
        if (same)
            assert_string_equal(stream.receipt_replica, f.workers[last].replica_id);
        client_close(&stream);
        fixture_stop(&f);
    }
}

/* Workers die and return at every moment, with cancels between. Each request ends once, and its
 * tokens are a prefix of the true answer (the client checks each token). */
static void test_a_storm_of_deaths_and_cancels(void **state)
{
    (void)state;
    enum { N = 24, ROUNDS = 4 };
    static struct client_stream streams[N];
    struct fixture_route row = {"m", "1", true, 3, 0};
    fixture_init(&f);
    f.workers[0].hold = f.workers[1].hold = 2;
    fixture_start(&f, 2);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < N; i++) {
            struct client_request request = {.seed = i, .max_tokens = 60 + 10 * i};
            client_open(&f, &request, &streams[i]);
        }
        fixture_pause_ms(round * 7);
        struct fake_worker *victim = &f.workers[round % 2];
        fake_worker_kill(victim);
        for (unsigned i = 0; i < N; i += 3)
            rpc_stream_cancel(streams[i].stream);
        victim->epoch++;
        fake_worker_start(victim);
        fixture_routes(&f, &row, 1);
        for (unsigned i = 0; i < N; i++) {
            int status = client_wait_end(&streams[i]);
            assert_true(status == 0 || (i % 3 == 0 && status == STATUS_CANCELLED));
            if (!status)
                assert_int_equal(streams[i].n_tokens, 60 + 10 * i);
            client_close(&streams[i]);
        }
        fixture_wait_usable(&f, 2);
    }
    struct gateway_counters c = fixture_wait_rest(&f);
    /* A cancel may overtake its request, which then does not count as accepted. */
    assert_in_range(c.accepted, (N - N / 3) * ROUNDS, N * ROUNDS);
    assert_int_equal(c.failed, 0);
    fixture_stop(&f);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_stream_goes_on_at_another_replica, forget),
        cmocka_unit_test_setup(test_before_the_first_token_the_request_is_simply_moved, forget),
        cmocka_unit_test_setup(test_a_stream_goes_on_at_the_restarted_replica, forget),
        cmocka_unit_test_setup(test_many_streams_survive_one_death_each, forget),
        cmocka_unit_test_setup(test_no_replica_in_time_is_told_with_the_tokens_sent, forget),
        cmocka_unit_test_setup(test_a_version_that_is_unloaded_is_not_waited_for, forget),
        cmocka_unit_test_setup(test_a_new_request_waits_for_a_replica_that_comes_up, forget),
        cmocka_unit_test_setup(test_a_replica_that_does_not_come_up_is_told, forget),
        cmocka_unit_test_setup(test_a_waiting_request_can_be_cancelled_and_expires, forget),
        cmocka_unit_test_setup(test_a_request_that_takes_replicas_with_it_gets_no_fourth, forget),
        cmocka_unit_test_setup(test_a_request_that_was_in_no_step_outlives_any_three_replicas,
                               forget),
        cmocka_unit_test_setup(test_a_request_that_is_lost_five_times_without_a_token_ends, forget),
        cmocka_unit_test_setup(
            test_a_version_that_goes_away_then_its_unbegun_requests_go_to_another, forget),
        cmocka_unit_test_setup(test_a_draining_worker_gets_nothing_new_and_gives_back_what_runs,
                               forget),
        cmocka_unit_test_setup(test_a_worker_whose_engine_failed_is_passed_over_until_it_ends,
                               forget),
        cmocka_unit_test_setup(test_a_text_call_at_a_worker_that_ends_is_asked_elsewhere, forget),
        cmocka_unit_test_setup(test_a_text_call_that_waits_and_is_cancelled_is_not_kept, forget),
        cmocka_unit_test_setup(test_a_replica_the_routes_drain_finishes_what_it_has, forget),
        cmocka_unit_test_setup(test_another_process_behind_the_socket_is_not_used, forget),
        cmocka_unit_test_setup(test_a_hello_of_the_wrong_epoch_is_refused, forget),
        cmocka_unit_test_setup(test_a_resume_prefers_the_same_arithmetic, forget),
        cmocka_unit_test_setup(test_a_storm_of_deaths_and_cancels, forget),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
