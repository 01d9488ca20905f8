/* Tests of one replica over its socket: requests alone and together, changes while they run, and
 * the other RPCs. */
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
    enum { N = 12 };
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
        /* The resume named no released text, so the worker sends all text again. */
        assert_string_equal(strbuf_str(&rest->text), strbuf_str(&whole->text));
        assert_int_equal(rest->n_released, 20);
    }
    test_stream_close(&s);
}

/* --- changes while it runs --- */

static void test_cancel_when_anywhere_then_ended_and_kv_is_back(void **state)
{
    (void)state;
    static struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    for (uint64_t i = 0; i < 60; i++) {
        test_stream_submit_held(&s, i, "a long one to be cancelled", 1000);
        if (i % 3 == 1)
            test_stream_wait_tokens(&s, i, 1);
        test_stream_cancel(&s, i);
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

#ifdef __SANITIZE_THREAD__ /* a step takes ten times as long there */
enum { STILL_US = 1600000 };
#else
enum { STILL_US = 200000 };
#endif

static void test_credit_when_used_up_then_waits_for_more(void **state)
{
    (void)state;
    struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    test_stream_submit_held(&s, 1, "in small pieces", 60);
    test_stream_wait_tokens(&s, 1, 4);
    usleep(STILL_US); /* until tokens on their way have arrived */
    uint32_t held_at = s.answers[1].n_ids;
    usleep(STILL_US);
    assert_int_equal(s.answers[1].n_ids, held_at); /* the request waits for credit */
    assert_true(held_at < 60);
    test_stream_credit(&s, 1, 100000);
    assert_int_equal(test_stream_wait(&s, 1)->n_ids, 60);
    test_stream_close(&s);
}

/* A missing heartbeat counts as a stall. So heartbeats come while the worker is idle, and while all
 * its requests wait for credit. */
static void test_heartbeat_when_nothing_moves_then_it_comes_as_promised(void **state)
{
    (void)state;
    struct test_stream s;
    test_stream_open(&s, &shared, TEST_EPOCH);
    assert_int_equal(s.heartbeat_ms, 1000);
    int64_t begin_ns = clock_now_ns();
    test_stream_wait_heartbeats(&s, 3);
    assert_true(clock_now_ns() - begin_ns < 8 * NS_PER_S);
    assert_int_equal(s.n_ready, 0);
    test_stream_submit_held(&s, 1, "in small pieces", 60);
    test_stream_wait_tokens(&s, 1, 4);
    usleep(100000); /* the request waits for credit by now */
    uint32_t n_before = s.n_heartbeats;
    begin_ns = clock_now_ns();
    test_stream_wait_heartbeats(&s, n_before + 5);
    assert_true(clock_now_ns() - begin_ns < 4 * NS_PER_S);
    assert_int_equal(s.n_ready, 0); /* a held request is not stuck */
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

#define TURN(content) "{% for m in messages %}<{{ m.role }}>{{ " content " }}<|im_end|>{% endfor %}"

/* Symptom: the last occurrence of the message's text was taken for the end of the content. The
 * occurrence could be the template's own text. Without any, the cut came a byte too early. */
static void test_apply_chat_template_when_continued_then_cut_after_the_content(void **state)
{
    (void)state;
    static const struct {
        const char *template, *content, *text;
    } rows[] = {
        {TURN("m.content"), "Sure, ", "<assistant>Sure, "},
        {TURN("m.content"), "m", "<assistant>m"},
        {TURN("m.content"), "", "<assistant>"},
        {TURN("m.content"), "\n", "<assistant>\n"},
        {TURN("m.content|trim"), " yes \n", "<assistant>yes"},
        {TURN("'\n' ~ m.content|trim"), " \n", "<assistant>"},
        {TURN("m.content ~ m.content"), "ab", "<assistant>abab"},
    };
    char role[] = "assistant";
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    message.role = role;
    chat.messages = messages;
    chat.n_messages = 1;
    chat.continue_final_message = true;
    request.chat = &chat;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        message.content = (char *)(uintptr_t)rows[i].content;
        chat.template_override = (char *)(uintptr_t)rows[i].template;
        Sluice__V1__ApplyChatTemplateResponse *reply =
            (Sluice__V1__ApplyChatTemplateResponse *)must_call("ApplyChatTemplate", &request.base);
        assert_string_equal(reply->text, rows[i].text);
        rpc_message_free(&reply->base);
    }
}

/* The text was cut at a NUL that a variable brought; tools with an integer over 64 bits or a
 * \\u0000 were refused. */
static void
test_apply_chat_template_when_json_holds_nuls_and_large_numbers_then_as_python(void **state)
{
    (void)state;
    char role[] = "user", content[] = "hi", variables[] = "{\"x\": \"a\\u0000b\"}";
    char template[] = "{{ x }}END{{ tools|tojson }}{{ messages[0].tool_calls|tojson }}{{ "
                      "messages[0].tool_call_id }}";
    char tool[] = "{\"max\": 18446744073709551616, \"n\\u0000\": \"\\u0000\"}";
    char calls[] = "[123456789012345678901234567890]", call_id[] = "a\"b\\c\n";
    char *tools[1] = {tool};
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    message.role = role;
    message.content = content;
    message.tool_calls_json = calls;
    message.tool_call_id = call_id;
    chat.messages = messages;
    chat.n_messages = 1;
    chat.tools_json = tools;
    chat.n_tools_json = 1;
    chat.template_variables_json = variables;
    chat.template_override = template;
    request.chat = &chat;
    Sluice__V1__ApplyChatTemplateResponse *reply =
        (Sluice__V1__ApplyChatTemplateResponse *)must_call("ApplyChatTemplate", &request.base);
    assert_string_equal(reply->text,
                        "a\x1A"
                        "bEND[{\"max\": 18446744073709551616, \"n\\u0000\": \"\\u0000\"}]"
                        "[123456789012345678901234567890]a\"b\\c\n");
    rpc_message_free(&reply->base);
}

/* Fields that exclude each other, and names that the model lacks. */
static void test_apply_chat_template_when_fields_conflict_then_the_field_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *template, *override, *continue_field, *field;
        bool continued, prompted;
    } rows[] = {
        {"rag", "", "", "chat.template", false, false},
        {"default", "{{ 1 }}", "", "chat.template", false, false},
        {"", "", "content", "chat.continue_field", false, false},
        {"", "", "role", "chat.continue_field", true, false},
        {"", "", "reasoning_content", "chat.continue_final_message", true, false},
        {"", "", "", "chat.add_generation_prompt", true, true},
    };
    char role[] = "assistant", content[] = "Sure";
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    struct rpc_call_options options = {.timeout_ms = 20000};
    message.role = role;
    message.content = content;
    chat.messages = messages;
    chat.n_messages = 1;
    request.chat = &chat;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        ProtobufCMessage *reply = NULL;
        struct error err = {0};
        chat.template_ = (char *)(uintptr_t)rows[i].template;
        chat.template_override = (char *)(uintptr_t)rows[i].override;
        chat.continue_field = (char *)(uintptr_t)rows[i].continue_field;
        chat.continue_final_message = rows[i].continued;
        chat.has_add_generation_prompt = chat.add_generation_prompt = rows[i].prompted;
        assert_int_equal(rpc_client_unary(shared.client, &sluice__worker__v1__worker__descriptor,
                                          "ApplyChatTemplate", &request.base, &options, &reply,
                                          &err),
                         STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, rows[i].field);
    }
}

/* A client of OpenAI's form gives arguments as a string, others give an object. */
static void
test_apply_chat_template_when_arguments_are_text_then_as_the_template_reads(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]",
        "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]"};
    static const struct {
        const char *template, *text;
    } rows[] = {
#define EACH_CALL(text)                                                                            \
    "{% for m in messages %}{% for c in m.tool_calls %}" text "{% endfor %}{% endfor %}"
        {EACH_CALL("{{ c.function.arguments|tojson }}"), "{\"x\": 1}"},
        {EACH_CALL("{{ 'a' + c.function.arguments }}"), "a{\"x\": 1}"},
        {EACH_CALL("{% if m.content is none %}{{ c.function.arguments }}{% endif %}"),
         "{\"x\": 1}"},
    };
    char role[] = "assistant";
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    message.role = role;
    chat.messages = messages;
    chat.n_messages = 1;
    request.chat = &chat;
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        message.tool_calls_json = (char *)(uintptr_t)calls[i % 2];
        chat.template_override = (char *)(uintptr_t)rows[i / 2].template;
        Sluice__V1__ApplyChatTemplateResponse *reply =
            (Sluice__V1__ApplyChatTemplateResponse *)must_call("ApplyChatTemplate", &request.base);
        assert_string_equal(reply->text, rows[i / 2].text);
        rpc_message_free(&reply->base);
    }
}

/* Symptom: the search for the text took time quadratic in its length, half an hour of a request
 * thread. */
static void test_apply_chat_template_when_what_continues_is_not_there_then_told(void **state)
{
    enum { N = 400000 };
    (void)state;
    char role[] = "assistant", template[] = "{{ 'a' * 4000000 }}", *content = malloc(N + 1);
    Sluice__V1__ApplyChatTemplateRequest request = SLUICE__V1__APPLY_CHAT_TEMPLATE_REQUEST__INIT;
    Sluice__V1__Chat chat = SLUICE__V1__CHAT__INIT;
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT;
    Sluice__V1__ChatMessage *messages[1] = {&message};
    struct rpc_call_options options = {.timeout_ms = 20000};
    ProtobufCMessage *reply = NULL;
    struct error err = {0};
    assert_non_null(content);
    memset(content, 'a', N);
    memcpy(content + N - 1, "b", 2);
    message.role = role;
    message.content = content;
    chat.messages = messages;
    chat.n_messages = 1;
    chat.continue_final_message = true;
    chat.template_override = template;
    request.chat = &chat;
    assert_int_equal(rpc_client_unary(shared.client, &sluice__worker__v1__worker__descriptor,
                                      "ApplyChatTemplate", &request.base, &options, &reply, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "chat.continue_final_message");
    free(content);
}

/* Returns the number of accepted requests that have no counted outcome yet. */
static uint64_t requests_without_an_outcome(void)
{
    Sluice__Worker__V1__WorkerStatus *status = test_worker_status(&shared);
    const Sluice__Worker__V1__WorkerCounters *c = status->counters;
    uint64_t n = c->n_accepted_requests - c->n_ok_requests - c->n_cancelled_requests -
                 c->n_expired_requests - c->n_failed_requests;
    rpc_message_free(&status->base);
    return n;
}

/* A stream whose end cancels its requests may end before these requests. In the end, each accepted
 * request has one counted outcome. */
static void test_status_when_at_rest_then_each_accepted_has_an_outcome(void **state)
{
    (void)state;
    int64_t deadline_ns = clock_now_ns() + 10 * NS_PER_S;
    while (requests_without_an_outcome() != 0 && clock_now_ns() < deadline_ns)
        usleep(1000);
    assert_int_equal(requests_without_an_outcome(), 0);
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
    assert_int_equal(stat(shared.socket, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    rpc_message_free(&status->base);
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR, LOG_FORMAT_KV); /* before other threads exist */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit_when_good_then_every_part_of_the_answer_is_there),
        cmocka_unit_test(test_submit_when_many_at_once_then_each_answers_as_alone),
        cmocka_unit_test(test_submit_when_choices_then_each_finishes_and_one_receipt),
        cmocka_unit_test(test_resume_when_given_what_came_then_the_rest_follows),
        cmocka_unit_test(test_cancel_when_anywhere_then_ended_and_kv_is_back),
        cmocka_unit_test(test_stream_when_it_ends_then_its_requests_end),
        cmocka_unit_test(test_credit_when_used_up_then_waits_for_more),
        cmocka_unit_test(test_heartbeat_when_nothing_moves_then_it_comes_as_promised),
        cmocka_unit_test(test_tokenize_when_decoded_then_the_text_is_back),
        cmocka_unit_test(test_apply_chat_template_when_messages_then_text_and_ids_agree),
        cmocka_unit_test(test_apply_chat_template_when_continued_then_cut_after_the_content),
        cmocka_unit_test(
            test_apply_chat_template_when_json_holds_nuls_and_large_numbers_then_as_python),
        cmocka_unit_test(test_apply_chat_template_when_fields_conflict_then_the_field_is_named),
        cmocka_unit_test(
            test_apply_chat_template_when_arguments_are_text_then_as_the_template_reads),
        cmocka_unit_test(test_apply_chat_template_when_what_continues_is_not_there_then_told),
        cmocka_unit_test(test_status_when_ready_then_tells_who_and_what),
        cmocka_unit_test(test_status_when_at_rest_then_each_accepted_has_an_outcome),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}
