/* message.h: packs and parses messages, with the checks that protobuf-c lacks. Every message
 * from outside this process goes through rpc_message_parse. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct arena;
struct error;

/* Limits of a message beside its wire size. */
enum {
    RPC_MESSAGE_MAX_DEPTH = 32,
    RPC_MESSAGE_MAX_UNKNOWN_FIELDS = 1024, /* in the whole message */
    RPC_MESSAGE_MAX_EXPANSION = 64 << 20,  /* memory of the decoded form */
};

/* Checks the wire form against `descriptor`, then decodes. The checks: well formed, known wire
 * types, depth, memory, and strings of valid UTF-8 without NUL. INVALID_ARGUMENT with the
 * message, the byte offset, and for a string the field's path. RESOURCE_EXHAUSTED if the decoded
 * form exceeds the limit. *out_message is owned. */
int rpc_message_parse(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                      size_t n_bytes, ProtobufCMessage **out_message, struct error *err);
void rpc_message_free(ProtobufCMessage *message); /* NULL is accepted */
/* The same, but the message belongs to the arena: its reset ends the message, which must not be
 * freed. */
int rpc_message_parse_in(struct arena *arena, const ProtobufCMessageDescriptor *descriptor,
                         const void *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                         struct error *err);

/* Returns the size of a value of that type in a message's struct, and in its array if repeated. */
size_t rpc_message_value_bytes(ProtobufCType type);

/* Packs into new memory (free()). RESOURCE_EXHAUSTED if memory is exhausted. */
int rpc_message_pack(const ProtobufCMessage *message, void **out_bytes, size_t *out_n_bytes,
                     struct error *err);
