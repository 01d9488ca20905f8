#include "engine/template/chat_template.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/context.h"
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
    if (!context_build(in, input) || !scope_push(in))
        return;
    exec_list(in, template->body);
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
