/* frames.h: reads along with what a client sends, and says when a connection has to go. gRPC
 * 1.51 holds a client to its limits on headers only once the client has acknowledged them, keeps
 * every byte of a header block that never ends, does a call's whole work for each stream that is
 * reset at once, remembers something for every ping too many, and holds a message whole before it
 * compares its length with the limit. This looks at HTTP/2 frame headers (RFC 9113, section 4) and
 * at the five bytes before each gRPC message: a few instructions per frame. Of what the server
 * sends it has to know which streams ended and how many questions were answered. Plain data; the
 * caller sees to it that one thread at a time is in it. Private to proto/rpc. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_guard_limits {
    uint32_t max_block_bytes;       /* of one header block: HEADERS and its CONTINUATIONs */
    uint32_t max_resets_per_second; /* of streams, by the client; twice as many in a burst */
    uint32_t max_message_bytes;     /* that a message may announce */
    uint64_t max_held_bytes;        /* what all messages that are not whole yet keep in memory */
    uint32_t max_streams;           /* on which the client may still send */
    uint32_t max_read_bytes;        /* what gRPC reads at once: a byte kept may keep all of it */
    /* Resets of all connections together, four times what one may: while there is a second's worth
     * of them, a connection may send a quarter of its own second's at once; while there are two, a
     * thirty-second. Theirs all; NULL: any number. */
    _Atomic(int64_t) *all_resets;
};

enum rpc_guard_verdict {
    RPC_GUARD_GOOD,
    RPC_GUARD_NOT_HTTP2,    /* another protocol */
    RPC_GUARD_HEADER_BLOCK, /* over its limit, or no header block where there must be one */
    RPC_GUARD_RESETS,       /* or PINGs or SETTINGS sent without waiting for their answers */
    RPC_GUARD_MESSAGE,      /* one announces too much, or too much of all is not whole */
    RPC_GUARD_STREAMS,      /* or no memory to follow them */
};

/* The frame that is being read. */
struct rpc_guard_frame {
    uint8_t head[9];
    uint8_t n_head;
    uint32_t left; /* of its payload */
};

struct rpc_guard_stream;

/* Zeroed is the start of a connection. */
struct rpc_guard {
    struct rpc_guard_frame in, out;
    uint8_t n_preface;
    uint8_t has_spoken;    /* a whole frame header came */
    uint8_t in_block;      /* HEADERS came without END_HEADERS */
    uint8_t pad_next;      /* the next byte of DATA says how much of it is padding */
    uint32_t n_block;      /* bytes of the header block so far */
    uint32_t n_unanswered; /* PINGs and SETTINGS */
    uint32_t data_stream;  /* whose DATA is being read; 0: nobody's that matters */
    uint32_t n_data;       /* left of it, without padding */
    uint32_t n_between;    /* bytes since the last DATA that was kept, up to max_read_bytes */
    uint64_t n_resets_x_s; /* a bucket that leaks: resets × 10^9 */
    int64_t at_ns;
    struct rpc_guard_stream *streams; /* on which the client may still send, by number; owned */
    uint32_t n_streams, n_room;
    uint64_t n_held; /* by messages that are not whole */
};

/* What the client sent next. Once it was not good it stays so; the connection is to be closed. */
enum rpc_guard_verdict rpc_guard_feed(struct rpc_guard *guard,
                                      const struct rpc_guard_limits *limits, const void *bytes,
                                      size_t n_bytes, int64_t now_ns);

/* What the server sent next. */
void rpc_guard_sent(struct rpc_guard *guard, const void *bytes, size_t n_bytes);

/* Back to the start of a connection. */
void rpc_guard_reset(struct rpc_guard *guard);
