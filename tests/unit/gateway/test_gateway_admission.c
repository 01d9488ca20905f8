/* Tests of admission and refusal: the queue of a version, places at a replica, deadlines. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

static struct fixture f;

static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

static void start(unsigned n_workers, uint64_t max_concurrent, uint64_t max_queued)
{
    fixture_init(&f);
    f.config.limits.max_concurrent = max_concurrent;
    f.config.limits.max_queued = max_queued;
    for (unsigned i = 0; i < n_workers; i++) {
        f.workers[i].heartbeat_ms = 100;
        /* after 3 tokens a request still runs, but makes no more tokens */
        f.workers[i].stop_after = 3;
    }
    fixture_start(&f, n_workers);
}

static unsigned n_submits(unsigned n_workers)
{
    unsigned n = 0;
    for (unsigned i = 0; i < n_workers; i++)
        n += fake_worker_read(&f.workers[i], &f.workers[i].n_submits);
    return n;
}

static void go_on(unsigned n_workers)
{
    for (unsigned i = 0; i < n_workers; i++)
        fake_worker_stop_after(&f.workers[i], UINT32_MAX);
}

/* Returns the number of requests that found no free place. This includes those in a replica's
 * queue. */
static unsigned n_kept_back(void)
{
    return (unsigned)gateway_n_refusals(f.gateway, LIMIT_CONCURRENT);
}

/* Opens n requests. The first ones run at the replicas, and the others wait. */
static void fill(struct client_stream *streams, struct client_request *requests, unsigned n,
                 unsigned n_run, unsigned n_workers)
{
    for (unsigned i = 0; i < n; i++) {
        requests[i] = (struct client_request){.seed = i, .max_tokens = 20};
        client_open(&f, &requests[i], &streams[i]);
        /* Starts the requests one after the other, so that the running ones and the order of the
         * queue are known. */
        for (int k = 0; k < 10000 && n_submits(n_workers) + n_kept_back() < i + 1; k++)
            fixture_pause_ms(2);
    }
    for (int k = 0; k < 10000 && n_submits(n_workers) < n_run; k++)
        fixture_pause_ms(2);
    assert_int_equal(n_submits(n_workers), n_run);
}

static void expect_all(struct client_stream *streams, struct client_request *requests, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        client_expect_whole(&streams[i], &requests[i]);
        client_close(&streams[i]);
    }
}

/* Two replicas with two places each, a queue of three. The eighth request is refused at once, and
 * all others are answered in the end. */
static void test_queue_when_full_then_refused_at_once_with_a_time_to_come_back(void **state)
{
    (void)state;
    enum { N = 7, N_RUN = 4 };
    struct client_stream streams[N];
    struct client_request requests[N], more = {.seed = 99, .max_tokens = 20};
    struct error err;
    start(2, 2, 3);
    fill(streams, requests, N, N_RUN, 2);
    int64_t begin_ns = clock_now_ns(), best_ns = INT64_MAX;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(client_fail(&f, &more, &err), STATUS_RESOURCE_EXHAUSTED);
        int64_t now_ns = clock_now_ns();
        if (now_ns - begin_ns < best_ns)
            best_ns = now_ns - begin_ns;
        begin_ns = now_ns;
    }
    assert_int_equal(err.reason, REASON_QUEUE_FULL);
    assert_true(names_all(err.message, "3|m|1"));
    assert_true(err.retry_after_ms >= 50);
    assert_true(best_ns < NS_PER_S);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_QUEUED), 20);
    assert_int_equal(n_submits(2), N_RUN); /* no refused request reached a replica */
    go_on(2);
    expect_all(streams, requests, N);
    client_run(&f, &more);
    fixture_stop(&f);
}

struct stir {
    pthread_t thread;
    _Atomic bool stop;
};

static void *stir(void *arg)
{
    struct stir *s = arg;
    while (!atomic_load(&s->stop))
        wake_now(&f.gateway->wake); /* the gateway checks all waiting requests */
    return NULL;
}

/* While the gateway walks the list of waiting requests, the list keeps its length. No new request
 * gets in. */
static void test_queue_when_looked_at_all_the_time_then_as_full_as_it_is(void **state)
{
    (void)state;
    enum { N = 152, N_RUN = 2 };
    static struct client_stream streams[N];
    static struct client_request requests[N];
    struct client_request more = {.seed = 999, .max_tokens = 20, .timeout_ms = 60000};
    struct stir s = {.stop = false};
    struct error err;
    start(1, N_RUN, N - N_RUN);
    fill(streams, requests, N, N_RUN, 1);
    assert_int_equal(pthread_create(&s.thread, NULL, stir, &s), 0);
    for (int i = 0; i < 300; i++) {
        client_fail(&f, &more, &err);
        assert_int_equal(err.reason, REASON_QUEUE_FULL);
    }
    atomic_store(&s.stop, true);
    pthread_join(s.thread, NULL);
    assert_int_equal(n_kept_back(), N - N_RUN);
    go_on(1);
    expect_all(streams, requests, N);
    fixture_stop(&f);
}

/* A free place goes to the first waiting request, also when new requests arrive at that moment. */
static void test_queue_when_some_come_while_places_come_free_then_who_waits_is_first(void **state)
{
    (void)state;
    enum { N = 180, N_FIRST = 60 };
    static struct client_stream streams[N];
    static struct client_request requests[N];
    start(1, 1, N);
    fill(streams, requests, N_FIRST, 1, 1);
    go_on(1);
    for (unsigned i = N_FIRST; i < N; i++) {
        requests[i] = (struct client_request){.seed = i, .max_tokens = 1};
        client_open(&f, &requests[i], &streams[i]);
    }
    expect_all(streams, requests, N);
    for (unsigned i = 0; i < N_FIRST; i++)
        assert_int_equal(f.workers[0].seeds[i], i);
    fixture_stop(&f);
}

/* A replica that reports its running requests has its own queue. Requests are counted, not held
 * back. */
static void test_queue_when_the_replica_keeps_it_then_only_counted(void **state)
{
    (void)state;
    enum { N = 5 };
    struct client_stream streams[N];
    struct client_request requests[N], more = {.seed = 99, .max_tokens = 20};
    struct error err;
    fixture_init(&f);
    f.workers[0].max_concurrent = 2;
    f.config.limits.max_queued = 3;
    f.workers[0].stop_after = 3;
    fixture_start(&f, 1);
    fill(streams, requests, N, N, 1);
    assert_int_equal(n_kept_back(), N - 2);
    assert_int_equal(client_fail(&f, &more, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_QUEUE_FULL);
    go_on(1);
    expect_all(streams, requests, N);
    fixture_stop(&f);
}

static void test_queue_when_places_come_free_then_first_come_first_served(void **state)
{
    (void)state;
    enum { N = 6 };
    struct client_stream streams[N];
    struct client_request requests[N];
    start(1, 1, 100);
    fill(streams, requests, N, 1, 1);
    go_on(1);
    expect_all(streams, requests, N);
    for (unsigned i = 0; i < N; i++) /* a single place: the requests ran one after the other */
        assert_int_equal(f.workers[0].seeds[i], i);
    fixture_stop(&f);
}

/* Without a replica that is up the queue has the same end. */
static void test_queue_when_no_replica_is_up_then_bounded_too(void **state)
{
    (void)state;
    enum { N = 3 };
    static const struct fixture_route row = {"m", "1", true, 1, 0};
    struct client_stream streams[N];
    struct client_request requests[N], more = {.seed = 99};
    struct error err;
    start(1, 256, N);
    fake_worker_kill(&f.workers[0]);
    fixture_wait_usable(&f, 0);
    fill(streams, requests, N, 0, 1);
    for (int i = 0; i < 500 && client_fail(&f, &more, &err) != STATUS_RESOURCE_EXHAUSTED; i++)
        fixture_pause_ms(10);
    assert_int_equal(err.reason, REASON_QUEUE_FULL);
    go_on(1);
    fake_worker_start(&f.workers[0]);
    fixture_routes(&f, &row, 1);
    expect_all(streams, requests, N);
    fixture_stop(&f);
}

/* Waits up to 20 s until n requests are live. A client may see the end of its request before the
 * gateway counts it. */
static void wait_live(uint64_t n)
{
    struct gateway_counters c;
    gateway_get_counters(f.gateway, &c);
    for (int i = 0; i < 2000 && c.live != n; i++) {
        fixture_pause_ms(10);
        gateway_get_counters(f.gateway, &c);
    }
    assert_int_equal(c.live, n);
}

/* F23 with few requests: a request whose time is over in the queue never reaches a replica. */
static void test_deadline_when_over_in_the_queue_then_never_begun(void **state)
{
    (void)state;
    enum { N = 200 };
    static struct client_stream streams[N];
    static struct client_request requests[N];
    struct client_stream holder;
    struct client_request long_one = {.seed = 1, .max_tokens = 20};
    start(1, 1, 1000);
    client_open(&f, &long_one, &holder);
    client_wait_tokens(&holder, 3);
    for (unsigned i = 0; i < N; i++) {
        requests[i] = (struct client_request){.seed = i, .max_tokens = 5, .timeout_ms = 1 + i % 20};
        client_open(&f, &requests[i], &streams[i]);
    }
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(client_wait_end(&streams[i]), STATUS_DEADLINE_EXCEEDED);
        client_close(&streams[i]);
    }
    wait_live(1);
    go_on(1);
    client_expect_whole(&holder, &long_one);
    client_close(&holder);
    assert_int_equal(n_submits(1), 1);
    fixture_stop(&f);
}

static void refuse_all(struct fake_worker *worker, const char *reason)
{
    pthread_mutex_lock(&worker->lock);
    worker->fail_status = reason ? STATUS_RESOURCE_EXHAUSTED : 0;
    worker->fail_reason = reason;
    if (!reason)
        worker->stop_after = UINT32_MAX;
    pthread_mutex_unlock(&worker->lock);
}

/* Kills the replica that has the stream. The only other replica refuses the resume. */
static struct fake_worker *lose_to_a_full_one(const struct client_request *request,
                                              struct client_stream *stream, const char *reason)
{
    client_open(&f, request, stream);
    client_wait_tokens(stream, 3);
    unsigned first = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
    struct fake_worker *other = &f.workers[1 - first];
    refuse_all(other, reason);
    fake_worker_kill(&f.workers[first]);
    assert_true(fake_worker_wait(other, &other->n_submits, 4));
    return other;
}

/* A full next replica, or a deadline that is short for a new start, does not end an accepted
 * request. After any number of moves, the request continues once. */
static void test_resume_when_the_other_replica_is_full_then_it_waits_for_a_place(void **state)
{
    (void)state;
    static const char *const reasons[] = {"QUEUE_FULL", "DEADLINE_UNREACHABLE"};
    for (size_t i = 0; i < 2; i++) {
        struct client_request request = {.seed = 3, .max_tokens = 60};
        struct client_stream stream;
        start(2, 256, 512);
        struct fake_worker *other = lose_to_a_full_one(&request, &stream, reasons[i]);
        refuse_all(other, NULL);
        client_expect_whole(&stream, &request);
        assert_int_equal(stream.n_resumes, 1);
        client_close(&stream);
        assert_int_equal(fixture_wait_rest(&f).resumes, 1);
        fixture_stop(&f);
    }
}

static void test_resume_that_finds_no_place_in_time_is_told_with_the_tokens_sent(void **state)
{
    (void)state;
    struct client_request request = {.seed = 3, .max_tokens = 60};
    struct client_stream stream;
    fixture_init(&f);
    f.config.limits.resume_ms = 500;
    f.workers[0].stop_after = f.workers[1].stop_after = 3;
    fixture_start(&f, 2);
    lose_to_a_full_one(&request, &stream, "QUEUE_FULL");
    assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
    assert_int_equal(stream.status.reason, REASON_REPLICA_LOST);
    assert_int_equal(stream.status.n_tokens_sent, 3);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_RESUME), 1);
    client_close(&stream);
    assert_int_equal(fixture_wait_rest(&f).resumes, 0);
    fixture_stop(&f);
}

static void turn_away(struct fake_worker *worker, const char *reason)
{
    worker->fail_status = STATUS_RESOURCE_EXHAUSTED;
    worker->fail_reason = reason;
}

/* A replica that just lost a long prompt still counts the prompt's time, and refuses. Another
 * replica accepts. */
static void test_queue_when_too_long_at_one_replica_then_another_is_asked(void **state)
{
    static const char *const reasons[] = {"DEADLINE_UNREACHABLE", "QUEUE_FULL"};
    struct client_request request = {.seed = 5, .max_tokens = 20};
    (void)state;
    for (int i = 0; i < 2; i++) {
        fixture_init(&f);
        turn_away(&f.workers[0], reasons[i]);
        fixture_start(&f, 2);
        for (int k = 0; k < 3; k++) /* either worker may get the first try */
            client_run(&f, &request);
        assert_true(fake_worker_read(&f.workers[0], &f.workers[0].n_submits) > 0);
        assert_int_equal(fake_worker_read(&f.workers[1], &f.workers[1].n_submits), 3);
        assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_DEADLINE), 0);
        assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_QUEUED), 0);
        fixture_stop(&f);
    }
}

static void test_queue_when_too_long_at_every_replica_then_refused_once(void **state)
{
    struct client_request request = {.seed = 5, .max_tokens = 20};
    struct error err;
    (void)state;
    for (unsigned n_workers = 1; n_workers <= 3; n_workers++) {
        fixture_init(&f);
        for (unsigned i = 0; i < n_workers; i++)
            turn_away(&f.workers[i], "DEADLINE_UNREACHABLE");
        fixture_start(&f, n_workers);
        assert_int_equal(client_fail(&f, &request, &err), STATUS_RESOURCE_EXHAUSTED);
        assert_int_equal(err.reason, REASON_DEADLINE_UNREACHABLE);
        assert_int_equal(n_submits(n_workers), n_workers > 1 ? 2 : 1);
        assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_DEADLINE), 1);
        fixture_stop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_queue_when_full_then_refused_at_once_with_a_time_to_come_back,
                               forget),
        cmocka_unit_test_setup(test_queue_when_looked_at_all_the_time_then_as_full_as_it_is,
                               forget),
        cmocka_unit_test_setup(
            test_queue_when_some_come_while_places_come_free_then_who_waits_is_first, forget),
        cmocka_unit_test_setup(test_queue_when_the_replica_keeps_it_then_only_counted, forget),
        cmocka_unit_test_setup(test_queue_when_places_come_free_then_first_come_first_served,
                               forget),
        cmocka_unit_test_setup(test_queue_when_no_replica_is_up_then_bounded_too, forget),
        cmocka_unit_test_setup(test_deadline_when_over_in_the_queue_then_never_begun, forget),
        cmocka_unit_test_setup(test_queue_when_too_long_at_one_replica_then_another_is_asked,
                               forget),
        cmocka_unit_test_setup(test_queue_when_too_long_at_every_replica_then_refused_once, forget),
        cmocka_unit_test_setup(test_resume_when_the_other_replica_is_full_then_it_waits_for_a_place,
                               forget),
        cmocka_unit_test_setup(test_resume_that_finds_no_place_in_time_is_told_with_the_tokens_sent,
                               forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
