/* A ModelInferRequest as a GenerateRequest: names, kinds of values, defaults, refusals. */
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/kserve/kserve_request.h"
#include "tests/unit/base/support_cmocka.h"

enum { MAX_INPUTS = 8, MAX_PARAMETERS = 4 };

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;
typedef Inference__ModelInferRequest__ParametersEntry parameter_entry;

/* A request of texts, whose tensors are typed and have one element. */
struct given {
    Inference__ModelInferRequest request;
    input_tensor inputs[MAX_INPUTS], *input_list[MAX_INPUTS];
    Inference__InferTensorContents contents[MAX_INPUTS];
    ProtobufCBinaryData texts[MAX_INPUTS];
    protobuf_c_boolean flags[MAX_INPUTS];
    parameter_entry entries[MAX_PARAMETERS], *entry_list[MAX_PARAMETERS];
    Inference__InferParameter values[MAX_PARAMETERS];
    Inference__ModelInferRequest__InferRequestedOutputTensor output, *output_list[1];
};

static int64_t one[] = {1};

static char *text(const char *constant)
{
    return (char *)(uintptr_t)constant;
}

static void init(struct given *g)
{
    inference__model_infer_request__init(&g->request);
    g->request.inputs = g->input_list;
    g->request.parameters = g->entry_list;
    g->request.outputs = g->output_list;
    g->request.model_name = text("m");
}

static size_t add_input(struct given *g, const char *name, const char *datatype)
{
    size_t i = g->request.n_inputs++;
    inference__model_infer_request__infer_input_tensor__init(&g->inputs[i]);
    inference__infer_tensor_contents__init(&g->contents[i]);
    g->input_list[i] = &g->inputs[i];
    g->inputs[i].name = text(name);
    g->inputs[i].datatype = text(datatype);
    g->inputs[i].shape = one;
    g->inputs[i].n_shape = 1;
    g->inputs[i].contents = &g->contents[i];
    return i;
}

static void add_text(struct given *g, const char *name, const char *value)
{
    size_t i = add_input(g, name, "BYTES");
    g->texts[i] = (ProtobufCBinaryData){strlen(value), (uint8_t *)text(value)};
    g->contents[i].bytes_contents = &g->texts[i];
    g->contents[i].n_bytes_contents = 1;
}

static void add_flag(struct given *g, const char *name, bool value)
{
    size_t i = add_input(g, name, "BOOL");
    g->flags[i] = value;
    g->contents[i].bool_contents = &g->flags[i];
    g->contents[i].n_bool_contents = 1;
}

static void add_parameter(struct given *g, const char *key, const char *value)
{
    size_t i = g->request.n_parameters++;
    inference__model_infer_request__parameters_entry__init(&g->entries[i]);
    inference__infer_parameter__init(&g->values[i]);
    g->entry_list[i] = &g->entries[i];
    g->entries[i].key = text(key);
    g->entries[i].value = &g->values[i];
    g->values[i].parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
    g->values[i].string_param = text(value);
}

/* A request with a prompt and sampling_parameters (NULL: none). */
static void init_with(struct given *g, const char *sampling)
{
    *g = (struct given){0};
    init(g);
    add_text(g, "text_input", "a prompt");
    if (sampling)
        add_text(g, "sampling_parameters", sampling);
}

static void expect_refused(const struct given *g, bool may_stream, int status, const char *field)
{
    struct kserve_request request;
    struct error err;
    error_clear(&err);
    assert_int_equal(kserve_request_read(&request, &g->request, may_stream, &err), status);
    assert_string_equal(err.field, field);
    /* Symptom: broken sampling_parameters told the client to get another copy of the file. */
    assert_null(strstr(err.message, "file"));
    assert_int_equal(strncmp(err.message, field, strlen(field)), 0);
    kserve_request_fini(&request);
}

static void read(const struct given *g, struct kserve_request *out)
{
    struct error err;
    error_clear(&err);
    int rc = kserve_request_read(out, &g->request, true, &err);
    if (rc)
        fail_msg("%s", err.message);
}

/* --- good requests --- */

static void test_every_kind_of_value_in_sampling_parameters(void **state)
{
    struct given g;
    struct kserve_request r;
    (void)state;
    init_with(
        &g, "{\"temperature\": 0.5, \"top_p\": \"0.25\", \"top_k\": -1, \"seed\": \"-3\", \"n\": 2,"
            " \"max_tokens\": 9.0, \"stop\": \"x\", \"stop_token_ids\": [\"7\", 8], "
            "\"ignore_eos\": \"true\","
            " \"include_stop_str_in_output\": true, \"logit_bias\": {\"5\": \"-1.5\", \"6\": 2},"
            " \"min_p\": null, \"bad_words\": [\"y\", \"z\"], \"logprobs\": 3, "
            "\"skip_special_tokens\": false}");
    read(&g, &r);
    assert_true(r.sampling.has_temperature && r.sampling.temperature == 0.5f);
    assert_true(r.sampling.has_top_p && r.sampling.top_p == 0.25f);
    assert_true(r.sampling.has_top_k && r.sampling.top_k == 0);
    assert_true(r.sampling.has_seed && r.sampling.seed == UINT64_MAX - 2);
    assert_true(r.sampling.has_n && r.sampling.n == 2 && !r.sampling.has_min_p);
    assert_true(r.stopping.max_tokens == 9 && r.stopping.ignore_eos && r.stopping.include_stop);
    assert_int_equal(r.stopping.n_stop, 1);
    assert_string_equal(r.stopping.stop[0], "x");
    assert_true(r.stopping.n_stop_token_ids == 2 && r.stopping.stop_token_ids[0] == 7 &&
                r.stopping.stop_token_ids[1] == 8);
    assert_int_equal(r.sampling.n_logit_bias, 2);
    assert_true(r.sampling.logit_bias[0]->token_id == 5 && r.sampling.logit_bias[0]->bias == -1.5f);
    assert_true(r.sampling.n_bad_words == 2 && r.output.logprobs && r.output.top_n == 3);
    assert_true(r.output.has_skip_special_tokens && !r.output.skip_special_tokens);
    assert_string_equal(r.generate.text, "a prompt");
    kserve_request_fini(&r);
}

static void test_defaults_and_the_prompt_in_the_text(void **state)
{
    struct given g;
    struct kserve_request r;
    (void)state;
    init_with(&g, NULL);
    read(&g, &r);
    assert_true(r.stopping.max_tokens == KSERVE_DEFAULT_MAX_TOKENS && !r.sampling.has_temperature);
    assert_true(r.prepends_prompt && !r.streams && r.outputs == 1u << KSERVE_OUTPUT_TEXT);
    kserve_request_fini(&r);
    add_flag(&g, "stream", true);
    read(&g, &r);
    assert_true(!r.prepends_prompt && r.streams);
    kserve_request_fini(&r);
    init_with(&g, NULL);
    add_flag(&g, "exclude_input_in_output", true);
    add_flag(&g, "return_finish_reason", true);
    add_flag(&g, "return_num_input_tokens", false);
    read(&g, &r);
    assert_false(r.prepends_prompt);
    assert_int_equal(r.outputs, 1u << KSERVE_OUTPUT_TEXT | 1u << KSERVE_OUTPUT_FINISH_REASON);
    kserve_request_fini(&r);
}

static void test_parameters_serve_where_a_tensor_is_absent(void **state)
{
    struct given g;
    struct kserve_request r;
    (void)state;
    init_with(&g, NULL);
    add_text(&g, "max_tokens", "5");
    add_parameter(&g, "max_tokens", "6");
    add_parameter(&g, "temperature", "0.5");
    add_parameter(&g, "triton_enable_empty_final_response", "true");
    read(&g, &r);
    assert_true(r.stopping.max_tokens == 5 && r.sampling.temperature == 0.5f && r.empty_final);
    kserve_request_fini(&r);
}

static void test_a_requested_output_is_returned_without_a_flag(void **state)
{
    struct given g;
    struct kserve_request r;
    (void)state;
    init_with(&g, NULL);
    inference__model_infer_request__infer_requested_output_tensor__init(&g.output);
    g.output_list[0] = &g.output;
    g.request.n_outputs = 1;
    g.output.name = text("cumulative_logprob");
    read(&g, &r);
    assert_true(r.outputs == 1u << KSERVE_OUTPUT_CUMULATIVE_LOGPROB && r.output.logprobs);
    kserve_request_fini(&r);
    g.output.name = text("picture");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "picture");
}

static void test_errors_of_sluice_name_the_input(void **state)
{
    struct given g;
    struct kserve_request r;
    struct error err;
    (void)state;
    init_with(&g, NULL);
    add_text(&g, "stop_words", "x");
    read(&g, &r);
    error_field(&err, "stopping.stop[3]", "is empty");
    kserve_request_name_field(r.given, &err);
    assert_string_equal(err.field, "stop_words");
    assert_int_equal(strncmp(err.message, "stop_words", 10), 0);
    error_field(&err, "sampling.top_p", "is not given");
    kserve_request_name_field(r.given, &err);
    assert_string_equal(err.field, "sampling.top_p");
    kserve_request_fini(&r);
}

/* --- refused requests --- */

static void test_bad_sampling_parameters_are_refused_by_key(void **state)
{
    static const struct {
        const char *json, *field;
        int status;
    } rows[] = {
        {"", "sampling_parameters", STATUS_INVALID_ARGUMENT},
        {"[]", "sampling_parameters", STATUS_INVALID_ARGUMENT},
        {"{", "sampling_parameters", STATUS_INVALID_ARGUMENT},
        {"{\"a\xff\": 1}", "sampling_parameters", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": 1} x", "sampling_parameters", STATUS_INVALID_ARGUMENT},
        {"{\"sauce\": 1}", "sampling_parameters.sauce", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": -1}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": 1.5}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": 4294967296}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": true}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": \"1x\"}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": \"\"}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": {}}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": []}", "sampling_parameters.max_tokens", STATUS_INVALID_ARGUMENT},
        {"{\"max_tokens\": 1, \"max_tokens\": 1}", "sampling_parameters.max_tokens",
         STATUS_INVALID_ARGUMENT},
        {"{\"temperature\": \"nan\"}", "sampling_parameters.temperature", STATUS_INVALID_ARGUMENT},
        {"{\"temperature\": \"inf\"}", "sampling_parameters.temperature", STATUS_INVALID_ARGUMENT},
        /* Symptom: a hexadecimal text was a temperature of 8. */
        {"{\"temperature\": \"0x1p3\"}", "sampling_parameters.temperature",
         STATUS_INVALID_ARGUMENT},
        {"{\"temperature\": \"-inf\"}", "sampling_parameters.temperature", STATUS_INVALID_ARGUMENT},
        {"{\"temperature\": [[1]]}", "sampling_parameters.temperature", STATUS_INVALID_ARGUMENT},
        {"{\"seed\": \"99999999999999999999\"}", "sampling_parameters.seed",
         STATUS_INVALID_ARGUMENT},
        {"{\"ignore_eos\": 2}", "sampling_parameters.ignore_eos", STATUS_INVALID_ARGUMENT},
        {"{\"stop\": [1]}", "sampling_parameters.stop", STATUS_INVALID_ARGUMENT},
        /* Symptom: an object in place of the stop texts was ignored. */
        {"{\"stop\": {\"a\": 1}}", "sampling_parameters.stop", STATUS_INVALID_ARGUMENT},
        {"{\"bad_words\": {}}", "sampling_parameters.bad_words", STATUS_INVALID_ARGUMENT},
        {"{\"stop\": \"a\\u0000b\"}", "sampling_parameters.stop", STATUS_INVALID_ARGUMENT},
        {"{\"top_k\": -2}", "sampling_parameters.top_k", STATUS_INVALID_ARGUMENT},
        {"{\"logit_bias\": [1]}", "sampling_parameters.logit_bias", STATUS_INVALID_ARGUMENT},
        {"{\"logit_bias\": {\"x\": 1}}", "sampling_parameters.logit_bias", STATUS_INVALID_ARGUMENT},
        {"{\"logprobs\": -1}", "sampling_parameters.logprobs", STATUS_INVALID_ARGUMENT},
        {"{\"use_beam_search\": true}", "sampling_parameters.use_beam_search",
         STATUS_UNIMPLEMENTED},
        {"{\"lora_name\": \"x\"}", "sampling_parameters.lora_name", STATUS_UNIMPLEMENTED},
        {"{\"guided_decoding\": {\"regex\": \"a\"}}", "sampling_parameters.guided_decoding",
         STATUS_UNIMPLEMENTED},
        {"{\"stream\": true}", "sampling_parameters.stream", STATUS_INVALID_ARGUMENT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct given g;
        init_with(&g, rows[i].json);
        expect_refused(&g, true, rows[i].status, rows[i].field);
    }
}

static void test_contradictions_and_unknown_names_are_refused(void **state)
{
    struct given g;
    (void)state;
    g = (struct given){0};
    init(&g);
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "text_input");
    g.request.model_name = text("");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "model_name");
    init_with(&g, NULL);
    add_text(&g, "text_input", "again");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "text_input");
    init_with(&g, "{\"max_tokens\": 1}");
    add_text(&g, "max_tokens", "1");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "sampling_parameters.max_tokens");
    init_with(&g, NULL);
    add_text(&g, "seed", "1");
    add_text(&g, "random_seed", "1");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "random_seed");
    init_with(&g, NULL);
    add_text(&g, "colour", "red");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "colour");
    init_with(&g, NULL);
    add_parameter(&g, "colour", "red");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "colour");
    init_with(&g, NULL);
    add_parameter(&g, "sequence_id", "7");
    expect_refused(&g, true, STATUS_UNIMPLEMENTED, "sequence_id");
    init_with(&g, NULL);
    add_flag(&g, "stream", true);
    expect_refused(&g, false, STATUS_INVALID_ARGUMENT, "stream");
    add_flag(&g, "exclude_input_in_output", false);
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "exclude_input_in_output");
    init_with(&g, "{\"n\": 2}");
    add_flag(&g, "return_log_probs", true);
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "return_log_probs");
    init_with(&g, NULL);
    add_text(&g, "bad_words", "\xff");
    expect_refused(&g, true, STATUS_INVALID_ARGUMENT, "bad_words");
}

/* A message that ends at any byte is refused or read, without a read beyond its end. */
static void test_a_message_that_ends_at_any_byte(void **state)
{
    struct given g;
    struct error err;
    void *bytes;
    size_t n_bytes, n_read = 0;
    (void)state;
    init_with(&g, "{\"max_tokens\": 3, \"stop\": [\"x\", \"y\"]}");
    add_flag(&g, "exclude_input_in_output", true);
    add_parameter(&g, "temperature", "0.5");
    assert_int_equal(rpc_message_pack(&g.request.base, &bytes, &n_bytes, &err), 0);
    for (size_t n = 0; n <= n_bytes; n++) {
        ProtobufCMessage *message;
        struct kserve_request request;
        char *exact = malloc(n + 1);
        assert_non_null(exact);
        memcpy(exact, bytes, n);
        if (rpc_message_parse(&inference__model_infer_request__descriptor, exact, n, &message,
                              &err) == 0) {
            n_read += kserve_request_read(&request, (Inference__ModelInferRequest *)message, true,
                                          &err) == 0;
            kserve_request_fini(&request);
            rpc_message_free(message);
        }
        free(exact);
    }
    assert_true(n_read >= 1);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_value_in_sampling_parameters),
        cmocka_unit_test(test_defaults_and_the_prompt_in_the_text),
        cmocka_unit_test(test_parameters_serve_where_a_tensor_is_absent),
        cmocka_unit_test(test_a_requested_output_is_returned_without_a_flag),
        cmocka_unit_test(test_errors_of_sluice_name_the_input),
        cmocka_unit_test(test_bad_sampling_parameters_are_refused_by_key),
        cmocka_unit_test(test_contradictions_and_unknown_names_are_refused),
        cmocka_unit_test(test_a_message_that_ends_at_any_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
