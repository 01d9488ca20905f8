/* Tests of requests with a reattach window. Tokens that were lost with a connection come again,
 * none twice and none missing. This holds within the window and the size of the replay buffer. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_stream.h"

static struct fixture f;
static struct client_bidi first, second;

/* Clears what a failed test left in the fixture. */
static int forget(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    return 0;
}

/* Returns a client with a connection of its own, which a test can cut. */
static struct rpc_client *connect_client(void)
{
    struct rpc_client_config config;
    struct rpc_client *client;
    struct error err;
    char target[128];
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "unix:%s", f.socket);
    config.target = target;
    assert_int_equal(rpc_client_create(&config, &client, &err), 0);
    return client;
}

/* Starts "r" over a connection of its own and waits for n tokens. */
static struct rpc_client *start(const struct client_request *request, uint32_t window_ms,
                                unsigned n)
{
    struct rpc_client *client = connect_client();
    bidi_open(&f, client, 0, &first);
    bidi_start_with(&first, "r", request, &(struct bidi_extra){.window_ms = window_ms});
    bidi_wait_tokens(&first, "r", n);
    return client;
}

static void lose(struct rpc_client *client)
{
    rpc_client_destroy(client);
    bidi_wait_end(&first);
}

static void finish(void)
{
    bidi_close(&first);
    bidi_close(&second);
    /* A request that is only kept for its client is no work. Without other requests the server is
     * at rest. */
    fixture_stop(&f);
}

/* Reattaches to "r" as a client that received n tokens, and expects the whole rest. */
static void expect_rest(unsigned n, const struct client_request *request)
{
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", n, bidi_answer(&first, "r")->ids[0]);
    bidi_expect_tokens(&second, "r", request, true);
    assert_int_equal(bidi_answer(&second, "r")->n_infos, 1);
    assert_int_equal(bidi_answer(&second, "r")->n_errors, 0);
}

static void expect_error(unsigned n, int status, const char *reason, const char *field)
{
    struct error err = bidi_wait_error(&second, "r", n);
    if (err.status != status || strcmp(error_reason_name(&err), reason) != 0 ||
        strcmp(err.field, field) != 0)
        fail_msg("%u: %d %s %s %s", n, err.status, error_reason_name(&err), err.field, err.message);
}

static void test_reattach_at_every_index(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 17, .seed = 7};
    for (unsigned n = 0; n <= 17; n++) {
        fixture_init(&f);
        f.workers[0].hold = n % 3;
        fixture_start(&f, 1);
        struct rpc_client *client = start(&request, 5000, n);
        assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_submits, 1));
        lose(client);
        expect_rest(n, &request);
        struct gateway_counters c = fixture_wait_rest(&f);
        assert_int_equal(c.ok, 1);
        assert_int_equal(c.accepted, 1);
        assert_int_equal(c.reattaches, 1);
        finish();
    }
}

/* The same for a request that Generate started. The client disappears in the middle of the answer.
 */
static void test_reattach_when_generate_was_lost(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 30; n += 7) {
        static struct client_stream stream;
        struct client_request request = {
            .max_tokens = 30, .seed = 2, .request_id = "r", .window_ms = 5000};
        fixture_init(&f);
        f.workers[0].stop_after = n;
        fixture_start(&f, 1);
        client_open(&f, &request, &stream);
        client_wait_tokens(&stream, n);
        rpc_stream_cancel(stream.stream);
        client_wait_end(&stream);
        fake_worker_stop_after(&f.workers[0], UINT32_MAX);
        bidi_open(&f, NULL, 0, &second);
        bidi_reattach(&second, "r", n, stream.ids[0]);
        bidi_expect_tokens(&second, "r", &request, true);
        assert_int_equal(f.workers[0].n_cancels, 0);
        client_close(&stream);
        bidi_close(&second);
        fixture_stop(&f);
    }
}

static void test_reattach_when_it_has_finished_then_the_rest_comes_at_once(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 3};
    fixture_start(&f, 1);
    lose(start(&request, 5000, 20));
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    expect_rest(13, &request);
    /* The end frame may be lost, too. A client can reattach for it again; the counters count one
     * end. */
    bidi_close(&second);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 20, bidi_answer(&first, "r")->ids[0]);
    bidi_expect_tokens(&second, "r", &request, true);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.accepted, 1);
    assert_int_equal(c.ok, 1);
    finish();
}

static void test_window_when_over_then_cancelled(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_start(&f, 1);
    struct rpc_client *client = start(&endless, 400, 5);
    int64_t since_ns = clock_now_ns();
    lose(client);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    int64_t took_ms = (clock_now_ns() - since_ns) / NS_PER_MS;
    assert_true(took_ms >= 390 && took_ms < 5000);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 0, NULL);
    expect_error(0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "");
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    finish();
}

static void test_replay_when_full_then_paused_until_somebody_listens(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 900, .seed = 4};
    fixture_init(&f);
    f.config.limits.max_replay_bytes = 8192;
    f.workers[0].text_bytes = 50;
    fixture_start(&f, 1);
    lose(start(&request, 10000, 10));
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_pauses, 1));
    fixture_pause_ms(200);
    assert_int_equal(fake_worker_read(&f.workers[0], &f.workers[0].n_live), 1);
    assert_int_equal(gateway_n_refusals(f.gateway, LIMIT_REPLAY_BYTES), 1);
    expect_rest(10, &request);
    assert_int_equal(f.workers[0].n_resumes, f.workers[0].n_pauses);
    finish();
}

static void test_reattach_when_counts_cannot_be_then_refused(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 200, .seed = 5};
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__ReattachFrame reattach = SLUICE__V1__REATTACH_FRAME__INIT;
    Sluice__V1__ReceivedTokens count = SLUICE__V1__RECEIVED_TOKENS__INIT,
                               *list[] = {&count, &count};
    fixture_init(&f);
    /* half of these bytes hold some 100 tokens of 9 bytes */
    f.config.limits.max_replay_bytes = 2048;
    f.workers[0].stop_after = 190;
    fixture_start(&f, 1);
    lose(start(&request, 10000, 190));
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 191, NULL);
    expect_error(0, STATUS_INVALID_ARGUMENT, "", "reattach.received[0].n_tokens");
    bidi_reattach(&second, "r", 3, NULL);
    expect_error(1, STATUS_FAILED_PRECONDITION, "REPLAY_GONE", "");
    frame.request_id = (char *)(uintptr_t) "r";
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_REATTACH;
    frame.reattach = &reattach;
    bidi_send(&second, &frame); /* no count of received tokens: none were received */
    expect_error(2, STATUS_FAILED_PRECONDITION, "REPLAY_GONE", "");
    reattach.received = list;
    reattach.n_received = 2;
    bidi_send(&second, &frame);
    expect_error(3, STATUS_INVALID_ARGUMENT, "", "reattach.received[1].choice");
    count.choice = 1;
    reattach.n_received = 1;
    bidi_send(&second, &frame);
    expect_error(4, STATUS_INVALID_ARGUMENT, "", "reattach.received[0].choice");
    bidi_close(&second);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    expect_rest(185, &request);
    finish();
}

/* Symptom: a client could claim more tokens than it was sent, while text was held until the best
 * answers were known. Its credit then stayed below zero. */
static void test_reattach_when_more_is_claimed_than_there_was_credit_for_then_refused(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 40, .seed = 5};
    fixture_start(&f, 1);
    struct rpc_client *client = connect_client();
    bidi_open(&f, client, 0, &first);
    bidi_start_with(
        &first, "r", &request,
        &(struct bidi_extra){.window_ms = 10000, .credit = 3, .has_credit = true, .best_of = 2});
    bidi_wait_tokens(&first, "r", 3);
    lose(client);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 4, NULL);
    expect_error(0, STATUS_INVALID_ARGUMENT, "", "reattach.received");
    bidi_close(&second);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 3, bidi_answer(&first, "r")->ids[0]);
    bidi_credit(&second, "r", 37);
    assert_int_equal(bidi_wait_over(&second, "r")->n_ids[0], 40);
    assert_int_equal(bidi_answer(&second, "r")->n_errors, 0);
    finish();
}

/* While the best choice is unknown, the bytes of the other choices count too, though they are
 * dropped later. */
static void test_reattach_when_the_best_is_not_chosen_yet_then_it_comes_whole(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 60, .seed = 5};
    fixture_start(&f, 1);
    fake_worker_stop_after(&f.workers[0], 30); /* per choice of the four */
    struct rpc_client *client = connect_client();
    bidi_open(&f, client, 0, &first);
    bidi_start_with(&first, "r", &request, &(struct bidi_extra){.window_ms = 10000, .best_of = 4});
    /* by then all 30 tokens have arrived */
    nanosleep(&(struct timespec){.tv_nsec = 200 * NS_PER_MS}, NULL);
    lose(client);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 0, NULL);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    assert_int_equal(bidi_wait_over(&second, "r")->n_ids[0], 60);
    assert_int_equal(bidi_answer(&second, "r")->n_errors, 0);
    finish();
}

static void test_reattach_when_the_old_one_is_there_then_the_new_one_wins(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 80, .seed = 6};
    struct client_request other = {.max_tokens = 70, .seed = 6};
    fixture_init(&f);
    f.workers[0].stop_after = 40;
    fixture_start(&f, 1);
    struct rpc_client *client = start(&request, 10000, 40);
    bidi_start(&first, "other", &other);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 25, bidi_answer(&first, "r")->ids[0]);
    struct error err = bidi_wait_error(&first, "r", 0);
    assert_int_equal(err.status, STATUS_ABORTED);
    assert_int_equal(err.reason, REASON_REATTACHED);
    bidi_cancel(&first, "r"); /* the request belongs to the other stream now */
    err = bidi_wait_error(&first, "r", 1);
    assert_int_equal(err.status, STATUS_NOT_FOUND);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&second, "r", &request, true);
    bidi_expect_tokens(&first, "other", &other, true);
    lose(client);
    finish();
}

/* Two streams reattach the same requests at the same time, again and again. A request ends with the
 * stream that has it last, and with its window. */
static void test_reattach_from_two_streams_at_once_then_nothing_is_left_without_one(void **state)
{
    (void)state;
    enum { N = 150, N_ROUNDS = 8 };
    struct client_request endless = {.max_tokens = 1000};
    struct bidi_extra extra = {.window_ms = 100, .has_credit = true};
    char id[16];
    fixture_start(&f, 1);
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        /* Connections of their own: those may be served by different threads. */
        struct rpc_client *clients[2] = {connect_client(), connect_client()};
        bidi_open(&f, clients[0], 0, &first);
        bidi_open(&f, clients[1], 0, &second);
        for (unsigned i = 0; i < N; i++) {
            snprintf(id, sizeof(id), "r%u", i);
            bidi_start_with(&first, id, &endless, &extra);
        }
        assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_submits, N * (round + 1)));
        for (unsigned i = 0; i < N; i++) {
            snprintf(id, sizeof(id), "r%u", i);
            bidi_reattach(&second, id, 0, NULL);
            bidi_reattach(&first, id, 0, NULL);
        }
        fixture_pause_ms(50);
        bidi_close(&first);
        bidi_close(&second);
        rpc_client_destroy(clients[0]);
        rpc_client_destroy(clients[1]);
        assert_int_equal(fixture_wait_rest(&f).cancelled, N * (round + 1));
    }
    fixture_stop(&f);
}

/* A reattach on the same stream only goes back to an earlier token. */
static void test_reattach_on_the_same_stream(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 80, .seed = 6};
    fixture_init(&f);
    f.workers[0].stop_after = 40;
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &first);
    bidi_start_with(&first, "r", &request, &(struct bidi_extra){.window_ms = 1000});
    struct client_answer *answer = bidi_wait_tokens(&first, "r", 40);
    pthread_mutex_lock(&first.lock);
    answer->n_ids[0] = answer->n_tokens = 30; /* as if the client had lost ten tokens */
    pthread_mutex_unlock(&first.lock);
    bidi_reattach(&first, "r", 30, NULL);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    bidi_expect_tokens(&first, "r", &request, true);
    bidi_close(&first);
    fixture_stop(&f);
}

static void test_id_when_kept_for_its_client_only_then_free_again(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 20, .seed = 1};
    fixture_start(&f, 1);
    bidi_open(&f, NULL, 0, &first);
    bidi_open(&f, NULL, 0, &second);
    bidi_start_with(&first, "r", &request, &(struct bidi_extra){.window_ms = 30000});
    bidi_expect_tokens(&first, "r", &request, true);
    bidi_start(&second, "r", &request);
    bidi_expect_tokens(&second, "r", &request, true);
    assert_int_equal(fixture_wait_rest(&f).ok, 2);
    finish();
}

static void test_request_without_a_client_outlives_its_replica(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 120, .seed = 9};
    fixture_init(&f);
    f.workers[0].stop_after = f.workers[1].stop_after = 50;
    fixture_start(&f, 2);
    lose(start(&request, 20000, 30));
    unsigned busy = fake_worker_read(&f.workers[0], &f.workers[0].n_live) ? 0 : 1;
    fake_worker_stop_after(&f.workers[1 - busy], UINT32_MAX);
    fake_worker_kill(&f.workers[busy]);
    assert_true(fake_worker_wait(&f.workers[1 - busy], &f.workers[1 - busy].n_resumed, 1));
    expect_rest(21, &request);
    assert_int_equal(bidi_answer(&second, "r")->n_resumes, 1);
    finish();
}

/* Cancel by the request's id, on another connection. */
static void cancel_by_id(void)
{
    Sluice__V1__CancelRequest cancel = SLUICE__V1__CANCEL_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 10000};
    ProtobufCMessage *response = NULL;
    struct error err;
    cancel.request_id = (char *)(uintptr_t) "r";
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Cancel",
                                      &cancel.base, &options, &response, &err),
                     0);
    protobuf_c_message_free_unpacked(response, NULL);
}

static void test_cancel_reaches_a_request_without_a_client(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_start(&f, 1);
    lose(start(&endless, 30000, 5));
    cancel_by_id();
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 0, NULL);
    expect_error(0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "");
    finish();
}

/* Symptom: a Cancel came before the loss was noticed. The request then waited for its whole window,
 * or a reattach was answered CANCELLED. Here the end that reaches the client stands for the loss.
 */
static void test_cancel_when_it_comes_before_the_loss_then_nothing_waits(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000}, request = {.max_tokens = 20};
    fixture_start(&f, 1);
    struct rpc_client *client = start(&endless, 30000, 5);
    cancel_by_id();
    bidi_expect_error(&first, "r", 0, STATUS_CANCELLED, "", "", false);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 0, NULL);
    expect_error(0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "");
    lose(client);
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    bidi_close(&second);
    bidi_open(&f, NULL, 0, &second);
    bidi_start(&second, "r", &request);
    bidi_expect_tokens(&second, "r", &request, true);
    finish();
}

/* A request that fails while its client is away is over: nothing waits for the client. */
static void test_failure_when_there_is_no_client_then_nothing_waits(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_init(&f);
    f.workers[0].fail_status = STATUS_INTERNAL;
    f.workers[0].fail_reason = "BROKEN";
    f.workers[0].fail_after = UINT32_MAX;
    fixture_start(&f, 1);
    lose(start(&endless, 30000, 5));
    fixture_wait_detached(&f, 1);
    pthread_mutex_lock(&f.workers[0].lock);
    f.workers[0].fail_after = 6;
    pthread_mutex_unlock(&f.workers[0].lock);
    fixture_wait_detached(&f, 0);
    assert_int_equal(fixture_wait_rest(&f).failed, 1);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 0, NULL);
    expect_error(0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "");
    finish();
}

static void test_deadline_when_it_passes_without_a_client_then_over(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    struct rpc_client *client;
    fixture_start(&f, 1);
    client = connect_client();
    bidi_open(&f, client, 600, &first);
    bidi_start_with(&first, "r", &endless, &(struct bidi_extra){.window_ms = 20000});
    bidi_wait_tokens(&first, "r", 5);
    lose(client);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_int_equal(fixture_wait_rest(&f).failed, 1);
    bidi_open(&f, NULL, 0, &second);
    finish();
}

static void test_server_when_restarted_then_nothing_is_known(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    fixture_start(&f, 1);
    lose(start(&endless, 30000, 5));
    bidi_close(&first);
    fixture_stop_gateway(&f, 0);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    fixture_start_gateway(&f);
    fixture_wait_usable(&f, 1);
    bidi_open(&f, NULL, 0, &first);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 5, NULL);
    expect_error(0, STATUS_NOT_FOUND, "REQUEST_NOT_FOUND", "");
    finish();
}

static void test_complete_cannot_be_reattached(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 5, .window_ms = 1000};
    struct client_message message;
    struct rpc_call_options options = {.timeout_ms = 10000};
    ProtobufCMessage *response = NULL;
    struct error err;
    fixture_start(&f, 1);
    client_message_fill(&request, &message);
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Complete",
                                      &message.request.base, &options, &response, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "reattach_window_ms");
    fixture_stop(&f);
}

/* A request keeps its deadline after a reattach by a call without one. */
static void test_deadline_when_no_replica_has_the_request_then_it_ends_all_the_same(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 100, .seed = 3};
    fixture_init(&f);
    f.workers[0].stop_after = 10;
    fixture_start(&f, 1);
    struct rpc_client *client = connect_client();
    bidi_open(&f, client, 1500, &first);
    bidi_start_with(&first, "r", &request, &(struct bidi_extra){.window_ms = 20000});
    bidi_wait_tokens(&first, "r", 10);
    int64_t since_ns = clock_now_ns();
    fake_worker_kill(&f.workers[0]);
    lose(client);
    bidi_open(&f, NULL, 0, &second);
    bidi_reattach(&second, "r", 10, bidi_answer(&first, "r")->ids[0]);
    expect_error(0, STATUS_DEADLINE_EXCEEDED, "", "");
    assert_true(clock_now_ns() - since_ns < 3 * NS_PER_S);
    finish();
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_reattach_at_every_index, forget),
        cmocka_unit_test_setup(test_reattach_when_generate_was_lost, forget),
        cmocka_unit_test_setup(test_reattach_when_it_has_finished_then_the_rest_comes_at_once,
                               forget),
        cmocka_unit_test_setup(test_window_when_over_then_cancelled, forget),
        cmocka_unit_test_setup(test_replay_when_full_then_paused_until_somebody_listens, forget),
        cmocka_unit_test_setup(test_reattach_when_counts_cannot_be_then_refused, forget),
        cmocka_unit_test_setup(
            test_reattach_when_more_is_claimed_than_there_was_credit_for_then_refused, forget),
        cmocka_unit_test_setup(test_reattach_when_the_best_is_not_chosen_yet_then_it_comes_whole,
                               forget),
        cmocka_unit_test_setup(test_reattach_when_the_old_one_is_there_then_the_new_one_wins,
                               forget),
        cmocka_unit_test_setup(
            test_reattach_from_two_streams_at_once_then_nothing_is_left_without_one, forget),
        cmocka_unit_test_setup(test_reattach_on_the_same_stream, forget),
        cmocka_unit_test_setup(test_id_when_kept_for_its_client_only_then_free_again, forget),
        cmocka_unit_test_setup(test_request_without_a_client_outlives_its_replica, forget),
        cmocka_unit_test_setup(test_cancel_reaches_a_request_without_a_client, forget),
        cmocka_unit_test_setup(test_cancel_when_it_comes_before_the_loss_then_nothing_waits,
                               forget),
        cmocka_unit_test_setup(test_failure_when_there_is_no_client_then_nothing_waits, forget),
        cmocka_unit_test_setup(test_deadline_when_it_passes_without_a_client_then_over, forget),
        cmocka_unit_test_setup(test_server_when_restarted_then_nothing_is_known, forget),
        cmocka_unit_test_setup(test_complete_cannot_be_reattached, forget),
        cmocka_unit_test_setup(
            test_deadline_when_no_replica_has_the_request_then_it_ends_all_the_same, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
