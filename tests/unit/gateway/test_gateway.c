/* The gateway between a manager, workers and clients that all work as they should: order of a
 * stream, statuses, routes, health, shutdown. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
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

static void test_a_stream_is_whole_and_in_order(void **state)
{
    (void)state;
    struct client_request plain = {.seed = 7, .max_tokens = 100};
    struct client_request choices = {.seed = 8, .max_tokens = 40, .n = 3, .logprobs = true};
    fixture_init(&f);
    f.workers[0].hold = 3;
    fixture_start(&f, 1);
    client_run(&f, &plain);
    client_run(&f, &choices);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.ok, 2);
    assert_int_equal(c.tokens, 100 + 3 * 40);
    fixture_stop(&f);
}

static void test_complete_answers_once_with_every_choice(void **state)
{
    (void)state;
    struct client_request request = {.seed = 9, .max_tokens = 50, .n = 3, .logprobs = true};
    struct client_message message;
    struct rpc_call_options options = {.timeout_ms = 20000};
    ProtobufCMessage *answer = NULL;
    struct error err;
    fixture_init(&f);
    f.workers[0].step_us =
        20000; /* a second in all, so that a late first token still comes long before the end */
    fixture_start(&f, 1);
    client_message_fill(&request, &message);
    message.output.return_prompt_token_ids = true;
    int64_t start_ns = clock_now_ns();
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Complete",
                                      &message.request.base, &options, &answer, &err),
                     0);
    uint64_t call_ns = (uint64_t)(clock_now_ns() - start_ns);
    const Sluice__V1__CompleteResponse *whole = (const Sluice__V1__CompleteResponse *)answer;
    uint32_t prompt[] = {'a', ' ', 'p', 'r', 'o', 'm', 'p', 't'};
    assert_int_equal(whole->n_choices, 3);
    assert_int_equal(whole->prompt_info->n_prompt_token_ids, 8);
    assert_memory_equal(whole->prompt_info->fingerprint, "fp_", 3);
    assert_non_null(whole->receipt);
    assert_in_range(whole->receipt->first_token_ns, 1, call_ns / 2);
    assert_non_null(whole->usage);
    for (uint32_t i = 0; i < 3; i++) {
        const Sluice__V1__Choice *choice = whole->choices[i];
        assert_int_equal(choice->index, i);
        assert_int_equal(choice->n_ids, 50);
        assert_int_equal(choice->n_logprobs, 50);
        assert_null(choice->finished->receipt);
        for (uint32_t k = 0; k < 50; k++)
            assert_int_equal(choice->ids[k], fake_token(prompt, 8, 9, i, k));
    }
    rpc_message_free(answer);
    message.request.model = (char *)(uintptr_t) "nobody";
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Complete",
                                      &message.request.base, &options, &answer, &err),
                     STATUS_NOT_FOUND);
    fixture_stop(&f);
}

static void test_statuses_name_what_is_wrong(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 0},
                                                  {"m", "2", true, 0, 0},
                                                  {"m", "3", false, 0, 0},
                                                  {"idle", "1", false, 0, 0}};
    static const struct {
        const char *model, *version;
        int status;
        const char *reason;
    } rows[] = {
        {"x", "", STATUS_NOT_FOUND, "MODEL_NOT_FOUND"},
        {"m", "9", STATUS_NOT_FOUND, "VERSION_NOT_FOUND"},
        {"m", "3", STATUS_FAILED_PRECONDITION, "MODEL_NOT_LOADED"},
        {"idle", "", STATUS_FAILED_PRECONDITION, "MODEL_NOT_LOADED"},
        {"m", "2", STATUS_UNAVAILABLE, "NO_REPLICA_READY"},
    };
    struct error err;
    fixture_start(&f, 1);
    fixture_routes(&f, routes, 4);
    fixture_wait_health(&f, "model/m/2", 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct client_request request = {.model = rows[i].model, .version = rows[i].version};
        assert_int_equal(client_fail(&f, &request, &err), rows[i].status);
        assert_string_equal(error_reason_name(&err), rows[i].reason);
        assert_int_equal(err.retry_after_ms > 0, rows[i].status == STATUS_UNAVAILABLE);
    }
    struct client_request named = {.version = "1"};
    client_run(&f, &named);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.failed, 5);
    assert_int_equal(c.ok, 1);
    fixture_stop(&f);
}

static void test_errors_of_the_worker_reach_the_client_whole(void **state)
{
    (void)state;
    struct client_request request = {.seed = 3};
    struct error err;
    fixture_init(&f);
    f.workers[0].fail_status = STATUS_RESOURCE_EXHAUSTED;
    f.workers[0].fail_reason = "QUEUE_FULL";
    f.workers[0].fail_after = 5;
    fixture_start(&f, 1);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_QUEUE_FULL);
    assert_string_equal(err.field, "a.field");
    assert_int_equal(err.retry_after_ms, 70);
    fixture_stop(&f);
}

static void test_an_answer_that_makes_no_sense_ends_the_request_everywhere(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 1000000};
    struct error err;
    fixture_init(&f);
    f.workers[0].bad_choice = 5;
    fixture_start(&f, 1);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_INTERNAL);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    fixture_stop(&f);
}

static void test_a_choice_that_goes_on_after_its_end_ends_the_request(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 1000000, .n = 2};
    struct error err;
    fixture_init(&f);
    f.workers[0].talks_on = true;
    fixture_start(&f, 1);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_INTERNAL);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    fixture_stop(&f);
}

static void test_a_live_request_id_is_refused_a_second_time(void **state)
{
    (void)state;
    struct client_request request = {.max_tokens = 20, .request_id = "mine"};
    struct client_stream first;
    struct error err;
    fixture_init(&f);
    f.workers[0].stop_after = 5;
    fixture_start(&f, 1);
    client_open(&f, &request, &first);
    client_wait_tokens(&first, 5);
    assert_int_equal(client_fail(&f, &request, &err), STATUS_ALREADY_EXISTS);
    assert_int_equal(err.reason, REASON_REQUEST_ID_LIVE);
    fake_worker_stop_after(&f.workers[0], UINT32_MAX);
    client_expect_whole(&first, &request);
    client_close(&first);
    fixture_wait_rest(&f);
    client_run(&f, &request);
    fixture_stop(&f);
}

static void test_a_session_stays_with_its_replica(void **state)
{
    (void)state;
    enum { N_KEYS = 16, N_EACH = 3 };
    char key[16];
    fixture_start(&f, 2);
    for (unsigned k = 0; k < N_KEYS; k++) {
        snprintf(key, sizeof(key), "session %u", k);
        unsigned before = (unsigned)f.workers[0].n_submits;
        for (unsigned i = 0; i < N_EACH; i++)
            client_run(&f,
                       &(struct client_request){.seed = i, .max_tokens = 2, .session_key = key});
        unsigned n = (unsigned)f.workers[0].n_submits - before;
        assert_true(n == 0 || n == N_EACH);
    }
    assert_true(f.workers[0].n_submits > 0 && f.workers[1].n_submits > 0);
    fixture_stop(&f);
}

static void test_many_streams_at_once(void **state)
{
    (void)state;
    enum { N = 64 };
    static struct client_stream streams[N];
    static struct client_request requests[N];
    static char texts[N][32];
    fixture_init(&f);
    f.workers[0].hold = 2;
    fixture_start(&f, 2);
    for (unsigned i = 0; i < N; i++) {
        snprintf(texts[i], sizeof(texts[i]), "canary %u", i);
        requests[i] = (struct client_request){
            .seed = i, .text = texts[i], .max_tokens = 50 + i, .n = 1 + i % 3};
        client_open(&f, &requests[i], &streams[i]);
    }
    for (unsigned i = 0; i < N; i++) {
        client_expect_whole(&streams[i], &requests[i]);
        client_close(&streams[i]);
    }
    assert_true(f.workers[0].n_submits > 8);
    assert_true(f.workers[1].n_submits > 8);
    fixture_stop(&f);
}

static int cancel_by_id(const char *request_id, uint64_t *out_n_sent)
{
    Sluice__V1__CancelRequest request = SLUICE__V1__CANCEL_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 10000};
    ProtobufCMessage *response = NULL;
    struct error err;
    request.request_id = (char *)(uintptr_t)request_id;
    int rc = rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Cancel", &request.base,
                              &options, &response, &err);
    if (!rc)
        *out_n_sent = ((Sluice__V1__CancelResponse *)response)->n_tokens_sent;
    rpc_message_free(response);
    return rc;
}

/* The gateway tells the worker at once when a request ends. Other tests run beside this one, so it
 * allows a second. "long.sh faults" measures the 100 ms of F17. */
static void expect_cancelled_since(int64_t since_ns)
{
    assert_true(fake_worker_wait(&f.workers[0], &f.workers[0].n_cancels, 1));
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    assert_true(f.workers[0].cancel_ns - since_ns < NS_PER_S);
}

static void start_endless(struct client_stream *stream, uint64_t timeout_ms)
{
    struct client_request request = {
        .max_tokens = 1000000, .request_id = "endless", .timeout_ms = timeout_ms};
    fixture_start(&f, 1);
    client_open(&f, &request, stream);
    client_wait_tokens(stream, 3);
}

static void test_cancel_by_request_id(void **state)
{
    (void)state;
    struct client_stream stream;
    uint64_t n_sent = 0;
    start_endless(&stream, 0);
    int64_t since_ns = clock_now_ns();
    assert_int_equal(cancel_by_id("endless", &n_sent), 0);
    expect_cancelled_since(since_ns);
    assert_int_equal(client_wait_end(&stream), STATUS_CANCELLED);
    assert_int_equal(n_sent, stream.n_tokens);
    assert_int_equal(cancel_by_id("endless", &n_sent), STATUS_NOT_FOUND);
    assert_int_equal(cancel_by_id("", &n_sent), STATUS_INVALID_ARGUMENT);
    client_close(&stream);
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    fixture_stop(&f);
}

static void test_cancel_by_the_client(void **state)
{
    (void)state;
    struct client_stream stream;
    start_endless(&stream, 0);
    int64_t since_ns = clock_now_ns();
    rpc_stream_cancel(stream.stream);
    expect_cancelled_since(since_ns);
    client_close(&stream);
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    fixture_stop(&f);
}

static void test_a_client_that_disconnects(void **state)
{
    (void)state;
    struct client_stream stream;
    start_endless(&stream, 0);
    int64_t since_ns = clock_now_ns();
    rpc_client_destroy(f.client);
    f.client = NULL;
    expect_cancelled_since(since_ns);
    client_close(&stream);
    assert_int_equal(fixture_wait_rest(&f).cancelled, 1);
    fixture_stop(&f);
}

static void test_a_deadline_reaches_the_worker(void **state)
{
    (void)state;
    enum {
        DEADLINE_MS = 2001
    }; /* gRPC sends the deadline as 2,010 ms, so the client notices its end first. Three
        * tokens come before, on a busy machine too. */
    struct client_stream stream;
    int64_t start_ns = clock_now_ns();
    start_endless(&stream, DEADLINE_MS);
    assert_true(f.workers[0].deadline_remaining_ns > 0);
    assert_true(f.workers[0].deadline_remaining_ns <=
                (DEADLINE_MS + 10) * NS_PER_MS); /* gRPC rounds up */
    assert_int_equal(client_wait_end(&stream), STATUS_DEADLINE_EXCEEDED);
    assert_true(clock_now_ns() - start_ns < DEADLINE_MS * NS_PER_MS + 11 * NS_PER_S);
    expect_cancelled_since(clock_now_ns());
    client_close(&stream);
    struct gateway_counters c = fixture_wait_rest(&f);
    assert_int_equal(c.failed, 1);
    assert_int_equal(c.cancelled, 0);
    fixture_stop(&f);
}

static void test_routes_come_from_the_disk_and_then_from_the_manager(void **state)
{
    (void)state;
    static const struct fixture_route two[] = {{"m", "1", true, 1, 0}, {"n", "5", true, 2, 0}};
    struct client_request request = {.seed = 1};
    struct client_request other = {.seed = 1, .model = "n"};
    struct error err;
    fixture_start(&f, 1);
    client_run(&f, &request);
    fixture_stop_gateway(&f, 1000);
    fake_manager_kill(&f.manager);
    fixture_start_gateway(&f); /* without a manager */
    fixture_wait_usable(&f, 1);
    client_run(&f, &request);
    assert_int_equal(client_fail(&f, &other, &err), STATUS_NOT_FOUND);
    fake_worker_start(&f.workers[1]);
    fake_manager_start(&f.manager);
    fixture_routes(&f, two, 2);
    fixture_wait_health(&f, "model/n/5", 1);
    client_run(&f, &other);
    client_run(&f, &request);
    assert_int_equal(f.manager.known_generation, 1);
    fixture_stop(&f);
}

static void test_a_manager_that_dies_is_no_matter(void **state)
{
    (void)state;
    struct client_request request = {.seed = 4, .max_tokens = 300};
    struct client_stream stream;
    fixture_start(&f, 1);
    client_open(&f, &request, &stream);
    client_wait_tokens(&stream, 50);
    unsigned n_before = f.manager.n_watches;
    fake_manager_kill(&f.manager);
    client_run(&f, &request);
    fake_manager_start(&f.manager);
    client_expect_whole(&stream, &request);
    client_close(&stream);
    for (int i = 0; i < 1000 && f.manager.n_watches == n_before; i++) {
        struct timespec pause = {0, 10 * NS_PER_MS};
        nanosleep(&pause, NULL);
    }
    assert_true(f.manager.n_watches > n_before);
    fixture_stop(&f);
}

static void test_health_follows_each_version(void **state)
{
    (void)state;
    static const struct fixture_route both[] = {{"m", "1", true, 1, 0}, {"n", "2", true, 2, 0}};
    fixture_init(&f);
    fixture_routes(&f, both, 2);
    fixture_start_gateway(&f);
    fixture_wait_health(&f, "model/m/1", 0);
    fixture_wait_health(&f, "", 0);
    fake_worker_start(&f.workers[0]);
    fake_worker_start(&f.workers[1]);
    fixture_wait_health(&f, "model/m/1", 1);
    fixture_wait_health(&f, "model/n/2", 1);
    fixture_wait_health(&f, "", 1);
    fixture_wait_health(&f, "sluice.v1.Inference", 1);
    int64_t since_ns = clock_now_ns();
    fake_worker_kill(&f.workers[0]);
    fixture_wait_health(&f, "model/m/1", 0);
    assert_true(clock_now_ns() - since_ns <
                5 * NS_PER_S); /* tests/e2e/invariants.py checks the second of I7 */
    fixture_wait_health(&f, "model/n/2", 1);
    fixture_wait_health(&f, "", 1);
    fake_worker_drain(&f.workers[1], false);
    fixture_wait_health(&f, "", 0);
    fixture_routes(&f, both, 1);
    fixture_wait_health(&f, "model/n/2", -1);
    fake_worker_start(&f.workers[0]);
    fixture_wait_health(&f, "", 1);
    fixture_stop(&f);
}

static void test_models_are_listed_as_they_are_now(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {
        {"m", "1", true, 3, 0}, {"idle", "1", false, 0, 0}, {"b", "7", true, 0, 0}};
    Sluice__V1__ListModelsRequest list = SLUICE__V1__LIST_MODELS_REQUEST__INIT;
    Sluice__V1__TokenizeRequest tokenize = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 10000};
    ProtobufCMessage *answer;
    struct error err;
    Sluice__V1__ModelInfo info = SLUICE__V1__MODEL_INFO__INIT;
    Sluice__V1__ModelLimits limits = SLUICE__V1__MODEL_LIMITS__INIT;
    limits.max_choices = 8;
    limits.max_top_n = 5;
    info.limits = &limits;
    fixture_init(&f);
    f.info = &info;
    f.config.limits.max_choices = 2;
    fixture_start(&f, 2);
    fixture_routes(&f, routes, 3);
    fixture_wait_health(&f, "model/b/7", 0);
    list.page_size = 1;
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "ListModels",
                                      &list.base, &options, &answer, &err),
                     0);
    const Sluice__V1__ListModelsResponse *page = (const Sluice__V1__ListModelsResponse *)answer;
    assert_int_equal(page->n_models, 1);
    assert_string_equal(page->models[0]->name, "b");
    assert_string_equal(page->next_page_token, "b");
    rpc_message_free(answer);
    list.page_token = (char *)(uintptr_t) "b";
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "ListModels",
                                      &list.base, &options, &answer, &err),
                     0);
    page = (const Sluice__V1__ListModelsResponse *)answer;
    assert_string_equal(page->models[0]->name, "m");
    assert_string_equal(page->next_page_token, "");
    assert_int_equal(page->models[0]->versions[0]->n_ready_replicas, 2);
    assert_int_equal(page->models[0]->versions[0]->n_numerics_ids, 1);
    assert_int_equal(page->models[0]->versions[0]->n_fingerprints, 1);
    assert_memory_equal(page->models[0]->versions[0]->fingerprints[0], "fp_", 3);
    const Sluice__V1__ModelLimits *told = page->models[0]->versions[0]->info->limits;
    assert_int_equal(told->max_choices, 2); /* this server's */
    assert_int_equal(told->max_top_n, 5);   /* the model's */
    rpc_message_free(answer);
    tokenize.model = (char *)(uintptr_t) "m";
    tokenize.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    tokenize.text = (char *)(uintptr_t) "xyz";
    assert_int_equal(rpc_client_unary(f.client, &sluice__v1__inference__descriptor, "Tokenize",
                                      &tokenize.base, &options, &answer, &err),
                     0);
    assert_int_equal(((Sluice__V1__TokenizeResponse *)answer)->n_ids, 3);
    assert_string_equal(((Sluice__V1__TokenizeResponse *)answer)->version, "1");
    rpc_message_free(answer);
    fixture_stop(&f);
}

static void test_shutdown_lets_streams_finish_within_the_grace(void **state)
{
    (void)state;
    struct client_request quick = {.seed = 1, .max_tokens = 200};
    struct client_request endless = {.max_tokens = 1000000};
    struct client_stream streams[2];
    fixture_start(&f, 1);
    client_open(&f, &quick, &streams[0]);
    client_open(&f, &endless, &streams[1]);
    client_wait_tokens(&streams[0], 5);
    client_wait_tokens(&streams[1], 5);
    int64_t since_ns = clock_now_ns();
    gateway_destroy(f.gateway, 4000);
    f.gateway = NULL;
    assert_true(clock_now_ns() - since_ns >= 3900 * NS_PER_MS);
    client_expect_whole(&streams[0], &quick);
    assert_int_equal(client_wait_end(&streams[1]), STATUS_UNAVAILABLE);
    assert_true(fake_worker_wait_live(&f.workers[0], 0));
    for (int i = 0; i < 2; i++)
        client_close(&streams[i]);
    rpc_client_destroy(f.client);
    f.client = NULL;
    fixture_stop(&f);
}

static void *drain_for_a_minute(void *arg)
{
    gateway_drain(arg, 60000);
    return NULL;
}

/* A second SIGTERM during a drain ends the streams at once. */
static void test_shutdown_when_hurried_then_streams_end_at_once(void **state)
{
    (void)state;
    struct client_request endless = {.max_tokens = 1000000};
    struct client_stream stream;
    struct error err;
    pthread_t thread;
    fixture_start(&f, 1);
    client_open(&f, &endless, &stream);
    client_wait_tokens(&stream, 5);
    assert_int_equal(pthread_create(&thread, NULL, drain_for_a_minute, f.gateway), 0);
    while (!client_fail(&f, &(struct client_request){.max_tokens = 1}, &err) ||
           err.status != STATUS_UNAVAILABLE)
        ; /* until new requests are refused */
    assert_false(client_is_over(&stream));
    int64_t since_ns = clock_now_ns();
    gateway_hurry(f.gateway);
    assert_int_equal(client_wait_end(&stream), STATUS_UNAVAILABLE);
    assert_int_equal(stream.status.reason, REASON_DRAINING);
    pthread_join(thread, NULL);
    assert_true(clock_now_ns() - since_ns < 5 * NS_PER_S);
    assert_true(gateway_n_refusals(f.gateway, LIMIT_DRAIN) >=
                1); /* the loop above may see only the end */
    client_close(&stream);
    gateway_destroy(f.gateway, 0);
    f.gateway = NULL;
    rpc_client_destroy(f.client);
    f.client = NULL;
    fixture_stop(&f);
}

static void test_an_address_in_use_is_told(void **state)
{
    (void)state;
    struct gateway *second = NULL;
    struct error err;
    fixture_start(&f, 1);
    assert_int_equal(gateway_create(&f.config, &second, &err), STATUS_ALREADY_EXISTS);
    assert_null(second);
    struct client_request request = {.seed = 2};
    client_run(&f, &request);
    fixture_stop(&f);
}

int main(int argc, char *argv[])
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_a_stream_is_whole_and_in_order, forget),
        cmocka_unit_test_setup(test_complete_answers_once_with_every_choice, forget),
        cmocka_unit_test_setup(test_statuses_name_what_is_wrong, forget),
        cmocka_unit_test_setup(test_errors_of_the_worker_reach_the_client_whole, forget),
        cmocka_unit_test_setup(test_an_answer_that_makes_no_sense_ends_the_request_everywhere,
                               forget),
        cmocka_unit_test_setup(test_a_choice_that_goes_on_after_its_end_ends_the_request, forget),
        cmocka_unit_test_setup(test_a_live_request_id_is_refused_a_second_time, forget),
        cmocka_unit_test_setup(test_a_session_stays_with_its_replica, forget),
        cmocka_unit_test_setup(test_many_streams_at_once, forget),
        cmocka_unit_test_setup(test_cancel_by_request_id, forget),
        cmocka_unit_test_setup(test_cancel_by_the_client, forget),
        cmocka_unit_test_setup(test_a_client_that_disconnects, forget),
        cmocka_unit_test_setup(test_a_deadline_reaches_the_worker, forget),
        cmocka_unit_test_setup(test_routes_come_from_the_disk_and_then_from_the_manager, forget),
        cmocka_unit_test_setup(test_a_manager_that_dies_is_no_matter, forget),
        cmocka_unit_test_setup(test_health_follows_each_version, forget),
        cmocka_unit_test_setup(test_models_are_listed_as_they_are_now, forget),
        cmocka_unit_test_setup(test_shutdown_lets_streams_finish_within_the_grace, forget),
        cmocka_unit_test_setup(test_shutdown_when_hurried_then_streams_end_at_once, forget),
        cmocka_unit_test_setup(test_an_address_in_use_is_told, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
