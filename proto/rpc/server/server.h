/* server.h: a gRPC server: tables of handlers, listeners, graceful shutdown. With client.h
 * the only code that touches gRPC core. Health and reflection (v1, v1alpha) are always served.
 *
 * Threads: n_threads of its own; every callback of one call comes from one of them, so callbacks of
 * a call never overlap. Handlers must not block: they answer at once, or retain the call and answer
 * later from any thread (call.h). After rpc_init no process may fork: use posix_spawn.
 *
 *     static const struct rpc_method methods[] = {
 *         {"Tokenize", RPC_SHAPE_UNARY, handle_tokenize},
 *         {"Generate", RPC_SHAPE_SERVER_STREAM, handle_generate},
 *         {"GenerateStream", RPC_SHAPE_BIDI, rpc_unimplemented},
 *     };
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "proto/rpc/guard/share.h"
#include "proto/rpc/message/schema.h"

struct error;
struct rpc_call;
struct rpc_health;
struct rpc_server;
struct rpc_tls;

/* One call has arrived. `request` is decoded and validated (message.h), borrowed until the call
 * is destroyed, that is as long as the caller holds a reference; NULL where the client streams. The
 * handler's own reference ends when it returns, unless it retains the call. It must see to it that
 * rpc_call_finish (or reply, fail) happens in the end. */
typedef void rpc_handler_fn(void *context, struct rpc_call *call, const ProtobufCMessage *request);

struct rpc_method {
    const char *name;
    enum rpc_shape shape;
    rpc_handler_fn *handle; /* required; rpc_unimplemented for what is declared but not built */
};

/* Answers UNIMPLEMENTED with the RPC's full name. */
rpc_handler_fn rpc_unimplemented;

/* One service: every method of `descriptor` must have its row. */
struct rpc_service {
    const ProtobufCServiceDescriptor
        *descriptor; /* generated: &sluice__v1__inference__descriptor */
    const struct rpc_method *methods;
    size_t n_methods;
    void *context; /* handed to each handler */
};

/* What was refused for being too much. Streams over the limit of a connection gRPC refuses itself,
 * unseen, up to twice as many. */
enum rpc_limit {
    RPC_LIMIT_CONNECTIONS,
    RPC_LIMIT_CALLS,
    RPC_LIMIT_METADATA,
    RPC_LIMIT_MESSAGE,
    RPC_LIMIT_REQUEST_TIME,
    RPC_LIMIT_RESETS,
    RPC_LIMIT_STREAMS,
    RPC_LIMIT_HANDSHAKE, /* gRPC's own, as the next */
    RPC_LIMIT_KEEPALIVE,
    RPC_LIMIT_DRAIN,    /* the grace of a shutdown, per call that it ends */
    RPC_LIMIT_DRAINING, /* a call that comes while the server drains */
    N_RPC_LIMITS
};

struct rpc_server_config {
    const struct rpc_service *services; /* read by create; what they point to: until destroy */
    size_t n_services;
    uint32_t n_threads;
    size_t max_message_bytes;  /* one received message, before and after decoding: see message.h */
    size_t max_metadata_bytes; /* all metadata of one call */
    size_t max_pending_bytes;  /* queued to send per call, see rpc_call_send */
    uint32_t max_streams;      /* per connection */
    uint32_t max_connections;  /* per TCP port; beyond, new ones are closed as they come */
    uint32_t max_resets;       /* of streams, per connection and second; then it is closed */
    /* Live calls in all; beyond: RESOURCE_EXHAUSTED, TOO_MANY_CALLS. Health and reflection have as
     * many again of their own: who watches health takes no place, and hears in a full server too.
     */
    uint32_t max_calls;
    uint32_t keepalive_time_ms;    /* a silent connection is pinged after this long ... */
    uint32_t keepalive_timeout_ms; /* ... and dropped after this long without an answer */
    /* TCP's user timeout (RFC 793): the kernel drops a connection whose peer acknowledges nothing,
     * or has no room for anything, for so long. 0: keepalive_timeout_ms, as gRPC sets it. */
    uint32_t user_timeout_ms;
    uint32_t handshake_timeout_ms; /* a connection that has not said who it is by then is closed */
    /* Optional: looks at a call's metadata and peer before anything is decoded. A negative status
     * (with err) refuses the call. Health and reflection are asked about too. */
    int (*authorize)(void *context, struct rpc_call *call, struct error *err);
    void *authorize_context;
    /* Optional: called for each refusal, from any thread and with locks held: it may only count. */
    void (*on_limit)(void *context, enum rpc_limit limit);
    void *limit_context;
    /* For TCP listeners; borrowed until destroy. NULL: plain text. Unix sockets have none: the file
     * system says who may connect. */
    struct rpc_tls *tls;
    enum rpc_share
        share; /* of its ports and sockets, with a server that comes after or before it */
};

/* Descriptors that connections may keep a moment longer than they are open: beside those of
 * max_connections. Of the process's RLIMIT_NOFILE as it is now. */
uint32_t rpc_server_lingering_files(void);

/* The limits of DESIGN section 9: 4 MiB, 16 KiB, 64 KiB pending, 100 streams, 60 s / 20 s; 2
 * threads, 4,096 calls, 1,024 connections, 500 resets per second, 10 s for the handshake. */
void rpc_server_config_init(struct rpc_server_config *config);

/* Checks the tables against the embedded descriptor set and creates a server. FAILED_PRECONDITION,
 * naming the method, where a row is missing, is there twice, is unknown or has another shape.
 * *out_server is owned. */
int rpc_server_create(const struct rpc_server_config *config, struct rpc_server **out_server,
                      struct error *err);

/* Before start. The socket file gets mode 0600. A file nobody listens behind is replaced; a live
 * one is ALREADY_EXISTS naming the path; a path over 107 bytes is INVALID_ARGUMENT. */
int rpc_server_listen_unix(struct rpc_server *server, const char *path, struct error *err);
/* The same, with mode 0660 and group `gid`. PERMISSION_DENIED where this process may not give it
 * that group. */
int rpc_server_listen_unix_group(struct rpc_server *server, const char *path, uint32_t gid,
                                 struct error *err);
/* Before start. "127.0.0.1:8001", "[::]:8001", "localhost:0". *out_port (may be NULL) is the port
 * bound. ALREADY_EXISTS naming address and port where it is in use. */
int rpc_server_listen_tcp(struct rpc_server *server, const char *address, uint16_t *out_port,
                          struct error *err);

int rpc_server_start(struct rpc_server *server, struct error *err);

/* With RPC_SHARE_BESIDE: whether this process stays in the other's place. If not, the unix sockets
 * are the other's again. Without this a shutdown gives them back. */
void rpc_server_settle(struct rpc_server *server, bool stays);

/* Whether a unix socket's file is that of a successor which was killed, and to have it back;
 * no successor may be at it meanwhile. Of all servers of this process. */
bool rpc_server_lost_socket(void);
void rpc_server_restore_sockets(void);

/* Another has its addresses: its ports take no new connection from now on. Before a shutdown. */
void rpc_server_hand_over(struct rpc_server *server);

/* From now on new calls (health and reflection aside) are refused: UNAVAILABLE, reason DRAINING, to
 * be tried again soon; live ones go on, and every health status is NOT_SERVING. Any thread; returns
 * at once. */
void rpc_server_drain(struct rpc_server *server);

/* Drains; while the grace lasts, tells clients to open no more calls (GOAWAY) and waits, a second
 * at most, until they know it, so that who comes just then is refused as above; then waits until
 * every call (health and reflection aside) has ended or grace_ms are over, then ends what is left
 * UNAVAILABLE (DRAINING; their handlers hear on_cancel), which takes milliseconds unless a callback
 * blocks. When it returns no callback runs and none will. Unix sockets are gone. Not from a
 * callback; calling it again is harmless. */
void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms);
/* The grace of a shutdown, under way or to come, is over now. Any thread. */
void rpc_server_hurry(struct rpc_server *server);

/* Shuts down with no grace if that has not happened. Calls still retained elsewhere stay valid
 * objects on which every send fails. NULL is accepted. */
void rpc_server_destroy(struct rpc_server *server);

/* Ends every call whose request has not come whole for limit_ms: DEADLINE_EXCEEDED, reason
 * REQUEST_TIMEOUT. To be called now and then, from one thread: without it, calls that never send
 * their request hold their share of max_calls for as long as the connection lives. A call's time
 * begins with the first look at it, so that it is late by up to the time between two. now_ns is of
 * any clock that grows, above 0: with one that stands while the process does, nobody is late for
 * that. */
void rpc_server_end_overdue(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms);

/* Ends with `why` every call, health and reflection too, whose client has taken nothing of what was
 * begun to be sent for limit_ms, and returns how many. Called, looking and late as above. */
uint32_t rpc_server_end_stuck(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms,
                              const struct error *why);

/* Statuses of grpc.health.v1; see health.h. Borrowed until destroy. */
struct rpc_health *rpc_server_health(struct rpc_server *server);

/* Totals since start: n_accepted = Σ n_ended[] + n_live at any moment. */
struct rpc_server_stats {
    uint64_t n_accepted; /* calls that reached dispatch, refused ones included */
    uint64_t n_live;
    uint64_t
        n_ended[17]; /* by gRPC code as the client saw it; cancelled or lost ones under 1 or 4 */
    uint64_t n_messages_in, n_messages_out, bytes_in, bytes_out;
};
void rpc_server_stats(struct rpc_server *server, struct rpc_server_stats *out_stats);
/* Open connections of the TCP ports. Asks the kernel about each: a few times a second. */
uint32_t rpc_server_n_connections(struct rpc_server *server);
