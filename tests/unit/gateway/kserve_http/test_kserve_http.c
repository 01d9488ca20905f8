/* Bodies and answers of Triton's generate extension. */
#include <string.h>

#include "base/error.h"
#include "server/gateway/kserve_http/kserve_http_answer.h"
#include "server/gateway/kserve_http/kserve_http_request.h"
#include "server/gateway/relay/relay_sink.h"
#include "tests/unit/base/support_cmocka.h"

static int read_body(struct kserve_http_request *request, bool streams, bool is_strict,
                     const char *body, struct error *err)
{
    error_clear(err);
    return kserve_http_request_read(request, "m", "1", streams, is_strict, body, strlen(body), err);
}

static void read_good(struct kserve_http_request *request, bool streams, const char *body)
{
    struct error err;
    if (read_body(request, streams, false, body, &err) != 0)
        fail_msg("%s: %s", body, err.message);
}

/* --- requests --- */

static void test_names_may_be_flat_or_in_parameters_or_in_sampling_parameters(void **state)
{
    static const char *const bodies[] = {
        "{\"text_input\":\"x\",\"max_tokens\":5,\"temperature\":0.5,\"stop_words\":[\"a\",\"b\"]}",
        "{\"parameters\":{\"max_tokens\":5,\"temperature\":\"0.5\",\"stop\":[\"a\",\"b\"]},"
        "\"text_input\":[\"x\"]}",
        "{\"text_input\":\"x\",\"sampling_parameters\":{\"max_tokens\":5,\"temperature\":0.5,"
        "\"stop\":[\"a\",\"b\"]}}",
        "{\"text_input\":\"x\",\"sampling_parameters\":\"{\\\"max_tokens\\\":\\\"5\\\","
        "\\\"temperature\\\":0.5,\\\"stop\\\":[\\\"a\\\",\\\"b\\\"]}\",\"seed\":null}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct kserve_http_request r;
        read_good(&r, false, bodies[i]);
        assert_string_equal(r.base.generate.text, "x");
        assert_int_equal(r.base.stopping.max_tokens, 5);
        assert_float_equal(r.base.sampling.temperature, 0.5f, 0);
        assert_int_equal(r.base.stopping.n_stop, 2);
        assert_string_equal(r.base.stopping.stop[1], "b");
        kserve_http_request_fini(&r);
    }
}

/* The quirk of Triton's vLLM backend: a whole answer begins with the prompt, a stream does not. */
static void test_defaults_are_those_of_the_vllm_backend(void **state)
{
    struct kserve_http_request r;
    (void)state;
    read_good(&r, false, "{\"text_input\":\"x\",\"id\":\"7\"}");
    assert_true(r.base.prepends_prompt);
    assert_int_equal(r.base.stopping.max_tokens, KSERVE_DEFAULT_MAX_TOKENS);
    assert_string_equal(r.id, "7");
    kserve_http_request_fini(&r);
    read_good(&r, true, "{\"text_input\":\"x\",\"stream\":true}");
    assert_false(r.base.prepends_prompt);
    assert_true(r.base.streams);
    kserve_http_request_fini(&r);
}

/* Symptom: null was an error in these two fields. In all others it counts as absent. */
static void test_null_counts_as_absent(void **state)
{
    struct kserve_http_request r;
    (void)state;
    read_good(&r, false, "{\"text_input\":\"x\",\"parameters\":null,\"id\":null,\"seed\":null}");
    assert_null(r.id);
    kserve_http_request_fini(&r);
}

static void test_whole_numbers_may_have_a_fraction_of_zero_or_a_sign(void **state)
{
    struct kserve_http_request r;
    (void)state;
    read_good(&r, false,
              "{\"text_input\":\"x\",\"max_tokens\":16.0,\"top_k\":-0,\"min_tokens\":-0.0}");
    assert_int_equal(r.base.stopping.max_tokens, 16);
    assert_true(r.base.stopping.has_min_tokens && r.base.stopping.min_tokens == 0);
    assert_int_equal(r.base.sampling.top_k, 0);
    kserve_http_request_fini(&r);
}

static void test_unknown_names_are_told_or_refused(void **state)
{
    static const char body[] = "{\"text_input\":\"x\",\"foo\":{},\"parameters\":{\"bar\":1}}";
    struct kserve_http_request r;
    struct error err;
    (void)state;
    read_good(&r, false, body);
    assert_string_equal(strbuf_str(&r.ignored), "foo, bar");
    kserve_http_request_fini(&r);
    /* symptom: the header had names with commas and bytes beyond ASCII, and repeated them */
    read_good(&r, false,
              "{\"text_input\":\"x\",\"a,b\":1,\"\xc3\xa9\":2,\"parameters\":{\"a,b\":1}}");
    assert_string_equal(strbuf_str(&r.ignored), "a?b, ??");
    kserve_http_request_fini(&r);
    assert_int_equal(read_body(&r, false, true, body, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "foo");
    kserve_http_request_fini(&r);
}

static const struct {
    bool streams;
    int status;
    const char *field, *body;
} bad[] = {
    {false, STATUS_INVALID_ARGUMENT, "", ""},
    {false, STATUS_INVALID_ARGUMENT, "", "[]"},
    {false, STATUS_INVALID_ARGUMENT, "", "{\"text_input\":\"x\"} 1"},
    {false, STATUS_INVALID_ARGUMENT, "text_input", "{}"},
    {false, STATUS_INVALID_ARGUMENT, "text_input", "{\"text_input\":[\"x\",\"y\"]}"},
    {false, STATUS_INVALID_ARGUMENT, "parameters", "{\"text_input\":\"x\",\"parameters\":1}"},
    {false, STATUS_INVALID_ARGUMENT, "max_tokens", "{\"text_input\":\"x\",\"max_tokens\":-1}"},
    {false, STATUS_INVALID_ARGUMENT, "max_tokens", "{\"text_input\":\"x\",\"max_tokens\":\"a\"}"},
    {false, STATUS_INVALID_ARGUMENT, "max_tokens",
     "{\"text_input\":\"x\",\"max_tokens\":1,\"parameters\":{\"max_tokens\":2}}"},
    /* Symptom: the last of two values won. */
    {false, STATUS_INVALID_ARGUMENT, "id", "{\"text_input\":\"x\",\"id\":\"a\",\"id\":\"b\"}"},
    {false, STATUS_INVALID_ARGUMENT, "parameters",
     "{\"text_input\":\"x\",\"parameters\":{\"max_tokens\":1},\"parameters\":{\"top_k\":2}}"},
    {false, STATUS_INVALID_ARGUMENT, "stream", "{\"text_input\":\"x\",\"stream\":true}"},
    {true, STATUS_INVALID_ARGUMENT, "stream", "{\"text_input\":\"x\",\"stream\":false}"},
    {false, STATUS_INVALID_ARGUMENT, "sampling_parameters",
     "{\"text_input\":\"x\",\"sampling_parameters\":\"{\"}"},
    {false, STATUS_INVALID_ARGUMENT, "sampling_parameters.foo",
     "{\"text_input\":\"x\",\"sampling_parameters\":{\"foo\":1}}"},
    {false, STATUS_UNIMPLEMENTED, "lora_name", "{\"text_input\":\"x\",\"lora_name\":\"a\"}"},
    {false, STATUS_UNIMPLEMENTED, "image", "{\"text_input\":\"x\",\"image\":\"a\"}"},
    {false, STATUS_UNIMPLEMENTED, "timeout",
     "{\"text_input\":\"x\",\"parameters\":{\"timeout\":5}}"},
};

static void test_each_bad_name_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kserve_http_request r;
        struct error err;
        int rc = read_body(&r, bad[i].streams, false, bad[i].body, &err);
        if (rc != bad[i].status || strcmp(err.field, bad[i].field) != 0)
            fail_msg("%s: status %d, field \"%s\"", bad[i].body, rc, err.field);
        kserve_http_request_fini(&r);
    }
}

/* --- answers --- */

static void expect(struct strbuf *out, const char *wanted)
{
    assert_string_equal(strbuf_str(out), wanted);
    strbuf_clear(out);
}

static char model[] = "m", version[] = "1", text[] = "a\"";

static void test_a_stream_has_an_event_per_frame(void **state)
{
    struct kserve_http_answer answer = {.outputs = 1u << KSERVE_OUTPUT_TEXT, .n_choices = 1};
    struct relay_frame frame = {.kind = RELAY_FRAME_PROMPT_INFO,
                                .prompt_info = SLUICE__V1__PROMPT_INFO__INIT,
                                .tokens = SLUICE__V1__TOKENS__INIT,
                                .finished = SLUICE__V1__FINISHED__INIT};
    struct strbuf out = {0};
    (void)state;
    frame.prompt_info.model = model;
    frame.prompt_info.version = version;
    frame.finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_EOS;
    kserve_http_answer_frame(&answer, &frame, &out);
    expect(&out, "");
    frame.kind = RELAY_FRAME_TOKENS;
    frame.tokens.text = text;
    kserve_http_answer_frame(&answer, &frame, &out);
    expect(&out, "data: {\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":\"a\\\"\"}"
                 "\n\n");
    frame.kind = RELAY_FRAME_FINISHED;
    kserve_http_answer_frame(&answer, &frame, &out);
    expect(&out, "");
    answer.outputs |= 1u << KSERVE_OUTPUT_FINISH_REASON;
    answer.n_choices = 2;
    frame.finished.choice = 1;
    kserve_http_answer_frame(&answer, &frame, &out);
    expect(&out, "data: {\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":[\"\",\"\"],"
                 "\"finish_reason\":[\"None\",\"stop\"]}\n\n");
    strbuf_fini(&out);
    kserve_http_answer_fini(&answer);
}

static void test_a_whole_answer_has_the_outputs_that_were_asked_for(void **state)
{
    Sluice__V1__CompleteResponse whole = SLUICE__V1__COMPLETE_RESPONSE__INIT;
    Sluice__V1__PromptInfo info = SLUICE__V1__PROMPT_INFO__INIT;
    Sluice__V1__Choice choice = SLUICE__V1__CHOICE__INIT, *choices[] = {&choice};
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    Sluice__V1__TokenLogprob logprob = SLUICE__V1__TOKEN_LOGPROB__INIT, *logprobs[] = {&logprob};
    struct relay_frame frame = {.kind = RELAY_FRAME_WHOLE, .whole = &whole};
    struct kserve_http_answer answer = {
        .id = "7", .outputs = (1u << N_KSERVE_OUTPUTS) - 1, .n_choices = 1};
    uint32_t ids[] = {7};
    (void)state;
    info.model = model;
    info.version = version;
    info.n_prompt_tokens = 3;
    logprob.id = 7;
    logprob.logprob = -0.5f;
    logprob.token = (ProtobufCBinaryData){1, (uint8_t *)text};
    finished.reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    choice.text = text;
    choice.ids = ids;
    choice.n_ids = choice.n_logprobs = 1;
    choice.logprobs = logprobs;
    choice.finished = &finished;
    whole.prompt_info = &info;
    whole.choices = choices;
    whole.n_choices = 1;
    answer.prompt = strdup("Q");
    kserve_http_answer_frame(&answer, &frame, NULL);
    expect(&answer.whole,
           "{\"id\":\"7\",\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":\"Qa\\\"\","
           "\"finish_reason\":\"length\",\"cumulative_logprob\":-0.5,\"logprobs\":\"[{\\\"7\\\":{"
           "\\\"logprob\\\":-0.5,\\\"rank\\\":null,\\\"decoded_token\\\":\\\"a\\\"}}]\","
           "\"num_input_tokens\":3,\"num_output_tokens\":1,\"cum_log_probs\":-0.5,"
           "\"output_log_probs\":[-0.5]}");
    kserve_http_answer_fini(&answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_may_be_flat_or_in_parameters_or_in_sampling_parameters),
        cmocka_unit_test(test_defaults_are_those_of_the_vllm_backend),
        cmocka_unit_test(test_null_counts_as_absent),
        cmocka_unit_test(test_whole_numbers_may_have_a_fraction_of_zero_or_a_sign),
        cmocka_unit_test(test_unknown_names_are_told_or_refused),
        cmocka_unit_test(test_each_bad_name_is_refused),
        cmocka_unit_test(test_a_stream_has_an_event_per_frame),
        cmocka_unit_test(test_a_whole_answer_has_the_outputs_that_were_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
