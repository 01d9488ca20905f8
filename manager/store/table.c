#include "manager/store/table.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sqlite3.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"

struct row {
    atomic_uint n_refs;
    enum table table;
    ProtobufCMessage *message;
    int64_t extra;
    char key[];
};

static const struct table_spec specs[N_TABLES] = {
    [TABLE_MODEL] = {.name = "model",
                     .descriptor = &sluice__manager__v1__model__descriptor,
                     .n_key = 1,
                     .columns = {"name", "generation", "created_unix_ns"}},
    [TABLE_MODEL_VERSION] = {.name = "model_version",
                             .descriptor = &sluice__manager__v1__model_version__descriptor,
                             .n_key = 2,
                             .columns = {"model", "version", "path", "generation",
                                         "created_unix_ns", "size_bytes", "sequence"}},
    [TABLE_DEVICE] = {.name = "device",
                      .descriptor = &sluice__v1__device__descriptor,
                      .n_key = 1,
                      .columns = {"name", "kind", "description", "memory_total_bytes",
                                  "unusable_reason"}},
    [TABLE_DEVICE_GROUP] = {.name = "device_group",
                            .descriptor = &sluice__manager__v1__device_group__descriptor,
                            .n_key = 1,
                            .columns = {"name", "generation", "created_unix_ns", "built_in"}},
    [TABLE_DEPLOYMENT] = {.name = "deployment",
                          .descriptor = &sluice__manager__v1__deployment__descriptor,
                          .n_key = 3,
                          .columns = {"model", "version", "device_group", "n_replicas", "tp", "pp",
                                      "parked", "generation"}},
    [TABLE_REPLICA] = {.name = "replica",
                       .descriptor = &sluice__manager__v1__replica__descriptor,
                       .n_key = 1,
                       .columns = {"id", "model", "version", "device_group", "state", "reason",
                                   "pid", "start_ticks", "epoch", "socket", "numerics_id",
                                   "n_restarts", "next_start_unix_ns", "started_unix_ns",
                                   "ready_unix_ns", "adopted", "generation"},
                       .numbered = 1},
    [TABLE_TRAFFIC] = {.name = "traffic",
                       .descriptor = &sluice__manager__v1__traffic__descriptor,
                       .n_key = 1,
                       .columns = {"model", "sticky", "generation"}},
    [TABLE_OPERATION] = {.name = "operation",
                         .descriptor = &sluice__manager__v1__operation__descriptor,
                         .n_key = 1,
                         .columns = {"id", "kind", "state", "stage", "request_id", "model",
                                     "version", "device_group", "created_unix_ns",
                                     "updated_unix_ns", "ended_unix_ns"},
                         .extra = "grace_ms",
                         .numbered = 1},
    [TABLE_DEVICE_HOLD] = {.name = "device_hold",
                           .descriptor = &sluice__manager__v1__device_hold__descriptor,
                           .n_key = 1,
                           .columns = {"key", "device", "state", "reason", "since_unix_ns"}},
    [TABLE_API_KEY] = {.name = "api_key",
                       .descriptor = &sluice__manager__v1__api_key__descriptor,
                       .n_key = 1,
                       .columns = {"id", "name", "role", "sha256", "created_unix_ns",
                                   "expires_unix_ns", "revoked_unix_ns", "created_by"},
                       .numbered = 1},
    [TABLE_EVENT] = {.name = "event",
                     .descriptor = &sluice__manager__v1__event__descriptor,
                     .n_key = 1,
                     .columns = {"seq", "time_unix_ns", "type", "model", "version", "replica_id",
                                 "device_group", "operation_id", "message"}},
};

const struct table_spec *table_spec(enum table table)
{
    return &specs[table];
}

size_t table_n_columns(const struct table_spec *spec)
{
    size_t n = 0;
    while (n < TABLE_MAX_COLUMNS && spec->columns[n])
        n++;
    return n;
}

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

void table_key(char out_key[TABLE_KEY_BYTES], const char *a, const char *b, const char *c)
{
    /* By hand: every look at a deployment makes one, many times in a pass of the supervisor. */
    const char *parts[] = {a, b, b ? c : NULL};
    size_t n = 0;
    for (size_t i = 0; i < 3 && parts[i]; i++) {
        if (i && n + 1 < TABLE_KEY_BYTES)
            out_key[n++] = ' ';
        for (const char *text = parts[i]; *text && n + 1 < TABLE_KEY_BYTES; text++)
            out_key[n++] = *text;
    }
    out_key[n] = '\0';
}

int table_compare(enum table table, const char *a, const char *b)
{
    if (specs[table].numbered) {
        size_t n_a = strlen(a), n_b = strlen(b);
        if (n_a != n_b)
            return n_a < n_b ? -1 : 1;
    }
    return strcmp(a, b);
}

struct row *row_create(enum table table, ProtobufCMessage *message, int64_t extra)
{
    const struct table_spec *spec = &specs[table];
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

/* `between` not before the first. */
static void add_quoted(struct strbuf *out, size_t i, const char *between, const char *name)
{
    strbuf_add_str(out, i ? between : "");
    strbuf_add_char(out, '"');
    strbuf_add_str(out, name);
    strbuf_add_char(out, '"');
}

static void add_columns(const struct table_spec *spec, struct strbuf *out)
{
    size_t n = table_n_columns(spec);
    for (size_t i = 0; i < n; i++)
        add_quoted(out, i, ", ", spec->columns[i]);
    if (spec->extra)
        add_quoted(out, 1, ", ", spec->extra);
    strbuf_add_str(out, ", \"detail\"");
}

static void add_excluded(struct strbuf *out, const char *name)
{
    add_quoted(out, 0, "", name);
    strbuf_add_str(out, " = excluded.");
    add_quoted(out, 0, "", name);
}

void table_sql_upsert(const struct table_spec *spec, struct strbuf *out)
{
    size_t n = table_n_columns(spec), n_all = n + (spec->extra ? 2 : 1);
    strbuf_add_str(out, "INSERT INTO ");
    add_quoted(out, 0, "", spec->name);
    strbuf_add_str(out, " (");
    add_columns(spec, out);
    strbuf_add_str(out, ") VALUES (");
    for (size_t i = 0; i < n_all; i++)
        strbuf_add_str(out, i ? ", ?" : "?"); /* numbered from 1, as they come */
    strbuf_add_str(out, ") ON CONFLICT (");
    for (size_t i = 0; i < spec->n_key; i++)
        add_quoted(out, i, ", ", spec->columns[i]);
    strbuf_add_str(out, ") DO UPDATE SET ");
    for (size_t i = spec->n_key; i < n; i++) {
        add_excluded(out, spec->columns[i]);
        strbuf_add_str(out, ", ");
    }
    if (spec->extra) {
        add_excluded(out, spec->extra);
        strbuf_add_str(out, ", ");
    }
    add_excluded(out, "detail");
}

void table_sql_delete(const struct table_spec *spec, struct strbuf *out)
{
    strbuf_add_str(out, "DELETE FROM ");
    add_quoted(out, 0, "", spec->name);
    strbuf_add_str(out, " WHERE ");
    for (size_t i = 0; i < spec->n_key; i++) {
        add_quoted(out, i, " AND ", spec->columns[i]);
        strbuf_add_str(out, " = ?");
    }
}

void table_sql_select(const struct table_spec *spec, struct strbuf *out)
{
    strbuf_add_str(out, "SELECT ");
    add_columns(spec, out);
    strbuf_add_str(out, " FROM ");
    add_quoted(out, 0, "", spec->name);
}

/* What no column holds: the message with the columns at their defaults, packed. A flat copy, which
 * owns nothing. */
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
                bytes = NULL; /* SQLite has freed it */
        }
        free(rest);
    }
    return bytes ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", spec->name);
}

int row_bind(const struct row *row, struct sqlite3_stmt *stmt, int key_only, struct error *err)
{
    const struct table_spec *spec = &specs[row->table];
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
    const struct table_spec *spec = &specs[table];
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
