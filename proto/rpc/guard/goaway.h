/* goaway.h: what tells a client in good time to open no more calls on its connection. gRPC 1.51
 * takes no more calls before its own GOAWAY has reached anybody, and cancels what comes meanwhile:
 * CANCELLED is nothing that a client tries again. So the server says it first (RFC 9113, section
 * 6.8): GOAWAY with the highest stream there can be, between two frames of gRPC's, and a PING
 * behind it. When that is answered, the client knows. gRPC as a client answers pings before it
 * writes what it had begun by then, so there is a second PING: all that was begun is before its
 * answer. gRPC passes over answers to pings that are not its own. Plain data, zeroed at the start
 * of a connection; the caller sees to it that one thread at a time is in it. Private to proto/rpc.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RPC_GOAWAY_BYTES = 34 }; /* GOAWAY and PING, at most */
/* How old a connection is to be before. A client that reads GOAWAY together with gRPC's SETTINGS
 * may take the connection for good all the same, and begins its calls there over and over until it
 * is closed, or their deadlines (gRPC 1.85). */
enum { RPC_GOAWAY_AGE_MS = 20 };

enum rpc_goaway_stage {
    RPC_GOAWAY_NONE,
    RPC_GOAWAY_WANTED, /* to be said where a frame ends */
    RPC_GOAWAY_SAID,
    RPC_GOAWAY_HEARD, /* the second PING, the same */
    RPC_GOAWAY_ASKED,
    RPC_GOAWAY_DONE, /* no call comes any more */
};

struct rpc_goaway {
    uint8_t head[9]; /* of the frame that gRPC is sending */
    uint8_t n_head;
    uint32_t left; /* of its payload */
    bool has_sent; /* a whole frame: the first is to be gRPC's SETTINGS */
    uint8_t stage;
    uint8_t n_said, n_saying; /* of `bytes` */
    uint8_t n_matched;        /* of the answer that is waited for */
    uint8_t bytes[RPC_GOAWAY_BYTES];
};

/* From now on there is something to say. Harmless where that was so before. */
void rpc_goaway_begin(struct rpc_goaway *goaway);

/* What has not been said by now is not said any more; what was begun is said to its end. */
void rpc_goaway_end(struct rpc_goaway *goaway);

/* What gRPC sent next. */
void rpc_goaway_sent(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes);

/* What is to be sent now, before anything else of gRPC's; 0: nothing, here. *out_bytes is borrowed
 * until the next call of any of these. */
size_t rpc_goaway_next(struct rpc_goaway *goaway, uint8_t **out_bytes);
/* So much of it was. */
void rpc_goaway_said(struct rpc_goaway *goaway, size_t n_bytes);
/* Of what is to be sent a part was: nothing else may be now. */
bool rpc_goaway_is_midway(const struct rpc_goaway *goaway);

/* What the client sent next. */
void rpc_goaway_heard(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes);

/* It was begun, and the client has not answered the first PING. */
bool rpc_goaway_is_unheard(const struct rpc_goaway *goaway);
/* Nor the second. */
bool rpc_goaway_is_open(const struct rpc_goaway *goaway);
