/* Tests of the template module's own promises: inputs, errors that name line and construct, limits,
 * threads. Another test compares rendered text with jinja2 (test_template_golden.c). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"
#include "tests/support/names.h"

static struct chat_template *compile(const char *text)
{
    struct chat_template *template = NULL;
    struct error err = {0};
    if (chat_template_compile(text, strlen(text), &template, &err))
        fail_msg("%s: %s", text, err.message);
    return template;
}

/* Compiles and renders; the rendered text (owned) or NULL with err. */
static char *render(const char *text, const struct chat_template_input *input, struct error *err)
{
    struct chat_template *template = NULL;
    struct strbuf out = {0};
    int rc = chat_template_compile(text, strlen(text), &template, err);
    if (!rc)
        rc = chat_template_render(template, input, &out, err);
    chat_template_destroy(template);
    assert_int_equal(rc, err->status);
    if (rc) {
        assert_int_equal(out.n_bytes, 0);
        strbuf_fini(&out);
        return NULL;
    }
    strbuf_add(&out, "", 0);
    return strbuf_take(&out);
}

static void assert_renders(const char *text, const struct chat_template_input *input,
                           const char *expected)
{
    struct error err = {0};
    char *out = render(text, input, &err);
    if (!out)
        fail_msg("%s", err.message);
    assert_string_equal(out, expected);
    free(out);
}

static const struct chat_message turns[] = {
    {.role = "system", .content = "Be brief.", .n_content_bytes = 9},
    {.role = "user", .content = "Hi\0!", .n_content_bytes = 4, .name = "Ann"},
    {.role = "assistant", .extra_json = "{\"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}"},
};

static void test_messages_given_as_structs_are_seen_by_the_template(void **state)
{
    (void)state;
    struct chat_template_input input = {.messages = turns,
                                        .n_messages = 3,
                                        .bos_token = "<s>",
                                        .eos_token = "</s>",
                                        .add_generation_prompt = true,
                                        .tools_json = "[{\"b\": 1, \"a\": 2}]",
                                        .kwargs_json = "{\"style\": \"x\"}",
                                        .now_unix_s = 86400};
    assert_renders("{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content|length }}"
                   "{{ m.name is defined }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}"
                   "{% endif %};{% endfor %}{{ eos_token }}",
                   &input, "<s>system:9False;user:4True;assistant:0Falsef;</s>");
    assert_renders(
        "{{ tools|tojson }}{{ style }}{{ add_generation_prompt }}{{ pad_token is defined "
        "}}{{ strftime_now('%Y-%m-%d') }}",
        &input, "[{\"b\": 1, \"a\": 2}]xTrueFalse1970-01-02");
    input.messages_json =
        "[{\"role\": \"r\", \"content\": [{\"type\": \"text\", \"text\": \"t\"}]}]";
    assert_renders("{{ messages[0].content[0].text }}{{ messages|length }}", &input, "t1");
}

static void test_editing_a_literal_changes_the_output(void **state)
{
    (void)state;
    struct chat_template_input input = {.messages = turns, .n_messages = 1};
    const char *text =
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + "
        "'<|im_end|>' + '\n' }}{% endfor %}";
    assert_renders(text, &input, "<|im_start|>system\nBe brief.<|im_end|>\n");
    char edited[256];
    snprintf(edited, sizeof(edited), "%s", text);
    memcpy(strstr(edited, "im_start"), "IM_START", 8);
    assert_renders(edited, &input, "<|IM_START|>system\nBe brief.<|im_end|>\n");
}

static const struct {
    const char *text;
    int status;
    const char *message;
} refusals[] = {
    {"a\n{% include 'x' %}", STATUS_UNIMPLEMENTED, "line 2|include"},
    {"{% import 'x' as y %}", STATUS_UNIMPLEMENTED, "line 1|import"},
    {"{% from 'x' import y %}", STATUS_UNIMPLEMENTED, "line 1|from"},
    {"\n\n{% extends 'x' %}", STATUS_UNIMPLEMENTED, "line 3|extends"},
    {"{% block x %}{% endblock %}", STATUS_UNIMPLEMENTED, "block"},
    {"{% for x in [1] %}{{ loop([2]) }}{% endfor %}", STATUS_INVALID_ARGUMENT, "recursive"},
    {"{{ x|xmlattr }}", STATUS_UNIMPLEMENTED, "line 1|xmlattr"},
    {"{% if 1 %}\n{{ x|nope }}{% endif %}", STATUS_UNIMPLEMENTED, "line 2|nope"},
    {"{{ x is wonky }}", STATUS_UNIMPLEMENTED, "wonky"},
    {"{{ [1]|map('nope')|list }}", STATUS_UNIMPLEMENTED, "nope"},
    {"{% frob %}", STATUS_INVALID_ARGUMENT, "line 1|frob"},
    {"x\n{% if a %}\ny", STATUS_INVALID_ARGUMENT, "line 3|line 2|endif"},
    {"{{ 'abc }}", STATUS_INVALID_ARGUMENT, ""},
    {"{{ 1 + }}", STATUS_INVALID_ARGUMENT, "}}"},
    {"{{ (1, 2 }}", STATUS_INVALID_ARGUMENT, "}"},
    {"\n{# x", STATUS_INVALID_ARGUMENT, "line 2|{#"},
    {"{{ 99999999999999999999 + 1 }}", STATUS_INVALID_ARGUMENT, "64"},
    {"{{ '\\ud800' }}", STATUS_INVALID_ARGUMENT, ""},
    {"\n\n{{ a.b }}", STATUS_INVALID_ARGUMENT, "line 3|a"},
    {"{{ {}.b.c }}", STATUS_INVALID_ARGUMENT, "dict|b"},
    {"{{ none + 1 }}", STATUS_INVALID_ARGUMENT, "NoneType|int"},
    {"{{ [1]|join(1, 2, 3) }}", STATUS_INVALID_ARGUMENT, "join|2|3"},
    {"{{ 'a'.split(x=1) }}", STATUS_INVALID_ARGUMENT, "split|x"},
    {"{% for x in 5 %}{% endfor %}", STATUS_INVALID_ARGUMENT, "line 1|for|int"},
    {"{{ [].append(1) }}", STATUS_INVALID_ARGUMENT, "append|list"},
    {"{{ 9223372036854775807 + 1 }}", STATUS_INVALID_ARGUMENT, "64"},
    {"{{ -9223372036854775807 * 2 }}", STATUS_INVALID_ARGUMENT, "64"},
    {"{{ 1 // 0 }}", STATUS_INVALID_ARGUMENT, ""},
    {"{{ (-9223372036854775807 - 1) // -1 }}", STATUS_INVALID_ARGUMENT, "64"},
    {"\n{{ raise_exception('roles must alternate') }}", STATUS_INVALID_ARGUMENT,
     "line 2|roles must alternate"},
    {"{{ nothing|tojson }}", STATUS_INVALID_ARGUMENT, "tojson|JSON"},
};

static void test_errors_name_construct_and_line(void **state)
{
    (void)state;
    struct chat_template_input input = {0};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct error err = {0};
        assert_null(render(refusals[i].text, &input, &err));
        if (err.status != refusals[i].status || !names_all(err.message, refusals[i].message))
            fail_msg("%s\n  expected: %s\n  got: %s %s", refusals[i].text, refusals[i].message,
                     status_name(err.status), err.message);
    }
}

static void test_raise_exception_carries_its_reason(void **state)
{
    (void)state;
    struct chat_template_input input = {0};
    struct error err = {0};
    assert_null(render("{{ raise_exception('no') }}", &input, &err));
    assert_int_equal(err.reason, REASON_TEMPLATE_REFUSED);
}

/* Without limits, each template would run for ever, or use up the memory or the stack. */
static const struct {
    const char *text, *message;
} hostile[] = {
    {"\n{% for i in range(10**9) %}{% endfor %}", "line 2|10000000"},
    {"{% for a in range(9999) %}{% for b in range(9999) %}{% if a * b %}{% endif %}{% endfor %}{% "
     "endfor %}",
     ""},
    {"{{ 'x' * 10**9 }}", "128"},
    {"{{ 'x' * 10**18 * 10**18 }}", "128"},
    {"{{ 'xx' * 9223372036854775807 }}", "128"},
    {"{{ [0] * 10**12 }}", ""},
    {"{{ range(10**12)|list }}", ""},
    {"{{ range(10**9)|sum }}", ""},
    {"{{ 10**9 in range(10**12) }}", ""},
    {"{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
     "endfor "
     "%}",
     "128"},
    {"{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% "
     "endfor "
     "%}",
     ""},
    {"{% for i in range(100) %}{{ 'x' * 100000 }}{% endfor %}", "4194304"},
    {"{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", "f|64"},
    {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", "64"},
    {"{% macro f(x) %}{{ [f(x)]|map('string')|join }}{% endmacro %}{{ f(1) }}", ""},
    {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor "
     "%}{{ "
     "ns.l }}",
     "64"},
    {"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor "
     "%}{{ "
     "ns.l|tojson }}",
     "64"},
    {"{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(9999) %}{% set "
     "a.l "
     "= [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l == b.l }}",
     "64"},
    {"{% set a = namespace(l=[1]) %}{% set b = namespace(l=[2]) %}{% for i in range(9999) %}{% set "
     "a.l = [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l < b.l }}",
     ""},
    {"{% set ns = namespace(t=()) %}{% for i in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor "
     "%}{{ "
     "{ns.t: 1} }}",
     ""},
    {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "64"},
    {"{% set ns = namespace(l=[[1]]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor "
     "%}{{ ns.l|map(*(['map'] * 9999))|list }}",
     "1024"},
    {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "64"},
    {"{{ '%9999999999d' % 1 }}", "4096"},
    {"{{ 'a'|indent(10**12) }}", "128"},
    {"{{ 'a'|center(10**12) }}", ""},
    {"{{ 'a'.ljust(10**12) }}", ""},
    {"{{ 'a'.zfill(10**12) }}", ""},
    {"{{ [[[]]]|tojson(indent=10**12)|length * 'aaaaaaaaaaaaaaaaaaa' * 99999999 }}", "128"},
    {"{{ ('ab' * 500000)|replace('', 'xxxxxxxxxxxxxxxxxxxxxxxxx') }}", "16777216"},
    {"{{ [1]|batch(10**12, 'x')|list }}", ""},
    {"{{ [1]|slice(10**12)|list }}", ""},
    {"{{ 2 ** 10 ** 9 }}", "64"},
    /* Symptom: these templates scanned a whole text or tuple without limit, and paid for a step or
     * two. */
    {"{% set s = ' ' * 2000000 %}{% for i in range(400) %}{% set x = s|int %}{% endfor %}", ""},
    {"{% set s = ' ' * 2000000 %}{% for i in range(400) %}{% set x = s|float %}{% endfor %}", ""},
    {"{% set s = 'a' * 3000000 %}{% for i in range(400) %}{% set x = s.split('b') %}{% endfor %}",
     ""},
    {"{% set s = 'a' ~ '\xC3\xA9' * 1000000 %}{% for i in range(400) %}{% set x = s.splitlines() "
     "%}{% endfor %}",
     ""},
    {"{% set s = 'a' * 3000000 %}{{ range(400)|map(attribute=s)|list|length }}", ""},
    {"{% set t = (1,) * 500000 %}{% for i in range(400) %}{% set x = {}.get(t) %}{% endfor %}", ""},
    {"{{ strftime_now('%9999999Y') }}", ""},
};

static void test_hostile_templates_end_with_a_limit(void **state)
{
    (void)state;
    struct chat_template_input input = {0};
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        struct error err = {0};
        char *out = render(hostile[i].text, &input, &err);
        if (out || !names_all(err.message, hostile[i].message) || !strstr(err.message, "line "))
            fail_msg("%s\n  expected: %s\n  got: %s", hostile[i].text, hostile[i].message,
                     out ? out : err.message);
        free(out);
    }
}

/* n copies of `open`, then middle, then n of `close`. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    struct strbuf text = {0};
    for (size_t i = 0; i < n; i++)
        strbuf_add_str(&text, open);
    strbuf_add_str(&text, middle);
    for (size_t i = 0; i < n; i++)
        strbuf_add_str(&text, close);
    return strbuf_take(&text);
}

static const struct {
    const char *before, *open, *middle, *close, *after;
} nests[] = {
    {"{{ ", "(", "1", ")", " }}"},
    {"{{ ", "[", "1", "]", " }}"},
    {"{{ ", "{'a':", "1", "}", " }}"},
    {"{{ ", "not ", "1", "", " }}"},
    {"{{ ", "-", "1", "", " }}"},
    {"{{ x", "", "", ".a", " }}"},
    {"{{ x", "", "", "[0]", " }}"},
    {"{{ x", "", "", "|upper", " }}"},
    {"{{ ", "f(", "1", ")", " }}"},
    {"{{ ", "1 if ", "1", " else 1", " }}"},
    {"{{ 1", "", "", " if 1 else 1", " }}"},
    {"{{ 1", "", "", " if 1", " }}"},
    {"{{ x[", "x[", "0", "]", "] }}"},
    {"", "{% if 1 %}", "x", "{% endif %}", ""},
    {"", "{% for x in [1] %}", "x", "{% endfor %}", ""},
    {"", "{% set x %}", "x", "{% endset %}", ""},
    {"{% set ", "(", "a", ",)", " = 1 %}"},
};

static void test_deep_nesting_is_refused_by_the_parser(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(nests) / sizeof(nests[0]); i++) {
        char *inner = nested(nests[i].open, nests[i].middle, nests[i].close, 5000);
        struct strbuf text = {0};
        struct chat_template *template = NULL;
        struct error err = {0};
        strbuf_printf(&text, "%s%s%s", nests[i].before, inner, nests[i].after);
        int rc = chat_template_compile(strbuf_str(&text), text.n_bytes, &template, &err);
        if (!rc)
            fail_msg("5000 × %s%s compiled", nests[i].open, nests[i].close);
        assert_non_null(strstr(err.message, "line 1"));
        free(inner);
        strbuf_fini(&text);
    }
}

static void test_long_flat_expressions_are_not_deep(void **state)
{
    (void)state;
    struct chat_template_input input = {0};
    char *sum = nested("{{ 1", "", "", 1), *chain = nested(" + 1", "", "", 3000);
    struct strbuf text = {0};
    strbuf_printf(&text, "%s%s }}", sum, chain);
    assert_renders(strbuf_str(&text), &input, "3001");
    free(sum);
    free(chain);
    strbuf_fini(&text);
    char *branches = nested("{% elif 0 %}a", "", "", 3000);
    strbuf_printf(&text, "{%% if 0 %%}%s{%% else %%}z{%% endif %%}", branches);
    assert_renders(strbuf_str(&text), &input, "z");
    free(branches);
    strbuf_fini(&text);
}

static void test_building_text_piece_by_piece_is_linear(void **state)
{
    (void)state;
    struct chat_template_input input = {0};
    assert_renders("{% set ns = namespace(s='') %}{% for i in range(30000) %}{% set ns.s = ns.s ~ "
                   "'0123456789012345678901234567890123456789' %}{% endfor %}{{ ns.s|length }}",
                   &input, "1200000");
}

static const struct {
    struct chat_template_input input;
    const char *field, *message;
} bad_inputs[] = {
    {{.kwargs_json = "{\"a\": "}, "kwargs", ""},
    {{.kwargs_json = "[1]"}, "kwargs", "JSON|list"},
    {{.tools_json = "{}"}, "tools", "JSON|dict"},
    {{.tools_json = "nope"}, "tools", ""},
    {{.messages_json = "3"}, "messages", "JSON"},
    {{.bos_token = "\xff"}, "bos_token", "byte 0|UTF-8"},
    {{.messages =
          &(const struct chat_message){.role = "u", .content = "ab\xc3", .n_content_bytes = 3},
      .n_messages = 1},
     "messages.content",
     "byte 2|UTF-8"},
    {{.messages = &(const struct chat_message){.role = "u", .extra_json = "7"}, .n_messages = 1},
     "messages.extra_json",
     "JSON"},
    {{.continue_field = "content"}, "continue_final_message", ""},
    {{.messages_json = "[7]", .continue_field = "content"}, "continue_final_message", ""},
    {{.messages_json = "[{\"role\": \"u\"}]", .continue_field = "content"},
     "continue_final_message",
     ""},
    {{.messages_json = "[{\"content\": \"not rendered\"}]", .continue_field = "content"},
     "continue_final_message",
     ""},
};

static void test_bad_input_names_the_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_inputs) / sizeof(bad_inputs[0]); i++) {
        struct error err = {0};
        assert_null(render("x", &bad_inputs[i].input, &err));
        assert_int_equal(err.status, STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, bad_inputs[i].field);
        if (!names_all(err.message, bad_inputs[i].message))
            fail_msg("expected %s, got %s", bad_inputs[i].message, err.message);
    }
    char *deep = nested("[", "", "]", 200);
    struct chat_template_input input = {.tools_json = deep};
    struct error err = {0};
    assert_null(render("x", &input, &err));
    assert_true(names_all(err.message, "64"));
    free(deep);
}

/* A client's text may hold the mark of the open end: another mark is taken. */
static void test_an_open_message_may_hold_marks(void **state)
{
    (void)state;
    struct chat_template_input input = {
        .messages_json = "[{\"content\": \"SLUICE_OPEN_END_B SLUICE_OPEN_END_A\"}, {\"content\": "
                         "[{\"text\": \"SLUICE_OPEN_END_A SLUICE_OPEN_END_C SLUICE_OPEN_END_\"}]}]",
        .continue_field = "content"};
    assert_renders("{{ messages[0].content }};{{ messages[1].content[0].text }}.", &input,
                   "SLUICE_OPEN_END_B SLUICE_OPEN_END_A;"
                   "SLUICE_OPEN_END_A SLUICE_OPEN_END_C SLUICE_OPEN_END_");
    struct strbuf all = {0};
    struct error err = {0};
    strbuf_add_str(&all, "[{\"content\": \"");
    for (char letter = 'A'; letter <= 'Z'; letter++)
        strbuf_printf(&all, "SLUICE_OPEN_END_%c", letter);
    strbuf_add_str(&all, "\"}]");
    input.messages_json = strbuf_str(&all);
    assert_null(render("{{ messages[0].content }}", &input, &err));
    assert_string_equal(err.field, "continue_final_message");
    strbuf_fini(&all);
}

static void test_bad_text_is_refused(void **state)
{
    (void)state;
    struct chat_template *template = NULL;
    struct error err = {0};
    assert_int_equal(chat_template_compile("a\xff", 2, &template, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "byte 1|UTF-8"));
    char *big = calloc(1, CHAT_TEMPLATE_MAX_TEXT_BYTES + 1);
    memset(big, 'x', CHAT_TEMPLATE_MAX_TEXT_BYTES + 1);
    assert_int_equal(chat_template_compile(big, CHAT_TEMPLATE_MAX_TEXT_BYTES + 1, &template, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_null(template);
    free(big);
    chat_template_destroy(NULL);
}

static void test_output_is_appended_and_untouched_on_failure(void **state)
{
    (void)state;
    struct chat_template *good = compile("b{{ 1 }}"), *bad = compile("b{{ x.y }}");
    struct chat_template_input input = {0};
    struct strbuf out = {0};
    struct error err = {0};
    strbuf_add_str(&out, "a");
    assert_int_equal(chat_template_render(good, &input, &out, &err), 0);
    assert_int_equal(chat_template_render(bad, &input, &out, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(strbuf_str(&out), "ab1");
    strbuf_fini(&out);
    chat_template_destroy(good);
    chat_template_destroy(bad);
}

enum { N_THREADS = 8, N_RENDERS = 200 };

struct renderer {
    const struct chat_template *template;
    char json[64], expected[64];
    int n_wrong;
};

static void *render_many(void *arg)
{
    struct renderer *r = arg;
    struct chat_template_input input = {.kwargs_json = r->json};
    for (int i = 0; i < N_RENDERS; i++) {
        struct strbuf out = {0};
        struct error err = {0};
        int rc = chat_template_render(r->template, &input, &out, &err);
        r->n_wrong += rc || strcmp(strbuf_str(&out), r->expected) != 0;
        strbuf_fini(&out);
    }
    return NULL;
}

static void test_one_template_renders_on_many_threads(void **state)
{
    (void)state;
    struct chat_template *template =
        compile("{% macro m(a) %}{{ 'x' ~ a ~ '-' }}{% endmacro %}{% set ns = namespace(s='s') %}"
                "{% for i in range(n) %}{% set ns.s = ns.s ~ m(i) %}{% endfor %}{{ ns.s }}");
    pthread_t threads[N_THREADS];
    struct renderer renderers[N_THREADS] = {{0}};
    for (int i = 0; i < N_THREADS; i++) {
        struct renderer *r = &renderers[i];
        r->template = template;
        snprintf(r->json, sizeof(r->json), "{\"n\": %d}", i);
        r->expected[0] = 's';
        for (int j = 0; j < i; j++)
            snprintf(r->expected + strlen(r->expected), 16, "x%d-", j);
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, r), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(renderers[i].n_wrong, 0);
    }
    chat_template_destroy(template);
}

/* Each render has its own limits, exact to the byte and to the step. */
static void test_a_render_has_limits_of_its_own(void **state)
{
    (void)state;
    struct chat_template_input input = {.limits = {.max_steps = 1000, .max_output_bytes = 2000}};
    struct error err = {0};
    assert_null(render("{% for i in range(2000) %}{% endfor %}", &input, &err));
    assert_int_equal(err.status, STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_TEMPLATE_LIMIT);
    assert_true(names_all(err.message, "1000"));
    assert_null(render("{{ 'x' * 2001 }}", &input, &err));
    assert_int_equal(err.reason, REASON_TEMPLATE_LIMIT);
    assert_true(names_all(err.message, "2000"));
    err = (struct error){0};
    char *out = render("{{ 'x' * 2000 }}", &input, &err);
    assert_non_null(out);
    assert_int_equal(strlen(out), 2000);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_render_has_limits_of_its_own),
        cmocka_unit_test(test_messages_given_as_structs_are_seen_by_the_template),
        cmocka_unit_test(test_editing_a_literal_changes_the_output),
        cmocka_unit_test(test_errors_name_construct_and_line),
        cmocka_unit_test(test_raise_exception_carries_its_reason),
        cmocka_unit_test(test_hostile_templates_end_with_a_limit),
        cmocka_unit_test(test_deep_nesting_is_refused_by_the_parser),
        cmocka_unit_test(test_long_flat_expressions_are_not_deep),
        cmocka_unit_test(test_building_text_piece_by_piece_is_linear),
        cmocka_unit_test(test_bad_input_names_the_field),
        cmocka_unit_test(test_an_open_message_may_hold_marks),
        cmocka_unit_test(test_bad_text_is_refused),
        cmocka_unit_test(test_output_is_appended_and_untouched_on_failure),
        cmocka_unit_test(test_one_template_renders_on_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
