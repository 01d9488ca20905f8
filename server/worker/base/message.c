#include "server/worker/base/message.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "proto/rpc/message/message.h"

enum { MAX_PRINTED_BYTES = 400, SUBSTITUTE = 0x1A };

char *message_text_n(struct arena *arena, const char *text, size_t n_bytes)
{
    char *copy = text && n_bytes ? arena_strndup(arena, text, n_bytes) : NULL;
    /* protobuf-c's fields are not const, but never written */
    return copy ? copy : (char *)(uintptr_t)protobuf_c_empty_string;
}

char *message_model_text(struct arena *arena, const char *text, size_t n_bytes)
{
    char *copy = text && n_bytes ? arena_strndup(arena, text, n_bytes) : NULL;
    for (size_t i = 0; copy && i < n_bytes; i++)
        if (copy[i] == '\0')
            copy[i] = SUBSTITUTE;
    return copy ? copy : message_text(arena, NULL);
}

char *message_text(struct arena *arena, const char *text)
{
    return message_text_n(arena, text, text ? strlen(text) : 0);
}

Sluice__V1__Error *message_error(struct arena *arena, const struct error *err)
{
    Sluice__V1__Error *out = arena_alloc(arena, sizeof(*out));
    if (!out)
        return NULL;
    sluice__v1__error__init(out);
    out->code = status_to_grpc(err->status);
    out->message = message_text(arena, err->message);
    out->field = message_text(arena, err->field);
    out->reason = message_text(arena, error_reason_name(err));
    out->retry_after_ms = err->retry_after_ms;
    return out;
}

ProtobufCMessage *message_copy(const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n + 1);
    if (!bytes)
        return NULL;
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n, bytes);
    free(bytes);
    return copy;
}

/* --- printing --- */

static void add_string(struct strbuf *out, const char *text)
{
    size_t n = strlen(text);
    strbuf_add_char(out, '"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (i >= MAX_PRINTED_BYTES && c < 0x80) {
            strbuf_printf(out, "\"... %zu bytes", n);
            return;
        }
        if (c == '\n')
            strbuf_add_str(out, "\\n");
        else if (c == '"' || c == '\\')
            strbuf_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            strbuf_printf(out, "\\x%02x", c);
        else
            strbuf_add_char(out, (char)c);
    }
    strbuf_add_char(out, '"');
}

static void add_value(const ProtobufCFieldDescriptor *field, const void *value, unsigned indent,
                      struct strbuf *out)
{
    const ProtobufCEnumValue *name = NULL;
    const ProtobufCBinaryData *bytes = value;
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        strbuf_add_char(out, '\n');
        message_print(*(const ProtobufCMessage *const *)value, indent + 1, out);
        return;
    case PROTOBUF_C_TYPE_STRING:
        add_string(out, *(const char *const *)value);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        strbuf_printf(out, "(%zu bytes)", bytes->len);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        strbuf_add_str(out, *(const protobuf_c_boolean *)value ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        strbuf_printf(out, "%.6g", *(const double *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        strbuf_printf(out, "%.6g", (double)*(const float *)value);
        break;
    case PROTOBUF_C_TYPE_ENUM:
        name = protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)value);
        strbuf_add_str(out, name ? name->name : "?");
        break;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        strbuf_printf(out, "%" PRId32, *(const int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        strbuf_printf(out, "%" PRIu32, *(const uint32_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        strbuf_printf(out, "%" PRId64, *(const int64_t *)value);
        break;
    default:
        strbuf_printf(out, "%" PRIu64, *(const uint64_t *)value);
        break;
    }
    strbuf_add_char(out, '\n');
}

static bool is_set(const ProtobufCFieldDescriptor *field, const char *base)
{
    const void *value = base + field->offset;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)(const void *)(base + field->quantifier_offset) == field->id;
    switch (field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        return *(const void *const *)value != NULL;
    case PROTOBUF_C_TYPE_STRING:
        return *(const char *const *)value && (*(const char *const *)value)[0];
    default:
        break;
    }
    if (field->label == PROTOBUF_C_LABEL_OPTIONAL && field->quantifier_offset)
        return *(const protobuf_c_boolean *)(const void *)(base + field->quantifier_offset);
    if (field->type == PROTOBUF_C_TYPE_BOOL)
        return true; /* false is an answer, too: `fits: false` */
    static const char zeros[16];
    return memcmp(value, zeros, rpc_message_value_bytes(field->type)) != 0;
}

static void add_field(const ProtobufCFieldDescriptor *field, const void *value, unsigned indent,
                      struct strbuf *out)
{
    strbuf_printf(out, "%*s%s: ", (int)(2 * indent), "", field->name);
    add_value(field, value, indent, out);
}

void message_print(const ProtobufCMessage *message, unsigned indent, struct strbuf *out)
{
    const char *base = (const char *)message;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (field->label != PROTOBUF_C_LABEL_REPEATED) {
            if (is_set(field, base))
                add_field(field, base + field->offset, indent, out);
            continue;
        }
        size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);
        const char *items = *(const char *const *)(const void *)(base + field->offset);
        for (size_t k = 0; k < n; k++)
            add_field(field, items + k * rpc_message_value_bytes(field->type), indent, out);
    }
}
