/* http_fields.h: reads the fields of an object in a body (http_body.h) into a struct, by a table
 * that has a row for each field. All bodies of JSON over HTTP are read with it. Plain functions;
 * any thread.
 *
 * A field whose value is null counts as absent. A field with a wrong value is INVALID_ARGUMENT, and
 * so is a field that is given twice. The error names the field by its label: the key, with the keys
 * and indexes around it ("messages[2].role"). Unknown fields are named in `ignored`, or refused if
 * the reader is strict; they may repeat. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "server/gateway/http/http_body.h"

struct http_table;
struct strbuf;

enum { HTTP_FIELDS_MAX = 128, HTTP_FIELDS_LABEL_BYTES = HTTP_BODY_MAX_KEY + 64 };

struct http_fields {
    struct http_body body;
    struct strbuf *ignored;              /* names of fields without effect; see http_ignored_add */
    bool is_strict;                      /* fields without effect are refused */
    unsigned path;                       /* the bit of the path; see http_field.paths */
    void *out;                           /* the struct that is filled */
    char label[HTTP_FIELDS_LABEL_BYTES]; /* names the value that is read */
    size_t n_prefix;                     /* bytes of `label` before the key */
};

struct http_field;
/* Reads the value of a field, which is not null. Returns 0 or the status of *r->body.err. */
typedef int http_field_fn(struct http_fields *r, const struct http_field *field);

struct http_field {
    const char *name;
    http_field_fn *read;
    size_t at;  /* offset of the value in the struct */
    size_t has; /* offset of a protobuf_c_boolean that is set with the value; 0: none */
    size_t n;   /* lists: offset of the length, a size_t */
    const struct http_table *table; /* http_fields_object: the fields of the object */
    unsigned paths;                 /* bits of the paths that have the field; 0: all paths */
    double neutral;                 /* http_fields_refuse: a number that asks for nothing */
};

/* The fields of an object. */
struct http_table {
    const struct http_field *fields;
    size_t n_fields; /* at most HTTP_FIELDS_MAX */
    bool is_flat;    /* labels are those of the object around: "top_p", not "parameters.top_p" */
    /* Reads a key that has no row, into a field with this name; NULL: http_fields_ignore. */
    http_field_fn *other;
};

/* A table of all rows of an array. */
#define HTTP_TABLE(rows) .fields = (rows), .n_fields = sizeof(rows) / sizeof((rows)[0])

/* Reads a body that is an object. Set body.arena, body.err, ignored and out before. */
int http_fields_read_body(struct http_fields *r, const char *text, size_t n_bytes,
                          const struct http_table *table);
/* Reads the object at the cursor into `out`. The label is that of the object. */
int http_fields_read(struct http_fields *r, const struct http_table *table, void *out);
/* Reads a list: `element` reads each value, and the label then ends with "[i]". */
int http_fields_list(struct http_fields *r, const struct http_field *field, const char *rule,
                     http_field_fn *element);

/* The place of a member in the struct that is filled. */
void *http_fields_place(const struct http_fields *r, size_t offset);
/* Fills the error: "<label>: <rule>". */
int http_fields_bad(struct http_fields *r, const char *rule);
/* The same with UNIMPLEMENTED. */
int http_fields_not_built(struct http_fields *r, const char *rule);
/* Sets the place of the field to a value of n bytes, unless rc is a status. Another field with the
 * same place and the same `has` may have set the same value. Returns rc, or the status of *err. */
int http_fields_put(struct http_fields *r, const struct http_field *field, int rc,
                    const void *value, size_t n_bytes);
/* A whole number in [low, high]. */
int http_fields_signed(struct http_fields *r, int64_t low, int64_t high, int64_t *out);

/* Readers of values: the place is a bool, a flag (protobuf_c_boolean), uint32_t, uint64_t, float or
 * text (char * in the arena, without NUL). A list of texts (char **) comes from a string or a list
 * of strings; ids are a uint32_t *. Two fields with one place, and one `has` unless the place is a
 * text, must have the same value. */
http_field_fn http_fields_bool, http_fields_flag, http_fields_u32, http_fields_u64,
    http_fields_float, http_fields_text, http_fields_texts, http_fields_ids;
/* The JSON text of an object, unchanged. */
http_field_fn http_fields_json;
/* An object with a table of its own, into the same struct. */
http_field_fn http_fields_object;
/* Passes the value over. */
http_field_fn http_fields_skip;
/* Passes the value over, and names the field as ignored; an error if the reader is strict. */
http_field_fn http_fields_ignore;
/* UNIMPLEMENTED, unless the value asks for nothing: null, false, 0, "", [], {}, or `neutral`. */
http_field_fn http_fields_refuse;

/* The reader that fits a member, with its place, for a row: {"stream", HTTP_FIELD(type, member)}.
 * Members of other types do not compile. */
#define HTTP_FIELD(type, member)                                                                   \
    _Generic(((type *)0)->member, /* not evaluated */                                              \
             bool: http_fields_bool,                                                               \
             protobuf_c_boolean: http_fields_flag,                                                 \
             uint32_t: http_fields_u32,                                                            \
             uint64_t: http_fields_u64,                                                            \
             float: http_fields_float,                                                             \
             char *: http_fields_text,                                                             \
             const char *: http_fields_text,                                                       \
             char **: http_fields_texts,                                                           \
             uint32_t *: http_fields_ids),                                                         \
        .at = offsetof(type, member)
/* The same for a member of the proto that has a flag: `part` may be empty, or "sampling.". */
#define HTTP_FIELD_HAS(type, part, member)                                                         \
    HTTP_FIELD(type, part member), .has = offsetof(type, part has_##member)
/* The same for a list of the proto. */
#define HTTP_FIELD_LIST(type, part, member)                                                        \
    HTTP_FIELD(type, part member), .n = offsetof(type, part n_##member)
