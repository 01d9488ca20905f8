#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/http/openai_error.h"
#include "clients/cli/http/openai_reply.h"
#include "tests/unit/base/support_cmocka.h"

#define N(rows) (sizeof(rows) / sizeof((rows)[0]))

static void test_answers_of_different_servers_are_read(void **state)
{
    static const struct {
        const char *json, *text, *reasoning, *finish;
    } rows[] = {
        {"{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"},"
         "\"finish_reason\":null}],\"usage\":null}",
         "Hi", "", ""},
        {"{\"choices\":[{\"text\":\" a\\u00e9\\n\",\"finish_reason\":\"length\"}]}", " a\xC3\xA9\n",
         "", "length"},
        {"{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"Hm\","
         "\"reasoning\":\"Hm\"}}]}",
         "", "Hm", ""},
        {"{\"choices\":[{\"delta\":{\"reasoning\":\"Hm\"}}]}", "", "Hm", ""},
        {"{\"choices\":[{\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"b\"}]},\"finish_reason\":\"stop\"}]}",
         "ab", "", "stop"},
        {"{\"choices\":[{\"delta\":{\"content\":\"one\"}},{\"delta\":{\"content\":\"two\"}}]}",
         "one", "", ""},
        {"{\"choices\":[]}", "", "", ""},
        {"{\"choices\":null,\"error\":null}", "", "", ""},
        {"{}", "", "", ""},
    };
    (void)state;
    struct openai_reply reply = {0};
    for (size_t i = 0; i < N(rows); i++) {
        struct error err;
        assert_int_equal(openai_reply_read(&reply, rows[i].json, strlen(rows[i].json), &err), 0);
        assert_string_equal(strbuf_str(&reply.text), rows[i].text);
        assert_string_equal(strbuf_str(&reply.reasoning), rows[i].reasoning);
        assert_string_equal(reply.finish, rows[i].finish);
        assert_false(reply.has_usage);
    }
    openai_reply_fini(&reply);
}

static void test_usage_and_timings_are_read(void **state)
{
    static const char json[] =
        "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":"
        "10,"
        "\"prompt_tokens_details\":{\"cached_tokens\":2}},\"timings\":{\"predicted_n\":4}}";
    struct openai_reply reply = {0};
    struct error err;
    (void)state;
    assert_int_equal(openai_reply_read(&reply, json, strlen(json), &err), 0);
    assert_true(reply.has_usage && reply.has_predicted && !reply.has_choice);
    assert_int_equal(reply.n_prompt, 7);
    assert_int_equal(reply.n_generated, 3);
    assert_int_equal(reply.n_cached, 2);
    assert_int_equal(reply.n_predicted, 4);
    openai_reply_fini(&reply);
}

static void test_what_is_no_answer_is_refused(void **state)
{
    static const char *const rows[] = {"",
                                       "[DONE]",
                                       "{",
                                       "[]",
                                       "\"x\"",
                                       "<html>",
                                       "{\"choices\":[",
                                       "{\"choices\":[{\"delta\":{\"content\":\"\xFF\"}}]}",
                                       "{} x"};
    struct openai_reply reply = {0};
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct error err;
        if (openai_reply_read(&reply, rows[i], strlen(rows[i]), &err) != STATUS_DATA_LOSS)
            fail_msg("accepted: %s", rows[i]);
    }
    char deep[4000] = "{\"choices\":";
    memset(deep + strlen(deep), '[', 3000);
    struct error err;
    assert_int_equal(openai_reply_read(&reply, deep, strlen(deep), &err), STATUS_DATA_LOSS);
    openai_reply_fini(&reply);
}

static void test_errors_within_a_stream_are_errors(void **state)
{
    static const struct {
        const char *json;
        int status;
        enum reason reason;
        const char *part;
    } rows[] = {
        {"{\"error\":{\"message\":\"no room\",\"type\":\"server_error\",\"code\":null}}",
         STATUS_INTERNAL, REASON_NONE, "no room"},
        {"{\"error\":{\"message\":\"full\",\"code\":503}}", STATUS_UNAVAILABLE, REASON_NONE,
         "full"},
        {"{\"error\":\"broken\"}", STATUS_INTERNAL, REASON_NONE, "broken"},
        {"{\"error\":{\"message\":\"m\",\"code\":\"queue_full\"}}", STATUS_INTERNAL,
         REASON_QUEUE_FULL, "m"},
    };
    struct openai_reply reply = {0};
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct error err = {0};
        assert_int_equal(openai_reply_read(&reply, rows[i].json, strlen(rows[i].json), &err),
                         rows[i].status);
        assert_int_equal(err.reason, rows[i].reason);
        assert_non_null(strstr(err.message, rows[i].part));
    }
    openai_reply_fini(&reply);
}

static void test_a_refusal_becomes_a_status(void **state)
{
    static const struct {
        unsigned http;
        const char *body;
        int status;
        enum reason reason;
        const char *field, *part;
    } rows[] = {
        {400, "{\"error\":{\"message\":\"no\",\"param\":\"top_p\",\"code\":null}}",
         STATUS_INVALID_ARGUMENT, REASON_NONE, "top_p", "no"},
        {400, "{\"error\":{\"message\":\"x\",\"code\":\"context_length_exceeded\"}}",
         STATUS_INVALID_ARGUMENT, REASON_CONTEXT_TOO_LONG, "", "x"},
        {400, "{\"error\":{\"code\":400,\"message\":\"y\",\"type\":\"exceed_context_size_error\"}}",
         STATUS_INVALID_ARGUMENT, REASON_CONTEXT_TOO_LONG, "", "y"},
        {401, "{\"error\":{\"message\":\"k\",\"code\":\"api_key_missing\"}}",
         STATUS_UNAUTHENTICATED, REASON_API_KEY_MISSING, "", "k"},
        {404, "{\"detail\":\"Not Found\"}", STATUS_NOT_FOUND, REASON_NONE, "", "Not Found"},
        /* Symptom: the port of --metrics refused the path in plain text, and the error had none. */
        {404, "404 nothing at /v1\n", STATUS_NOT_FOUND, REASON_NONE, "", "nothing at /v1"},
        {422, "{\"detail\":[{\"msg\":\"m\"}]}", STATUS_INVALID_ARGUMENT, REASON_NONE, "", "422"},
        {429, "", STATUS_RESOURCE_EXHAUSTED, REASON_NONE, "", "429"},
        {500, "<html>oops</html>", STATUS_INTERNAL, REASON_NONE, "", "500"},
        {502, "{\"message\":\"bad gateway\"}", STATUS_UNAVAILABLE, REASON_NONE, "", "bad gateway"},
        {503, "\xFF\xFE", STATUS_UNAVAILABLE, REASON_NONE, "", "503"},
        {418, "{}", STATUS_INVALID_ARGUMENT, REASON_NONE, "", "418"},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct error err = {0};
        openai_error_of_response(rows[i].http, "", rows[i].body, strlen(rows[i].body), &err);
        assert_int_equal(err.status, rows[i].status);
        assert_int_equal(err.reason, rows[i].reason);
        assert_string_equal(err.field, rows[i].field);
        assert_non_null(strstr(err.message, rows[i].part));
    }
    struct error err = {0};
    openai_error_of_response(307, "https://h/v1", "", 0, &err);
    assert_int_equal(err.status, STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "https://h/v1"));
}

static void test_models_are_listed(void **state)
{
    static const char json[] = "{\"object\":\"list\",\"data\":[{\"id\":\"a/"
                               "b\",\"max_model_len\":4096,\"owned_by\":\"vllm\"},"
                               "{\"id\":\"c:2\",\"meta\":{\"n_vocab\":49152,\"n_ctx_train\":2048},"
                               "\"owned_by\":\"llamacpp\"}]}";
    struct openai_model model;
    struct strbuf names = {0};
    struct error err;
    size_t n;
    (void)state;
    assert_int_equal(openai_reply_read_models(json, strlen(json), NULL, &model, &n, &names, &err),
                     0);
    assert_int_equal(n, 2);
    assert_string_equal(model.id, "a/b");
    assert_int_equal(model.n_context, 4096);
    assert_string_equal(strbuf_str(&names), "a/b, c:2");
    assert_int_equal(openai_reply_read_models(json, strlen(json), "c:2", &model, &n, &names, &err),
                     0);
    assert_int_equal(model.n_vocab, 49152);
    assert_int_equal(model.n_context, 2048);
    assert_string_equal(model.owned_by, "llamacpp");
    assert_int_equal(
        openai_reply_read_models(json, strlen(json), "absent", &model, &n, &names, &err), 0);
    assert_string_equal(model.id, "");
    assert_int_equal(openai_reply_read_models("{}", 2, NULL, &model, &n, &names, &err),
                     STATUS_DATA_LOSS);
    assert_int_equal(openai_reply_read_models("{\"data\":[]}", 11, NULL, &model, &n, &names, &err),
                     0);
    assert_int_equal(n, 0);
    strbuf_fini(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_of_different_servers_are_read),
        cmocka_unit_test(test_usage_and_timings_are_read),
        cmocka_unit_test(test_what_is_no_answer_is_refused),
        cmocka_unit_test(test_errors_within_a_stream_are_errors),
        cmocka_unit_test(test_a_refusal_becomes_a_status),
        cmocka_unit_test(test_models_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
