/* fill.h: puts decoded fields where protobuf-c has them, into memory of an arena, as they are
 * met; protobuf-c takes two passes, a list of what it met and several allocations per message. What
 * it knows is what peers usually send: of anything else (a field that stands twice and would have
 * to be merged, one that nobody knows, numbers of a list one by one) `odd` is set, and the caller
 * has protobuf-c decode the message. Messages of proto3. Private to proto/rpc. One thread.
 *
 * Nothing here checks the wire form: message.c has done so for each field. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct arena;

struct rpc_fill {
    struct arena *arena; /* NULL: nothing is put anywhere */
    bool odd;            /* or there was no memory */
};

/* A message with every field at its default, or NULL. */
ProtobufCMessage *rpc_fill_root(struct rpc_fill *fill,
                                const ProtobufCMessageDescriptor *descriptor);
/* The same as a field's value, or as its list's next. NULL into NULL. */
ProtobufCMessage *rpc_fill_child(struct rpc_fill *fill, ProtobufCMessage *message,
                                 const ProtobufCFieldDescriptor *field);

/* `value`: the varint, or the fixed number's bits. */
void rpc_fill_number(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, uint64_t value);
/* A string or bytes, copied. */
void rpc_fill_bytes(struct rpc_fill *fill, ProtobufCMessage *message,
                    const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes);
/* A packed list of n_elements numbers. */
void rpc_fill_packed(struct rpc_fill *fill, ProtobufCMessage *message,
                     const ProtobufCFieldDescriptor *field, const uint8_t *bytes, size_t n_bytes,
                     size_t n_elements);
