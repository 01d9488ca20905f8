/* message.h: bytes to messages and back, with the checks protobuf-c does not make. Every
 * message from outside this process goes through rpc_message_parse. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct arena;
struct error;

/* What a message may be, over its wire size. */
enum {
    RPC_MESSAGE_MAX_DEPTH = 32,
    RPC_MESSAGE_MAX_UNKNOWN_FIELDS = 1024, /* in the whole message */
    RPC_MESSAGE_MAX_EXPANSION = 64 << 20,  /* bytes in memory once decoded */
};

/* Walks the wire form against `descriptor` (well formed, known wire types, depth, every string
 * complete UTF-8 without NUL, memory it would take), then decodes. INVALID_ARGUMENT naming the
 * message and the byte offset, and for a string the field's path; RESOURCE_EXHAUSTED where the
 * decoded form is over the limit. *out_message is owned. */
int rpc_message_parse(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                      size_t n_bytes, ProtobufCMessage **out_message, struct error *err);
void rpc_message_free(ProtobufCMessage *message); /* NULL is accepted */
/* The same, but all of the message is the arena's: gone with its reset, never to be freed. */
int rpc_message_parse_in(struct arena *arena, const ProtobufCMessageDescriptor *descriptor,
                         const void *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                         struct error *err);

/* What a value of that type takes in a message's struct, and in its array where it is repeated. */
size_t rpc_message_value_bytes(ProtobufCType type);

/* Serializes into memory of its own (free()). RESOURCE_EXHAUSTED where there is none. */
int rpc_message_pack(const ProtobufCMessage *message, void **out_bytes, size_t *out_n_bytes,
                     struct error *err);
