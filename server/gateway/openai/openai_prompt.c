#include "server/gateway/openai/openai_prompt.h"

#include "base/error.h"

static int add_prompt(struct http_fields *r, struct openai_prompts *out,
                      struct openai_prompt **out_prompt)
{
    if (out->n == OPENAI_MAX_PROMPTS)
        return error_field(r->body.err, r->label, "has more than %d prompts", OPENAI_MAX_PROMPTS);
    void *list = http_body_grow(&r->body, out->list, out->n, sizeof(*out->list));
    if (!list)
        return error_no_memory(r->body.err);
    out->list = list;
    *out_prompt = &out->list[out->n++];
    **out_prompt = (struct openai_prompt){0};
    return 0;
}

static int read_text(struct http_fields *r, struct openai_prompts *out)
{
    struct openai_prompt *prompt = NULL;
    char *text = NULL;
    int rc = add_prompt(r, out, &prompt);
    if (!rc)
        rc = http_body_text(&r->body, r->label, &text);
    if (!rc)
        prompt->text = text;
    return rc;
}

static int read_ids(struct http_fields *r, struct openai_prompts *out)
{
    struct openai_prompt *prompt = NULL;
    int rc = add_prompt(r, out, &prompt);
    return rc ? rc : http_body_ids(&r->body, r->label, &prompt->ids, &prompt->n_ids);
}

/* Appends an id to the only prompt. */
static int read_id(struct http_fields *r, struct openai_prompts *out)
{
    struct openai_prompt *prompt = out->list;
    int rc = out->n ? 0 : add_prompt(r, out, &prompt);
    if (rc)
        return rc;
    void *ids = http_body_grow(&r->body, prompt->ids, prompt->n_ids, sizeof(uint32_t));
    if (!ids)
        return http_body_no_memory(&r->body);
    prompt->ids = ids;
    rc = http_body_u32(&r->body, r->label, &prompt->ids[prompt->n_ids]);
    prompt->n_ids += !rc;
    return rc;
}

int openai_prompt_read(struct http_fields *r, const struct http_field *field)
{
    struct openai_prompts *out = http_fields_place(r, field->at);
    enum json_value kind, first = JSON_VALUE_NULL;
    bool more = true;
    *out = (struct openai_prompts){0};
    int rc = http_body_kind(&r->body, &kind);
    if (rc)
        return rc;
    if (kind == JSON_VALUE_STRING)
        return read_text(r, out);
    rc = http_body_enter_list(&r->body, r->label, "must be a string or a list");
    while (!rc && (rc = http_body_more(&r->body, &more)) == 0 && more) {
        rc = http_body_kind(&r->body, &kind);
        if (rc)
            break;
        first = first == JSON_VALUE_NULL ? kind : first;
        if (kind != first)
            rc = http_fields_bad(r, "mixes strings, ids and lists");
        else if (kind == JSON_VALUE_STRING)
            rc = read_text(r, out);
        else if (kind == JSON_VALUE_NUMBER)
            rc = read_id(r, out);
        else if (kind == JSON_VALUE_ARRAY)
            rc = read_ids(r, out);
        else
            rc = http_fields_bad(r, "must be a string or a list");
    }
    return rc || out->n ? rc : http_fields_bad(r, "is empty");
}
