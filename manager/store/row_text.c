/* row_text.c: messages as text for people, and the differences of rows in audit events
 * (row_text.h). */
#include "manager/store/row_text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/utf8.h"
#include "manager/store/row.h"
#include "proto/rpc/message/message.h"

enum {
    MAX_TEXT_BYTES = 160, /* limit of a string: a chat template may have a megabyte */
    MAX_DEPTH = 4,        /* limit of nested messages; no message here has more */
};

/* Requestable fields of the packed rest, beside the columns. A dot leads into a nested message. */
static const char *const requestable[N_TABLES][6] = {
    [TABLE_MODEL] = {"policy"},
    [TABLE_MODEL_VERSION] = {"config", "labels", "info.weights_digest", "content_sha256"},
    [TABLE_DEVICE_GROUP] = {"devices"},
    [TABLE_DEPLOYMENT] = {"config"},
    [TABLE_REPLICA] = {"retiring", "restart_epoch"},
    [TABLE_TRAFFIC] = {"weights"},
    [TABLE_OPERATION] = {"cancelling", "replica_ids", "update"},
    [TABLE_API_KEY] = {"revoked_by"},
};

/* A column that identifies the row beside its key; appended even where unchanged. */
static const char *const name_columns[N_TABLES] = {[TABLE_API_KEY] = "name"};

static const void *field_at(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    return (const char *)message + field->offset;
}

static void *pointer_at(const void *at)
{
    void *pointer;
    memcpy(&pointer, at, sizeof(pointer));
    return pointer;
}

static uint32_t u32_at(const void *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

static uint64_t u64_at(const void *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

static size_t n_values(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    size_t n;
    memcpy(&n, (const char *)message + field->quantifier_offset, sizeof(n));
    return n;
}

/* True where the field is set: a chosen union member, a present optional field, or another field
 * that is not zero. */
static bool is_set(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const void *at = field_at(message, field);
    const void *quantifier = (const char *)message + field->quantifier_offset;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return n_values(message, field) > 0;
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) && u32_at(quantifier) != field->id)
        return false;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return pointer_at(at) != NULL;
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        const char *text = pointer_at(at);
        return text && *text;
    }
    if (field->type == PROTOBUF_C_TYPE_BYTES)
        return n_values(message, field) > 0;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return true;
    if (field->label == PROTOBUF_C_LABEL_OPTIONAL)
        return u32_at(quantifier) != 0;
    return rpc_message_value_bytes(field->type) == 8 ? u64_at(at) != 0 : u32_at(at) != 0;
}

static void add_text(const char *text, struct strbuf *out)
{
    size_t n = text ? strlen(text) : 0;
    bool is_long = n > MAX_TEXT_BYTES;
    if (is_long)
        n = MAX_TEXT_BYTES - utf8_incomplete_tail(text, MAX_TEXT_BYTES);
    strbuf_printf(out, "\"%.*s%s\"", (int)n, text ? text : "", is_long ? "..." : "");
}

static void add_message(const ProtobufCMessage *message, int depth, struct strbuf *out);

static void add_one(const ProtobufCFieldDescriptor *field, const void *at, int depth,
                    struct strbuf *out)
{
    const ProtobufCEnumValue *name;
    float f32;
    double f64;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        add_text(pointer_at(at), out);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        add_message(pointer_at(at), depth + 1, out);
        return;
    case PROTOBUF_C_TYPE_BYTES:
        strbuf_add_str(out, "(bytes)");
        return;
    case PROTOBUF_C_TYPE_ENUM:
        name = protobuf_c_enum_descriptor_get_value(field->descriptor, (int)u32_at(at));
        if (name)
            strbuf_add_str(out, name->name);
        else
            strbuf_printf(out, "%" PRIu32, u32_at(at));
        return;
    case PROTOBUF_C_TYPE_FLOAT:
        memcpy(&f32, at, sizeof(f32));
        strbuf_printf(out, "%g", (double)f32);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(&f64, at, sizeof(f64));
        strbuf_printf(out, "%g", f64);
        return;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        strbuf_printf(out, "%" PRId32, (int32_t)u32_at(at));
        return;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        strbuf_printf(out, "%" PRId64, (int64_t)u64_at(at));
        return;
    default:
        strbuf_printf(out, "%" PRIu64,
                      rpc_message_value_bytes(field->type) == 8 ? u64_at(at) : u32_at(at));
        return;
    }
}

static void add_value(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                      int depth, struct strbuf *out)
{
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        add_one(field, field_at(message, field), depth, out);
        return;
    }
    const char *items = pointer_at(field_at(message, field));
    strbuf_add_char(out, '[');
    for (size_t i = 0; i < n_values(message, field); i++) {
        strbuf_add_str(out, i ? ", " : "");
        add_one(field, items + i * rpc_message_value_bytes(field->type), depth, out);
    }
    strbuf_add_char(out, ']');
}

static void add_message(const ProtobufCMessage *message, int depth, struct strbuf *out)
{
    bool any = false;
    strbuf_add_char(out, '{');
    for (unsigned i = 0; depth <= MAX_DEPTH && i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (!is_set(message, field))
            continue;
        strbuf_printf(out, "%s%s=", any ? " " : "", field->name);
        add_value(message, field, depth, out);
        any = true;
    }
    strbuf_add_char(out, '}');
}

/* Finds the field of a dotted name, and the message that holds it; NULL where a message on the
 * way is missing. */
static const ProtobufCFieldDescriptor *find_field(const ProtobufCMessage **message,
                                                  const char *name)
{
    for (const char *dot; *message && (dot = strchr(name, '.')); name = dot + 1) {
        char first[64];
        snprintf(first, sizeof(first), "%.*s", (int)(dot - name), name);
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name((*message)->descriptor, first);
        *message = field ? pointer_at(field_at(*message, field)) : NULL;
    }
    return *message ? protobuf_c_message_descriptor_get_field_by_name((*message)->descriptor, name)
                    : NULL;
}

/* True where a field that is set in both messages, or in neither, has equal values. */
static bool has_equal_values(const ProtobufCMessage *a, const ProtobufCMessage *b,
                             const ProtobufCFieldDescriptor *field, struct strbuf *out)
{
    const void *at_a = field_at(a, field), *at_b = field_at(b, field);
    if (field->label != PROTOBUF_C_LABEL_REPEATED && field->type == PROTOBUF_C_TYPE_STRING)
        return strcmp(pointer_at(at_a), pointer_at(at_b)) == 0;
    if (field->label != PROTOBUF_C_LABEL_REPEATED && field->type != PROTOBUF_C_TYPE_MESSAGE)
        return memcmp(at_a, at_b, rpc_message_value_bytes(field->type)) == 0;
    /* Compared as the text that people read. */
    struct strbuf text_a, text_b;
    strbuf_init(&text_a, 0);
    strbuf_init(&text_b, 0);
    add_value(a, field, 0, &text_a);
    add_value(b, field, 0, &text_b);
    bool same = strcmp(strbuf_str(&text_a), strbuf_str(&text_b)) == 0;
    if (strbuf_failed(&text_a) || strbuf_failed(&text_b))
        out->failed = true;
    strbuf_fini(&text_a);
    strbuf_fini(&text_b);
    return same;
}

/* Appends " name=value" where the value differs from the value in `other`. Columns are appended
 * with a zero too, as zero was then set. */
static bool add_difference(const ProtobufCMessage *message, const ProtobufCMessage *other,
                           const char *name, bool column, struct strbuf *out)
{
    const ProtobufCFieldDescriptor *field = find_field(&message, name);
    const ProtobufCFieldDescriptor *theirs = other ? find_field(&other, name) : NULL;
    bool here = field && is_set(message, field);
    bool there = theirs && is_set(other, theirs);
    if (here == there && (!here || has_equal_values(message, other, field, out)))
        return false;
    if (!here && !column)
        return false;
    strbuf_printf(out, " %s=", name);
    add_value(message, field, 0, out);
    return true;
}

static void add_side(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                     struct strbuf *out)
{
    if (message && is_set(message, field))
        add_value(message, field, 0, out);
    else
        strbuf_add_str(out, "not set");
}

void row_message_differences(const ProtobufCMessage *is, const ProtobufCMessage *wanted,
                             const char *prefix, struct strbuf *out)
{
    const ProtobufCMessage *any = is ? is : wanted;
    for (unsigned i = 0; any && i < any->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &any->descriptor->fields[i];
        bool here = is && is_set(is, field), there = wanted && is_set(wanted, field);
        if (here == there && (!here || has_equal_values(is, wanted, field, out)))
            continue;
        strbuf_printf(out, "; %s%s is ", prefix, field->name);
        add_side(is, field, out);
        strbuf_add_str(out, ", asked ");
        add_side(wanted, field, out);
    }
}

static bool is_noise(const char *column)
{
    size_t n = strlen(column);
    return strcmp(column, "generation") == 0 || strcmp(column, "request_id") == 0 ||
           strcmp(column, "socket") == 0 || strcmp(column, "sha256") == 0 ||
           (n > 8 && strcmp(column + n - 8, "_unix_ns") == 0);
}

void row_differences(const struct row *row, const struct row *other, struct strbuf *out)
{
    const struct table_spec *spec = table_spec(row_table(row));
    const ProtobufCMessage *message = row_message(row), *before = other ? row_message(other) : NULL;
    const char *const *names = requestable[row_table(row)];
    bool any = false;
    const char *name = name_columns[row_table(row)];
    if (name)
        any |= add_difference(message, NULL, name, false, out);
    for (size_t i = spec->n_key; i < table_n_columns(spec); i++)
        if (!is_noise(spec->columns[i]) && (!name || strcmp(spec->columns[i], name) != 0))
            any |= add_difference(message, before, spec->columns[i], true, out);
    for (size_t i = 0; i < sizeof(requestable[0]) / sizeof(requestable[0][0]) && names[i]; i++)
        any |= add_difference(message, before, names[i], false, out);
    if (!any)
        strbuf_add_str(out, " ...");
}
