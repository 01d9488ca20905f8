/* message_twice.h: one wire form decoded by protobuf-c and by fill.c, and packed by protobuf-c
 * and by encode.c. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "proto/rpc/message/encode.h"
#include "proto/rpc/message/message.h"

/* Returns true if rpc_encode writes `message` as protobuf-c does. The output must fit exactly in
 * its size, and must be refused in a byte less. */
static bool encodes_as_protobuf_c(const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *theirs = malloc(n + 1), *ours = malloc(n + 1);
    if (!theirs || !ours)
        abort();
    bool same = protobuf_c_message_pack(message, theirs) == n;
    same = same && rpc_encode(message, ours, n) == ours && memcmp(theirs, ours, n) == 0;
    same = same && (n == 0 || !rpc_encode(message, ours, n - 1));
    free(theirs);
    free(ours);
    return same;
}

/* Returns true if both decoders agree on these bytes, in all four ways. Both give the same status
 * and text, or messages that pack to the same bytes. *out_ok: the bytes are a message. */
static bool decodes_as_protobuf_c(const ProtobufCMessageDescriptor *descriptor,
                                  const uint8_t *bytes, size_t n_bytes, bool *out_ok)
{
    struct error err = {0}, lent_err = {0};
    struct arena arena;
    ProtobufCMessage *owned = NULL, *lent = NULL;
    arena_init(&arena, 256, 0);
    int status = rpc_message_parse(descriptor, bytes, n_bytes, &owned, &err);
    int lent_status = rpc_message_parse_in(&arena, descriptor, bytes, n_bytes, &lent, &lent_err);
    bool same = status == lent_status && strcmp(err.message, lent_err.message) == 0 &&
                strcmp(err.field, lent_err.field) == 0;
    *out_ok = status == 0;
    if (same && status == 0) {
        size_t n = protobuf_c_message_get_packed_size(owned);
        uint8_t *theirs = malloc(n + 1), *ours = malloc(n + 1);
        if (!theirs || !ours)
            abort();
        same = protobuf_c_message_get_packed_size(lent) == n;
        protobuf_c_message_pack(owned, theirs);
        if (same)
            protobuf_c_message_pack(lent, ours);
        same = same && memcmp(theirs, ours, n) == 0;
        free(theirs);
        free(ours);
        same = same && encodes_as_protobuf_c(owned) && encodes_as_protobuf_c(lent);
    }
    rpc_message_free(owned);
    arena_fini(&arena);
    return same;
}
