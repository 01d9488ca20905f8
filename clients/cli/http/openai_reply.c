#include "clients/cli/http/openai_reply.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_cursor.h"
#include "clients/cli/http/openai_error.h"

enum { ARENA_BYTES = 64 << 20, NAMES_BYTES = 200 };

/* A pass over a text. */
struct reader {
    struct json_cursor cursor;
    struct arena arena;
    struct error *err;
    bool has_error; /* *err is the error that the server reports */
};

/* Reads the value of a key. `key` is not terminated. */
typedef int key_fn(struct reader *r, void *ctx, const char *key, size_t n_key);

static bool is_key(const char *key, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(key, name, n) == 0;
}

static int skip(struct reader *r)
{
    return json_cursor_skip(&r->cursor, r->err);
}

/* Reads an object, key by key. Another value is passed over. */
static int read_object(struct reader *r, key_fn *on_key, void *ctx)
{
    enum json_value kind;
    int rc = json_cursor_peek(&r->cursor, &kind, r->err);
    if (rc || kind != JSON_VALUE_OBJECT)
        return rc ? rc : skip(r);
    rc = json_cursor_enter_object(&r->cursor, r->err);
    while (!rc) {
        const char *key;
        size_t n;
        rc = json_cursor_next_text_key(&r->cursor, &r->arena, &key, &n, r->err);
        if (rc || !key)
            return rc;
        rc = on_key(r, ctx, key, n);
    }
    return rc;
}

/* Reads an array, element by element. Another value is passed over. */
static int read_array(struct reader *r, int (*on_element)(struct reader *, void *, size_t i),
                      void *ctx)
{
    enum json_value kind;
    bool more = true;
    int rc = json_cursor_peek(&r->cursor, &kind, r->err);
    if (rc || kind != JSON_VALUE_ARRAY)
        return rc ? rc : skip(r);
    rc = json_cursor_enter_array(&r->cursor, r->err);
    for (size_t i = 0; !rc; i++) {
        rc = json_cursor_next_element(&r->cursor, &more, r->err);
        if (rc || !more)
            return rc;
        rc = on_element(r, ctx, i);
    }
    return rc;
}

static int read_number(struct reader *r, uint64_t *out, bool *out_has)
{
    enum json_value kind;
    struct json_number number;
    int rc = json_cursor_peek(&r->cursor, &kind, r->err);
    if (rc || kind != JSON_VALUE_NUMBER)
        return rc ? rc : skip(r);
    rc = json_cursor_number(&r->cursor, &number, r->err);
    if (!rc && number.is_integer && !number.is_negative) {
        *out = number.u;
        if (out_has)
            *out_has = true;
    }
    return rc;
}

static int read_text(struct reader *r, struct strbuf *out)
{
    const char *text;
    size_t n;
    enum json_value kind;
    int rc = json_cursor_peek(&r->cursor, &kind, r->err);
    if (rc || kind != JSON_VALUE_STRING)
        return rc ? rc : skip(r);
    rc = json_cursor_text(&r->cursor, &r->arena, &text, &n, r->err);
    if (!rc && !strbuf_add(out, text, n))
        rc = error_no_memory(r->err);
    return rc;
}

static int copy_text(struct reader *r, char *out, size_t n_out)
{
    struct strbuf text;
    strbuf_init(&text, 0);
    int rc = read_text(r, &text);
    snprintf(out, n_out, "%s", strbuf_str(&text));
    strbuf_fini(&text);
    return rc;
}

/* --- answers --- */

void openai_reply_fini(struct openai_reply *reply)
{
    strbuf_fini(&reply->text);
    strbuf_fini(&reply->reasoning);
}

/* A part of a message's content: {"type": "text", "text": ...}. */
static int on_part_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    return is_key(key, n, "text") ? read_text(r, &reply->text) : skip(r);
}

static int on_part(struct reader *r, void *ctx, size_t i)
{
    (void)i;
    return read_object(r, on_part_key, ctx);
}

static int read_content(struct reader *r, struct openai_reply *reply)
{
    enum json_value kind;
    int rc = json_cursor_peek(&r->cursor, &kind, r->err);
    if (rc)
        return rc;
    return kind == JSON_VALUE_ARRAY ? read_array(r, on_part, reply) : read_text(r, &reply->text);
}

/* Servers send the reasoning under one of two names, or the same text under both. The first text
 * counts. */
static int on_message_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    if (is_key(key, n, "content"))
        return read_content(r, reply);
    if (is_key(key, n, "reasoning_content") || is_key(key, n, "reasoning"))
        return reply->reasoning.n_bytes ? skip(r) : read_text(r, &reply->reasoning);
    return skip(r);
}

static int on_choice_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    if (is_key(key, n, "delta") || is_key(key, n, "message"))
        return read_object(r, on_message_key, ctx);
    if (is_key(key, n, "text"))
        return read_text(r, &reply->text);
    if (is_key(key, n, "finish_reason"))
        return copy_text(r, reply->finish, sizeof(reply->finish));
    return skip(r);
}

static int on_choice(struct reader *r, void *ctx, size_t i)
{
    struct openai_reply *reply = ctx;
    reply->has_choice = true;
    return i == 0 ? read_object(r, on_choice_key, ctx) : skip(r);
}

static int on_details_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    return is_key(key, n, "cached_tokens") ? read_number(r, &reply->n_cached, NULL) : skip(r);
}

static int on_usage_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    if (is_key(key, n, "prompt_tokens"))
        return read_number(r, &reply->n_prompt, NULL);
    if (is_key(key, n, "completion_tokens"))
        return read_number(r, &reply->n_generated, &reply->has_usage);
    if (is_key(key, n, "prompt_tokens_details"))
        return read_object(r, on_details_key, ctx);
    return skip(r);
}

static int on_timings_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_reply *reply = ctx;
    return is_key(key, n, "predicted_n")
               ? read_number(r, &reply->n_predicted, &reply->has_predicted)
               : skip(r);
}

static int on_reply_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    if (is_key(key, n, "choices"))
        return read_array(r, on_choice, ctx);
    if (is_key(key, n, "usage"))
        return read_object(r, on_usage_key, ctx);
    if (is_key(key, n, "timings"))
        return read_object(r, on_timings_key, ctx);
    if (!is_key(key, n, "error"))
        return skip(r);
    int rc = openai_error_read(&r->cursor, r->err);
    r->has_error = rc != 0;
    return rc;
}

/* Reads one object. The cursor's errors speak of model files, so they get another text. */
static int read_whole(const char *json, size_t n_bytes, key_fn *on_key, void *ctx,
                      struct error *err)
{
    struct reader r = {.err = err};
    enum json_value kind = JSON_VALUE_NULL;
    arena_init(&r.arena, 0, ARENA_BYTES);
    int rc = json_cursor_init(&r.cursor, json, n_bytes, "the server's answer", 0, err);
    if (!rc)
        rc = json_cursor_peek(&r.cursor, &kind, err);
    bool is_object = !rc && kind == JSON_VALUE_OBJECT;
    if (is_object)
        rc = read_object(&r, on_key, ctx);
    if (!rc)
        rc = json_cursor_end(&r.cursor, err);
    arena_fini(&r.arena);
    if (r.has_error || (is_object && !rc))
        return rc;
    return error_set(err, STATUS_DATA_LOSS,
                     "the server's answer is no JSON object; is this an OpenAI server?");
}

int openai_reply_read(struct openai_reply *reply, const char *json, size_t n_bytes,
                      struct error *err)
{
    struct strbuf text = reply->text, reasoning = reply->reasoning;
    strbuf_clear(&text);
    strbuf_clear(&reasoning);
    *reply = (struct openai_reply){.text = text, .reasoning = reasoning};
    return read_whole(json, n_bytes, on_reply_key, reply, err);
}

/* --- models --- */

struct models {
    const char *wanted;
    struct openai_model *out, next;
    size_t n;
    struct strbuf *names;
    bool has_list;
};

static int on_meta_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_model *model = ctx;
    if (is_key(key, n, "n_vocab"))
        return read_number(r, &model->n_vocab, NULL);
    if (is_key(key, n, "n_ctx") || (is_key(key, n, "n_ctx_train") && !model->n_context))
        return read_number(r, &model->n_context, NULL);
    return skip(r);
}

static int on_model_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct openai_model *model = ctx;
    if (is_key(key, n, "id"))
        return copy_text(r, model->id, sizeof(model->id));
    if (is_key(key, n, "owned_by"))
        return copy_text(r, model->owned_by, sizeof(model->owned_by));
    if (is_key(key, n, "max_model_len") || is_key(key, n, "context_length"))
        return read_number(r, &model->n_context, NULL);
    if (is_key(key, n, "vocab_size"))
        return read_number(r, &model->n_vocab, NULL);
    return is_key(key, n, "meta") ? read_object(r, on_meta_key, model) : skip(r);
}

static int on_model(struct reader *r, void *ctx, size_t i)
{
    struct models *models = ctx;
    models->next = (struct openai_model){0};
    int rc = read_object(r, on_model_key, &models->next);
    if (rc)
        return rc;
    models->n++;
    if (models->names->n_bytes < NAMES_BYTES)
        strbuf_printf(models->names, "%s%s", i ? ", " : "", models->next.id);
    bool is_it = models->wanted ? strcmp(models->next.id, models->wanted) == 0 : i == 0;
    if (is_it)
        *models->out = models->next;
    return 0;
}

static int on_list_key(struct reader *r, void *ctx, const char *key, size_t n)
{
    struct models *models = ctx;
    if (is_key(key, n, "data")) {
        models->has_list = true;
        return read_array(r, on_model, ctx);
    }
    if (!is_key(key, n, "error"))
        return skip(r);
    int rc = openai_error_read(&r->cursor, r->err);
    r->has_error = rc != 0;
    return rc;
}

int openai_reply_read_models(const char *json, size_t n_bytes, const char *wanted,
                             struct openai_model *out_model, size_t *out_n, struct strbuf *names,
                             struct error *err)
{
    struct models models = {.wanted = wanted, .out = out_model, .names = names};
    *out_model = (struct openai_model){0};
    int rc = read_whole(json, n_bytes, on_list_key, &models, err);
    if (!rc && !models.has_list)
        rc = error_set(err, STATUS_DATA_LOSS,
                       "the server's list of models has no \"data\"; is this an OpenAI server?");
    *out_n = models.n;
    return rc;
}
