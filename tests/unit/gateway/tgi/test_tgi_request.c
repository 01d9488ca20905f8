/* Bodies of text-generation-inference become requests of the proto, with the defaults of version 3.
 * A bad value is refused with the field's name as the client spells it. */
#include <string.h>

#include "base/error.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/tgi/tgi_request.h"
#include "tests/unit/base/support_cmocka.h"

static int read_body(struct tgi_request *request, enum tgi_route route, bool is_strict,
                     const char *body, struct error *err)
{
    error_clear(err);
    return tgi_request_read(request, route, is_strict, body, strlen(body), err);
}

static void read_good(struct tgi_request *request, enum tgi_route route, const char *body)
{
    struct error err;
    if (read_body(request, route, false, body, &err) != 0)
        fail_msg("%s: %s", body, err.message);
}

/* --- defaults --- */

static void test_without_parameters_the_request_is_greedy_with_1024_tokens(void **state)
{
    struct tgi_request r;
    (void)state;
    read_good(&r, TGI_ROUTE_GENERATE, "{\"inputs\":\"x\"}");
    assert_string_equal(r.request.text, "x");
    assert_true(r.request.parse_special_tokens);
    assert_int_equal(r.stopping.max_tokens, 1024);
    assert_true(r.sampling.has_do_sample && !r.sampling.do_sample);
    assert_true(r.stopping.include_stop);
    assert_false(r.samples || r.streams || r.details || r.full_text || r.output.logprobs);
    tgi_request_fini(&r);
}

/* The model's own defaults do not apply: every field of them is set. */
static void test_a_sampling_parameter_makes_the_request_sample(void **state)
{
    static const char *const bodies[] = {
        "{\"inputs\":\"x\",\"parameters\":{\"do_sample\":true}}",
        "{\"inputs\":\"x\",\"parameters\":{\"temperature\":1}}",
        "{\"inputs\":\"x\",\"parameters\":{\"top_k\":7}}",
        "{\"inputs\":\"x\",\"parameters\":{\"top_p\":0.5}}",
        "{\"inputs\":\"x\",\"parameters\":{\"typical_p\":0.9}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct tgi_request r;
        read_good(&r, TGI_ROUTE_GENERATE, bodies[i]);
        const Sluice__V1__Sampling *s = &r.sampling;
        assert_true(r.samples && s->do_sample);
        assert_true(s->has_temperature && s->has_top_k && s->has_top_p && s->has_min_p &&
                    s->has_typical_p && s->has_repetition_penalty);
        assert_float_equal(s->temperature, 1.0f, 0);
        assert_int_equal(s->top_k, i == 2 ? 7 : 0);
        tgi_request_fini(&r);
    }
}

static void test_each_route_answers_in_its_form(void **state)
{
    static const struct {
        enum tgi_route route;
        const char *body;
        bool streams, full_text;
    } rows[] = {
        {TGI_ROUTE_COMPAT, "{\"inputs\":\"x\"}", false, true},
        {TGI_ROUTE_COMPAT, "{\"inputs\":\"x\",\"stream\":true}", true, true},
        {TGI_ROUTE_COMPAT, "{\"inputs\":\"x\",\"parameters\":{\"return_full_text\":false}}", false,
         false},
        {TGI_ROUTE_GENERATE, "{\"inputs\":\"x\",\"stream\":true}", false, false},
        {TGI_ROUTE_GENERATE, "{\"inputs\":\"x\",\"parameters\":{\"return_full_text\":true}}", false,
         true},
        {TGI_ROUTE_STREAM, "{\"inputs\":\"x\"}", true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tgi_request r;
        read_good(&r, rows[i].route, rows[i].body);
        assert_int_equal(r.streams, rows[i].streams);
        assert_int_equal(r.full_text, rows[i].full_text);
        assert_int_equal(r.output.logprobs, rows[i].streams);
        tgi_request_fini(&r);
    }
}

static void test_all_parameters_arrive(void **state)
{
    struct tgi_request r;
    (void)state;
    read_good(&r, TGI_ROUTE_GENERATE,
              "{\"inputs\":\"x\",\"parameters\":{\"best_of\":3,\"temperature\":0.5,"
              "\"repetition_penalty\":1.1,\"frequency_penalty\":0.25,\"top_k\":5,\"top_p\":0.75,"
              "\"do_sample\":true,\"max_new_tokens\":9,\"stop\":[\"a\",\"b\"],\"truncate\":100,"
              "\"details\":false,\"decoder_input_details\":true,\"top_n_tokens\":2,\"seed\":null,"
              "\"typical_p\":0.625,\"watermark\":false,\"grammar\":null,\"adapter_id\":null,"
              "\"ignore_eos_token\":true}}");
    assert_int_equal(r.sampling.n, 3);
    assert_float_equal(r.sampling.temperature, 0.5f, 0);
    assert_float_equal(r.sampling.repetition_penalty, 1.1f, 0);
    assert_float_equal(r.sampling.frequency_penalty, 0.25f, 0);
    assert_int_equal(r.sampling.top_k, 5);
    assert_float_equal(r.sampling.top_p, 0.75f, 0);
    assert_float_equal(r.sampling.typical_p, 0.625f, 0); /* was refused with status 422 */
    assert_int_equal(r.stopping.max_tokens, 9);
    assert_int_equal(r.stopping.n_stop, 2);
    assert_string_equal(r.stopping.stop[1], "b");
    assert_true(r.stopping.ignore_eos);
    assert_int_equal(r.output.truncate, 100);
    assert_true(r.output.prompt_logprobs && r.output.logprobs && r.details);
    assert_int_equal(r.output.top_n, 2);
    tgi_request_fini(&r);
}

/* Symptom: a whole number that a client wrote as 40.0 or -0 was refused. */
static void test_whole_numbers_may_have_a_fraction_of_zero_or_a_sign(void **state)
{
    struct tgi_request r;
    (void)state;
    read_good(
        &r, TGI_ROUTE_GENERATE,
        "{\"inputs\":\"x\",\"parameters\":{\"top_k\":40.0,\"max_new_tokens\":16.0,\"seed\":-0,"
        "\"truncate\":1e2,\"top_n_tokens\":-0.0}}");
    assert_int_equal(r.sampling.top_k, 40);
    assert_int_equal(r.stopping.max_tokens, 16);
    assert_true(r.sampling.has_seed && r.sampling.seed == 0);
    assert_int_equal(r.output.truncate, 100);
    tgi_request_fini(&r);
}

static void test_unknown_fields_are_named_or_refused(void **state)
{
    static const char body[] = "{\"inputs\":\"x\",\"options\":{},\"parameters\":{\"foo\":[1]}}";
    struct tgi_request r;
    struct error err;
    (void)state;
    read_good(&r, TGI_ROUTE_COMPAT, body);
    assert_string_equal(strbuf_str(&r.ignored), "options, foo");
    tgi_request_fini(&r);
    assert_int_equal(read_body(&r, TGI_ROUTE_COMPAT, true, body, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "options");
    tgi_request_fini(&r);
}

/* Names with commas and bytes beyond ASCII stood in the header as they were, and more than once. */
static void test_unknown_names_are_fit_for_a_header(void **state)
{
    static const char body[] = "{\"inputs\":\"x\",\"a,b\":1,\"\xc3\xa9\":2,\"foo\":4,"
                               "\"parameters\":{\"foo\":5,\"\xc3\xa9\":6}}";
    struct tgi_request r;
    (void)state;
    read_good(&r, TGI_ROUTE_COMPAT, body);
    assert_string_equal(strbuf_str(&r.ignored), "a?b, ??, foo");
    tgi_request_fini(&r);
}

/* --- refusals --- */

static const struct {
    enum tgi_route route;
    const char *field, *body;
} bad[] = {
    {TGI_ROUTE_COMPAT, "", ""},
    {TGI_ROUTE_COMPAT, "", "[]"},
    {TGI_ROUTE_COMPAT, "", "{\"inputs\":\"x\""},
    {TGI_ROUTE_COMPAT, "", "{\"inputs\":\"x\"} 1"},
    {TGI_ROUTE_COMPAT, "inputs", "{}"},
    {TGI_ROUTE_COMPAT, "inputs", "{\"inputs\":\"\"}"},
    {TGI_ROUTE_COMPAT, "inputs", "{\"inputs\":[\"x\"]}"},
    {TGI_ROUTE_COMPAT, "inputs", "{\"inputs\":\"a\\u0000b\"}"},
    {TGI_ROUTE_COMPAT, "parameters", "{\"inputs\":\"x\",\"parameters\":[]}"},
    {TGI_ROUTE_COMPAT, "stream", "{\"inputs\":\"x\",\"stream\":1}"},
    {TGI_ROUTE_COMPAT, "add_special_tokens", "{\"inputs\":\"x\",\"add_special_tokens\":false}"},
    {TGI_ROUTE_COMPAT, "temperature", "{\"inputs\":\"x\",\"parameters\":{\"temperature\":0}}"},
    {TGI_ROUTE_COMPAT, "temperature", "{\"inputs\":\"x\",\"parameters\":{\"temperature\":-1}}"},
    {TGI_ROUTE_COMPAT, "temperature", "{\"inputs\":\"x\",\"parameters\":{\"temperature\":1e9}}"},
    {TGI_ROUTE_COMPAT, "temperature", "{\"inputs\":\"x\",\"parameters\":{\"temperature\":\"1\"}}"},
    {TGI_ROUTE_COMPAT, "top_k", "{\"inputs\":\"x\",\"parameters\":{\"top_k\":0}}"},
    {TGI_ROUTE_COMPAT, "top_k", "{\"inputs\":\"x\",\"parameters\":{\"top_k\":-1}}"},
    {TGI_ROUTE_COMPAT, "top_p", "{\"inputs\":\"x\",\"parameters\":{\"top_p\":1.5}}"},
    {TGI_ROUTE_COMPAT, "top_p", "{\"inputs\":\"x\",\"parameters\":{\"top_p\":0}}"},
    {TGI_ROUTE_COMPAT, "repetition_penalty",
     "{\"inputs\":\"x\",\"parameters\":{\"repetition_penalty\":0}}"},
    {TGI_ROUTE_COMPAT, "frequency_penalty",
     "{\"inputs\":\"x\",\"parameters\":{\"frequency_penalty\":2.5}}"},
    {TGI_ROUTE_COMPAT, "typical_p", "{\"inputs\":\"x\",\"parameters\":{\"typical_p\":0}}"},
    {TGI_ROUTE_COMPAT, "typical_p", "{\"inputs\":\"x\",\"parameters\":{\"typical_p\":1.5}}"},
    {TGI_ROUTE_COMPAT, "typical_p", "{\"inputs\":\"x\",\"parameters\":{\"typical_p\":true}}"},
    {TGI_ROUTE_COMPAT, "watermark", "{\"inputs\":\"x\",\"parameters\":{\"watermark\":true}}"},
    {TGI_ROUTE_COMPAT, "grammar",
     "{\"inputs\":\"x\",\"parameters\":{\"grammar\":{\"type\":\"regex\",\"value\":\"a\"}}}"},
    {TGI_ROUTE_COMPAT, "adapter_id", "{\"inputs\":\"x\",\"parameters\":{\"adapter_id\":\"a\"}}"},
    {TGI_ROUTE_COMPAT, "max_new_tokens",
     "{\"inputs\":\"x\",\"parameters\":{\"max_new_tokens\":0}}"},
    {TGI_ROUTE_COMPAT, "max_new_tokens",
     "{\"inputs\":\"x\",\"parameters\":{\"max_new_tokens\":1.5}}"},
    {TGI_ROUTE_COMPAT, "truncate", "{\"inputs\":\"x\",\"parameters\":{\"truncate\":0}}"},
    {TGI_ROUTE_COMPAT, "stop[0]", "{\"inputs\":\"x\",\"parameters\":{\"stop\":[\"\"]}}"},
    {TGI_ROUTE_COMPAT, "stop",
     "{\"inputs\":\"x\",\"parameters\":{\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}}"},
    {TGI_ROUTE_COMPAT, "top_n_tokens", "{\"inputs\":\"x\",\"parameters\":{\"top_n_tokens\":21}}"},
    {TGI_ROUTE_COMPAT, "best_of", "{\"inputs\":\"x\",\"parameters\":{\"best_of\":2}}"},
    {TGI_ROUTE_COMPAT, "best_of",
     "{\"inputs\":\"x\",\"parameters\":{\"best_of\":0,\"do_sample\":true}}"},
    {TGI_ROUTE_COMPAT, "best_of",
     "{\"inputs\":\"x\",\"parameters\":{\"best_of\":9,\"do_sample\":true}}"},
    {TGI_ROUTE_COMPAT, "seed",
     "{\"inputs\":\"x\",\"parameters\":{\"best_of\":2,\"do_sample\":true,\"seed\":1}}"},
    {TGI_ROUTE_STREAM, "best_of",
     "{\"inputs\":\"x\",\"parameters\":{\"best_of\":2,\"do_sample\":true}}"},
    /* Symptom: the last of two values won, and the other was dropped without a word. */
    {TGI_ROUTE_COMPAT, "inputs", "{\"inputs\":\"x\",\"inputs\":\"y\"}"},
    {TGI_ROUTE_COMPAT, "stream", "{\"inputs\":\"x\",\"stream\":null,\"stream\":true}"},
    {TGI_ROUTE_COMPAT, "parameters", "{\"inputs\":\"x\",\"parameters\":{},\"parameters\":{}}"},
    {TGI_ROUTE_COMPAT, "max_new_tokens",
     "{\"inputs\":\"x\",\"parameters\":{\"max_new_tokens\":2,\"max_new_tokens\":3}}"},
    {TGI_ROUTE_COMPAT, "stop", "{\"inputs\":\"x\",\"parameters\":{\"stop\":[],\"stop\":[\"a\"]}}"},
    {TGI_ROUTE_STREAM, "decoder_input_details",
     "{\"inputs\":\"x\",\"parameters\":{\"decoder_input_details\":true}}"},
};

/* The reader and the server's checks together refuse each body, as an RPC's request is refused. */
static void test_each_bad_field_is_refused_by_its_name(void **state)
{
    struct gateway_limits limits;
    (void)state;
    gateway_limits_init(&limits);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct limit_check check = {.limits = &limits};
        struct tgi_request r;
        struct error err;
        static char model[] = "m";
        int rc = read_body(&r, bad[i].route, false, bad[i].body, &err);
        r.request.model = model;
        if (!rc)
            rc = validate_generate(&r.request, &check, &err);
        tgi_request_name_field(&err);
        if (!rc || strcmp(err.field, bad[i].field) != 0)
            fail_msg("%s: status %d, field \"%s\"", bad[i].body, rc, err.field);
        assert_true(strncmp(err.message, err.field, strlen(err.field)) == 0);
        tgi_request_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_parameters_the_request_is_greedy_with_1024_tokens),
        cmocka_unit_test(test_a_sampling_parameter_makes_the_request_sample),
        cmocka_unit_test(test_each_route_answers_in_its_form),
        cmocka_unit_test(test_all_parameters_arrive),
        cmocka_unit_test(test_whole_numbers_may_have_a_fraction_of_zero_or_a_sign),
        cmocka_unit_test(test_unknown_fields_are_named_or_refused),
        cmocka_unit_test(test_unknown_names_are_fit_for_a_header),
        cmocka_unit_test(test_each_bad_field_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
