/* goaway.h: asks clients in time to open no more calls on their connection. By itself, gRPC 1.51
 * takes no more calls before its GOAWAY has reached the client. Calls that arrive meanwhile end
 * with CANCELLED, which clients do not retry.
 *
 * So the server sends first (RFC 9113, section 6.8): a GOAWAY with the highest stream number
 * between two frames of gRPC's, then a PING. The answer means that the client knows. A gRPC client
 * answers pings before it writes what it had begun, so a second PING follows. All calls that were
 * begun come before the second answer. gRPC ignores answers to pings that are not its own.
 *
 * Plain data, zeroed at the start of a connection; the caller allows one thread at a time.
 * Private to proto/rpc. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RPC_GOAWAY_BYTES = 34 }; /* at most a GOAWAY and a PING */
/* The least age of a connection for a GOAWAY. A client that reads a GOAWAY together with gRPC's
 * SETTINGS may still count the connection as good. Its calls are then retried there until the
 * connection closes or their deadlines pass (gRPC 1.85). */
enum { RPC_GOAWAY_AGE_MS = 20 };

enum rpc_goaway_stage {
    RPC_GOAWAY_NONE,
    RPC_GOAWAY_WANTED, /* to be sent at the end of a frame */
    RPC_GOAWAY_SAID,
    RPC_GOAWAY_HEARD, /* the first PING is answered; the second is to be sent */
    RPC_GOAWAY_ASKED,
    RPC_GOAWAY_DONE, /* no call comes any more */
};

struct rpc_goaway {
    uint8_t head[9]; /* header of the frame that gRPC is sending */
    uint8_t n_head;
    uint32_t left; /* bytes left of the frame's payload */
    bool has_sent; /* gRPC has sent a whole frame; SETTINGS must come before our GOAWAY */
    uint8_t stage;
    uint8_t n_said, n_saying; /* bytes of `bytes` sent, and to be sent */
    uint8_t n_matched;        /* matched bytes of the awaited answer */
    uint8_t bytes[RPC_GOAWAY_BYTES];
};

/* Requests a GOAWAY. Does nothing if one was requested before. */
void rpc_goaway_begin(struct rpc_goaway *goaway);

/* Sends no new frames from now on; a frame that was begun is completed. */
void rpc_goaway_end(struct rpc_goaway *goaway);

/* Feeds the bytes that gRPC sent. */
void rpc_goaway_sent(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes);

/* Returns the size of the bytes to send now, before any other bytes of gRPC; 0: nothing at this
 * point. *out_bytes is borrowed until the next call of any function here. */
size_t rpc_goaway_next(struct rpc_goaway *goaway, uint8_t **out_bytes);
/* Reports that n_bytes of them were sent. */
void rpc_goaway_said(struct rpc_goaway *goaway, size_t n_bytes);
/* True if a frame is sent in part: no other bytes may be sent now. */
bool rpc_goaway_is_midway(const struct rpc_goaway *goaway);

/* Feeds the bytes that the client sent. */
void rpc_goaway_heard(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes);

/* True if a GOAWAY was requested and the client has not answered the first PING. */
bool rpc_goaway_is_unheard(const struct rpc_goaway *goaway);
/* True if a GOAWAY was requested and the client has not answered the second PING. */
bool rpc_goaway_is_open(const struct rpc_goaway *goaway);
