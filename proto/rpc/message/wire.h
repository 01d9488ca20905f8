/* wire.h: the wire form and memory layout of protobuf-c's types (protobuf.dev, "Encoding").
 * Private to proto/rpc. Any thread. */
#pragma once

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

/* Returns the wire type of a value; a packed list is always WIRE_BYTES. */
static inline enum wire wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT;
    }
}

/* Returns the size of a number in memory; 0 for other types. */
static inline size_t number_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_UINT64:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    default:
        break;
    }
    enum wire wire = wire_of(type);
    return wire == WIRE_BYTES ? 0 : wire == WIRE_FIXED64 ? 8 : 4;
}
