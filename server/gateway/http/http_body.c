#include "server/gateway/http/http_body.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"

int http_body_init(struct http_body *body, const char *text, size_t n_bytes, struct arena *arena,
                   struct error *err)
{
    *body = (struct http_body){.arena = arena, .err = err};
    int rc = json_cursor_init(&body->cursor, text, n_bytes, NULL, 0, err);
    return rc ? rc : json_cursor_enter_object(&body->cursor, err);
}

int http_body_end(struct http_body *body)
{
    return json_cursor_end(&body->cursor, body->err);
}

int http_body_bad(struct http_body *body, const char *name, const char *rule)
{
    return error_field(body->err, name, "%s", rule);
}

int http_body_no_memory(struct http_body *body)
{
    return error_no_memory(body->err);
}

/* --- structure --- */

int http_body_key(struct http_body *body, const char **out_key)
{
    return json_cursor_next_key(&body->cursor, body->arena, HTTP_BODY_MAX_KEY, out_key, body->err);
}

int http_body_more(struct http_body *body, bool *out_more)
{
    return json_cursor_next_element(&body->cursor, out_more, body->err);
}

int http_body_kind(struct http_body *body, enum json_value *out_kind)
{
    return json_cursor_peek(&body->cursor, out_kind, body->err);
}

int http_body_skip(struct http_body *body)
{
    return json_cursor_skip(&body->cursor, body->err);
}

int http_body_null(struct http_body *body, bool *out_is_null)
{
    enum json_value kind;
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    *out_is_null = kind == JSON_VALUE_NULL;
    return *out_is_null ? json_cursor_null(&body->cursor, body->err) : 0;
}

static int expect(struct http_body *body, const char *name, enum json_value wanted,
                  const char *rule)
{
    enum json_value kind;
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    return kind == wanted ? 0 : http_body_bad(body, name, rule);
}

int http_body_enter_object(struct http_body *body, const char *name)
{
    int rc = expect(body, name, JSON_VALUE_OBJECT, "must be an object");
    return rc ? rc : json_cursor_enter_object(&body->cursor, body->err);
}

int http_body_enter_list(struct http_body *body, const char *name, const char *rule)
{
    int rc = expect(body, name, JSON_VALUE_ARRAY, rule);
    return rc ? rc : json_cursor_enter_array(&body->cursor, body->err);
}

/* --- single values --- */

int http_body_bool(struct http_body *body, const char *name, bool *out)
{
    int rc = expect(body, name, JSON_VALUE_BOOL, "must be true or false");
    return rc ? rc : json_cursor_bool(&body->cursor, out, body->err);
}

int http_body_number(struct http_body *body, const char *name, struct json_number *out)
{
    int rc = expect(body, name, JSON_VALUE_NUMBER, "must be a number");
    return rc ? rc : json_cursor_number(&body->cursor, out, body->err);
}

int http_body_float(struct http_body *body, const char *name, float *out)
{
    struct json_number n;
    int rc = http_body_number(body, name, &n);
    if (!rc)
        *out = (float)n.f;
    return rc;
}

/* Some clients write whole numbers as 16.0. Leaves other fractions as they are. */
static void make_integer(struct json_number *n)
{
    const double most_exact = 9007199254740992.0; /* 2^53 */
    if (n->is_integer || !(fabs(n->f) <= most_exact) || n->f != floor(n->f))
        return;
    n->is_integer = true;
    n->is_negative = n->f < 0;
    n->i = (int64_t)n->f;
    n->u = n->is_negative ? 0 : (uint64_t)n->f;
}

int http_body_integer(struct http_body *body, const char *name, struct json_number *out)
{
    int rc = http_body_number(body, name, out);
    if (rc)
        return rc;
    make_integer(out);
    return out->is_integer ? 0 : http_body_bad(body, name, "must be a whole number");
}

int http_body_whole(struct http_body *body, const char *name, uint64_t most, uint64_t *out)
{
    struct json_number n;
    int rc = http_body_number(body, name, &n);
    if (rc)
        return rc;
    make_integer(&n);
    if (!n.is_integer || n.is_negative || n.u > most)
        return error_field(body->err, name, "must be a whole number from 0 to %llu",
                           (unsigned long long)most);
    *out = n.u;
    return 0;
}

int http_body_u32(struct http_body *body, const char *name, uint32_t *out)
{
    uint64_t value = 0;
    int rc = http_body_whole(body, name, UINT32_MAX, &value);
    if (!rc)
        *out = (uint32_t)value;
    return rc;
}

int http_body_text(struct http_body *body, const char *name, char **out)
{
    const char *bytes;
    size_t n;
    int rc = expect(body, name, JSON_VALUE_STRING, "must be a string");
    if (!rc)
        rc = json_cursor_text(&body->cursor, body->arena, &bytes, &n, body->err);
    if (rc)
        return rc;
    if (memchr(bytes, '\0', n))
        return http_body_bad(body, name, "must not have a NUL character");
    *out = arena_strndup(body->arena, bytes, n);
    return *out ? 0 : http_body_no_memory(body);
}

int http_body_raw(struct http_body *body, char **out)
{
    enum json_value kind;
    int rc = http_body_kind(body, &kind); /* passes over white space */
    size_t begin = body->cursor.at;
    if (!rc)
        rc = http_body_skip(body);
    if (rc)
        return rc;
    *out = arena_strndup(body->arena, body->cursor.text + begin, body->cursor.at - begin);
    return *out ? 0 : http_body_no_memory(body);
}

int http_body_object(struct http_body *body, const char *name, char **out)
{
    int rc = expect(body, name, JSON_VALUE_OBJECT, "must be an object");
    return rc ? rc : http_body_raw(body, out);
}

/* --- lists --- */

void *http_body_grow(struct http_body *body, void *list, size_t n, size_t size)
{
    if (n & (n - 1))
        return list; /* room up to the next power of two */
    void *more = arena_calloc(body->arena, n ? 2 * n : 1, size);
    if (more && n)
        memcpy(more, list, n * size);
    return more;
}

int http_body_texts(struct http_body *body, const char *name, char ***out, size_t *out_n)
{
    enum json_value kind;
    bool more = true;
    int rc = http_body_kind(body, &kind);
    *out_n = 0;
    if (!rc && kind == JSON_VALUE_STRING) {
        *out = arena_calloc(body->arena, 1, sizeof(char *));
        *out_n = 1;
        return *out ? http_body_text(body, name, &(*out)[0]) : http_body_no_memory(body);
    }
    if (!rc)
        rc = http_body_enter_list(body, name, "must be a string or a list of strings");
    while (!rc && (rc = http_body_more(body, &more)) == 0 && more) {
        *out = http_body_grow(body, *out, *out_n, sizeof(char *));
        rc = *out ? http_body_text(body, name, &(*out)[(*out_n)++]) : http_body_no_memory(body);
    }
    return rc;
}

int http_body_ids(struct http_body *body, const char *name, uint32_t **out, size_t *out_n)
{
    bool more = true;
    int rc = http_body_enter_list(body, name, "must be a list of token ids");
    *out_n = 0;
    while (!rc && (rc = http_body_more(body, &more)) == 0 && more) {
        *out = http_body_grow(body, *out, *out_n, sizeof(uint32_t));
        rc = *out ? http_body_u32(body, name, &(*out)[*out_n]) : http_body_no_memory(body);
        *out_n += !rc;
    }
    return rc;
}
