/* Tests of parked versions. A request wakes a version with `wakes`, and waits for it within its
 * deadline. The manager gets one Wake call, not a call per request. */
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

static struct fixture f;

enum { N_STREAMS = 8 };

static const struct fixture_route ready = {"m", "1", true, 1, 0};
static const struct fixture_route leaving = {"m", "1", true, 0, 1};

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* Starts the gateway with one worker, whose replica is parked or pending in the routes. The
 * argument replica_wait_ms is the time that a request waits for a replica that is not waking, or
 * for its link. */
static void start(bool wakes, unsigned pending, uint64_t replica_wait_ms)
{
    fixture_init(&f);
    f.pending = pending;
    f.parked = true;
    f.wakes = wakes;
    f.config.limits.replica_wait_ms = replica_wait_ms;
    fake_worker_start(&f.workers[0]);
    fixture_routes(&f, &ready, 1);
    fixture_start_gateway(&f);
    fixture_wait_health(&f, "model/m/1", wakes && !(pending & 1));
}

static void wait_wakes(unsigned n)
{
    int64_t until_ns = clock_now_ns() + 10 * NS_PER_S;
    struct gateway_counters c;
    do {
        fixture_pause_ms(5);
        gateway_get_counters(f.gateway, &c);
    } while ((c.wakes < n || f.manager.n_wakes < n) && clock_now_ns() < until_ns);
    assert_int_equal(c.wakes, n);
    assert_int_equal(f.manager.n_wakes, n);
}

static void test_requests_wake_it_once_and_are_answered(void **state)
{
    struct client_request requests[N_STREAMS] = {{.seed = 0}};
    static struct client_stream streams[N_STREAMS];
    (void)state;
    start(true, 0, 1);
    for (unsigned i = 0; i < N_STREAMS; i++) {
        requests[i] = (struct client_request){.seed = i + 1, .max_tokens = 5};
        client_open(&f, &requests[i], &streams[i]);
    }
    wait_wakes(1);
    f.parked = false;
    fixture_routes(&f, &leaving, 1); /* the process that kept the parked version ends */
    fixture_pause_ms(120);           /* several checks of the waiting requests */
    fixture_routes(&f, &ready, 1);
    for (unsigned i = 0; i < N_STREAMS; i++) {
        client_expect_whole(&streams[i], &requests[i]);
        client_close(&streams[i]);
    }
    assert_int_equal(f.manager.n_wakes, 1);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.ok, N_STREAMS);
    fixture_stop(&f);
}

/* Symptom: health.Check answered NOT_SERVING for a parked version. A balancer then sent no request
 * that could wake it. */
static void test_health_of_a_version_that_requests_wake_is_serving(void **state)
{
    (void)state;
    for (int wakes = 0; wakes < 2; wakes++) {
        start(wakes, 0, 1);
        fixture_wait_health(&f, "", wakes);
        fixture_wait_health(&f, "sluice.v1.Inference", wakes);
        assert_int_equal(rpc_health_is_serving(rpc_server_health(f.gateway->server), ""), wakes);
        fixture_wait_health(&f, "liveness", 1);
        f.parked = false;
        fixture_routes(&f, &leaving, 1);
        fixture_wait_health(&f, "model/m/1", wakes);
        fixture_stop(&f);
    }
}

static void test_who_has_no_more_time_is_told_so(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5, .timeout_ms = 1000};
    struct error err;
    (void)state;
    start(true, 0, 1);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_DEADLINE_EXCEEDED);
    assert_in_range(f.manager.n_wakes, 1, 3); /* once a second; the server's clock may differ */
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

static void test_one_that_no_request_may_wake_is_refused(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5};
    struct error err;
    (void)state;
    start(false, 0, 1);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_PARKED);
    assert_int_equal(f.manager.n_wakes, 0);
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

/* Symptom: a pending replica of another group without a device kept the gateway from asking the
 * manager. The request waited for ever. */
static void test_one_is_woken_where_another_replica_is_pending(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5};
    static struct client_stream stream;
    (void)state;
    start(true, 2, 5000);
    client_open(&f, &request, &stream);
    wait_wakes(1);
    f.parked = false;
    f.pending = 0;
    fixture_routes(&f, &ready, 1);
    client_expect_whole(&stream, &request);
    client_close(&stream);
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

static void test_one_that_the_manager_does_not_wake_is_not_waited_for(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5, .timeout_ms = 20000};
    struct error err;
    (void)state;
    start(true, 2, 1);
    f.manager.refuses_wakes = true;
    int64_t begin_ns = clock_now_ns();
    assert_int_equal(client_fail(&f, &request, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEVICE_MEMORY);
    assert_true(clock_now_ns() - begin_ns < 10 * NS_PER_S);
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

/* Symptom: where requests may wake a version, a request waited without end for a version that never
 * came up. */
static void test_one_that_stays_pending_is_waited_for_as_any_other(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5, .timeout_ms = 20000};
    struct error err;
    (void)state;
    start(true, 1, 1);
    int64_t begin_ns = clock_now_ns();
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    assert_int_equal(err.reason, REASON_NO_REPLICA_READY);
    assert_true(clock_now_ns() - begin_ns < 10 * NS_PER_S);
    assert_int_equal(f.manager.n_wakes, 0);
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

/* Symptom: the client's error said that the manager does not answer. */
static void test_a_refusal_is_told_in_its_own_words(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5, .timeout_ms = 20000};
    struct error err;
    (void)state;
    start(true, 0, 1);
    f.manager.refusal = "config.cpus: CPU 8 may not be used";
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    assert_non_null(strstr(err.message, f.manager.refusal));
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

/* Symptom: a request waited for a version that was being parked, to wake it then. The request was
 * refused at once when the manager went away. */
static void test_one_that_drains_is_waited_for_without_a_manager(void **state)
{
    struct client_request request = {.seed = 3, .max_tokens = 5, .timeout_ms = 20000};
    struct error err;
    (void)state;
    start(true, 0, 2000);
    f.parked = false;
    fixture_routes(&f, &leaving, 1);
    fixture_pause_ms(300);
    fake_manager_kill(&f.manager);
    int64_t begin_ns = clock_now_ns();
    assert_int_equal(client_fail(&f, &request, &err), STATUS_UNAVAILABLE);
    assert_int_equal(err.reason, REASON_NO_REPLICA_READY);
    assert_in_range(clock_now_ns() - begin_ns, 1500 * NS_PER_MS, 15 * NS_PER_S);
    fixture_wait_rest(&f);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_requests_wake_it_once_and_are_answered, forget),
        cmocka_unit_test_setup(test_health_of_a_version_that_requests_wake_is_serving, forget),
        cmocka_unit_test_setup(test_who_has_no_more_time_is_told_so, forget),
        cmocka_unit_test_setup(test_one_that_no_request_may_wake_is_refused, forget),
        cmocka_unit_test_setup(test_one_is_woken_where_another_replica_is_pending, forget),
        cmocka_unit_test_setup(test_one_that_the_manager_does_not_wake_is_not_waited_for, forget),
        cmocka_unit_test_setup(test_one_that_stays_pending_is_waited_for_as_any_other, forget),
        cmocka_unit_test_setup(test_a_refusal_is_told_in_its_own_words, forget),
        cmocka_unit_test_setup(test_one_that_drains_is_waited_for_without_a_manager, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
