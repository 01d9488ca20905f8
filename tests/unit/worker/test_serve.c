/* One replica over its socket: requests alone and together, changes while they run, how it refuses
 * and how it ends. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sha256.h"
#include "proto/rpc/rpc_client.h"
#include "proto/rpc/rpc_message.h"
#include "proto/rpc/rpc_stream.h"
#include "support_worker.h"

/* Each token of the sample model takes milliseconds, so that a cancel, a pause or a drain meets a
 * request that still runs; the tiny one serves where that does not matter. */
#define MODEL NULL
#define TINY  "tests/golden/tiny/q4_1.gguf"

static struct test_worker shared;

static int start_shared(void **state)
{
    (void)state;
    test_worker_start(&shared, MODEL, (const char *const[]){"--kv-tokens", "16384", NULL}, true);
    return 0;
}

static int stop_shared(void **state)
{
    (void)state;
    test_worker_stop(&shared, 1000);
    return 0;
}

/* --- requests --- */

static void test_submit_when_good_then_every_part_of_the_answer_is_there(void **state)
{
    (void)state;
    struct test_stream s;
    struct text_request r;
    test_stream_open(&s, &shared, TEST_EPOCH);
    assert_true(s.hello);
    assert_true(s.numerics_id[0] != '\0');
    text_request_init(&r, "hello there", 12);
    test_stream_submit(&s, 1, &r.request);
    struct answer *a = test_stream_wait(&s, 1);
    assert_false(a->failed);
    assert_true(a->has_prompt && a->n_prompt > 0);
    assert_int_equal(a->n_ids, 12);
    assert_int_equal(a->n_released, 12);
    assert_int_equal(a->n_tokens, 12);
    assert_int_equal(a->reason, SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    assert_true(a->has_receipt);
    assert_true(s.last_step >= s.n_steps);
    test_stream_close(&s);
}

static void test_submit_when_many_at_once_then_each_answers_as_alone(void **state)
{
    (void)state;
    enum { N = 24 };
    static struct test_stream alone, together;
    char texts[N][96];
    test_stream_open(&alone, &shared, TEST_EPOCH);
    test_stream_open(&together, &shared, TEST_EPOCH);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < N; i++) {
            struct text_request r;
            snprintf(texts[i], sizeof(texts[i]), "%.*s number %u", (int)(i % 40) * 2,
                     "once upon a time there was a small model that had very little to say to us",
                     i);
            text_request_init(&r, texts[i], 4 + i % 17);
            r.sampling.has_temperature = i % 2;
            r.sampling.temperature = 0.8f;
            test_stream_submit(pass ? &together : &alone, i, &r.request);
            if (!pass)
                test_stream_wait(&alone, i);
        }
    for (uint32_t i = 0; i < N; i++) {
        struct answer *a = &alone.answers[i], *b = test_stream_wait(&together, i);
        assert_false(a->failed || b->failed);
        assert_int_equal(a->n_ids, b->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(uint32_t));
        assert_string_equal(strbuf_str(&a->text), strbuf_str(&b->text));
    }
    test_stream_close(&alone);
    test_stream_close(&together);
}

static void test_submit_when_choices_then_each_finishes_and_one_receipt(void **state)
{
    (void)state;
    struct test_stream s;
    struct text_request r;
    test_stream_open(&s, &shared, TEST_EPOCH);
    text_request_init(&r, "three answers", 6);
    r.sampling.has_n = true;
    r.sampling.n = 3;
    r.sampling.has_temperature = true;
    r.sampling.temperature = 1.0f;
    test_stream_submit(&s, 2, &r.request);
    for (int i = 0; i < 600 && s.answers[2].n_finished < 3; i++)
        usleep(10000);
    assert_int_equal(s.answers[2].n_finished, 3);
    assert_true(s.answers[2].has_receipt);
    test_stream_close(&s);
}

static void test_resume_when_given_what_came_then_the_rest_follows(void **state)
{
    (void)state;
    static struct test_stream s;
    struct text_request r;
    test_stream_open(&s, &shared, TEST_EPOCH);
    text_request_init(&r, "a story that is cut", 20);
    r.sampling.has_temperature = true;
    r.sampling.temperature = 0.9f;
    test_stream_submit(&s, 3, &r.request);
    struct answer *whole = test_stream_wait(&s, 3);
    assert_int_equal(whole->n_ids, 20);
    for (uint32_t n_sent = 0; n_sent <= 20; n_sent += 5) {
        Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
        Sluice__Worker__V1__Submit submit = SLUICE__WORKER__V1__SUBMIT__INIT;
        Sluice__Worker__V1__ResumeState resume = SLUICE__WORKER__V1__RESUME_STATE__INIT;
        Sluice__Worker__V1__ResumedChoice choice = SLUICE__WORKER__V1__RESUMED_CHOICE__INIT;
        Sluice__Worker__V1__ResumedChoice *choices[1] = {&choice};
        uint64_t id = 10 + n_sent;
        choice.generated_ids = whole->ids;
        choice.n_generated_ids = n_sent;
        resume.choices = choices;
        resume.n_choices = 1;
        resume.numerics_id = s.numerics_id;
        submit.id = id;
        submit.seed = 3;
        submit.request = &r.request;
        submit.resume = &resume;
        frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
        frame.submit = &submit;
        test_stream_send(&s, &frame);
        struct answer *rest = test_stream_wait(&s, id);
        if (rest->failed)
            fail_msg("%s", rest->error.message);
        assert_int_equal(rest->n_ids, 20 - n_sent);
        assert_memory_equal(rest->ids, whole->ids + n_sent, rest->n_ids * sizeof(uint32_t));
        assert_int_equal(rest->n_tokens, 20);
        /* No text was said to be out, so all of it comes again. */
        assert_string_equal(strbuf_str(&rest->text), strbuf_str(&whole->text));
        assert_int_equal(rest->n_released, 20);
    }
    test_stream_close(&s);
}

/* --- refusals --- */

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
    r->request.chat->messages[0]->tool_calls_json = text; /* not looked at: the template is first */
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

/* A part of an answer for which there is no memory was once left out, and the answer went on with a
 * hole in it. */
static void test_frame_when_no_memory_for_an_item_then_that_request_ends(void **state)
{
    (void)state;
    struct test_worker small;
    static struct test_stream s;
    struct text_request r;
    test_worker_start(&small, TINY, (const char *const[]){"--max-frame-bytes", "16384", NULL},
                      true);
    test_stream_open(&s, &small, TEST_EPOCH);
    text_request_init(&r, "a prompt of more than thirty letters and as many tokens", 4);
    r.request.output = &r.output;
    r.output.prompt_logprobs = true;
    r.output.has_top_n = true;
    r.output.top_n = 20;
    test_stream_submit(&s, 1, &r.request);
    struct answer *a = test_stream_wait(&s, 1);
    assert_true(a->failed);
    assert_int_equal(a->error.status, STATUS_RESOURCE_EXHAUSTED);
    assert_string_equal(a->error.reason, "WORKER_MEMORY");
    text_request_init(&r, "others go on", 4);
    test_stream_submit(&s, 2, &r.request);
    assert_false(test_stream_wait(&s, 2)->failed);
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
    assert_string_equal(s.status.reason, "STALE_EPOCH");
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
    assert_string_equal(s.status.reason, "PROTOCOL_MISMATCH");
    test_stream_close(&s);
}

/* --- changes while it runs --- */

/* A request that stands still after a few tokens, until credit comes. */
static void submit_held(struct test_stream *s, uint64_t id, const char *text, uint32_t max_tokens)
{
    struct text_request r;
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Submit submit = SLUICE__WORKER__V1__SUBMIT__INIT;
    text_request_init(&r, text, max_tokens);
    submit.id = id;
    submit.request = &r.request;
    submit.has_credit_tokens = true;
    submit.credit_tokens = 4;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT;
    frame.submit = &submit;
    test_stream_send(s, &frame);
}

static void send_credit(struct test_stream *s, uint64_t id)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Credit credit = SLUICE__WORKER__V1__CREDIT__INIT;
    credit.id = id;
    credit.n_tokens = 100000;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    test_stream_send(s, &frame);
}

static void send_cancel(struct test_stream *s, uint64_t id)
{
    Sluice__Worker__V1__ServeRequest frame = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Cancel cancel = SLUICE__WORKER__V1__CANCEL__INIT;
    cancel.id = id;
    frame.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    test_stream_send(s, &frame);
}

static void test_cancel_when_anywhere_then_ended_and_kv_is_back(void **state)
{
    (void)state;
    static struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    for (uint64_t i = 0; i < 60; i++) {
        submit_held(&s, i, "a long one to be cancelled", 1000);
        if (i % 3 == 1)
            test_stream_wait_tokens(&s, i, 1);
        send_cancel(&s, i);
    }
    for (uint64_t i = 0; i < 60; i++) {
        struct answer *a = test_stream_wait(&s, i);
        assert_true(a->failed);
        assert_int_equal(a->error.status, STATUS_CANCELLED);
    }
    test_worker_wait_idle(&shared);
    test_stream_close(&s);
}

static void test_stream_when_it_ends_then_its_requests_end(void **state)
{
    (void)state;
    static struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    for (uint64_t i = 0; i < 20; i++) {
        struct text_request r;
        text_request_init(&r, "nobody will read this", 2000);
        test_stream_submit(&s, i, &r.request);
    }
    test_stream_wait_tokens(&s, 0, 2);
    test_stream_close(&s);
    test_worker_wait_idle(&shared);
}

static void test_credit_when_used_up_then_waits_for_more(void **state)
{
    (void)state;
    struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    submit_held(&s, 1, "in small pieces", 60);
    test_stream_wait_tokens(&s, 1, 4);
    usleep(200000);
    uint32_t held_at = s.answers[1].n_ids;
    usleep(200000);
    assert_int_equal(s.answers[1].n_ids, held_at); /* it stands still */
    assert_true(held_at < 60);
    send_credit(&s, 1);
    assert_int_equal(test_stream_wait(&s, 1)->n_ids, 60);
    test_stream_close(&s);
}

/* Silence is a stall, so there is none: idle, and while all that is there is held. */
static void test_heartbeat_when_nothing_moves_then_it_comes_as_promised(void **state)
{
    (void)state;
    struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    assert_int_equal(s.heartbeat_ms, 1000);
    int64_t begin_ns = clock_now_ns();
    test_stream_wait_heartbeats(&s, 3);
    assert_true(clock_now_ns() - begin_ns < 3 * NS_PER_S + 500 * NS_PER_MS);
    assert_int_equal(s.n_ready, 0);
    submit_held(&s, 1, "in small pieces", 60);
    test_stream_wait_tokens(&s, 1, 4);
    usleep(100000); /* held by now */
    uint32_t n_before = s.n_heartbeats;
    begin_ns = clock_now_ns();
    test_stream_wait_heartbeats(&s, n_before + 5);
    assert_true(clock_now_ns() - begin_ns < 5 * 250 * NS_PER_MS + 500 * NS_PER_MS);
    assert_int_equal(s.n_ready, 0); /* what is held is not stuck */
    test_stream_close(&s);
    test_worker_wait_idle(&shared);
}

/* --- the other RPCs --- */

static ProtobufCMessage *must_call(const char *method, const ProtobufCMessage *request)
{
    struct rpc_call_options options = {.timeout_ms = 20000};
    ProtobufCMessage *reply = NULL;
    struct error err = {0};
    if (rpc_client_unary(shared.client, &sluice__worker__v1__worker__descriptor, method, request,
                         &options, &reply, &err) != 0)
        fail_msg("%s: %s", method, err.message);
    return reply;
}

static void test_tokenize_when_decoded_then_the_text_is_back(void **state)
{
    (void)state;
    char text[] = "hello w\xC3\xB6rld 42 <|im_end|>";
    Sluice__V1__TokenizeRequest request = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    Sluice__V1__DetokenizeRequest back = SLUICE__V1__DETOKENIZE_REQUEST__INIT;
    request.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_TEXT;
    request.text = text;
    request.with_pieces = true;
    Sluice__V1__TokenizeResponse *ids =
        (Sluice__V1__TokenizeResponse *)must_call("Tokenize", &request.base);
    assert_int_equal(ids->n_pieces, ids->n_ids);
    back.ids = ids->ids;
    back.n_ids = ids->n_ids;
    Sluice__V1__DetokenizeResponse *decoded =
        (Sluice__V1__DetokenizeResponse *)must_call("Detokenize", &back.base);
    assert_string_equal(decoded->text, text);
    request.parse_special_tokens = true;
    Sluice__V1__TokenizeResponse *parsed =
        (Sluice__V1__TokenizeResponse *)must_call("Tokenize", &request.base);
    assert_true(parsed->n_ids < ids->n_ids);
    rpc_message_free(&ids->base);
    rpc_message_free(&parsed->base);
    rpc_message_free(&decoded->base);
}

static void test_apply_chat_template_when_messages_then_text_and_ids_agree(void **state)
{
    (void)state;
    char role[] = "user", content[] = "hi";
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    Sluice__V1__TokenizeRequest tokenize = SLUICE__V1__TOKENIZE_REQUEST__INIT;
    message.role = role;
    message.content = content;
    chat.messages = messages;
    chat.n_messages = 1;
    request.chat = &chat;
    Sluice__V1__ApplyChatTemplateResponse *reply =
        (Sluice__V1__ApplyChatTemplateResponse *)must_call("ApplyChatTemplate", &request.base);
    assert_non_null(strstr(reply->text, "hi"));
    tokenize.input_case = SLUICE__V1__TOKENIZE_REQUEST__INPUT_CHAT;
    tokenize.chat = &chat;
    Sluice__V1__TokenizeResponse *ids =
        (Sluice__V1__TokenizeResponse *)must_call("Tokenize", &tokenize.base);
    assert_int_equal(ids->n_ids, reply->n_ids);
    assert_memory_equal(ids->ids, reply->ids, ids->n_ids * sizeof(uint32_t));
    rpc_message_free(&reply->base);
    rpc_message_free(&ids->base);
}

static void test_status_when_ready_then_tells_who_and_what(void **state)
{
    (void)state;
    struct stat st;
    Sluice__Worker__V1__WorkerStatus *status = test_worker_status(&shared);
    assert_int_equal(status->state, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY);
    assert_string_equal(status->replica_id, "r1");
    assert_int_equal(status->pid, getpid());
    assert_int_equal(status->epoch, TEST_EPOCH);
    assert_true(status->start_ticks > 0);
    assert_int_equal(strlen(status->weights_digest), 64);
    assert_true(status->numerics_id[0] != '\0');
    assert_int_equal(status->n_memory, 1);
    assert_string_equal(status->memory[0]->device, "cpu:0");
    assert_true(status->memory[0]->weight_bytes > 0);
    assert_true(status->n_ranks == 1 && status->ranks[0]->bytes_done > 0);
    assert_int_equal(status->ranks[0]->bytes_done, status->ranks[0]->bytes_total);
    assert_non_null(status->info);
    assert_string_equal(status->info->architecture, "llama");
    assert_true(status->counters->n_accepted_requests > 0);
    assert_int_equal(status->counters->n_accepted_requests,
                     status->counters->n_ok_requests + status->counters->n_cancelled_requests +
                         status->counters->n_expired_requests +
                         status->counters->n_failed_requests);
    assert_int_equal(stat(shared.socket, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    rpc_message_free(&status->base);
}

/* --- endings --- */

/* The answer of a Drain that is waited for elsewhere. */
static _Atomic int drain_finished = -1;

static void on_drained(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)arg;
    drain_finished = status->status
                         ? -2
                         : (int)((const Sluice__Worker__V1__DrainResponse *)response)->n_finished;
}

static void test_drain_when_asked_then_running_finish_and_new_are_refused(void **state)
{
    (void)state;
    struct test_worker w;
    struct test_stream s;
    struct text_request r;
    Sluice__Worker__V1__DrainRequest drain = SLUICE__WORKER__V1__DRAIN_REQUEST__INIT;
    struct error err = {0};
    test_worker_start(&w, MODEL, NULL, true);
    test_stream_open(&s, &w, TEST_EPOCH);
    submit_held(&s, 1, "let it finish", 60);
    test_stream_wait_tokens(&s, 1, 1);
    assert_int_equal(rpc_client_unary_async(w.client, &sluice__worker__v1__worker__descriptor,
                                            "Drain", &drain.base, NULL, on_drained, NULL, &err),
                     0);
    for (int i = 0; i < 1000 && !s.draining; i++)
        usleep(10000);
    assert_true(s.draining);
    text_request_init(&r, "too late", 2);
    test_stream_submit(&s, 2, &r.request);
    struct answer *refused = test_stream_wait(&s, 2);
    assert_int_equal(refused->error.status, STATUS_UNAVAILABLE);
    assert_string_equal(refused->error.reason, "DRAINING");
    assert_int_equal(drain_finished, -1);
    send_credit(&s, 1);
    struct answer *a = test_stream_wait(&s, 1);
    assert_false(a->failed);
    assert_int_equal(a->n_ids, 60);
    for (int i = 0; i < 1000 && drain_finished == -1; i++)
        usleep(10000);
    assert_int_equal(drain_finished, 1);
    test_stream_close(&s);
    test_worker_stop(&w, 0);
}

static void test_shutdown_when_grace_is_over_then_running_end_and_a_report_is_left(void **state)
{
    (void)state;
    struct test_worker w;
    struct test_stream s;
    Sluice__Worker__V1__ShutdownRequest request = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    struct rpc_call_options options = {.timeout_ms = 30000};
    ProtobufCMessage *reply = NULL;
    struct error err = {0};
    test_worker_start(&w, MODEL, NULL, true);
    test_stream_open(&s, &w, TEST_EPOCH);
    submit_held(&s, 1, "it will be cut", 2000);
    test_stream_wait_tokens(&s, 1, 1);
    request.has_grace_ms = true;
    request.grace_ms = 1;
    assert_int_equal(rpc_client_unary(w.client, &sluice__worker__v1__worker__descriptor, "Shutdown",
                                      &request.base, &options, &reply, &err),
                     0);
    assert_int_equal(((Sluice__Worker__V1__ShutdownResponse *)reply)->n_ended, 1);
    rpc_message_free(reply);
    struct answer *a = test_stream_wait(&s, 1);
    assert_int_equal(a->error.status, STATUS_UNAVAILABLE);
    assert_string_equal(a->error.reason, "DRAINING");
    test_stream_wait_ended(&s);
    assert_int_equal(s.status.status, STATUS_UNAVAILABLE);
    test_stream_close(&s);
    test_worker_join(&w);
    assert_int_equal(w.status, 0);
    Sluice__Worker__V1__ExitReport *report = test_worker_exit_report(&w);
    assert_non_null(report);
    assert_int_equal(report->cause, SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_REQUESTED);
    assert_string_equal(report->replica_id, "r1");
    assert_int_equal(report->epoch, TEST_EPOCH);
    assert_int_equal(report->exit_status, 0);
    rpc_message_free(&report->base);
    assert_int_equal(access(w.socket, F_OK), -1);
    unlink(w.exit_report);
    rmdir(w.dir);
}

static void test_load_when_it_fails_then_status_report_and_exit_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *flags[3];
        int status;
        const char *reason;
    } rows[] = {
        {"README.md", {NULL}, STATUS_INVALID_ARGUMENT, "MODEL_FILE_INVALID"},
        {"tests/golden/tiny/absent.gguf", {NULL}, STATUS_NOT_FOUND, ""},
        {TINY, {"--digest", "00", NULL}, STATUS_FAILED_PRECONDITION, "MODEL_FILE_CHANGED"},
        {TINY, {"--pp", "2", NULL}, STATUS_UNIMPLEMENTED, ""},
        {TINY, {"--chat-template-file", "/nonexistent", NULL}, STATUS_NOT_FOUND, ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_worker w;
        test_worker_start(&w, rows[i].model, rows[i].flags, false);
        test_worker_join(&w);
        assert_int_equal(w.status, 1);
        Sluice__Worker__V1__ExitReport *report = test_worker_exit_report(&w);
        assert_non_null(report);
        assert_non_null(report->error);
        if (report->error->code != -rows[i].status ||
            strcmp(report->error->reason, rows[i].reason) != 0)
            fail_msg("row %zu: %d %s: %s", i, report->error->code, report->error->reason,
                     report->error->message);
        assert_int_equal(report->exit_status, 1);
        rpc_message_free(&report->base);
        unlink(w.exit_report);
        rmdir(w.dir);
    }
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV); /* before there are threads */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_when_good_then_every_part_of_the_answer_is_there),
        cmocka_unit_test(test_submit_when_many_at_once_then_each_answers_as_alone),
        cmocka_unit_test(test_submit_when_choices_then_each_finishes_and_one_receipt),
        cmocka_unit_test(test_resume_when_given_what_came_then_the_rest_follows),
        cmocka_unit_test(test_submit_when_bad_then_the_field_is_named_and_the_stream_lives),
        cmocka_unit_test(test_frame_when_no_memory_for_an_item_then_that_request_ends),
        cmocka_unit_test(test_submit_when_deadline_is_over_then_never_begun),
        cmocka_unit_test(test_serve_when_greeting_is_wrong_then_refused),
        cmocka_unit_test(test_cancel_when_anywhere_then_ended_and_kv_is_back),
        cmocka_unit_test(test_stream_when_it_ends_then_its_requests_end),
        cmocka_unit_test(test_credit_when_used_up_then_waits_for_more),
        cmocka_unit_test(test_heartbeat_when_nothing_moves_then_it_comes_as_promised),
        cmocka_unit_test(test_tokenize_when_decoded_then_the_text_is_back),
        cmocka_unit_test(test_apply_chat_template_when_messages_then_text_and_ids_agree),
        cmocka_unit_test(test_status_when_ready_then_tells_who_and_what),
        cmocka_unit_test(test_drain_when_asked_then_running_finish_and_new_are_refused),
        cmocka_unit_test(test_shutdown_when_grace_is_over_then_running_end_and_a_report_is_left),
        cmocka_unit_test(test_load_when_it_fails_then_status_report_and_exit_say_why),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}
