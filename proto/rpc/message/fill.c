#include "proto/rpc/message/fill.h"

#include <string.h>

#include "base/arena.h"
#include "proto/rpc/message/wire.h"

enum { FIRST_CAPACITY = 4 }; /* first capacity of a list; later the capacity doubles */

static void *at(ProtobufCMessage *message, unsigned offset)
{
    return (uint8_t *)message + offset;
}

static bool is_oneof(const ProtobufCFieldDescriptor *field)
{
    return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

static void store_number(void *to, ProtobufCType type, uint64_t value)
{
    protobuf_c_boolean flag = value != 0;
    uint32_t low = (uint32_t)value;
    if (type == PROTOBUF_C_TYPE_SINT32)
        low = low >> 1 ^ (0U - (low & 1));
    else if (type == PROTOBUF_C_TYPE_SINT64)
        value = value >> 1 ^ (0U - (value & 1));
    if (type == PROTOBUF_C_TYPE_BOOL)
        memcpy(to, &flag, sizeof(flag));
    else if (number_bytes(type) == 8)
        memcpy(to, &value, sizeof(value));
    else
        memcpy(to, &low, sizeof(low));
}

static void *take_bytes(struct rpc_fill *fill, size_t n_bytes)
{
    void *memory = arena_alloc(fill->arena, n_bytes);
    fill->odd |= memory == NULL;
    return memory;
}

/* Marks a field that is not a list as set. */
static void mark(struct rpc_fill *fill, ProtobufCMessage *message,
                 const ProtobufCFieldDescriptor *field, bool has_flag)
{
    uint32_t number;
    if (is_oneof(field)) {
        memcpy(&number, at(message, field->quantifier_offset), sizeof(number));
        fill->odd |= number != 0;
        memcpy(at(message, field->quantifier_offset), &field->id, sizeof(field->id));
    } else if (has_flag && field->label == PROTOBUF_C_LABEL_OPTIONAL) {
        protobuf_c_boolean yes = 1;
        memcpy(at(message, field->quantifier_offset), &yes, sizeof(yes));
    }
}

/* Returns room for another element, or NULL. Never called for numbers: a list that grows this
 * way always has room up to a power of two. */
static void *append(struct rpc_fill *fill, ProtobufCMessage *message,
                    const ProtobufCFieldDescriptor *field, size_t size)
{
    size_t n;
    uint8_t *list;
    memcpy(&n, at(message, field->quantifier_offset), sizeof(n));
    memcpy(&list, at(message, field->offset), sizeof(list));
    if (n == 0 || (n >= FIRST_CAPACITY && (n & (n - 1)) == 0)) {
        uint8_t *grown = take_bytes(fill, (n == 0 ? FIRST_CAPACITY : 2 * n) * size);
        if (grown == NULL)
            return NULL;
        if (n > 0)
            memcpy(grown, list, n * size);
        list = grown;
        memcpy(at(message, field->offset), &list, sizeof(list));
    }
    void *element = list + n * size;
    n++;
    memcpy(at(message, field->quantifier_offset), &n, sizeof(n));
    return element;
}

ProtobufCMessage *rpc_fill_root(struct rpc_fill *fill, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = take_bytes(fill, descriptor->sizeof_message);
    fill->odd |= descriptor->message_init == NULL;
    if (message != NULL && descriptor->message_init != NULL)
        descriptor->message_init(message);
    return message;
}

ProtobufCMessage *rpc_fill_child(struct rpc_fill *fill, ProtobufCMessage *message,
                                 const ProtobufCFieldDescriptor *field)
{
    ProtobufCMessage *child, *before;
    if (fill->arena == NULL || fill->odd || message == NULL)
        return NULL;
    child = rpc_fill_root(fill, field->descriptor);
    void *slot = at(message, field->offset);
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        slot = append(fill, message, field, sizeof(child));
    } else if (is_oneof(field)) {
        mark(fill, message, field, false);
    } else {
        memcpy(&before, slot, sizeof(before));
        fill->odd |= before != NULL;
    }
    if (slot != NULL)
        memcpy(slot, &child, sizeof(child));
    return child;
}

void rpc_fill_number(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, uint64_t value)
{
    if (fill->arena == NULL || fill->odd || message == NULL)
        return;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        fill->odd = true;
        return;
    }
    mark(fill, message, field, true);
    store_number(at(message, field->offset), field->type, value);
}

static void fill_string(struct rpc_fill *fill, void *slot, const void *default_value, bool fresh,
                        const uint8_t *bytes, size_t n_bytes)
{
    char *text = take_bytes(fill, n_bytes + 1), *before;
    memcpy(&before, slot, sizeof(before));
    fill->odd |= !fresh && before != NULL && before != default_value;
    if (text != NULL && n_bytes > 0)
        memcpy(text, bytes, n_bytes);
    memcpy(slot, &text, sizeof(text));
}

static void fill_data(struct rpc_fill *fill, void *slot, bool fresh, const uint8_t *bytes,
                      size_t n_bytes)
{
    ProtobufCBinaryData data, before;
    memcpy(&before, slot, sizeof(before));
    fill->odd |= !fresh && before.len != 0;
    data.len = n_bytes;
    data.data = n_bytes > 0 ? take_bytes(fill, n_bytes) : NULL;
    if (data.data != NULL)
        memcpy(data.data, bytes, n_bytes);
    memcpy(slot, &data, sizeof(data));
}

void rpc_fill_bytes(struct rpc_fill *fill, ProtobufCMessage *message,
                    const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes)
{
    if (fill->arena == NULL || fill->odd || message == NULL)
        return;
    bool is_text = field->type == PROTOBUF_C_TYPE_STRING;
    bool fresh = field->label == PROTOBUF_C_LABEL_REPEATED || is_oneof(field);
    void *slot = at(message, field->offset);
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        slot = append(fill, message, field, is_text ? sizeof(char *) : sizeof(ProtobufCBinaryData));
    else
        mark(fill, message, field, !is_text);
    if (slot == NULL)
        return;
    if (is_text)
        fill_string(fill, slot, field->default_value, fresh, bytes, n_bytes);
    else
        fill_data(fill, slot, fresh, bytes, n_bytes);
}

static const uint8_t *next_number(const uint8_t *from, ProtobufCType type, uint64_t *out_value)
{
    uint64_t value = 0;
    uint32_t low;
    if (wire_of(type) == WIRE_FIXED32) {
        memcpy(&low, from, sizeof(low));
        *out_value = low;
        return from + sizeof(low);
    }
    if (wire_of(type) == WIRE_FIXED64) {
        memcpy(out_value, from, sizeof(*out_value));
        return from + sizeof(*out_value);
    }
    for (unsigned shift = 0;; shift += 7) {
        uint8_t byte = *from++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80)
            break;
    }
    *out_value = value;
    return from;
}

void rpc_fill_packed(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes,
                     size_t n_elements)
{
    size_t n, size = number_bytes(field->type);
    if (fill->arena == NULL || fill->odd || message == NULL || n_elements == 0)
        return;
    memcpy(&n, at(message, field->quantifier_offset), sizeof(n));
    uint8_t *list = n == 0 ? take_bytes(fill, n_elements * size) : NULL;
    if (list == NULL) {
        fill->odd = true;
        return;
    }
    const uint8_t *from = bytes, *end = bytes + n_bytes;
    for (size_t i = 0; i < n_elements && from < end; i++) {
        uint64_t value;
        from = next_number(from, field->type, &value);
        store_number(list + i * size, field->type, value);
    }
    memcpy(at(message, field->offset), &list, sizeof(list));
    memcpy(at(message, field->quantifier_offset), &n_elements, sizeof(n_elements));
}
