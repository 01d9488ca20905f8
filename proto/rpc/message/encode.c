#include "proto/rpc/message/encode.h"

#include <stdbool.h>
#include <string.h>

#include "proto/rpc/message/message.h"
#include "proto/rpc/message/wire.h"

/* The output buffer; written bytes begin at `at`. */
struct tail {
    uint8_t *begin, *at;
};

static bool put_bytes(struct tail *tail, const void *bytes, size_t n)
{
    if ((size_t)(tail->at - tail->begin) < n)
        return false;
    tail->at -= n;
    if (n > 0)
        memcpy(tail->at, bytes, n);
    return true;
}

static bool put_long_varint(struct tail *tail, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    while (value >= 0x80) {
        bytes[n++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    bytes[n++] = (uint8_t)value;
    return put_bytes(tail, bytes, n);
}

static inline bool put_varint(struct tail *tail, uint64_t value)
{
    if (value >= 0x80 || tail->at == tail->begin)
        return put_long_varint(tail, value);
    *--tail->at = (uint8_t)value;
    return true;
}

static bool put_tag(struct tail *tail, const ProtobufCFieldDescriptor *field, enum wire wire)
{
    return put_varint(tail, (uint64_t)field->id << 3 | wire);
}

/* `end`: end of the bytes whose length is written. */
static bool put_length_and_tag(struct tail *tail, const ProtobufCFieldDescriptor *field,
                               const uint8_t *end)
{
    return put_varint(tail, (uint64_t)(end - tail->at)) && put_tag(tail, field, WIRE_BYTES);
}

static bool put_message(struct tail *tail, const ProtobufCMessage *message);

static uint64_t zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
}

static uint64_t load_varint(ProtobufCType type, const void *value)
{
    int32_t i32;
    int64_t i64;
    if (number_bytes(type) == 8) {
        memcpy(&i64, value, sizeof(i64));
        return type == PROTOBUF_C_TYPE_SINT64 ? zigzag(i64) : (uint64_t)i64;
    }
    memcpy(&i32, value, sizeof(i32));
    switch (type) {
    case PROTOBUF_C_TYPE_SINT32:
        return zigzag(i32) & UINT32_MAX;
    case PROTOBUF_C_TYPE_UINT32:
        return (uint32_t)i32;
    case PROTOBUF_C_TYPE_BOOL:
        return i32 != 0;
    default: /* negative numbers take ten bytes */
        return (uint64_t)(int64_t)i32;
    }
}

static bool put_number(struct tail *tail, ProtobufCType type, const void *value)
{
    switch (wire_of(type)) {
    case WIRE_FIXED32:
        return put_bytes(tail, value, 4);
    case WIRE_FIXED64:
        return put_bytes(tail, value, 8);
    default:
        return put_varint(tail, load_varint(type, value));
    }
}

/* Writes a value with its tag. */
static bool put_value(struct tail *tail, const ProtobufCFieldDescriptor *field, const void *value)
{
    const uint8_t *end = tail->at;
    const char *text;
    const ProtobufCMessage *message;
    ProtobufCBinaryData data;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        memcpy(&text, value, sizeof(text));
        return (text == NULL || put_bytes(tail, text, strlen(text))) &&
               put_length_and_tag(tail, field, end);
    case PROTOBUF_C_TYPE_BYTES:
        memcpy(&data, value, sizeof(data));
        return put_bytes(tail, data.data, data.len) && put_length_and_tag(tail, field, end);
    case PROTOBUF_C_TYPE_MESSAGE:
        memcpy(&message, value, sizeof(message));
        return (message == NULL || put_message(tail, message)) &&
               put_length_and_tag(tail, field, end);
    default:
        return put_number(tail, field->type, value) && put_tag(tail, field, wire_of(field->type));
    }
}

static bool put_repeated(struct tail *tail, const ProtobufCFieldDescriptor *field, const void *list,
                         size_t n)
{
    size_t size = rpc_message_value_bytes(field->type);
    const uint8_t *values = list, *end = tail->at;
    bool packed = (field->flags & PROTOBUF_C_FIELD_FLAG_PACKED) != 0;
    for (size_t i = n; i-- > 0;)
        if (!(packed ? put_number(tail, field->type, values + i * size)
                     : put_value(tail, field, values + i * size)))
            return false;
    return n == 0 || !packed || put_length_and_tag(tail, field, end);
}

/* proto3 without `optional`: a zero is not written. */
static bool is_zero(const ProtobufCFieldDescriptor *field, const void *value)
{
    static const uint8_t zeros[8];
    const char *text;
    float f32;
    double f64;
    ProtobufCBinaryData data;
    switch (field->type) {
    case PROTOBUF_C_TYPE_FLOAT: /* -0 counts as zero, too */
        memcpy(&f32, value, sizeof(f32));
        return f32 == 0.0F;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(&f64, value, sizeof(f64));
        return f64 == 0.0;
    case PROTOBUF_C_TYPE_STRING:
        memcpy(&text, value, sizeof(text));
        return text == NULL || text[0] == '\0';
    case PROTOBUF_C_TYPE_BYTES:
        memcpy(&data, value, sizeof(data));
        return data.len == 0;
    case PROTOBUF_C_TYPE_MESSAGE:
        return memcmp(value, zeros, sizeof(void *)) == 0;
    default:
        return memcmp(value, zeros, number_bytes(field->type)) == 0;
    }
}

static bool is_pointer(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_STRING || type == PROTOBUF_C_TYPE_MESSAGE;
}

/* True if a field that is neither repeated nor required is set. */
static bool is_set(const ProtobufCFieldDescriptor *field, const uint8_t *message)
{
    const uint8_t *value = message + field->offset;
    uint32_t number;
    const void *pointer;
    memcpy(&number, message + field->quantifier_offset, sizeof(number));
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0 && number != field->id)
        return false;
    if (is_pointer(field->type) && (field->label == PROTOBUF_C_LABEL_OPTIONAL ||
                                    (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0)) {
        memcpy(&pointer, value, sizeof(pointer));
        return pointer != NULL && pointer != field->default_value;
    }
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0)
        return true;
    if (field->label == PROTOBUF_C_LABEL_OPTIONAL)
        return number != 0;
    return !is_zero(field, value);
}

static bool put_unknown(struct tail *tail, const ProtobufCMessage *message)
{
    for (unsigned i = message->n_unknown_fields; i-- > 0;) {
        const ProtobufCMessageUnknownField *field = &message->unknown_fields[i];
        if (!put_bytes(tail, field->data, field->len) ||
            !put_varint(tail, (uint64_t)field->tag << 3 | (uint64_t)field->wire_type))
            return false;
    }
    return true;
}

static bool put_field(struct tail *tail, const ProtobufCFieldDescriptor *field,
                      const uint8_t *message)
{
    if (field->label == PROTOBUF_C_LABEL_REQUIRED)
        return false;
    if (field->label != PROTOBUF_C_LABEL_REPEATED)
        return !is_set(field, message) || put_value(tail, field, message + field->offset);
    const void *list;
    size_t n;
    memcpy(&n, message + field->quantifier_offset, sizeof(n));
    memcpy(&list, message + field->offset, sizeof(list));
    return n == 0 || put_repeated(tail, field, list, n);
}

static bool put_message(struct tail *tail, const ProtobufCMessage *message)
{
    const ProtobufCMessageDescriptor *descriptor = message->descriptor;
    if (!put_unknown(tail, message))
        return false;
    for (unsigned i = descriptor->n_fields; i-- > 0;)
        if (!put_field(tail, &descriptor->fields[i], (const uint8_t *)message))
            return false;
    return true;
}

uint8_t *rpc_encode(const ProtobufCMessage *message, uint8_t *room, size_t n_bytes)
{
    struct tail tail;
    tail.begin = room;
    tail.at = room + n_bytes;
    return put_message(&tail, message) ? tail.at : NULL;
}
