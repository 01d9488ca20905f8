/* call_internal.h: struct rpc_call, shared by the files of this folder. Private to proto/rpc.
 *
 * A call begins when a request slot completes. The call is "done" when RECV_CLOSE has completed
 * and none of its batches is outstanding. Then on_done is called, gRPC's object is released, and
 * the server's reference is dropped. Other references keep only this struct alive. */
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
    const char *key, *value; /* point into the call's header memory */
    size_t n_value;
};

/* The handler of a path. */
struct rpc_route {
    const struct rpc_method *method;
    const ProtobufCMethodDescriptor *descriptor;
    void *context;
    bool built_in; /* health and reflection: a drain serves them and does not wait for them */
};

struct rpc_call {
    /* constant after dispatch */
    struct rpc_server *server;             /* not used after done */
    struct rpc_lane *lane;                 /* not used after done */
    struct rpc_call *next_live, **at_live; /* server.c: the list of live calls, under the
                                            * server's lock */
    const struct rpc_route *route;
    char path[RPC_CALL_MAX_METHOD];
    char *peer;
    bool peer_known; /* a unix socket, with its ids */
    struct rpc_peer_ids peer_ids;
    char tenant[RPC_MAX_TENANT + 1]; /* tenant and role are set before the handler only */
    enum role role;
    int64_t deadline_ns;
    int64_t deadline_slack_ns; /* a client that ends the call this shortly before its deadline
                                * counts as expired */
    size_t max_pending_bytes;
    struct rpc_call_header *headers;
    size_t n_headers;
    size_t n_metadata_bytes; /* as HPACK counts: 32 bytes beside the text of each pair */
    char *header_bytes;

    atomic_uint n_refs;
    struct rpc_tag close_tag, read_tag, send_tag, wake_tag;

    /* server thread of the call only */
    const struct rpc_call_events *events;
    void *events_arg;
    ProtobufCMessage *request;
    bool oversized;     /* its message exceeded the limit */
    int peer_cancelled; /* result of RECV_CLOSE_ON_SERVER */
    grpc_byte_buffer *read_buffer;

    pthread_mutex_t lock; /* protects everything below, and the start of batches */
    grpc_call *core;      /* NULL once done */
    struct rpc_queue queue;
    size_t n_in_flight_bytes;
    uint32_t n_sends;      /* send batches started */
    uint32_t n_sends_seen; /* n_sends at seen_ns (rpc_call_is_stuck) */
    int64_t seen_ns;       /* time of the check; 0: nothing was in flight */
    int64_t awaits_ns;     /* time of the first check at which the request was missing; 0: none */
    bool send_in_flight, reading, reads_paused, half_closed;
    bool wants_headers; /* initial metadata should be sent without waiting for a message */
    bool headers_sent;
    bool ended;       /* the end was requested */
    bool status_sent; /* the status batch was started */
    bool dead;        /* cancelled or lost: nothing more is sent */
    bool closed;      /* RECV_CLOSE has completed */
    bool done;
    bool aborted;      /* ended by an abort: the handler gets on_cancel */
    bool has_messages; /* a message was sent */
    bool kicked;       /* in the lane's list */
    bool waking;       /* the empty batch that wakes the lane's thread is under way */
    struct error status;
    struct {
        grpc_slice key, value;
    } trailers[RPC_CALL_MAX_TRAILERS];
    size_t n_trailers;

    struct rpc_call *next_kicked; /* the lane's list */
};

/* Takes over an arrived call, with one reference for the server. Strings and metadata are
 * copied. NULL if memory is exhausted (the core call is dropped then). */
struct rpc_call *rpc_call_create(struct rpc_server *server, struct rpc_lane *lane, grpc_call *core,
                                 const grpc_call_details *details,
                                 const grpc_metadata_array *metadata,
                                 const struct rpc_server_config *config);
/* Starts to watch for the end. Then call exactly one of the next two functions. */
void rpc_call_watch_close(struct rpc_call *call);
/* Reads the request, or calls the handler at once for client streams. */
void rpc_call_dispatch(struct rpc_call *call, const struct rpc_route *route);
/* Ends the call with an error before any handler runs. */
void rpc_call_refuse(struct rpc_call *call, const struct error *status);

/* True if the call waits for its single request since a check at least limit_ns ago
 * (rpc_server_end_overdue). */
bool rpc_call_is_overdue(struct rpc_call *call, int64_t now_ns, int64_t limit_ns);
/* True if the same message has been in flight since a check at least limit_ns ago
 * (rpc_server_end_stuck). */
bool rpc_call_is_stuck(struct rpc_call *call, int64_t now_ns, int64_t limit_ns);

/* call.c: ends the call once nothing is outstanding. Server thread only. */
void rpc_call_end_if_over(struct rpc_call *call);
/* call_read.c: completion of a read. */
void rpc_call_on_read(struct rpc_tag *tag, bool ok);

/* lane.c: pumps a kicked call. Drops the list's reference. */
void rpc_call_pump_kicked(struct rpc_call *call);

/* server.c: statistics. */
void rpc_server_call_done(struct rpc_server *server, struct rpc_call *call, int grpc_code);
void rpc_server_count_limit(struct rpc_server *server, enum rpc_limit limit);
void rpc_server_count_message(struct rpc_server *server, bool incoming, size_t n_bytes);
