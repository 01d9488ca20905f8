/* frames.h: reads a client's bytes and decides if its connection must be closed. Without this, gRPC
 * 1.51 has five weaknesses. Header limits hold only after the client has acknowledged them. Every
 * byte of an endless header block is kept. A stream that is reset at once costs a call's whole
 * work. Every excess ping takes memory. A message is held whole before its length is checked.
 *
 * This module reads HTTP/2 frame headers (RFC 9113, section 4) and the five-byte prefix of
 * each gRPC message: a few instructions per frame. The server's bytes show which streams ended
 * and how many frames were answered. Plain data; the caller allows one thread at a time. Private
 * to proto/rpc. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_guard_limits {
    uint32_t max_block_bytes;       /* bytes of a header block: HEADERS and its CONTINUATIONs */
    uint32_t max_resets_per_second; /* streams reset by the client; twice as many in a burst */
    uint32_t max_message_bytes;     /* longest announced message */
    uint64_t max_held_bytes;        /* memory of all incomplete messages */
    uint32_t max_streams;           /* open streams on which the client may still send */
    uint32_t max_read_bytes;        /* size of gRPC's read buffer: a single kept byte may keep the
                                     * whole buffer */
    /* The leaky bucket of the resets of all connections, shared by them. The bucket leaks four
     * times the rate of a single connection. Its fill limits the burst of each connection. Up to
     * one second of leaking: the full burst. Up to two seconds: a quarter of max_resets_per_second.
     * Above: 1/32 of max_resets_per_second. NULL: no common limit. */
    _Atomic(int64_t) *all_resets;
};

enum rpc_guard_verdict {
    RPC_GUARD_GOOD,
    RPC_GUARD_NOT_HTTP2,    /* another protocol */
    RPC_GUARD_HEADER_BLOCK, /* header block over its limit, or missing */
    RPC_GUARD_RESETS,       /* too many resets, or PINGs or SETTINGS sent without waiting for
                             * answers */
    RPC_GUARD_MESSAGE,      /* a message is too long, or incomplete messages need too much memory */
    RPC_GUARD_STREAMS,      /* too many streams, or no memory to follow them */
};

/* The frame being read. */
struct rpc_guard_frame {
    uint8_t head[9];
    uint8_t n_head;
    uint32_t left; /* bytes left of the payload */
};

struct rpc_guard_stream;

/* A zeroed guard is the start of a connection. */
struct rpc_guard {
    struct rpc_guard_frame in, out;
    uint8_t n_preface;
    uint8_t has_spoken;    /* a complete frame header arrived */
    uint8_t in_block;      /* HEADERS arrived without END_HEADERS */
    uint8_t pad_next;      /* the next byte of DATA is the length of the padding */
    uint32_t n_block;      /* bytes of the header block so far */
    uint32_t n_unanswered; /* PINGs and SETTINGS without an answer */
    uint32_t data_stream;  /* stream of the DATA being read; 0: none that matters */
    uint32_t n_data;       /* bytes left of its data, without padding */
    uint32_t n_between;    /* bytes since the last kept DATA, up to max_read_bytes */
    uint64_t n_resets_x_s; /* leaky bucket: resets × 10^9 */
    int64_t at_ns;
    struct rpc_guard_stream *streams; /* streams on which the client may still send, sorted by
                                       * number; owned */
    uint32_t n_streams, n_room;
    uint64_t n_held; /* bytes held by incomplete messages */
};

/* Feeds the client's next bytes. After a verdict other than GOOD the connection must be closed. */
enum rpc_guard_verdict rpc_guard_feed(struct rpc_guard *guard,
                                      const struct rpc_guard_limits *limits, const void *bytes,
                                      size_t n_bytes, int64_t now_ns);

/* Feeds the server's next bytes, which show ended streams and answered frames. */
void rpc_guard_sent(struct rpc_guard *guard, const void *bytes, size_t n_bytes);

/* Resets the guard to the start of a connection. */
void rpc_guard_reset(struct rpc_guard *guard);
