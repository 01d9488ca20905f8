#include "server/gateway/http/http_fields.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/http/http_ignored.h"

/* --- objects --- */

/* Reads the value of a key, or passes it over. */
static int read_key(struct http_fields *r, const struct http_field *fields, size_t n_fields,
                    const char *key)
{
    bool is_null = false;
    int rc = http_body_null(&r->body, &is_null);
    if (rc || is_null)
        return rc;
    for (size_t i = 0; i < n_fields; i++)
        if (strcmp(fields[i].name, key) == 0)
            return fields[i].read(r, &fields[i]);
    if (r->is_strict)
        return http_body_bad(&r->body, key, "is unknown");
    return http_fields_ignore(r, &(struct http_field){.name = key});
}

/* Reads the fields of an object that was entered. */
static int read_entered(struct http_fields *r, const struct http_field *fields, size_t n_fields)
{
    for (;;) {
        const char *key;
        int rc = http_body_key(&r->body, &key);
        if (!rc && !key)
            return strbuf_failed(r->ignored) ? http_body_no_memory(&r->body) : 0;
        if (!rc)
            rc = read_key(r, fields, n_fields, key);
        if (rc)
            return rc;
    }
}

int http_fields_read(struct http_fields *r, const char *name, const struct http_field *fields,
                     size_t n_fields)
{
    int rc = http_body_enter_object(&r->body, name);
    return rc ? rc : read_entered(r, fields, n_fields);
}

int http_fields_read_body(struct http_fields *r, const char *text, size_t n_bytes,
                          const struct http_field *fields, size_t n_fields)
{
    int rc = http_body_init(&r->body, text, n_bytes, r->body.arena, r->body.err);
    if (!rc)
        rc = read_entered(r, fields, n_fields);
    return rc ? rc : http_body_end(&r->body);
}

/* --- values --- */

static void *place(struct http_fields *r, size_t offset)
{
    return (char *)r->out + offset;
}

/* Notes that the field was read. */
static int mark(struct http_fields *r, const struct http_field *field, int rc)
{
    if (!rc && field->has)
        *(protobuf_c_boolean *)place(r, field->has) = true;
    return rc;
}

int http_fields_bool(struct http_fields *r, const struct http_field *field)
{
    return mark(r, field, http_body_bool(&r->body, field->name, place(r, field->at)));
}

int http_fields_flag(struct http_fields *r, const struct http_field *field)
{
    bool value = false;
    int rc = http_body_bool(&r->body, field->name, &value);
    if (!rc)
        *(protobuf_c_boolean *)place(r, field->at) = value;
    return mark(r, field, rc);
}

int http_fields_u32(struct http_fields *r, const struct http_field *field)
{
    return mark(r, field, http_body_u32(&r->body, field->name, place(r, field->at)));
}

int http_fields_u64(struct http_fields *r, const struct http_field *field)
{
    return mark(r, field, http_body_whole(&r->body, field->name, UINT64_MAX, place(r, field->at)));
}

int http_fields_float(struct http_fields *r, const struct http_field *field)
{
    return mark(r, field, http_body_float(&r->body, field->name, place(r, field->at)));
}

int http_fields_text(struct http_fields *r, const struct http_field *field)
{
    return http_body_text(&r->body, field->name, place(r, field->at));
}

int http_fields_texts(struct http_fields *r, const struct http_field *field)
{
    return http_body_texts(&r->body, field->name, place(r, field->at), place(r, field->has));
}

int http_fields_ignore(struct http_fields *r, const struct http_field *field)
{
    http_ignored_add(r->ignored, field->name);
    return http_body_skip(&r->body);
}

int http_fields_refuse(struct http_fields *r, const struct http_field *field)
{
    static const char *const nothing[] = {"false", "\"\"", "[]"};
    char *value;
    int rc = http_body_raw(&r->body, &value);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++)
        if (strcmp(value, nothing[i]) == 0)
            return 0;
    struct error *err = r->body.err;
    error_set(err, STATUS_UNIMPLEMENTED,
              "%s: this API does not take the field, which would change the answer", field->name);
    snprintf(err->field, sizeof(err->field), "%s", field->name);
    return error_reason(err, REASON_FIELD_NOT_BUILT);
}
