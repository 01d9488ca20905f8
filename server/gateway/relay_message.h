/* relay_message.h: what a relay says to its client: the next message of a stream, or the whole
 * answer. All under the relay's lock. */
#pragma once

#include <stdbool.h>

#include <protobuf-c/protobuf-c.h>

struct relay;
struct rpc_out;

/* Puts the next message, the end, both, or nothing (false). */
bool relay_put_next(struct relay *relay, struct rpc_out *out);
/* Complete: nothing until the end, then one message or the error. */
bool relay_put_whole(struct relay *relay, struct rpc_out *out);

/* A deep copy (rpc_message_free), or NULL where memory is exhausted. */
ProtobufCMessage *relay_message_copy(const ProtobufCMessage *message);
