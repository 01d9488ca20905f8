/* rpc_guard.h: reads along with what a client sends, and says when a connection has to go. gRPC
 * 1.51 holds a client to its limits on headers only once the client has acknowledged them, keeps
 * every byte of a header block that never ends, and does a call's whole work for each stream that
 * is reset at once. This looks at HTTP/2 frame headers alone (RFC 9113, section 4): a few
 * instructions per frame. Plain data; the connection's reading thread only. Private to proto/rpc.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rpc_guard_limits {
    uint32_t max_block_bytes;       /* of one header block: HEADERS and its CONTINUATIONs */
    uint32_t max_resets_per_second; /* of streams, by the client; twice as many in a burst */
};

enum rpc_guard_verdict {
    RPC_GUARD_GOOD,
    RPC_GUARD_NOT_HTTP2,    /* another protocol */
    RPC_GUARD_HEADER_BLOCK, /* over its limit, or no header block where there must be one */
    RPC_GUARD_RESETS, /* or PINGs or SETTINGS, which cost an answer each: one count for all three */
};

/* Zeroed is the start of a connection. */
struct rpc_guard {
    uint8_t head[9]; /* of the frame that is being read */
    uint8_t n_head, n_preface;
    uint8_t in_block;      /* HEADERS came without END_HEADERS */
    uint32_t left;         /* of the frame's payload */
    uint32_t n_block;      /* bytes of the header block so far */
    uint64_t n_resets_x_s; /* a bucket that leaks: resets × 10^9 */
    int64_t at_ns;
};

/* What the client sent next. Once it was not good it stays so; the connection is to be closed. */
enum rpc_guard_verdict rpc_guard_feed(struct rpc_guard *guard,
                                      const struct rpc_guard_limits *limits, const void *bytes,
                                      size_t n_bytes, int64_t now_ns);
