/* Tests of a replica's refusals, for requests and for streams, and that other requests are not
 * disturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "tests/unit/worker/support_worker.h"

static struct test_worker shared;

static int start_shared(void **state)
{
    (void)state;
    test_worker_start(&shared, TEST_SAMPLE_MODEL,
                      (const char *const[]){"--kv-tokens", "16384", NULL}, true);
    return 0;
}

static int stop_shared(void **state)
{
    (void)state;
    test_worker_stop(&shared, 1000);
    return 0;
}

static void bad_top_p(struct text_request *r)
{
    r->sampling.has_top_p = true;
    r->sampling.top_p = 2;
}

static void bad_n(struct text_request *r)
{
    r->sampling.has_n = true;
    r->sampling.n = 0;
}

static void bad_prompt(struct text_request *r)
{
    static char empty[] = "";
    r->request.text = empty;
}

static void bad_max_tokens(struct text_request *r)
{
    r->stopping.max_tokens = 0;
}

static void bad_best_of(struct text_request *r)
{
    r->sampling.has_n = r->sampling.has_best_of = true;
    r->sampling.n = 3;
    r->sampling.best_of = 2;
}

static void many_best_of(struct text_request *r)
{
    r->sampling.has_best_of = true;
    r->sampling.best_of = 9;
}

static void bad_word(struct text_request *r)
{
    static char good[] = "good", spaces[] = "   ";
    static char *words[] = {good, spaces};
    r->sampling.bad_words = words;
    r->sampling.n_bad_words = 2;
}

static void bad_allowed(struct text_request *r)
{
    static uint32_t ids[] = {1, 2, 1u << 20};
    r->sampling.allowed_token_ids = ids;
    r->sampling.n_allowed_token_ids = 3;
}

static void bad_do_sample(struct text_request *r)
{
    r->sampling.has_do_sample = r->sampling.has_temperature = true;
    r->sampling.do_sample = true;
    r->sampling.temperature = 0.0f;
}

static void bad_truncate(struct text_request *r)
{
    r->request.output = &r->output;
    r->output.has_truncate = true;
    r->output.truncate = 0;
}

static void bad_constraint(struct text_request *r)
{
    static Sluice__V1__Constraint constraint;
    sluice__v1__constraint__init(&constraint);
    r->request.constraint = &constraint;
}

static void bad_token_id(struct text_request *r)
{
    static Sluice__V1__TokenIds ids;
    static uint32_t values[] = {5, 1u << 20};
    sluice__v1__token_ids__init(&ids);
    ids.ids = values;
    ids.n_ids = 2;
    r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS;
    r->request.token_ids = &ids;
}

static void bad_chat_json(struct text_request *r)
{
    static Sluice__V1__Chat chat;
    static Sluice__V1__ChatMessage message;
    static Sluice__V1__ChatMessage *messages[1] = {&message};
    static char role[] = "assistant", calls[] = "{\"no\": \"array\"}";
    sluice__v1__chat__init(&chat);
    sluice__v1__chat_message__init(&message);
    message.role = role;
    message.tool_calls_json = calls;
    chat.messages = messages;
    chat.n_messages = 1;
    r->request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    r->request.chat = &chat;
}

static void bad_template(struct text_request *r)
{
    static char text[] = "{% for x in %}";
    bad_chat_json(r);
    r->request.chat->messages[0]->tool_calls_json =
        text; /* not checked: the template error comes first */
    r->request.chat->template_override = text;
}

static void endless_template(struct text_request *r)
{
    static char text[] = "{% for i in range(10**9) %}{% endfor %}", none[] = "";
    bad_chat_json(r);
    r->request.chat->messages[0]->tool_calls_json = none;
    r->request.chat->template_override = text;
}

static void test_submit_when_bad_then_the_field_is_named_and_the_stream_lives(void **state)
{
    (void)state;
    static const struct {
        void (*spoil)(struct text_request *r);
        int status;
        const char *field;
    } rows[] = {
        {bad_top_p, STATUS_INVALID_ARGUMENT, "sampling.top_p"},
        {bad_n, STATUS_INVALID_ARGUMENT, "sampling.n"},
        {bad_prompt, STATUS_INVALID_ARGUMENT, "prompt"},
        {bad_max_tokens, STATUS_INVALID_ARGUMENT, "stopping.max_tokens"},
        {bad_best_of, STATUS_INVALID_ARGUMENT, "sampling.best_of"},
        {many_best_of, STATUS_INVALID_ARGUMENT, "sampling.n"},
        {bad_word, STATUS_INVALID_ARGUMENT, "sampling.bad_words[1]"},
        {bad_allowed, STATUS_INVALID_ARGUMENT, "sampling.allowed_token_ids[2]"},
        {bad_do_sample, STATUS_INVALID_ARGUMENT, "sampling.do_sample"},
        {bad_truncate, STATUS_INVALID_ARGUMENT, "output.truncate"},
        {bad_constraint, STATUS_UNIMPLEMENTED, "constraint"},
        {bad_token_id, STATUS_INVALID_ARGUMENT, "prompt.token_ids[1]"},
        {bad_chat_json, STATUS_INVALID_ARGUMENT, "chat.messages[0].tool_calls_json"},
        {bad_template, STATUS_INVALID_ARGUMENT, "chat.template_override"},
        {endless_template, STATUS_RESOURCE_EXHAUSTED, "chat.template_override"},
    };
    struct test_stream s;
    struct text_request r;
    test_stream_open(&s, &shared, TEST_EPOCH);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        text_request_init(&r, "x", 4);
        rows[i].spoil(&r);
        test_stream_submit(&s, i, &r.request);
        struct answer *a = test_stream_wait(&s, i);
        if (!a->failed || a->error.status != rows[i].status ||
            strcmp(a->error.field, rows[i].field) != 0)
            fail_msg("row %zu: %d, field \"%s\": %s", i, a->error.status, a->error.field,
                     a->error.message);
        assert_int_equal(a->n_items, 1);
    }
    text_request_init(&r, "still well", 2);
    test_stream_submit(&s, 100, &r.request);
    assert_false(test_stream_wait(&s, 100)->failed);
    test_stream_close(&s);
}

/* A prompt larger than a frame of 16 KiB. */
static void ask_for_much(struct text_request *r)
{
    text_request_init(r, "a prompt of more than thirty letters and as many tokens", 4);
    r->request.output = &r->output;
    r->output.prompt_logprobs = true;
    r->output.has_top_n = true;
    r->output.top_n = 20;
}

/* Symptom: a part of an answer without memory was left out, and the answer continued with a hole.
 */
static void test_frame_when_no_memory_for_an_item_then_that_request_ends(void **state)
{
    (void)state;
    struct test_worker small;
    static struct test_stream s;
    struct text_request r;
    test_worker_start(&small, TEST_TINY_MODEL,
                      (const char *const[]){"--max-frame-bytes", "16384", NULL}, true);
    test_stream_open(&s, &small, TEST_EPOCH);
    ask_for_much(&r);
    test_stream_submit(&s, 1, &r.request);
    struct answer *a = test_stream_wait(&s, 1);
    assert_true(a->failed);
    assert_int_equal(a->error.status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(a->error.reason, REASON_WORKER_MEMORY);
    text_request_init(&r, "others go on", 4);
    test_stream_submit(&s, 2, &r.request);
    assert_false(test_stream_wait(&s, 2)->failed);
    test_worker_wait_idle(&small);
    test_stream_close(&s);
    test_worker_stop(&small, 1000);
}

/* Symptom: when the first item of a frame was taken back, the frame was sent again for ever. */
static void test_frame_when_its_first_item_is_taken_back_then_the_others_are_sent_once(void **state)
{
    enum { LONG = 64, N = 40, N_TOKENS = 100 };
    int n_failed = 0;
    (void)state;
    struct test_worker small;
    static struct test_stream s;
    struct text_request r;
    test_worker_start(&small, TEST_TINY_MODEL,
                      (const char *const[]){"--max-frame-bytes", "16384", NULL}, true);
    test_stream_open(&s, &small, TEST_EPOCH);
    for (uint64_t i = 0; i < N; i++) {
        if (i % 8 == 0) {
            text_request_init(&r, "it goes on beside them", N_TOKENS);
            test_stream_submit(&s, LONG + i, &r.request);
        }
        ask_for_much(&r);
        test_stream_submit(&s, i, &r.request);
        struct answer *a = test_stream_wait(&s, i); /* in pieces that are small enough it passes */
        n_failed += a->failed;
        assert_true(!a->failed || a->error.reason == REASON_WORKER_MEMORY);
    }
    assert_true(n_failed > 0);
    for (uint64_t i = 0; i < N; i += 8) {
        struct answer *a = test_stream_wait(&s, LONG + i); /* the answer may be in a full frame */
        assert_true(a->failed ? a->error.reason == REASON_WORKER_MEMORY : a->n_ids == N_TOKENS);
    }
    test_worker_wait_idle(&small);
    test_stream_close(&s);
    test_worker_stop(&small, 1000);
}

static void test_submit_when_deadline_is_over_then_never_begun(void **state)
{
    (void)state;
    struct test_stream s;
    struct text_request r;
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Submit submit = SLUICE__WORKER__V1__SUBMIT__INIT;
    test_stream_open(&s, &shared, TEST_EPOCH);
    text_request_init(&r, "late", 100);
    submit.id = 1;
    submit.request = &r.request;
    submit.has_deadline_remaining_ns = true;
    submit.deadline_remaining_ns = 1;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &submit;
    test_stream_send(&s, &frame);
    struct answer *a = test_stream_wait(&s, 1);
    assert_int_equal(a->error.status, STATUS_DEADLINE_EXCEEDED);
    assert_int_equal(a->n_ids, 0);
    test_stream_close(&s);
}

static void test_serve_when_greeting_is_wrong_then_refused(void **state)
{
    (void)state;
    struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH + 1);
    assert_true(s.ended);
    assert_int_equal(s.status.status, STATUS_FAILED_PRECONDITION);
    assert_int_equal(s.status.reason, REASON_STALE_EPOCH);
    test_stream_close(&s);

    struct text_request r;
    text_request_init(&r, "no hello", 2);
    test_stream_open(&s, &shared, 0);
    test_stream_submit(&s, 1, &r.request);
    test_stream_wait_ended(&s);
    assert_int_equal(s.status.status, STATUS_INVALID_ARGUMENT);
    assert_string_equal(s.status.field, "hello");
    test_stream_close(&s);

    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Hello hello = SLUICE__WORKER__V1__HELLO__INIT;
    hello.protocol_min = 2;
    hello.protocol_max = 9;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO;
    frame.hello = &hello;
    test_stream_open(&s, &shared, 0);
    test_stream_send(&s, &frame);
    test_stream_wait_ended(&s);
    assert_int_equal(s.status.status, STATUS_FAILED_PRECONDITION);
    assert_int_equal(s.status.reason, REASON_PROTOCOL_MISMATCH);
    test_stream_close(&s);
}

/* The status of a KeepWeights, which is answered once the worker has its socket. */
static int keep_weights(struct test_worker *worker, struct error *err)
{
    Sluice__Worker__V1__KeepWeightsRequest request = SLUICE__WORKER__V1__KEEP_WEIGHTS_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 20000, .wait_for_ready = true};
    ProtobufCMessage *reply = NULL;
    int rc = rpc_client_unary(worker->client, &sluice__worker__v1__worker__descriptor,
                              "KeepWeights", &request.base, &options, &reply, err);
    rpc_message_free(reply);
    return rc;
}

/* Weights in host memory need no copy there. The worker continues to serve. */
static void test_keep_weights_when_on_the_cpu_then_refused_each_time(void **state)
{
    struct test_stream s;
    struct text_request r;
    struct error err;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(keep_weights(&shared, &err), STATUS_FAILED_PRECONDITION);
        assert_true(err.message[0]);
    }
    Sluice__Worker__V1__WorkerStatus *status = test_worker_status(&shared);
    assert_int_equal(status->state, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY);
    rpc_message_free(&status->base);
    test_stream_open(&s, &shared, TEST_EPOCH);
    text_request_init(&r, "it serves on", 2);
    test_stream_submit(&s, 1, &r.request);
    assert_false(test_stream_wait(&s, 1)->failed);
    test_stream_close(&s);
}

static void test_keep_weights_when_it_loads_then_unavailable_until_it_serves(void **state)
{
    enum { MAX_CALLS = 20000 };
    struct test_worker loading;
    struct error err = {0};
    int n_calls = 0;
    (void)state;
    test_worker_start(&loading, TEST_SAMPLE_MODEL, NULL, false);
    while (keep_weights(&loading, &err) == STATUS_UNAVAILABLE && n_calls < MAX_CALLS) {
        assert_int_equal(err.reason, REASON_LOADING);
        n_calls++;
        usleep(3000);
    }
    assert_true(n_calls > 0);
    assert_int_equal(err.status, STATUS_FAILED_PRECONDITION);
    test_worker_stop(&loading, 1000);
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV); /* before other threads exist */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_when_bad_then_the_field_is_named_and_the_stream_lives),
        cmocka_unit_test(test_frame_when_no_memory_for_an_item_then_that_request_ends),
        cmocka_unit_test(
            test_frame_when_its_first_item_is_taken_back_then_the_others_are_sent_once),
        cmocka_unit_test(test_submit_when_deadline_is_over_then_never_begun),
        cmocka_unit_test(test_serve_when_greeting_is_wrong_then_refused),
        cmocka_unit_test(test_keep_weights_when_on_the_cpu_then_refused_each_time),
        cmocka_unit_test(test_keep_weights_when_it_loads_then_unavailable_until_it_serves),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}
