/* Chat templates against jinja2's own output: the families in tests/golden/templates and the small
 * pieces in tests/golden/template_cases. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"

#define GOLDEN SLUICE_SOURCE_DIR "/tests/golden/"

static json_t *load_json(const char *path)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root)
        fail_msg("%s: line %d: %s", path, where.line, where.text);
    return root;
}

static char *load_text(const char *path, size_t *out_bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    struct strbuf text = {0};
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), file)) > 0)
        strbuf_add(&text, chunk, n);
    fclose(file);
    *out_bytes = text.n_bytes;
    return strbuf_take(&text);
}

/* Renders with all variables as keyword arguments. True: *out holds text; false: err is set. */
static bool render_variables(const char *text, size_t n_bytes, const json_t *variables,
                             int64_t clock, struct strbuf *out, struct error *err)
{
    struct chat_template *template = NULL;
    char *json = json_dumps(variables, JSON_ENCODE_ANY);
    struct chat_template_input input = {.kwargs_json = json, .now_unix_s = clock};
    int rc = chat_template_compile(text, n_bytes, &template, err);
    if (!rc)
        rc = chat_template_render(template, &input, out, err);
    chat_template_destroy(template);
    free(json);
    assert_int_equal(rc, err->status);
    return rc == 0;
}

/* Takes a member out of an object. Returns its JSON text (owned); NULL if absent or null. */
static char *take_json(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    char *text = v && !json_is_null(v) ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    json_object_del(object, key);
    return text;
}

/* Renders a conversation as apply_chat_template does with the same arguments. */
static bool render_chat(const char *text, size_t n_bytes, const json_t *arguments, int64_t clock,
                        struct strbuf *out, struct error *err)
{
    struct chat_template *template = NULL;
    json_t *rest = json_copy((json_t *)(uintptr_t)arguments);
    const json_t *open = json_object_get(arguments, "continue_final_message");
    char *messages = take_json(rest, "messages"), *tools = take_json(rest, "tools");
    struct chat_template_input input = {
        .messages_json = messages,
        .tools_json = tools,
        .add_generation_prompt = json_is_true(json_object_get(rest, "add_generation_prompt")),
        .continue_field = json_is_string(open) ? json_string_value(open)
                          : json_is_true(open) ? "content"
                                               : NULL,
        .now_unix_s = clock};
    json_object_del(rest, "add_generation_prompt");
    json_object_del(rest, "continue_final_message");
    char *kwargs = json_dumps(rest, 0);
    input.kwargs_json = kwargs;
    int rc = chat_template_compile(text, n_bytes, &template, err);
    if (!rc)
        rc = chat_template_render(template, &input, out, err);
    chat_template_destroy(template);
    json_decref(rest);
    free(messages);
    free(tools);
    free(kwargs);
    assert_int_equal(rc, err->status);
    return rc == 0;
}

typedef bool render_fn(const char *text, size_t n_bytes, const json_t *inputs, int64_t clock,
                       struct strbuf *out, struct error *err);

/* Returns true if the outcome is as expected; prints a difference. */
static bool check(render_fn *render, const char *what, const char *text, size_t n_bytes,
                  const json_t *inputs, int64_t clock, const json_t *expected,
                  const char *error_part)
{
    struct strbuf out = {0};
    struct error err = {0};
    bool ok = render(text, n_bytes, inputs, clock, &out, &err);
    bool good;
    if (json_is_string(expected))
        good = ok && out.n_bytes == json_string_length(expected) &&
               !memcmp(strbuf_str(&out), json_string_value(expected), out.n_bytes);
    else
        good = !ok && out.n_bytes == 0 && (!error_part || strstr(err.message, error_part));
    if (!good)
        print_error("%s\n  expected: %s\n  got:      %s\n", what,
                    json_is_string(expected) ? json_string_value(expected) : error_part,
                    ok ? strbuf_str(&out) : err.message);
    strbuf_fini(&out);
    return good;
}

static int64_t parse_clock(const char *text)
{
    struct tm tm = {0};
    assert_non_null(strptime(text, "%Y-%m-%dT%H:%M:%S", &tm));
    return (int64_t)timegm(&tm);
}

static size_t check_family(const char *folder, const char *name, const json_t *shared,
                           size_t *n_bad)
{
    char path[512], what[1024];
    size_t n_bytes;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    json_t *golden = load_json(path);
    snprintf(path, sizeof(path), "%s/%s", folder,
             json_string_value(json_object_get(golden, "template")));
    char *text = load_text(path, &n_bytes);
    int64_t clock = parse_clock(json_string_value(json_object_get(golden, "clock")));
    const json_t *cases = json_object_get(golden, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        snprintf(what, sizeof(what), "%s: %s", name,
                 json_string_value(json_object_get(one, "name")));
        const json_t *inputs = json_object_get(one, "inputs");
        if (!inputs)
            inputs = json_object_get(shared, json_string_value(json_object_get(one, "name")));
        *n_bad += !check(render_chat, what, text, n_bytes, inputs, clock,
                         json_object_get(one, "expected"),
                         json_string_value(json_object_get(one, "error")));
    }
    size_t n = json_array_size(cases);
    free(text);
    json_decref(golden);
    return n;
}

static void test_families_render_as_jinja_does(void **state)
{
    (void)state;
    /* a developer may compare real templates: tests/golden/README.md */
    const char *own = getenv("SLUICE_TEMPLATES"), *folder = own ? own : GOLDEN "templates";
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    char path[512];
    snprintf(path, sizeof(path), "%s/shared_inputs.json", folder);
    json_t *shared = load_json(path);
    size_t n_families = 0, n_cases = 0, n_bad = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".json") != 0 || !strcmp(entry->d_name, "shared_inputs.json"))
            continue;
        n_families++;
        n_cases += check_family(folder, entry->d_name, shared, &n_bad);
    }
    closedir(dir);
    json_decref(shared);
    print_message("%zu templates, %zu cases, %zu differ\n", n_families, n_cases, n_bad);
    assert_true(own || n_families >= 45);
    assert_int_equal(n_bad, 0);
}

static void test_pieces_render_as_jinja_does(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN "template_cases/cases.json");
    const json_t *cases = json_object_get(golden, "cases");
    const json_t *context = json_object_get(golden, "context");
    int64_t clock = json_integer_value(json_object_get(golden, "clock"));
    size_t n_bad = 0;
    assert_true(json_array_size(cases) > 600);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const json_t *text = json_object_get(one, "template");
        n_bad += !check(render_variables, json_string_value(text), json_string_value(text),
                        json_string_length(text), context, clock, json_object_get(one, "expected"),
                        NULL);
    }
    assert_int_equal(n_bad, 0);
    json_decref(golden);
}

/* Tools with an integer over 64 bits or a \\u0000 were refused. */
static void test_json_is_read_as_python_reads_it(void **state)
{
    (void)state;
    json_t *golden = load_json(GOLDEN "template_cases/cases.json");
    const json_t *cases = json_object_get(golden, "json_cases");
    size_t n_bad = 0;
    assert_true(json_array_size(cases) > 200);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i), *text = json_object_get(one, "json");
        const json_t *expected = json_object_get(one, "expected");
        const char *source = json_string_value(json_object_get(one, "template"));
        struct chat_template *template = NULL;
        struct strbuf kwargs = {0}, out = {0};
        struct error err = {0};
        if (strlen(json_string_value(text)) != json_string_length(text))
            continue; /* the interface takes JSON as C strings: the wire has no NUL in a string */
        strbuf_printf(&kwargs, "{\"j\": %s}", json_string_value(text));
        struct chat_template_input input = {.kwargs_json = strbuf_str(&kwargs)};
        assert_int_equal(chat_template_compile(source, strlen(source), &template, &err), 0);
        int rc = chat_template_render(template, &input, &out, &err);
        bool good = expected
                        ? !rc && out.n_bytes == json_string_length(expected) &&
                              !memcmp(strbuf_str(&out), json_string_value(expected), out.n_bytes)
                        : rc == STATUS_INVALID_ARGUMENT && !strcmp(err.field, "kwargs");
        if (!good)
            print_error("%s of %s\n  expected: %s\n  got:      %s\n", source,
                        json_string_value(text), expected ? json_string_value(expected) : "refusal",
                        rc ? err.message : strbuf_str(&out));
        n_bad += !good;
        chat_template_destroy(template);
        strbuf_fini(&kwargs);
        strbuf_fini(&out);
    }
    json_decref(golden);
    assert_int_equal(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_render_as_jinja_does),
        cmocka_unit_test(test_pieces_render_as_jinja_does),
        cmocka_unit_test(test_json_is_read_as_python_reads_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
