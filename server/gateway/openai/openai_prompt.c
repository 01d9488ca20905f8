#include "server/gateway/openai/openai_prompt.h"

#include <string.h>

#include "base/error.h"
#include "server/gateway/http/http_body.h"

static const char field[] = "prompt";

static int add_prompt(struct http_body *body, struct openai_prompts *out,
                      struct openai_prompt **out_prompt)
{
    if (out->n == OPENAI_MAX_PROMPTS)
        return error_field(body->err, field, "has more than %d prompts", OPENAI_MAX_PROMPTS);
    void *list = http_body_grow(body, out->list, out->n, sizeof(*out->list));
    if (!list)
        return error_no_memory(body->err);
    out->list = list;
    *out_prompt = &out->list[out->n++];
    **out_prompt = (struct openai_prompt){0};
    return 0;
}

static int read_text(struct http_body *body, struct openai_prompts *out)
{
    struct openai_prompt *prompt = NULL;
    char *text = NULL;
    int rc = add_prompt(body, out, &prompt);
    if (!rc)
        rc = http_body_text(body, field, &text);
    if (!rc)
        prompt->text = text;
    return rc;
}

static int read_ids(struct http_body *body, struct openai_prompts *out)
{
    struct openai_prompt *prompt = NULL;
    int rc = add_prompt(body, out, &prompt);
    return rc ? rc : http_body_ids(body, field, &prompt->ids, &prompt->n_ids);
}

/* Appends an id to the only prompt. */
static int read_id(struct http_body *body, struct openai_prompts *out)
{
    struct openai_prompt *prompt = out->list;
    int rc = out->n ? 0 : add_prompt(body, out, &prompt);
    if (rc)
        return rc;
    void *ids = http_body_grow(body, prompt->ids, prompt->n_ids, sizeof(uint32_t));
    if (!ids)
        return http_body_no_memory(body);
    prompt->ids = ids;
    rc = http_body_u32(body, field, &prompt->ids[prompt->n_ids]);
    prompt->n_ids += !rc;
    return rc;
}

int openai_prompt_read(struct http_body *body, struct openai_prompts *out)
{
    enum json_value kind, first = JSON_VALUE_NULL;
    bool more = true;
    *out = (struct openai_prompts){0};
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    if (kind == JSON_VALUE_STRING)
        return read_text(body, out);
    rc = http_body_enter_list(body, field, "must be a string or a list");
    while (!rc && (rc = http_body_more(body, &more)) == 0 && more) {
        rc = http_body_kind(body, &kind);
        if (rc)
            break;
        first = first == JSON_VALUE_NULL ? kind : first;
        if (kind != first)
            rc = http_body_bad(body, field, "mixes strings, ids and lists");
        else if (kind == JSON_VALUE_STRING)
            rc = read_text(body, out);
        else if (kind == JSON_VALUE_NUMBER)
            rc = read_id(body, out);
        else if (kind == JSON_VALUE_ARRAY)
            rc = read_ids(body, out);
        else
            rc = http_body_bad(body, field, "must be a string or a list");
    }
    return rc || out->n ? rc : http_body_bad(body, field, "is empty");
}
