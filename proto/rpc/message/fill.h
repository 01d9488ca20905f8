/* fill.h: stores decoded fields in protobuf-c's layout, in memory of an arena, in one pass. By
 * itself, protobuf-c takes two passes and several allocations per message. This code handles what
 * peers usually send. For anything else `odd` is set, and the caller lets protobuf-c decode the
 * message. Examples are a repeated occurrence that must be merged, an unknown field, and unpacked
 * numbers of a list. Messages of proto3. Private to proto/rpc. Single-threaded.
 *
 * The wire form is not checked here: message.c has checked each field. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct arena;

struct rpc_fill {
    struct arena *arena; /* NULL: nothing is stored */
    bool odd;            /* or memory was exhausted */
};

/* Returns a message with every field at its default, or NULL. */
ProtobufCMessage *rpc_fill_root(struct rpc_fill *fill,
                                const ProtobufCMessageDescriptor *descriptor);
/* Returns a new message as the field's value, or as the list's next element. NULL for a NULL
 * message. */
ProtobufCMessage *rpc_fill_child(struct rpc_fill *fill, ProtobufCMessage *message,
                                 const ProtobufCFieldDescriptor *field);

/* `value`: the varint, or the bits of the fixed-size number. */
void rpc_fill_number(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, uint64_t value);
/* Stores a copy of a string or of bytes. */
void rpc_fill_bytes(struct rpc_fill *fill, ProtobufCMessage *message,
                    const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes);
/* Stores a packed list of n_elements numbers. */
void rpc_fill_packed(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes,
                     size_t n_elements);
