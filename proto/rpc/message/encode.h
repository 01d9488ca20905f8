/* encode.h: messages to bytes in one pass, from the last byte to the first, so that the length
 * of what is nested is known when it is to be written; protobuf-c measures each level anew before
 * it writes it. The same bytes as protobuf_c_message_pack. Private to proto/rpc. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* Writes into the n_bytes from `room` on, so that the last byte is the last of them. Returns the
 * first, or NULL where there is not room enough, or where the message has a field of a kind this
 * does not know (groups, fields of proto2 that are required). */
uint8_t *rpc_encode(const ProtobufCMessage *message, uint8_t *room, size_t n_bytes);
