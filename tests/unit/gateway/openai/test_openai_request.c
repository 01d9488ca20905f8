/* Tests of openai_request.h: which bodies are read, and which field an error names. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/openai/openai_request.h"
#include "tests/unit/base/support_cmocka.h"

#define CHAT     "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define PROMPT   "\"model\":\"m\",\"prompt\":\"hi\""
#define TEXTS(x) "\"model\":\"m\",\"prompt\":" x

static int read_body(struct openai_request *request, bool is_chat, const char *body,
                     struct error *err)
{
    error_clear(err);
    return openai_request_read(request, is_chat, false, body, strlen(body), err);
}

/* Each row: a body, and the status and the field of its error. */
static const struct bad_body {
    bool is_chat;
    const char *body;
    int status;
    const char *field;
} bad_bodies[] = {
    {true, "", STATUS_INVALID_ARGUMENT, ""},
    {true, "[]", STATUS_INVALID_ARGUMENT, ""},
    {true, "{" CHAT, STATUS_INVALID_ARGUMENT, ""},
    {true, "{" CHAT "} x", STATUS_INVALID_ARGUMENT, ""},
    {true, "{\"messages\":[]}", STATUS_INVALID_ARGUMENT, "messages"},
    {true, "{\"model\":\"m\"}", STATUS_INVALID_ARGUMENT, "messages"},
    {true, "{\"model\":\"m\",\"messages\":[]}", STATUS_INVALID_ARGUMENT, "messages"},
    {true, "{\"model\":\"m\",\"messages\":\"hi\"}", STATUS_INVALID_ARGUMENT, "messages"},
    {true, "{\"model\":\"m\",\"messages\":[1]}", STATUS_INVALID_ARGUMENT, "messages[0]"},
    {true, "{\"model\":\"m\",\"messages\":[{\"content\":\"a\"}]}", STATUS_INVALID_ARGUMENT,
     "messages[0].role"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":3}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
     "\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content[1]"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content[0]"},
    {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].tool_calls"},
    {true, "{" CHAT ",\"tools\":{}}", STATUS_INVALID_ARGUMENT, "tools"},
    {true, "{" CHAT ",\"tools\":[3]}", STATUS_INVALID_ARGUMENT, "tools[0]"},
    {true, "{" CHAT ",\"tool_choice\":\"required\"}", STATUS_UNIMPLEMENTED, "tool_choice"},
    {true, "{" CHAT ",\"tool_choice\":{\"type\":\"function\"}}", STATUS_UNIMPLEMENTED,
     "tool_choice"},
    {true, "{" CHAT ",\"response_format\":{\"type\":\"json_object\"}}", STATUS_UNIMPLEMENTED,
     "response_format"},
    {true, "{" CHAT ",\"response_format\":{}}", STATUS_INVALID_ARGUMENT, "response_format.type"},
    {true, "{" CHAT ",\"temperature\":\"1\"}", STATUS_INVALID_ARGUMENT, "temperature"},
    {true, "{" CHAT ",\"max_tokens\":-1}", STATUS_INVALID_ARGUMENT, "max_tokens"},
    {true, "{" CHAT ",\"max_tokens\":1.5}", STATUS_INVALID_ARGUMENT, "max_tokens"},
    {true, "{" CHAT ",\"n\":4294967296}", STATUS_INVALID_ARGUMENT, "n"},
    {true, "{" CHAT ",\"stop\":[\"a\",3]}", STATUS_INVALID_ARGUMENT, "stop"},
    {true, "{" CHAT ",\"stop\":\"a\\u0000b\"}", STATUS_INVALID_ARGUMENT, "stop"},
    {true, "{" CHAT ",\"seed\":1.5}", STATUS_INVALID_ARGUMENT, "seed"},
    {true, "{" CHAT ",\"logit_bias\":{\"x\":1}}", STATUS_INVALID_ARGUMENT, "logit_bias"},
    {true, "{" CHAT ",\"logit_bias\":{\"4294967296\":1}}", STATUS_INVALID_ARGUMENT, "logit_bias"},
    {true, "{" CHAT ",\"logprobs\":3}", STATUS_INVALID_ARGUMENT, "logprobs"},
    {true, "{" CHAT ",\"top_logprobs\":3}", STATUS_INVALID_ARGUMENT, "top_logprobs"},
    {true, "{" CHAT ",\"stream_options\":{\"include_usage\":true}}", STATUS_INVALID_ARGUMENT,
     "stream_options"},
    {true, "{" CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
     STATUS_INVALID_ARGUMENT, "stream_options.include_usage"},
    {true, "{" CHAT ",\"chat_template_kwargs\":[]}", STATUS_INVALID_ARGUMENT,
     "chat_template_kwargs"},
    {true, "{" CHAT ",\"modalities\":[\"text\",\"audio\"]}", STATUS_UNIMPLEMENTED, "modalities"},
    {true, "{" CHAT ",\"audio\":{\"voice\":\"x\"}}", STATUS_UNIMPLEMENTED, "audio"},
    {true, "{" CHAT ",\"web_search_options\":{\"a\":1}}", STATUS_UNIMPLEMENTED,
     "web_search_options"},
    {true, "{" CHAT ",\"prediction\":{\"type\":\"content\"}}", STATUS_UNIMPLEMENTED, "prediction"},
    {true, "{" CHAT ",\"structured_outputs\":{\"regex\":\"a\"}}", STATUS_UNIMPLEMENTED,
     "structured_outputs"},
    {true, "{" CHAT ",\"mirostat\":2}", STATUS_UNIMPLEMENTED, "mirostat"},
    {true, "{" CHAT ",\"add_special_tokens\":true}", STATUS_UNIMPLEMENTED, "add_special_tokens"},
    {true, "{" CHAT ",\"prompt_logprobs\":1,\"stream\":true}", STATUS_INVALID_ARGUMENT,
     "prompt_logprobs"},
    {false, "{\"model\":\"m\"}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("[]") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("3") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("[true]") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("[1,\"a\"]") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("[[1],2]") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" TEXTS("[-1]") "}", STATUS_INVALID_ARGUMENT, "prompt"},
    {false, "{" PROMPT ",\"echo\":1}", STATUS_INVALID_ARGUMENT, "echo"},
    {false, "{" PROMPT ",\"use_beam_search\":true}", STATUS_UNIMPLEMENTED, "use_beam_search"},
    /* Symptom: the last of two values won, and the other was dropped without a word. */
    {true, "{" CHAT ",\"max_tokens\":5,\"max_completion_tokens\":6}", STATUS_INVALID_ARGUMENT,
     "max_completion_tokens"},
    {true, "{" CHAT ",\"temperature\":1,\"top_p\":1,\"temperature\":0}", STATUS_INVALID_ARGUMENT,
     "temperature"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"role\":\"tool\"}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].role"},
    {true,
     "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"b\","
     "\"reasoning_content\":\"c\"}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].reasoning_content"},
    /* Symptom: the last of two values won, also in the objects of a body. */
    {true, "{" CHAT ",\"max_tokens\":null,\"max_tokens\":3}", STATUS_INVALID_ARGUMENT,
     "max_tokens"},
    {true, "{" CHAT ",\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}",
     STATUS_INVALID_ARGUMENT, "messages"},
    {true, "{" CHAT ",\"max_completion_tokens\":6,\"max_tokens\":5}", STATUS_INVALID_ARGUMENT,
     "max_tokens"},
    {true,
     "{" CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
     "\"include_usage\":false}}",
     STATUS_INVALID_ARGUMENT, "stream_options.include_usage"},
    {true, "{" CHAT ",\"separate_reasoning\":false,\"reasoning_format\":\"auto\"}",
     STATUS_INVALID_ARGUMENT, "reasoning_format"},
    {true, "{" CHAT ",\"response_format\":{\"type\":\"json_object\",\"type\":\"text\"}}",
     STATUS_INVALID_ARGUMENT, "response_format.type"},
    {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"content\":\"a\"}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content"},
    {true, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[],\"tool_calls\":[{}]}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].tool_calls"},
    {true,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"text\",\"text\":\"b\",\"text\":\"c\"}]}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content[1].text"},
    {true,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
     "\"refusal\":\"b\"}]}]}",
     STATUS_INVALID_ARGUMENT, "messages[0].content[0].refusal"},
    /* Symptom: parse_special was dropped where it has no effect. */
    {false, "{" PROMPT ",\"suffix\":\"b\",\"parse_special\":true}", STATUS_INVALID_ARGUMENT,
     "parse_special"},
    {false, "{" TEXTS("[[1]]") ",\"parse_special\":true}", STATUS_INVALID_ARGUMENT,
     "parse_special"},
    {true, "{" CHAT ",\"prompt_logprobs\":1,\"top_logprobs\":1}", STATUS_INVALID_ARGUMENT,
     "top_logprobs"},
};

static void test_bad_bodies_name_their_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_bodies) / sizeof(bad_bodies[0]); i++) {
        const struct bad_body *row = &bad_bodies[i];
        struct openai_request request;
        struct error err;
        int rc = read_body(&request, row->is_chat, row->body, &err);
        if (rc != row->status || strcmp(err.field, row->field) != 0)
            print_error("%s: %d %s\n", row->body, rc, err.message);
        assert_int_equal(rc, row->status);
        assert_string_equal(err.field, row->field);
        /* Symptom: the error of a body told the client to get another copy of the file. */
        assert_null(strstr(err.message, "file"));
        openai_request_fini(&request);
    }
}

static void test_every_prefix_of_a_body_is_refused(void **state)
{
    (void)state;
    static const char body[] =
        "{" CHAT ",\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"5\":-1e2},\"n\":2}";
    for (size_t n = 0; n < sizeof(body) - 1; n++) {
        struct openai_request request;
        struct error err;
        error_clear(&err);
        int rc = openai_request_read(&request, true, false, body, n, &err);
        assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
        openai_request_fini(&request);
    }
}

/* Contents of a message that must be read, and the text that the template gets. */
static void test_content_may_be_null_a_text_or_parts(void **state)
{
    (void)state;
    static const struct {
        const char *member, *text;
    } rows[] = {
        {"", ""},
        {",\"content\":null", ""},
        {",\"content\":\"\"", ""},
        {",\"content\":\"a\\u00e9\"", "a\xc3\xa9"},
        {",\"content\":[]", ""},
        {",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"text\":\"b\",\"type\":\"text\"}]",
         "ab"},
        {",\"content\":[{\"type\":\"input_text\",\"text\":\"a\",\"extra\":[1]}]", "a"},
        {",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]", "no"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char body[512];
        struct openai_request request;
        struct error err;
        snprintf(body, sizeof(body), "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\"%s}]}",
                 rows[i].member);
        assert_int_equal(read_body(&request, true, body, &err), 0);
        assert_string_equal(request.chat.messages[0]->content, rows[i].text);
        openai_request_fini(&request);
    }
}

static void test_messages_keep_what_templates_read(void **state)
{
    (void)state;
    static const char body[] =
        "{\"model\":\"m:2\",\"messages\":["
        "{\"role\":\"developer\",\"content\":\"d\"},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"refusal\":null,"
        "\"annotations\":[],\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"name\":\"f\",\"content\":\"1\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
        "\"tool_choice\":\"auto\",\"parallel_tool_calls\":true,\"reasoning_effort\":\"low\","
        "\"chat_template_kwargs\":{\"x\":1}}";
    struct openai_request request;
    struct error err;
    assert_int_equal(read_body(&request, true, body, &err), 0);
    openai_request_set_model(&request, &(struct model_name){.model = "m", .version = "2"});
    assert_string_equal(request.request.model, "m");
    assert_string_equal(request.request.version, "2");
    assert_string_equal(request.model_name, "m:2");
    assert_int_equal(request.chat.n_messages, 3);
    assert_string_equal(request.chat.messages[0]->role, "system");
    assert_string_equal(request.chat.messages[1]->reasoning_content, "r");
    assert_string_equal(request.chat.messages[1]->tool_calls_json,
                        "[{\"id\":\"c\",\"type\":\"function\",\"function\":"
                        "{\"name\":\"f\",\"arguments\":\"{}\"}}]");
    assert_string_equal(request.chat.messages[2]->tool_call_id, "c");
    assert_string_equal(request.chat.tools_json[0],
                        "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}");
    assert_string_equal(request.chat.template_variables_json,
                        "{\"reasoning_effort\":\"low\",\"x\":1}");
    assert_string_equal(strbuf_str(&request.ignored), "messages[].annotations");
    openai_request_fini(&request);
}

static void test_fields_reach_the_proto(void **state)
{
    (void)state;
    static const char body[] =
        "{" CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true},\"max_completion_tokens\":7,\"temperature\":0.5,"
        "\"top_p\":0.25,\"top_k\":-1,\"min_p\":0.125,\"n\":2,\"best_of\":3,\"seed\":-1,"
        "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
        "\"logit_bias\":{\"5\":-100,\"6\":2.5},\"stop\":\"x\",\"stop_token_ids\":[1,2],"
        "\"min_tokens\":1,\"ignore_eos\":true,\"include_stop_str_in_output\":true,"
        "\"logprobs\":true,\"top_logprobs\":4,\"skip_special_tokens\":false,"
        "\"truncate_prompt_tokens\":9,\"priority\":-3,\"cache_salt\":\"s\",\"bad_words\":[\"w\"],"
        "\"allowed_token_ids\":[3],\"user\":null,\"functions\":[],\"mirostat\":0,"
        "\"length_penalty\":1.0,\"modalities\":[\"text\"],\"response_format\":{\"type\":\"text\"}}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_true(r.streams && r.include_usage && r.continuous_usage);
    assert_int_equal(r.stopping.max_tokens, 7);
    assert_true(r.sampling.has_temperature && r.sampling.temperature == 0.5f);
    assert_true(r.sampling.top_p == 0.25f && r.sampling.min_p == 0.125f);
    assert_true(r.sampling.has_top_k && r.sampling.top_k == 0);
    assert_int_equal(r.sampling.n, 2);
    assert_int_equal(r.sampling.best_of, 3);
    assert_true(r.sampling.has_seed && r.sampling.seed == UINT64_MAX);
    assert_true(r.sampling.presence_penalty == 1 && r.sampling.frequency_penalty == -1);
    assert_true(r.sampling.repetition_penalty == 1.5f);
    assert_int_equal(r.sampling.n_logit_bias, 2);
    assert_int_equal(r.sampling.logit_bias[1]->token_id, 6);
    assert_true(r.sampling.logit_bias[1]->bias == 2.5f);
    assert_string_equal(r.stopping.stop[0], "x");
    assert_int_equal(r.stopping.n_stop_token_ids, 2);
    assert_true(r.stopping.has_ignore_eos && r.stopping.ignore_eos && r.stopping.include_stop);
    assert_true(r.output.logprobs && r.output.has_top_n && r.output.top_n == 4);
    assert_true(r.output.has_skip_special_tokens && !r.output.skip_special_tokens);
    assert_int_equal(r.output.truncate, 9);
    assert_int_equal(r.request.priority, -3);
    assert_string_equal(r.request.cache_salt, "s");
    assert_string_equal(r.sampling.bad_words[0], "w");
    assert_int_equal(r.sampling.allowed_token_ids[0], 3);
    assert_int_equal(r.ignored.n_bytes, 0);
    openai_request_fini(&r);
}

/* Symptom: whole numbers were refused in some fields where a client wrote them as 40.0. */
static void test_whole_numbers_may_have_a_fraction_of_zero(void **state)
{
    (void)state;
    static const char body[] = "{" CHAT ",\"top_k\":40.0,\"seed\":-2.0,\"priority\":1e1,"
                               "\"truncate_prompt_tokens\":-1.0,\"max_tokens\":16.0}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_int_equal(r.sampling.top_k, 40);
    assert_true(r.sampling.seed == UINT64_MAX - 1);
    assert_int_equal(r.request.priority, 10);
    assert_false(r.output.has_truncate);
    assert_int_equal(r.stopping.max_tokens, 16);
    openai_request_fini(&r);
}

/* Symptom: -0 was refused, though it is the number 0. */
static void test_minus_zero_is_zero(void **state)
{
    (void)state;
    static const char body[] = "{" CHAT ",\"max_tokens\":-0,\"top_logprobs\":-0.0,\"top_k\":-0,"
                               "\"seed\":-0,\"stop_token_ids\":[-0]}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_true(r.stopping.has_max_tokens && r.stopping.max_tokens == 0);
    assert_true(r.sampling.has_seed && r.sampling.seed == 0);
    assert_int_equal(r.stopping.stop_token_ids[0], 0);
    openai_request_fini(&r);
}

/* Names that the API does not know have no effect, so a second value changes nothing. */
static void test_unknown_names_may_repeat(void **state)
{
    (void)state;
    static const char body[] = "{" CHAT ",\"foo\":1,\"foo\":{\"a\":1,\"a\":2},"
                               "\"stream\":true,\"stream_options\":{\"bar\":1,\"bar\":2}}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_string_equal(strbuf_str(&r.ignored), "foo, stream_options.bar");
    openai_request_fini(&r);
}

/* Symptom: two numbers of alternatives shared a field, and the order of the keys chose. */
static void test_the_prompt_and_the_answer_have_their_own_alternatives(void **state)
{
    (void)state;
    static const struct {
        bool is_chat;
        const char *body;
        uint32_t n_top, n_prompt_top;
    } rows[] = {
        {true, "{" CHAT ",\"prompt_logprobs\":5,\"logprobs\":true,\"top_logprobs\":1}", 1, 5},
        {true, "{" CHAT ",\"logprobs\":true,\"top_logprobs\":1,\"prompt_logprobs\":5}", 1, 5},
        {false, "{" PROMPT ",\"logprobs\":1,\"prompt_logprobs\":5}", 1, 5},
        {false, "{" PROMPT ",\"prompt_logprobs\":0,\"logprobs\":5}", 5, 0},
        {false, "{" PROMPT ",\"prompt_logprobs\":5}", 0, 5},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct openai_request r;
        struct error err;
        assert_int_equal(read_body(&r, rows[i].is_chat, rows[i].body, &err), 0);
        assert_int_equal(r.n_top, rows[i].n_top);
        assert_int_equal(r.n_prompt_top, rows[i].n_prompt_top);
        assert_true(r.output.has_top_n && r.output.top_n == 5);
        openai_request_fini(&r);
    }
}

/* Clients send both names of a limit or a text. */
static void test_two_names_may_have_one_value(void **state)
{
    (void)state;
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"a\","
        "\"reasoning\":\"b\",\"reasoning_content\":\"b\"}],\"max_tokens\":5,"
        "\"max_completion_tokens\":5}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_int_equal(r.stopping.max_tokens, 5);
    assert_string_equal(r.chat.messages[0]->reasoning_content, "b");
    openai_request_fini(&r);
}

/* Symptom: a max_tokens over the operator's limit was refused; over the context it was cut. */
static void test_a_limit_on_the_total_unbinds_the_request(void **state)
{
    (void)state;
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, false, "{" PROMPT ",\"max_tokens\":900}", &err), 0);
    error_field(&err, "prompt", "is too long");
    error_reason(&err, REASON_TOTAL_TOO_LONG);
    assert_false(openai_request_unbind(&r, &err));
    assert_true(r.stopping.has_max_tokens);
    error_field(&err, "stopping.max_tokens", "is too large");
    assert_false(openai_request_unbind(&r, &err));
    error_reason(&err, REASON_TOTAL_TOO_LONG);
    assert_true(openai_request_unbind(&r, &err));
    assert_false(r.stopping.has_max_tokens);
    openai_request_fini(&r);
}

/* Symptom: keys of a part without effect were not named, and a strict server took them. */
static void test_keys_of_a_part_without_effect_are_named(void **state)
{
    (void)state;
    static const char body[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"},\"id\":null}]}]}";
    struct openai_request r;
    struct error err;
    assert_int_equal(read_body(&r, true, body, &err), 0);
    assert_string_equal(strbuf_str(&r.ignored), "messages[].content[].cache_control");
    openai_request_fini(&r);
    error_clear(&err);
    assert_int_equal(openai_request_read(&r, true, true, body, strlen(body), &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "messages[].content[].cache_control");
    openai_request_fini(&r);
}

static void test_prompts_are_texts_or_ids(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        size_t n, n_ids; /* prompts; ids of the last one */
    } rows[] = {
        {"{" TEXTS("\"a\"") "}", 1, 0},   {"{" TEXTS("[\"a\",\"b\",\"c\"]") "}", 3, 0},
        {"{" TEXTS("[1,2,3]") "}", 1, 3}, {"{" TEXTS("[[1],[2,3]]") "}", 2, 2},
        {"{" TEXTS("[1.0]") "}", 1, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct openai_request request;
        struct error err;
        assert_int_equal(read_body(&request, false, rows[i].body, &err), 0);
        assert_int_equal(openai_request_n_prompts(&request), rows[i].n);
        assert_int_equal(request.prompts.list[rows[i].n - 1].n_ids, rows[i].n_ids);
        assert_true(openai_request_choose(&request, rows[i].n - 1));
        assert_int_equal(request.request.prompt_case,
                         rows[i].n_ids ? SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS
                                       : SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT);
        assert_int_equal(request.stopping.max_tokens, 16); /* OpenAI's default */
        openai_request_fini(&request);
    }
}

static void test_echo_with_logprobs_asks_for_those_of_the_prompt(void **state)
{
    (void)state;
    struct openai_request request;
    struct error err;
    assert_int_equal(read_body(&request, false, "{" PROMPT ",\"echo\":true,\"logprobs\":1}", &err),
                     0);
    assert_true(request.output.return_full_text && request.output.prompt_logprobs);
    assert_true(request.output.logprobs && request.output.top_n == 1);
    openai_request_fini(&request);
    assert_int_equal(read_body(&request, false, "{" PROMPT ",\"logprobs\":0}", &err), 0);
    assert_true(request.output.logprobs && !request.output.has_top_n);
    openai_request_fini(&request);
}

/* Symptom: a field's name with a line break would have added a header of the client's choice. */
static void test_ignored_names_are_fit_for_a_header(void **state)
{
    (void)state;
    static const char body[] = "{" CHAT ",\"user\":\"u\",\"a,b\":1,\"\xc3\xa9\":2,\"user\":\"v\"}";
    struct openai_request request;
    struct error err;
    assert_int_equal(read_body(&request, true, body, &err), 0);
    assert_string_equal(strbuf_str(&request.ignored), "user, a?b, ??");
    openai_request_fini(&request);
}

/* Names beyond the room of the header were left out without a sign. */
static void test_a_cut_list_of_ignored_names_says_so(void **state)
{
    (void)state;
    struct openai_request request;
    struct strbuf body = {0};
    struct error err;
    strbuf_add_str(&body, "{" CHAT);
    for (int i = 0; i < 60; i++)
        strbuf_printf(&body, ",\"an_unknown_name_%d\":1", i);
    strbuf_add_str(&body, ",\"z\":1}");
    assert_int_equal(read_body(&request, true, strbuf_str(&body), &err), 0);
    const struct strbuf *names = &request.ignored;
    assert_in_range(names->n_bytes, 350, 400);
    assert_string_equal(names->data + names->n_bytes - 5, ", ...");
    assert_null(strchr(names->data, 'z'));
    openai_request_fini(&request);
    strbuf_fini(&body);
}

static void test_a_strict_server_refuses_what_has_no_effect(void **state)
{
    (void)state;
    static const char *const fields[] = {"user", "foo", "store"};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char body[256];
        struct openai_request request;
        struct error err;
        error_clear(&err);
        snprintf(body, sizeof(body), "{" CHAT ",\"%s\":\"x\"}", fields[i]);
        int rc = openai_request_read(&request, true, true, body, strlen(body), &err);
        assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, fields[i]);
        openai_request_fini(&request);
    }
}

static void test_continue_final_message_opens_no_new_message(void **state)
{
    (void)state;
    struct openai_request request;
    struct error err;
    assert_int_equal(read_body(&request, true, "{" CHAT ",\"continue_final_message\":true}", &err),
                     0);
    assert_true(request.chat.has_add_generation_prompt && !request.chat.add_generation_prompt);
    assert_true(request.chat.continue_final_message);
    openai_request_fini(&request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_bodies_name_their_field),
        cmocka_unit_test(test_every_prefix_of_a_body_is_refused),
        cmocka_unit_test(test_content_may_be_null_a_text_or_parts),
        cmocka_unit_test(test_messages_keep_what_templates_read),
        cmocka_unit_test(test_fields_reach_the_proto),
        cmocka_unit_test(test_whole_numbers_may_have_a_fraction_of_zero),
        cmocka_unit_test(test_minus_zero_is_zero),
        cmocka_unit_test(test_unknown_names_may_repeat),
        cmocka_unit_test(test_the_prompt_and_the_answer_have_their_own_alternatives),
        cmocka_unit_test(test_two_names_may_have_one_value),
        cmocka_unit_test(test_a_limit_on_the_total_unbinds_the_request),
        cmocka_unit_test(test_keys_of_a_part_without_effect_are_named),
        cmocka_unit_test(test_prompts_are_texts_or_ids),
        cmocka_unit_test(test_echo_with_logprobs_asks_for_those_of_the_prompt),
        cmocka_unit_test(test_ignored_names_are_fit_for_a_header),
        cmocka_unit_test(test_a_cut_list_of_ignored_names_says_so),
        cmocka_unit_test(test_a_strict_server_refuses_what_has_no_effect),
        cmocka_unit_test(test_continue_final_message_opens_no_new_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
