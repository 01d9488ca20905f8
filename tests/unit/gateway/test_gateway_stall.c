/* Tests of workers that live without progress: stopped, or with a hanging engine. Their streams
 * continue elsewhere, and health reports the stall. A worker is used again when it recovers. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

/* The thread sanitizer makes everything slower, which must not count as a stall. */
#ifdef __SANITIZE_THREAD__
enum { SLOWER = 4 };
#else
enum { SLOWER = 1 };
#endif
enum { STALL_MS = 800 * SLOWER, HEARTBEAT_MS = 100 * SLOWER };

static struct fixture f;

static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void start(unsigned n_workers)
{
    fixture_init(&f);
    f.config.limits.stall_ms = STALL_MS;
    for (unsigned i = 0; i < n_workers; i++)
        f.workers[i].heartbeat_ms = HEARTBEAT_MS;
    fixture_start(&f, n_workers);
    fixture_wait_health(&f, "model/m/1", 1); /* the gateway cannot see a stall of a worker before */
}

static uint64_t n_stalls(void)
{
    struct gateway_counters c;
    gateway_get_counters(f.gateway, &c);
    assert_int_equal(c.stalls, gateway_n_refusals(f.gateway, LIMIT_STALL));
    return c.stalls;
}

static void test_stopped_when_there_is_another_then_its_streams_go_on_there(void **state)
{
    (void)state;
    struct client_request request = {.seed = 3, .max_tokens = 3000, .n = 2};
    struct client_stream stream;
    start(2);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 40);
    unsigned first = fixture_busy_worker(&f, 2);
    fake_worker_stop(&f.workers[first], true);
    fixture_wait_usable(&f, 1);
    fixture_wait_health(&f, "model/m/1", 1);
    client_expect_whole(&stream, &request);
    assert_string_equal(stream.receipt_replica, f.workers[1 - first].replica_id);
    assert_int_equal(stream.n_resumes, 1);
    client_close(&stream);
    assert_int_equal(n_stalls(), 1);
    fake_worker_stop(&f.workers[first], false); /* the worker was only slow: used again */
    fixture_wait_usable(&f, 2);
    fixture_stop(&f);
}

static void test_stopped_when_alone_then_health_says_so_and_requests_wait_for_it(void **state)
{
    (void)state;
    struct client_request request = {.seed = 4, .max_tokens = 3000};
    struct client_stream stream;
    start(1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 40);
    int64_t begin_ns = clock_now_ns();
    fake_worker_stop(&f.workers[0], true);
    fixture_wait_health(&f, "model/m/1", 0);
    int64_t took_ms = (clock_now_ns() - begin_ns) / NS_PER_MS;
    /* The last sign of life may be older than the stop. A busy machine may notice the stall late.
     */
    assert_in_range(took_ms, STALL_MS / 2, STALL_MS + 4000 * SLOWER);
    fixture_wait_health(&f, "", 0);
    fixture_wait_health(&f, "sluice.v1.Inference", 0);
    fake_worker_stop(&f.workers[0], false);
    client_expect_whole(&stream, &request);
    assert_int_equal(stream.n_resumes, 1);
    client_close(&stream);
    fixture_wait_health(&f, "model/m/1", 1);
    fixture_stop(&f);
}

static void test_stopped_when_idle_then_health_says_so_too(void **state)
{
    (void)state;
    start(1);
    fake_worker_stop(&f.workers[0], true);
    fixture_wait_health(&f, "model/m/1", 0);
    fake_worker_stop(&f.workers[0], false);
    fixture_wait_health(&f, "model/m/1", 1);
    assert_int_equal(n_stalls(), 1);
    fixture_stop(&f);
}

static void test_stopped_when_shorter_than_the_limit_then_nothing_happens(void **state)
{
    (void)state;
    struct client_request request = {.seed = 5, .max_tokens = 1500};
    struct client_stream stream;
    bool shorter = false;
    /* repeat where the machine made the pause too long */
    for (int i = 0; i < 20 && !shorter; i++) {
        memset(&f, 0, sizeof(f));
        start(2);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, 40);
        unsigned first = fixture_busy_worker(&f, 2);
        int64_t begin_ns = clock_now_ns();
        fake_worker_stop(&f.workers[first], true);
        fixture_pause_ms(STALL_MS / 2);
        fake_worker_stop(&f.workers[first], false);
        shorter = clock_now_ns() - begin_ns < (STALL_MS - 2 * HEARTBEAT_MS) * NS_PER_MS;
        client_expect_whole(&stream, &request);
        if (shorter) {
            assert_int_equal(stream.n_resumes, 0);
            assert_int_equal(n_stalls(), 0);
        }
        client_close(&stream);
        fixture_stop(&f);
    }
    assert_true(shorter);
}

/* The worker answers every hello, but only layers count as progress. */
static void test_hanging_engine_when_found_then_not_used_until_it_gets_on(void **state)
{
    (void)state;
    struct client_request request = {.seed = 6, .max_tokens = 600};
    struct client_stream stream;
    start(1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 40);
    fake_worker_hang(&f.workers[0], true, false);
    fixture_wait_health(&f, "model/m/1", 0);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_hellos, 2));
    /* the worker is linked again, but each load reports no progress */
    for (int i = 0; i < 30; i++) {
        fixture_pause_ms(20);
        fixture_wait_usable(&f, 0);
    }
    assert_int_equal(f.workers[0].n_submits, 1);
    fake_worker_hang(&f.workers[0], false, false);
    client_expect_whole(&stream, &request);
    client_close(&stream);
    assert_int_equal(n_stalls(), 1);
    fixture_stop(&f);
}

/* A long prefill makes no token for longer than the limit. */
static void test_no_token_when_layers_are_finished_then_not_stalled(void **state)
{
    (void)state;
    struct client_request request = {.seed = 7, .max_tokens = 100};
    struct client_stream stream;
    start(1);
    fake_worker_hang(&f.workers[0], true, true);
    client_open(&f, &request, &stream);
    for (int i = 0; i < 3; i++) {
        fixture_pause_ms(STALL_MS);
        fixture_wait_health(&f, "model/m/1", 1);
    }
    assert_int_equal(n_stalls(), 0);
    fake_worker_hang(&f.workers[0], false, false);
    client_expect_whole(&stream, &request);
    assert_int_equal(stream.n_resumes, 0);
    client_close(&stream);
    fixture_stop(&f);
}

/* Opens the streams of a busy model, which leave the machine little time. */
static void open_crowd(struct client_stream *crowd, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const struct client_request request = {.seed = i, .max_tokens = 1000000};
        client_open(&f, &request, &crowd[i]);
    }
    for (unsigned i = 0; i < n; i++)
        client_wait_tokens(&crowd[i], 40);
}

static unsigned n_tokens_of(struct client_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    unsigned n = stream->n_tokens;
    pthread_mutex_unlock(&stream->lock);
    return n;
}

/* Waits for 20 further tokens of each stream of the busy model. */
static void crowd_goes_on(struct client_stream *crowd, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        client_wait_tokens(&crowd[i], n_tokens_of(&crowd[i]) + 20);
}

/* The other model serves for longer than the stall time. */
static void quiet_serves(struct client_stream *crowd, unsigned n)
{
    for (int i = 0; i < 3; i++) {
        fixture_pause_ms(STALL_MS / 2);
        fixture_wait_health(&f, "model/quiet/1", 1);
        crowd_goes_on(crowd, n);
    }
}

/* Each worker is judged by its own frames, however many the worker of a busy model sends. */
static void test_another_models_load_when_heavy_then_it_makes_no_stall_and_hides_none(void **state)
{
    (void)state;
    enum { N_CROWD = 6 };
    static const struct fixture_route rows[] = {{"m", "1", true, 1, 0}, {"quiet", "1", true, 2, 0}};
    struct client_request request = {.model = "quiet", .seed = 8, .max_tokens = 100};
    struct client_stream crowd[N_CROWD], quiet;
    start(1);
    f.workers[1].heartbeat_ms = HEARTBEAT_MS;
    fake_worker_start(&f.workers[1]);
    fixture_routes(&f, rows, 2);
    fixture_wait_health(&f, "model/quiet/1", 1);
    open_crowd(crowd, N_CROWD);
    /* The other model is idle. Then its worker is silent. */
    quiet_serves(crowd, N_CROWD);
    assert_int_equal(n_stalls(), 0);
    fake_worker_stop(&f.workers[1], true);
    fixture_wait_health(&f, "model/quiet/1", 0);
    crowd_goes_on(crowd, N_CROWD);
    fake_worker_stop(&f.workers[1], false);
    fixture_wait_health(&f, "model/quiet/1", 1);
    assert_int_equal(n_stalls(), 1);
    /* Its engine finishes layers without a token. Then it finishes none. */
    fake_worker_hang(&f.workers[1], true, true);
    client_open(&f, &request, &quiet);
    quiet_serves(crowd, N_CROWD);
    assert_int_equal(n_stalls(), 1);
    fake_worker_hang(&f.workers[1], true, false);
    fixture_wait_health(&f, "model/quiet/1", 0);
    crowd_goes_on(crowd, N_CROWD);
    fixture_wait_health(&f, "model/m/1", 1);
    fixture_wait_health(&f, "", 1);
    assert_int_equal(n_stalls(), 2);
    fake_worker_hang(&f.workers[1], false, false);
    client_expect_whole(&quiet, &request);
    fixture_wait_health(&f, "model/quiet/1", 1);
    assert_int_equal(f.workers[0].n_resumed, 0); /* no stream of the busy model moved */
    assert_int_equal(f.workers[0].n_submits, N_CROWD);
    client_close(&quiet);
    for (unsigned i = 0; i < N_CROWD; i++)
        client_close(&crowd[i]);
    fixture_stop(&f);
}

/* The manager has killed and replaced the worker in the meantime. The old process still has the old
 * epoch. */
static void test_revived_when_another_has_its_place_then_refused(void **state)
{
    (void)state;
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    start(1);
    fake_worker_stop(&f.workers[0], true);
    fixture_wait_health(&f, "model/m/1", 0);
    f.workers[0].epoch = 2; /* the epoch of the next routes */
    fixture_routes(&f, &row, 1);
    f.workers[0].epoch = 1;
    fake_worker_stop(&f.workers[0], false);
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_hellos, 3));
    fixture_wait_usable(&f, 0);
    fixture_wait_health(&f, "model/m/1", 0);
    fixture_stop(&f);
}

/* A call that runs on a worker which then stalls is repeated on another worker. */
static void test_tokenize_when_the_worker_is_stopped_then_another_answers(void **state)
{
    (void)state;
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 10000 * SLOWER};
    start(2);
    fake_worker_stop(&f.workers[0], true);
    request.model = (char *)(uintptr_t) "m";
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = (char *)(uintptr_t) "xyz";
    for (int i = 0; i < 2; i++) {
        ProtobufCMessage *answer = NULL;
        struct error err;
        assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Tokenize",
                                          &request.base, &options, &answer, &err),
                         0);
        assert_int_equal(((Sluice__V1__TokenizeResponse *)answer)->n_ids, 3);
        rpc_message_free(answer);
    }
    fake_worker_stop(&f.workers[0], false);
    fixture_wait_usable(&f, 2);
    fixture_stop(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_stopped_when_there_is_another_then_its_streams_go_on_there,
                               forget),
        cmocka_unit_test_setup(test_stopped_when_alone_then_health_says_so_and_requests_wait_for_it,
                               forget),
        cmocka_unit_test_setup(test_stopped_when_idle_then_health_says_so_too, forget),
        cmocka_unit_test_setup(test_stopped_when_shorter_than_the_limit_then_nothing_happens,
                               forget),
        cmocka_unit_test_setup(test_hanging_engine_when_found_then_not_used_until_it_gets_on,
                               forget),
        cmocka_unit_test_setup(test_no_token_when_layers_are_finished_then_not_stalled, forget),
        cmocka_unit_test_setup(
            test_another_models_load_when_heavy_then_it_makes_no_stall_and_hides_none, forget),
        cmocka_unit_test_setup(test_tokenize_when_the_worker_is_stopped_then_another_answers,
                               forget),
        cmocka_unit_test_setup(test_revived_when_another_has_its_place_then_refused, forget),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
