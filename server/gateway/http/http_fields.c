#include "server/gateway/http/http_fields.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/http/http_ignored.h"

static const char two_values[] = "is given twice, with two values";

/* --- objects and lists --- */

static int read_row(struct http_fields *r, const struct http_field *field)
{
    bool is_null = false;
    int rc = http_body_null(&r->body, &is_null);
    if (rc || is_null)
        return rc;
    rc = field->read(r, field);
    if (!rc && field->has)
        *(protobuf_c_boolean *)http_fields_place(r, field->has) = true;
    return rc;
}

/* Reads the value of a key. given[i]: the object has had field i. */
static int read_key(struct http_fields *r, const struct http_table *table, bool *given,
                    const char *key)
{
    for (size_t i = 0; i < table->n_fields; i++) {
        const struct http_field *field = &table->fields[i];
        if (strcmp(field->name, key) != 0 || (field->paths && !(field->paths & r->path)))
            continue;
        if (given[i])
            return http_fields_bad(r, "is given twice");
        given[i] = true;
        return read_row(r, field);
    }
    const struct http_field unknown = {.name = key,
                                       .read = table->other ? table->other : http_fields_ignore};
    return read_row(r, &unknown);
}

/* Reads the fields of an object that was entered. */
static int read_entered(struct http_fields *r, const struct http_table *table)
{
    bool given[HTTP_FIELDS_MAX] = {false};
    const char *key = "";
    int rc = 0;
    assert(table->n_fields <= HTTP_FIELDS_MAX);
    while (!rc && (rc = http_body_key(&r->body, &key)) == 0 && key) {
        snprintf(r->label + r->n_prefix, sizeof(r->label) - r->n_prefix, "%s", key);
        rc = read_key(r, table, given, key);
    }
    return !rc && strbuf_failed(r->ignored) ? http_body_no_memory(&r->body) : rc;
}

int http_fields_read_body(struct http_fields *r, const char *text, size_t n_bytes,
                          const struct http_table *table)
{
    r->n_prefix = 0;
    int rc = http_body_init(&r->body, text, n_bytes, r->body.arena, r->body.err);
    if (!rc)
        rc = read_entered(r, table);
    return rc ? rc : http_body_end(&r->body);
}

/* Appends to the label as far as there is room. Returns the label's length. */
static size_t extend(struct http_fields *r, const char *text)
{
    size_t n = strlen(r->label);
    snprintf(r->label + n, sizeof(r->label) - n, "%s", text);
    return strlen(r->label);
}

int http_fields_read(struct http_fields *r, const struct http_table *table, void *out)
{
    char label[HTTP_FIELDS_LABEL_BYTES];
    size_t n_prefix = r->n_prefix;
    void *around = r->out;
    int rc = http_body_enter_object(&r->body, r->label);
    if (rc)
        return rc;
    memcpy(label, r->label, sizeof(label));
    r->out = out;
    if (!table->is_flat)
        r->n_prefix = extend(r, ".");
    rc = read_entered(r, table);
    r->out = around;
    r->n_prefix = n_prefix;
    memcpy(r->label, label, sizeof(label));
    return rc;
}

int http_fields_list(struct http_fields *r, const struct http_field *field, const char *rule,
                     http_field_fn *element)
{
    size_t n = strlen(r->label);
    bool more = true;
    int rc = http_body_enter_list(&r->body, r->label, rule);
    for (size_t i = 0; !rc && (rc = http_body_more(&r->body, &more)) == 0 && more; i++) {
        snprintf(r->label + n, sizeof(r->label) - n, "[%zu]", i);
        rc = element(r, field);
    }
    r->label[n] = '\0';
    return rc;
}

/* --- for readers --- */

void *http_fields_place(const struct http_fields *r, size_t offset)
{
    return (char *)r->out + offset;
}

int http_fields_bad(struct http_fields *r, const char *rule)
{
    return http_body_bad(&r->body, r->label, rule);
}

int http_fields_not_built(struct http_fields *r, const char *rule)
{
    error_field(r->body.err, r->label, "%s", rule);
    r->body.err->status = STATUS_UNIMPLEMENTED;
    return error_reason(r->body.err, REASON_FIELD_NOT_BUILT);
}

int http_fields_signed(struct http_fields *r, int64_t low, int64_t high, int64_t *out)
{
    struct json_number n;
    int rc = http_body_integer(&r->body, r->label, &n);
    if (rc)
        return rc;
    if (n.is_negative ? n.i < low : n.u > (uint64_t)high)
        return error_field(r->body.err, r->label, "must be a whole number from %lld to %lld",
                           (long long)low, (long long)high);
    *out = n.is_negative ? n.i : (int64_t)n.u;
    return 0;
}

/* --- values --- */

int http_fields_put(struct http_fields *r, const struct http_field *field, int rc,
                    const void *value, size_t n_bytes)
{
    void *out = http_fields_place(r, field->at);
    bool is_set =
        field->has && *(const protobuf_c_boolean *)http_fields_place(r, field->has) != false;
    if (rc)
        return rc;
    if (is_set && memcmp(out, value, n_bytes) != 0)
        return http_fields_bad(r, two_values);
    memcpy(out, value, n_bytes);
    return 0;
}

int http_fields_bool(struct http_fields *r, const struct http_field *field)
{
    bool value = false;
    int rc = http_body_bool(&r->body, r->label, &value);
    return http_fields_put(r, field, rc, &value, sizeof(value));
}

int http_fields_flag(struct http_fields *r, const struct http_field *field)
{
    bool value = false;
    int rc = http_body_bool(&r->body, r->label, &value);
    return http_fields_put(r, field, rc, &(protobuf_c_boolean){value}, sizeof(protobuf_c_boolean));
}

int http_fields_u32(struct http_fields *r, const struct http_field *field)
{
    uint32_t value = 0;
    int rc = http_body_u32(&r->body, r->label, &value);
    return http_fields_put(r, field, rc, &value, sizeof(value));
}

int http_fields_u64(struct http_fields *r, const struct http_field *field)
{
    uint64_t value = 0;
    int rc = http_body_whole(&r->body, r->label, UINT64_MAX, &value);
    return http_fields_put(r, field, rc, &value, sizeof(value));
}

int http_fields_float(struct http_fields *r, const struct http_field *field)
{
    float value = 0;
    int rc = http_body_float(&r->body, r->label, &value);
    return http_fields_put(r, field, rc, &value, sizeof(value));
}

int http_fields_text(struct http_fields *r, const struct http_field *field)
{
    char *value = NULL, **out = http_fields_place(r, field->at);
    int rc = http_body_text(&r->body, r->label, &value);
    if (!rc && *out && (*out)[0] && strcmp(*out, value) != 0)
        return http_fields_bad(r, two_values);
    if (!rc)
        *out = value;
    return rc;
}

int http_fields_texts(struct http_fields *r, const struct http_field *field)
{
    return http_body_texts(&r->body, r->label, http_fields_place(r, field->at),
                           http_fields_place(r, field->n));
}

int http_fields_ids(struct http_fields *r, const struct http_field *field)
{
    return http_body_ids(&r->body, r->label, http_fields_place(r, field->at),
                         http_fields_place(r, field->n));
}

int http_fields_json(struct http_fields *r, const struct http_field *field)
{
    return http_body_object(&r->body, r->label, http_fields_place(r, field->at));
}

int http_fields_object(struct http_fields *r, const struct http_field *field)
{
    return http_fields_read(r, field->table, r->out);
}

/* --- fields that are not read --- */

int http_fields_skip(struct http_fields *r, const struct http_field *field)
{
    (void)field;
    return http_body_skip(&r->body);
}

int http_fields_ignore(struct http_fields *r, const struct http_field *field)
{
    char name[HTTP_FIELDS_LABEL_BYTES], *out = name;
    const char *key = r->label + r->n_prefix;
    (void)field;
    for (const char *p = r->label; *p; p++) /* without the indexes before the key */
        if (p >= key || *p < '0' || *p > '9')
            *out++ = *p;
    *out = '\0';
    if (r->is_strict)
        return http_body_bad(&r->body, name, "is unknown or has no effect (--http-strict)");
    http_ignored_add(r->ignored, name);
    return http_body_skip(&r->body);
}

/* True if the JSON text of a value asks for nothing. */
static bool is_neutral(const char *text, double neutral)
{
    static const char *const empty[] = {"false", "\"\"", "[]", "{}"};
    struct json_cursor cursor;
    struct json_number number;
    struct error err;
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++)
        if (strcmp(text, empty[i]) == 0)
            return true;
    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false;
    return json_cursor_init(&cursor, text, strlen(text), NULL, 0, &err) == 0 &&
           json_cursor_number(&cursor, &number, &err) == 0 &&
           (number.f == 0 || number.f == neutral);
}

int http_fields_refuse(struct http_fields *r, const struct http_field *field)
{
    char *text;
    int rc = http_body_raw(&r->body, &text);
    if (rc || is_neutral(text, field->neutral))
        return rc;
    return http_fields_not_built(r, "is not built, and would change the answer");
}
