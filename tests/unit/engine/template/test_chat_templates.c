/* The choice among a model's templates, and what happens to messages before a template reads them:
 * tool calls in the template's form. */
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
#include "engine/template/chat_templates.h"

static struct chat_templates *create(void)
{
    struct chat_templates *set = NULL;
    struct error err;
    assert_int_equal(chat_templates_create(&set, &err), 0);
    return set;
}

static void add(struct chat_templates *set, const char *name, const char *text)
{
    struct error err;
    if (chat_templates_add(set, name, text, &err))
        fail_msg("%s", err.message);
}

static void assert_chosen(const struct chat_templates *set, const char *name, bool has_tools,
                          const char *expected)
{
    const struct chat_template *template = NULL;
    struct chat_template_input input = {0};
    struct strbuf out = {0};
    struct error err;
    assert_int_equal(chat_templates_find(set, name, has_tools, &template, &err), 0);
    assert_int_equal(chat_template_render(template, &input, &out, &err), 0);
    assert_string_equal(strbuf_str(&out), expected);
    strbuf_fini(&out);
}

static int find(const struct chat_templates *set, const char *name, bool has_tools,
                struct error *err)
{
    const struct chat_template *template = NULL;
    *err = (struct error){0};
    int rc = chat_templates_find(set, name, has_tools, &template, err);
    assert_int_equal(rc, err->status);
    assert_null(template);
    return rc;
}

static void test_find_when_no_name_is_given_then_as_transformers_chooses(void **state)
{
    struct chat_templates *set = create();
    (void)state;
    add(set, "default", "D");
    assert_chosen(set, "", false, "D");
    assert_chosen(set, NULL, true, "D");
    add(set, "tool_use", "T");
    add(set, "rag", "R");
    assert_chosen(set, "", false, "D");
    assert_chosen(set, "", true, "T");
    assert_chosen(set, "default", true, "D");
    assert_chosen(set, "rag", true, "R");
    add(set, "rag", "R2");
    assert_chosen(set, "rag", false, "R2");
    assert_string_equal(chat_templates_name(set, 1), "tool_use");
    assert_null(chat_templates_name(set, 3));
    chat_templates_destroy(set);
}

static void test_find_when_the_name_is_unknown_then_the_field_is_at_fault(void **state)
{
    struct chat_templates *set = create();
    struct error err;
    (void)state;
    assert_int_equal(find(set, "rag", false, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "template");
    add(set, "default", "D");
    assert_int_equal(find(set, "rag", false, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "template");
    assert_int_equal(find(NULL, "rag", false, &err), STATUS_INVALID_ARGUMENT);
    chat_templates_destroy(set);
}

static void test_find_when_there_is_no_default_then_the_reason_says_so(void **state)
{
    struct chat_templates *set = create();
    struct error err;
    (void)state;
    assert_int_equal(find(set, "", false, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_NO_CHAT_TEMPLATE);
    assert_false(chat_templates_can_chat(set));
    add(set, "tool_use", "T");
    assert_int_equal(find(set, "", false, &err), STATUS_FAILED_PRECONDITION);
    assert_chosen(set, "", true, "T");
    assert_false(chat_templates_can_chat(set));
    chat_templates_destroy(set);
}

/* A template that does not compile leaves the others usable. */
static void test_add_when_a_template_is_bad_then_only_it_fails(void **state)
{
    struct chat_templates *set = create();
    struct error err;
    char name[200];
    (void)state;
    add(set, "default", "{% if %}");
    assert_false(chat_templates_can_chat(set));
    assert_int_equal(find(set, "", false, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(chat_templates_error(set, 0)->status, STATUS_INVALID_ARGUMENT);
    add(set, "tool_use", "T");
    assert_chosen(set, "", true, "T");
    assert_int_equal(chat_templates_error(set, 1)->status, 0);
    add(set, "default", "D");
    assert_true(chat_templates_can_chat(set));
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(chat_templates_add(set, name, "N", &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(chat_templates_add(set, "", "N", &err), STATUS_INVALID_ARGUMENT);
    for (int i = 2; i < CHAT_TEMPLATES_MAX; i++) {
        snprintf(name, sizeof(name), "t%d", i);
        add(set, name, "x");
    }
    assert_int_equal(chat_templates_add(set, "more", "N", &err), STATUS_INVALID_ARGUMENT);
    chat_templates_destroy(set);
    chat_templates_destroy(NULL);
}

/* --- tool calls --- */

#define CALLS(expression)                                                                          \
    "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function or "  \
    "c %}" expression "{% endfor %}{% endfor %}"

/* Renders a message with a call, after a probe. Returns the text (owned). */
static char *render_call(const char *text, const char *message)
{
    struct chat_template *template = NULL;
    struct strbuf messages = {0}, out = {0};
    struct error err = {0};
    strbuf_printf(&messages, "[%s]", message);
    struct chat_template_input input = {.messages_json = strbuf_str(&messages)};
    if (chat_template_compile(text, strlen(text), &template, &err))
        fail_msg("%s", err.message);
    chat_template_probe(template);
    if (chat_template_render(template, &input, &out, &err))
        fail_msg("%s: %s", text, err.message);
    chat_template_destroy(template);
    strbuf_fini(&messages);
    strbuf_add(&out, "", 0);
    return strbuf_take(&out);
}

static void assert_call(const char *text, const char *message, const char *expected)
{
    char *out = render_call(text, message);
    assert_string_equal(out, expected);
    free(out);
}

static void test_arguments_have_the_form_that_the_template_reads(void **state)
{
    (void)state;
    static const char object[] =
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": "
        "{\"name\": \"f\", \"arguments\": {\"b\": [1.0, null], \"a\": \"é\"}}}]}";
    static const char text[] =
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": "
        "{\"name\": \"f\", \"arguments\": \" {\\\"b\\\":[1.0,null],\\\"a\\\":\\\"é\\\"}\"}}]}";
    static const char flat[] =
        "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": "
        "\"{\\\"b\\\": 2}\"}]}";
    static const char none[] =
        "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": \"\"}]}";
    static const char no_json[] =
        "{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": \"{b\"}]}";
    static const char reads_objects[] = CALLS("{{ f.arguments|tojson }}"),
                      reads_text[] = CALLS("{{ '' + f.arguments }}"),
                      reads_both[] = CALLS("{{ f.arguments if f.arguments is string else "
                                           "f.arguments|tojson }}"),
                      own_notation[] = CALLS("{% if f.arguments is string %}{{ f.arguments }}{% "
                                             "else %}{% for k, v in f.arguments|items %}<{{ k }}="
                                             "{{ v }}>{% endfor %}{% endif %}");
    assert_call(reads_objects, object, "{\"b\": [1.0, null], \"a\": \"é\"}");
    assert_call(reads_objects, text, "{\"b\": [1.0, null], \"a\": \"é\"}");
    assert_call(reads_objects, flat, "{\"b\": 2}");
    assert_call(reads_objects, none, "{}");
    assert_call(reads_objects, no_json, "\"{b\"");
    assert_call(reads_text, object, "{\"b\": [1.0, null], \"a\": \"é\"}");
    assert_call(reads_text, text, " {\"b\":[1.0,null],\"a\":\"é\"}");
    assert_call(reads_both, object, "{\"b\": [1.0, null], \"a\": \"é\"}");
    assert_call(reads_both, text, " {\"b\":[1.0,null],\"a\":\"é\"}");
    assert_call(own_notation, object, "<b=[1.0, None]><a=é>");
    assert_call(own_notation, text, "<b=[1.0, None]><a=é>");
}

/* The templates of DeepSeek R1 render calls only where the content is none. */
static void test_empty_content_beside_calls_is_none_where_the_template_needs_that(void **state)
{
    (void)state;
    static const char message[] =
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": "
        "{\"name\": \"f\", \"arguments\": {\"b\": 2}}}]}";
    assert_call(CALLS("{{ 'null' if m.content is none }}{{ f.arguments|tojson }}"), message,
                "{\"b\": 2}");
    assert_call(CALLS("{% if m.content is none %}null {{ '' + f.arguments }}{% endif %}"), message,
                "null {\"b\": 2}");
    assert_call("{% for m in messages %}{{ m.content is none }}{% endfor %}", message, "False");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_when_no_name_is_given_then_as_transformers_chooses),
        cmocka_unit_test(test_find_when_the_name_is_unknown_then_the_field_is_at_fault),
        cmocka_unit_test(test_find_when_there_is_no_default_then_the_reason_says_so),
        cmocka_unit_test(test_add_when_a_template_is_bad_then_only_it_fails),
        cmocka_unit_test(test_arguments_have_the_form_that_the_template_reads),
        cmocka_unit_test(test_empty_content_beside_calls_is_none_where_the_template_needs_that),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
