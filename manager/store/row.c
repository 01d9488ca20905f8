#include "manager/store/row.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "base/error.h"
#include "manager/base/message.h"

struct row {
    atomic_uint n_refs;
    enum table table;
    ProtobufCMessage *message;
    int64_t extra;
    char key[];
};

static const ProtobufCFieldDescriptor *column_field(const struct table_spec *spec, size_t i)
{
    return protobuf_c_message_descriptor_get_field_by_name(spec->descriptor, spec->columns[i]);
}

static void *field_at(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (char *)message + field->offset;
}

static const void *field_const(const ProtobufCMessage *message,
                               const ProtobufCFieldDescriptor *field)
{
    return (const char *)message + field->offset;
}

static const char *string_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const char *text;
    memcpy(&text, field_const(message, field), sizeof(text));
    return text ? text : "";
}

static int64_t integer_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const void *at = field_const(message, field);
    uint32_t u32;
    int64_t i64;
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
        memcpy(&i64, at, sizeof(i64));
        return i64;
    default: /* uint32, bool and enum: four bytes, never negative here */
        memcpy(&u32, at, sizeof(u32));
        return u32;
    }
}

static void set_integer(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                        int64_t value)
{
    void *at = field_at(message, field);
    uint32_t u32 = (uint32_t)value;
    if (field->type == PROTOBUF_C_TYPE_UINT64 || field->type == PROTOBUF_C_TYPE_INT64)
        memcpy(at, &value, sizeof(value));
    else
        memcpy(at, &u32, sizeof(u32));
}

struct row *row_create(enum table table, ProtobufCMessage *message, int64_t extra)
{
    const struct table_spec *spec = table_spec(table);
    char key[TABLE_KEY_BYTES] = "";
    if (!message)
        return NULL;
    if (table != TABLE_EVENT) {
        const char *parts[3] = {NULL, NULL, NULL};
        for (size_t i = 0; i < spec->n_key; i++)
            parts[i] = string_of(message, column_field(spec, i));
        table_key(key, parts[0], parts[1], parts[2]);
    }
    size_t n_key = strlen(key) + 1;
    struct row *row = malloc(sizeof(*row) + n_key);
    if (!row) {
        message_free(message);
        return NULL;
    }
    atomic_init(&row->n_refs, 1);
    row->table = table;
    row->message = message;
    row->extra = extra;
    memcpy(row->key, key, n_key);
    return row;
}

struct row *row_retain(struct row *row)
{
    atomic_fetch_add_explicit(&row->n_refs, 1, memory_order_relaxed);
    return row;
}

void row_release(struct row *row)
{
    if (!row || atomic_fetch_sub_explicit(&row->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    message_free(row->message);
    free(row);
}

enum table row_table(const struct row *row)
{
    return row->table;
}

const char *row_key(const struct row *row)
{
    return row->key;
}

const ProtobufCMessage *row_message(const struct row *row)
{
    return row->message;
}

int64_t row_extra(const struct row *row)
{
    return row->extra;
}

/* Binds the packed rest: the message with its columns at their defaults. Works on a flat copy,
 * which owns nothing. */
static int bind_detail(const struct row *row, const struct table_spec *spec, sqlite3_stmt *stmt,
                       int index, struct error *err)
{
    ProtobufCMessage *rest = malloc(spec->descriptor->sizeof_message);
    uint8_t *bytes = NULL;
    if (rest) {
        size_t n = table_n_columns(spec);
        memcpy(rest, row->message, spec->descriptor->sizeof_message);
        for (size_t i = 0; i < n; i++) {
            const ProtobufCFieldDescriptor *field = column_field(spec, i);
            const char *empty = (const char *)protobuf_c_empty_string;
            if (field->type == PROTOBUF_C_TYPE_STRING)
                memcpy(field_at(rest, field), &empty, sizeof(empty));
            else
                set_integer(rest, field, 0);
        }
        size_t n_bytes = protobuf_c_message_get_packed_size(rest);
        bytes = malloc(n_bytes ? n_bytes : 1);
        if (bytes) {
            protobuf_c_message_pack(rest, bytes);
            if (sqlite3_bind_blob64(stmt, index, bytes, n_bytes, free) != SQLITE_OK)
                bytes = NULL; /* SQLite has freed the bytes */
        }
        free(rest);
    }
    return bytes ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", spec->name);
}

int row_bind(const struct row *row, struct sqlite3_stmt *stmt, int key_only, struct error *err)
{
    const struct table_spec *spec = table_spec(row->table);
    size_t n = key_only ? spec->n_key : table_n_columns(spec);
    for (size_t i = 0; i < n; i++) {
        const ProtobufCFieldDescriptor *field = column_field(spec, i);
        int rc;
        if (field->type == PROTOBUF_C_TYPE_STRING)
            rc = sqlite3_bind_text(stmt, (int)i + 1, string_of(row->message, field), -1,
                                   SQLITE_TRANSIENT);
        else
            rc = sqlite3_bind_int64(stmt, (int)i + 1, integer_of(row->message, field));
        if (rc != SQLITE_OK)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s.%s: out of memory", spec->name,
                             spec->columns[i]);
    }
    if (key_only)
        return 0;
    if (spec->extra)
        sqlite3_bind_int64(stmt, (int)++n, row->extra);
    return bind_detail(row, spec, stmt, (int)n + 1, err);
}

int row_read(enum table table, struct sqlite3_stmt *stmt, struct row **out_row, struct error *err)
{
    const struct table_spec *spec = table_spec(table);
    size_t n = table_n_columns(spec);
    int i_detail = (int)n + (spec->extra ? 1 : 0);
    const void *bytes = sqlite3_column_blob(stmt, i_detail);
    size_t n_bytes = (size_t)sqlite3_column_bytes(stmt, i_detail);
    ProtobufCMessage *message = NULL;
    char what[80];
    snprintf(what, sizeof(what), "table %s, row %lld: detail", spec->name,
             (long long)sqlite3_column_int64(stmt, 0));
    if (message_unpack(spec->descriptor, what, bytes, n_bytes, &message, err) != 0)
        return err->status;
    bool complete = true;
    for (size_t i = 0; complete && i < n; i++) {
        const ProtobufCFieldDescriptor *field = column_field(spec, i);
        if (field->type != PROTOBUF_C_TYPE_STRING) {
            set_integer(message, field, sqlite3_column_int64(stmt, (int)i));
            continue;
        }
        char *text;
        memcpy(&text, field_at(message, field), sizeof(text));
        complete = message_set(&text, (const char *)sqlite3_column_text(stmt, (int)i));
        memcpy(field_at(message, field), &text, sizeof(text));
    }
    if (!complete) {
        message_free(message);
        message = NULL;
    }
    int64_t extra = spec->extra ? sqlite3_column_int64(stmt, (int)n) : 0;
    struct row *row = row_create(table, message, extra);
    if (!row)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "table %s: out of memory", spec->name);
    *out_row = row;
    return 0;
}
