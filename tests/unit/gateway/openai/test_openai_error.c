/* Tests of openai_error.h and http_error.h: the names of fields, codes, statuses and headers. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "proto/http/http_exchange.h"
#include "server/gateway/base/error_names.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/openai/openai_error.h"
#include "tests/unit/base/support_cmocka.h"

static void test_fields_are_named_as_in_the_body(void **state)
{
    (void)state;
    static const struct {
        bool is_chat;
        const char *field, *name;
    } rows[] = {
        {true, "sampling.top_p", "top_p"},
        {true, "stopping.stop[1]", "stop[1]"},
        {true, "stopping.include_stop", "include_stop_str_in_output"},
        {true, "output.top_n", "top_logprobs"},
        {false, "output.top_n", "logprobs"},
        {true, "output.truncate", "truncate_prompt_tokens"},
        {true, "chat.messages[0].role", "messages[0].role"},
        {true, "chat.messages[2].tool_calls_json", "messages[2].tool_calls"},
        {true, "chat.tools_json[0]", "tools[0]"},
        {true, "chat.template_variables_json", "chat_template_kwargs"},
        {false, "token_ids.ids[3]", "prompt[3]"},
        {false, "prompt", "prompt"},
        {true, "prompt", "messages"},
        {false, "suffix", "suffix"},
        {true, "model", "model"},
        {false, "output.return_full_text", "echo"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        char text[ERROR_FIELD_BYTES + 16];
        error_field(&err, rows[i].field, "is wrong");
        openai_error_name_field(&err, rows[i].is_chat);
        snprintf(text, sizeof(text), "%s: is wrong", rows[i].name);
        assert_string_equal(err.field, rows[i].name);
        assert_string_equal(err.message, text);
    }
}

/* Symptom: the limit of prompt_logprobs was named top_logprobs. */
static void test_an_error_can_be_renamed(void **state)
{
    (void)state;
    struct error err;
    error_field(&err, "output.top_n", "is wrong");
    error_names_set(&err, "prompt_logprobs");
    openai_error_name_field(&err, true);
    assert_string_equal(err.field, "prompt_logprobs");
    assert_string_equal(err.message, "prompt_logprobs: is wrong");
}

/* Client libraries repeat requests by status; a header tells them where that is of no use. */
static void test_statuses_codes_and_headers(void **state)
{
    (void)state;
    static const struct {
        int status;
        enum reason reason;
        uint32_t retry_ms;
        unsigned http;
        const char *code, *header; /* NULL: no header */
    } rows[] = {
        {STATUS_INVALID_ARGUMENT, REASON_CONTEXT_TOO_LONG, 0, 400,
         "\"code\":\"context_length_exceeded\"", NULL},
        {STATUS_NOT_FOUND, REASON_MODEL_NOT_FOUND, 0, 404,
         "\"param\":\"model\",\"code\":\"model_not_found\"", NULL},
        {STATUS_NOT_FOUND, REASON_VERSION_NOT_FOUND, 0, 404,
         "\"param\":\"model\",\"code\":\"model_not_found\"", NULL},
        {STATUS_UNIMPLEMENTED, REASON_FIELD_NOT_BUILT, 0, 400, "\"code\":\"field_not_built\"",
         NULL},
        {STATUS_ALREADY_EXISTS, REASON_NONE, 0, 400, "\"code\":null", NULL},
        {STATUS_UNAUTHENTICATED, REASON_API_KEY_MISSING, 0, 401, "\"code\":\"api_key_missing\"",
         "WWW-Authenticate: Bearer\r\n"},
        {STATUS_RESOURCE_EXHAUSTED, REASON_QUEUE_FULL, 1500, 429, "\"code\":\"queue_full\"",
         "Retry-After: 2\r\nRetry-After-Ms: 1500\r\nX-Should-Retry: true\r\n"},
        /* Symptom: a chat that breaks a limit of its template was 429, as if clients were many. */
        {STATUS_RESOURCE_EXHAUSTED, REASON_TEMPLATE_LIMIT, 0, 400,
         "\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"template_limit\"", NULL},
        {STATUS_UNAVAILABLE, REASON_NO_REPLICA_READY, 0, 503, "\"code\":\"no_replica_ready\"",
         "Retry-After: 1\r\nRetry-After-Ms: 1000\r\nX-Should-Retry: true\r\n"},
        {STATUS_INTERNAL, REASON_NONE, 0, 500, "\"type\":\"server_error\"", NULL},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        struct http_reply reply = {.status = 0};
        char headers[HTTP_ERROR_HEADER_BYTES];
        error_set(&err, rows[i].status, "text");
        error_reason(&err, rows[i].reason);
        err.retry_after_ms = rows[i].retry_ms;
        openai_error_reply(&err, true, headers, &reply);
        assert_int_equal(reply.status, rows[i].http);
        assert_non_null(strstr(strbuf_str(&reply.body), rows[i].code));
        assert_string_equal(headers, rows[i].header ? rows[i].header : "");
        strbuf_fini(&reply.body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_are_named_as_in_the_body),
        cmocka_unit_test(test_an_error_can_be_renamed),
        cmocka_unit_test(test_statuses_codes_and_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
