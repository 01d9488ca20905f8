/* http_fields.h: reads the fields of an object in a body (http_body.h) into a struct, by a table
 * that has a row for each field. Plain functions; any thread.
 *
 * A field whose value is null counts as absent. A field with a wrong value is INVALID_ARGUMENT with
 * the field's name. Unknown fields are named in `ignored`, or refused if the reader is strict. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "server/gateway/http/http_body.h"

struct http_field;
struct strbuf;

struct http_fields {
    struct http_body body;
    struct strbuf *ignored; /* names of unknown fields; see http_ignored_add */
    bool is_strict;         /* unknown fields are refused */
    void *out;              /* the struct that is filled */
};

/* Reads the value of a field, which is not null. Returns 0 or the status of *r->body.err. */
typedef int http_field_fn(struct http_fields *r, const struct http_field *field);

struct http_field {
    const char *name;
    http_field_fn *read;
    size_t at;  /* offset of the value in the struct */
    size_t has; /* offset of the proto's flag "has", or of a list's length; 0: none */
};

/* Reads the object at the cursor, the value of field `name`. */
int http_fields_read(struct http_fields *r, const char *name, const struct http_field *fields,
                     size_t n_fields);
/* Reads a body that is an object. */
int http_fields_read_body(struct http_fields *r, const char *text, size_t n_bytes,
                          const struct http_field *fields, size_t n_fields);

/* Values: bool, a flag of the proto (protobuf_c_boolean), uint32_t, uint64_t, float. A text is a
 * char * in the arena, without NUL bytes. A list of texts comes from a string or a list of strings
 * (`at`: char **, `has`: size_t). */
http_field_fn http_fields_bool, http_fields_flag, http_fields_u32, http_fields_u64,
    http_fields_float, http_fields_text, http_fields_texts;
/* Passes the value over, and names the field as ignored. */
http_field_fn http_fields_ignore;
/* UNIMPLEMENTED with the field's name, unless the value is false or an empty text or list: nothing
 * is asked for. */
http_field_fn http_fields_refuse;
