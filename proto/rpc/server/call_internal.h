/* call_internal.h: struct rpc_call as server.c, call.c and lane.c share it. Private to proto/rpc.
 *
 * A call is born when a request slot completes, and is "done" when RECV_CLOSE has completed and no
 * batch of it is outstanding; then on_done is called, gRPC's object is let go, and the server's
 * reference dropped. References that others hold keep only this struct alive. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/access/role.h"
#include "proto/rpc/core/core.h"
#include "proto/rpc/guard/peer.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/lane.h"
#include "proto/rpc/server/server.h"

enum { RPC_CALL_MAX_TRAILERS = 8, RPC_CALL_MAX_METHOD = 256 };

struct rpc_call_header {
    const char *key, *value; /* into the call's header memory */
    size_t n_value;
};

/* What a call is dispatched to. */
struct rpc_route {
    const struct rpc_method *method;
    const ProtobufCMethodDescriptor *descriptor;
    void *context;
    bool built_in; /* health and reflection: not waited for, served while draining */
};

struct rpc_call {
    /* Fixed once dispatched. */
    struct rpc_server *server;             /* not touched after done */
    struct rpc_lane *lane;                 /* nor this */
    struct rpc_call *next_live, **at_live; /* server.c: its list, its lock */
    const struct rpc_route *route;
    char path[RPC_CALL_MAX_METHOD];
    char *peer;
    bool peer_known; /* of a Unix socket, with its ids */
    struct rpc_peer_ids peer_ids;
    char tenant[RPC_MAX_TENANT + 1]; /* before the handler only, as the next */
    enum role role;
    int64_t deadline_ns;
    int64_t
        deadline_slack_ns; /* a client that leaves so little before its deadline leaves for it */
    size_t max_pending_bytes;
    struct rpc_call_header *headers;
    size_t n_headers;
    size_t n_metadata_bytes; /* as HPACK counts: 32 bytes over the text of each pair */
    char *header_bytes;

    atomic_uint n_refs;
    struct rpc_tag close_tag, read_tag, send_tag, wake_tag;

    /* Server thread of the call only. */
    const struct rpc_call_events *events;
    void *events_arg;
    ProtobufCMessage *request;
    bool oversized;     /* its message was over the limit */
    int peer_cancelled; /* out of RECV_CLOSE_ON_SERVER */
    grpc_byte_buffer *read_buffer;

    pthread_mutex_t lock; /* everything below, and starting batches */
    grpc_call *core;      /* NULL once done */
    struct rpc_queue queue;
    size_t n_in_flight_bytes;
    uint32_t n_sends;      /* batches begun */
    uint32_t n_sends_seen; /* at the look at seen_ns (rpc_call_is_stuck) */
    int64_t seen_ns;       /* 0: nothing was in flight then */
    int64_t awaits_ns;     /* of the first look at which its request was missing; 0: none */
    bool send_in_flight, reading, reads_paused, half_closed;
    bool wants_headers; /* initial metadata is to go out without waiting for a message */
    bool headers_sent;
    bool ended;       /* finish was asked for */
    bool status_sent; /* the status batch has been started */
    bool dead;        /* cancelled or lost: nothing more is sent */
    bool closed;      /* RECV_CLOSE completed */
    bool done;
    bool aborted;      /* ended by the server's shutdown: the handler hears on_cancel */
    bool has_messages; /* something was put on the wire */
    bool kicked;       /* on the lane's list */
    bool waking;       /* the empty batch that wakes the lane's thread is under way */
    struct error status;
    struct {
        grpc_slice key, value;
    } trailers[RPC_CALL_MAX_TRAILERS];
    size_t n_trailers;

    struct rpc_call *next_kicked; /* the lane's */
};

/* Takes over a call that has arrived, with one reference for the server. The strings and metadata
 * are copied. NULL where memory is exhausted (the core call is then dropped). */
struct rpc_call *rpc_call_create(struct rpc_server *server, struct rpc_lane *lane, grpc_call *core,
                                 const grpc_call_details *details,
                                 const grpc_metadata_array *metadata,
                                 const struct rpc_server_config *config);
/* Starts listening for the end. Then exactly one of the following. */
void rpc_call_watch_close(struct rpc_call *call);
/* Reads the request (shapes with one) or hands over at once (client streams). */
void rpc_call_dispatch(struct rpc_call *call, const struct rpc_route *route);
/* Ends it with an error before any handler saw it. */
void rpc_call_refuse(struct rpc_call *call, const struct error *status);

/* Dispatched, of a shape with one request, and that has not come whole, as at a look at least
 * limit_ns ago (rpc_server_end_overdue). */
bool rpc_call_is_overdue(struct rpc_call *call, int64_t now_ns, int64_t limit_ns);
/* What was in flight at a look at least limit_ns ago still is (rpc_server_end_stuck). */
bool rpc_call_is_stuck(struct rpc_call *call, int64_t now_ns, int64_t limit_ns);

/* call.c: ends the call's life with gRPC once nothing is outstanding. Server thread only. */
void rpc_call_end_if_over(struct rpc_call *call);
/* call.c: a read has ended. */
void rpc_call_on_read(struct rpc_tag *tag, bool ok);

/* lane.c: the call's turn. Drops the list's reference. */
void rpc_call_pump_kicked(struct rpc_call *call);

/* server.c: bookkeeping. */
void rpc_server_call_done(struct rpc_server *server, struct rpc_call *call, int grpc_code);
void rpc_server_count_limit(struct rpc_server *server, enum rpc_limit limit);
void rpc_server_count_message(struct rpc_server *server, bool incoming, size_t n_bytes);
