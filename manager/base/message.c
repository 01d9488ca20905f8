#include "manager/base/message.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/pb.h"
#include "proto/rpc/message/message.h"

ProtobufCMessage *message_new(const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = malloc(descriptor->sizeof_message);
    if (message)
        protobuf_c_message_init(descriptor, message);
    return message;
}

/* Copies through the packed form, which keeps unknown fields. */
static ProtobufCMessage *copy_packed(const ProtobufCMessage *message)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return NULL;
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, n_bytes, bytes);
    free(bytes);
    return copy;
}

/* False where memory is exhausted; `to` is then unchanged. */
static bool copy_value(ProtobufCType type, const void *from, void *to)
{
    ProtobufCBinaryData data;
    void *value, *copy;
    if (type == PROTOBUF_C_TYPE_BYTES) {
        memcpy(&data, from, sizeof(data));
        if (data.data && !(copy = malloc(data.len ? data.len : 1)))
            return false;
        if (data.data)
            data.data = memcpy(copy, data.data, data.len);
        memcpy(to, &data, sizeof(data));
        return true;
    }
    if (type != PROTOBUF_C_TYPE_STRING && type != PROTOBUF_C_TYPE_MESSAGE) {
        memcpy(to, from, rpc_message_value_bytes(type));
        return true;
    }
    memcpy(&value, from, sizeof(value));
    copy = value;
    if (type == PROTOBUF_C_TYPE_MESSAGE)
        copy = message_copy(value);
    else if (value != (const void *)protobuf_c_empty_string && value)
        copy = strdup(value);
    if (value && !copy)
        return false;
    if (copy)
        memcpy(to, &copy, sizeof(copy));
    return true;
}

static bool copy_repeated(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *from,
                          ProtobufCMessage *to)
{
    size_t n, *n_done = (size_t *)(void *)((char *)to + field->quantifier_offset);
    size_t n_bytes = rpc_message_value_bytes(field->type);
    const char *values;
    memcpy(&n, (const char *)from + field->quantifier_offset, sizeof(n));
    memcpy(&values, (const char *)from + field->offset, sizeof(values));
    char *copy = n ? malloc(n * n_bytes) : NULL;
    if (n && !copy)
        return false;
    memcpy((char *)to + field->offset, &copy, sizeof(copy));
    for (; *n_done < n; ++*n_done) /* count as copied, so that a failure frees exactly these */
        if (!copy_value(field->type, values + *n_done * n_bytes, copy + *n_done * n_bytes))
            return false;
    return true;
}

static bool copy_field(const ProtobufCFieldDescriptor *field, const ProtobufCMessage *from,
                       ProtobufCMessage *to)
{
    uint32_t quantifier = 0; /* presence of an optional field, or the chosen field of a oneof */
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return copy_repeated(field, from, to);
    if (field->quantifier_offset)
        memcpy(&quantifier, (const char *)from + field->quantifier_offset, sizeof(quantifier));
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) && quantifier != field->id)
        return true;
    if (!copy_value(field->type, (const char *)from + field->offset, (char *)to + field->offset))
        return false;
    if (field->quantifier_offset)
        memcpy((char *)to + field->quantifier_offset, &quantifier, sizeof(quantifier));
    return true;
}

/* Copies field by field, for speed: every poll of a worker and every change of a row makes
 * copies. */
ProtobufCMessage *message_copy(const ProtobufCMessage *message)
{
    if (!message)
        return NULL;
    if (message->n_unknown_fields)
        return copy_packed(message);
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    ProtobufCMessage *copy = message_new(descriptor);
    for (unsigned i = 0; copy && i < descriptor->n_fields; i++)
        if (!copy_field(&descriptor->fields[i], message, copy)) {
            message_free(copy);
            return NULL;
        }
    return copy;
}

void message_free(ProtobufCMessage *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

/* This allocator notes failed allocations. protobuf-c gives the same result for a malformed
 * message and for exhausted memory. */
static void *alloc_recording(void *failed, size_t n_bytes)
{
    void *memory = malloc(n_bytes);
    if (!memory)
        *(bool *)failed = true;
    return memory;
}

static void free_recording(void *failed, void *memory)
{
    (void)failed;
    free(memory);
}

int message_unpack(const ProtobufCMessageDescriptor *descriptor, const char *what,
                   const uint8_t *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                   struct error *err)
{
    bool failed = false;
    ProtobufCAllocator noting = {alloc_recording, free_recording, &failed};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &noting, n_bytes, bytes);
    if (!message)
        return failed ? error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", what)
                      : error_set(err, STATUS_DATA_LOSS, "%s cannot be decoded", what);
    *out_message = message;
    return 0;
}

static void replace_text(char **field, char *text)
{
    if (*field != (const char *)protobuf_c_empty_string)
        free(*field);
    *field = text;
}

void message_clear(char **field)
{
    /* protobuf-c's own empty string, which protobuf-c never frees or writes. */
    replace_text(field, (char *)(uintptr_t)protobuf_c_empty_string);
}

bool message_set(char **field, const char *text)
{
    if (*field == text)
        return true;
    if (!text || !*text) {
        message_clear(field);
        return true;
    }
    char *copy = strdup(text);
    if (copy)
        replace_text(field, copy);
    return copy != NULL;
}

bool message_set_copy(void *field, const void *source)
{
    ProtobufCMessage *old, *copy = message_copy(source);
    if (source && !copy)
        return false;
    memcpy(&old, field, sizeof(old));
    message_free(old);
    memcpy(field, &copy, sizeof(copy));
    return true;
}

bool message_append(size_t *n_items, void *items_field, void *item)
{
    void **items;
    memcpy(&items, items_field, sizeof(items));
    void **grown = realloc(items, (*n_items + 1) * sizeof(*grown));
    if (!grown)
        return false;
    grown[(*n_items)++] = item;
    memcpy(items_field, &grown, sizeof(grown));
    return true;
}

bool message_append_text(size_t *n_items, char ***items_field, const char *text)
{
    char *copy = strdup(text);
    if (copy && message_append(n_items, items_field, copy))
        return true;
    free(copy);
    return false;
}

bool message_append_copy(size_t *n_items, void *items_field, const void *source)
{
    ProtobufCMessage *copy = message_copy(source);
    if (copy && message_append(n_items, items_field, copy))
        return true;
    message_free(copy);
    return false;
}

ProtobufCMessage *message_from_error(const struct error *err)
{
    pb_error *out = MESSAGE_NEW(pb_error, sluice__v1__error__descriptor);
    if (!out)
        return NULL;
    out->code = status_to_grpc(err->status);
    out->retry_after_ms = err->retry_after_ms;
    if (message_set(&out->message, err->message) && message_set(&out->field, err->field) &&
        message_set(&out->reason, error_reason_name(err)))
        return &out->base;
    message_free(&out->base);
    return NULL;
}

static void copy_text(char *out, size_t n_bytes, const char *text)
{
    size_t n = strlen(text);
    if (n >= n_bytes)
        n = n_bytes - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}

void message_to_error(const ProtobufCMessage *message, struct error *out_err)
{
    const pb_error *from = (const pb_error *)message;
    int rc = status_from_grpc(from->code);
    error_set(out_err, rc ? rc : STATUS_UNKNOWN, "%s", from->message);
    copy_text(out_err->field, sizeof(out_err->field), from->field);
    error_reason_parse(out_err, from->reason);
    out_err->retry_after_ms = from->retry_after_ms;
}
