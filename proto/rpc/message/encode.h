/* encode.h: packs messages in one pass, from the last byte to the first. So the length of a
 * nested message is known when it is written; protobuf-c measures each level again. Writes the
 * same bytes as protobuf_c_message_pack. Private to proto/rpc. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

/* Writes to the end of the n_bytes at `room`. Returns the first byte. NULL if there is not
 * enough room, or the message has groups or required fields of proto2. */
uint8_t *rpc_encode(const ProtobufCMessage *message, uint8_t *room, size_t n_bytes);
