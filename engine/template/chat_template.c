#include "engine/template/chat_template.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/context.h"
#include "engine/template/continuation.h"
#include "engine/template/conversation.h"
#include "engine/template/exec.h"
#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"
#include "engine/template/parse/lexer.h"
#include "engine/template/parse/parser.h"
#include "engine/template/scope.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/json_text.h"
#include "engine/template/value/limits.h"
#include "engine/template/value/value.h"

struct chat_template {
    struct arena arena; /* tokens, nodes and constants; never changes after compile */
    struct node *body;
    struct conversation_form form;
};

static int check_text(const char *text, size_t n_bytes, struct error *err)
{
    size_t offset;
    if (n_bytes > CHAT_TEMPLATE_MAX_TEXT_BYTES) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "chat template: %zu bytes of text, the limit is %d", n_bytes,
                  CHAT_TEMPLATE_MAX_TEXT_BYTES);
        return error_reason(err, REASON_TEMPLATE_LIMIT);
    }
    if (!utf8_valid(text, n_bytes, &offset))
        return error_set(err, STATUS_INVALID_ARGUMENT, "chat template: byte %zu is not UTF-8",
                         offset);
    return STATUS_OK;
}

int chat_template_compile(const char *text, size_t n_bytes, struct chat_template **out_template,
                          struct error *err)
{
    int rc = check_text(text, n_bytes, err);
    if (rc)
        return rc;
    struct chat_template *template = calloc(1, sizeof(*template));
    if (!template)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "chat template: out of memory");
    arena_init(&template->arena, 32 * 1024, COMPILER_MAX_BYTES);
    struct compiler c = {.arena = &template->arena, .err = err};
    const struct token *tokens;
    bool ok = lexer_run(&c, text, n_bytes, &tokens) && parser_run(&c, tokens, &template->body);
    hash_map_fini(&c.names);
    if (!ok) {
        chat_template_destroy(template);
        if (err->status == STATUS_RESOURCE_EXHAUSTED && !c.out_of_memory)
            error_reason(err, REASON_TEMPLATE_LIMIT);
        return err->status;
    }
    *out_template = template;
    return STATUS_OK;
}

void chat_template_destroy(struct chat_template *template)
{
    if (!template)
        return;
    arena_fini(&template->arena);
    free(template);
}

static void run_body(struct interp *in, const struct chat_template *template,
                     const struct chat_template_input *input)
{
    struct continuation continuation;
    if (!context_build(in, input, &template->form, &continuation) || !scope_push(in))
        return;
    exec_list(in, template->body);
    if (input->continue_field && interp_ok(in))
        continuation_cut(in, &continuation);
}

int chat_template_check_json(const char *field, const char *json, enum chat_template_json kind,
                             struct error *err)
{
    const struct chat_template_limits limits = {0};
    bool array = kind == CHAT_TEMPLATE_JSON_ARRAY;
    struct interp in;
    interp_init(&in, &limits, err);
    struct value v = json_text_value(&in, field, json, strlen(json), true);
    int rc = in.failed ? err->status : STATUS_OK;
    if (!rc && v.type != (array ? VALUE_LIST : VALUE_DICT))
        rc = error_field(err, field, "not a JSON %s", array ? "array" : "object");
    interp_fini(&in);
    return rc;
}

int chat_template_render(const struct chat_template *template,
                         const struct chat_template_input *input, struct strbuf *out,
                         struct error *err)
{
    struct interp in;
    interp_init(&in, &input->limits, err);
    run_body(&in, template, input);
    int rc = in.failed ? err->status : STATUS_OK;
    if (!rc && !strbuf_add(out, strbuf_str(&in.out), in.out.n_bytes))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED,
                       "chat template: no memory for %zu bytes of output", in.out.n_bytes);
    interp_fini(&in);
    return rc;
}

/* --- the form of tool calls --- */

/* Renders a call whose message has the given content and arguments, both JSON. Returns true if the
 * output shows the arguments and not what must not be in the output. */
static bool shows_arguments(const struct chat_template *template, const char *content,
                            const char *arguments, const char *wanted, const char *unwanted)
{
    enum { PROBE_STEPS = 200 * 1000, PROBE_OUTPUT_BYTES = 256 * 1024 };
    char messages[512];
    struct strbuf out = {0};
    struct error err;
    snprintf(messages, sizeof(messages),
             "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
             "%s, \"tool_calls\": [{\"id\": \"call00000\", \"type\": \"function\", "
             "\"function\": {\"name\": \"f\", \"arguments\": %s}}]}, {\"role\": \"tool\", "
             "\"tool_call_id\": \"call00000\", \"name\": \"f\", \"content\": \"b\"}]",
             content, arguments);
    struct chat_template_input input = {
        .messages_json = messages,
        .tools_json = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                      "\"description\": \"c\", \"parameters\": {\"type\": \"object\", "
                      "\"properties\": {}, \"required\": []}}}]",
        .bos_token = "",
        .eos_token = "",
        .limits = {PROBE_STEPS, PROBE_OUTPUT_BYTES}};
    bool good = chat_template_render(template, &input, &out, &err) == 0 &&
                strstr(strbuf_str(&out), wanted) && !strstr(strbuf_str(&out), unwanted);
    strbuf_fini(&out);
    return good;
}

/* Returns false if the template shows neither form of arguments beside the content. */
static bool probe_arguments(const struct chat_template *template, const char *content,
                            enum conversation_arguments *out_arguments)
{
    static const char json[] = "{\"probe_key\": \"probe_value\"}";
    /* Python's repr() of a dict shows a key in single quotes: no template means that */
    bool object = shows_arguments(template, content, json, "probe_key", "'probe_key'");
    /* a template that writes objects in a notation of its own is given objects */
    bool as_json = object && shows_arguments(template, content, json, json, "'probe_key'");
    /* tojson of a text shows escaped quotes */
    bool text = shows_arguments(template, content, "\"{\\\"probe_key\\\": \\\"probe_value\\\"}\"",
                                json, "\\\"probe_key");
    *out_arguments = object && !(as_json && text) ? CONVERSATION_ARGUMENTS_OBJECT
                     : text && !object            ? CONVERSATION_ARGUMENTS_TEXT
                                                  : CONVERSATION_ARGUMENTS_AS_GIVEN;
    return object || text;
}

void chat_template_probe(struct chat_template *template)
{
    struct conversation_form form = {0};
    template->form = form;
    if (!probe_arguments(template, "\"\"", &form.arguments))
        form.null_content = probe_arguments(template, "null", &form.arguments);
    template->form = form;
}
