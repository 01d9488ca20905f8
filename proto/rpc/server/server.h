/* server.h: a gRPC server: tables of handlers, listeners, graceful shutdown. With client.h
 * the only code that touches gRPC core. Health and reflection (v1, v1alpha) are always served.
 *
 * Threads: n_threads of its own; every callback of one call comes from one of them, so callbacks of
 * a call never overlap. Handlers must not block: they answer at once, or retain the call and answer
 * later from any thread (call.h). Once a server or client was created, the process may not fork:
 * use posix_spawn.
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

/* A call has arrived. `request` is decoded and validated (message.h), and borrowed as long as a
 * reference to the call exists; NULL for client streams. The handler's own reference ends at its
 * return, unless it retains the call. The handler ensures that rpc_call_finish (or reply) is
 * called in the end. */
typedef void rpc_handler_fn(void *context, struct rpc_call *call, const ProtobufCMessage *request);

struct rpc_method {
    const char *name;
    enum rpc_shape shape;
    rpc_handler_fn *handle; /* required; rpc_unimplemented for methods that are declared but not
                             * implemented */
};

/* Answers UNIMPLEMENTED with the RPC's full name. */
rpc_handler_fn rpc_unimplemented;

/* A service: every method of `descriptor` must have a row. */
struct rpc_service {
    const ProtobufCServiceDescriptor
        *descriptor; /* generated: &sluice__v1__inference__descriptor */
    const struct rpc_method *methods;
    size_t n_methods;
    void *context; /* passed to each handler */
};

/* Limits whose refusals are counted. RPC_LIMIT_STREAMS counts connections that were closed for more
 * than twice max_streams. gRPC itself refuses streams between max_streams and twice max_streams;
 * these are not counted. */
enum rpc_limit {
    RPC_LIMIT_CONNECTIONS,
    RPC_LIMIT_CALLS,
    RPC_LIMIT_METADATA,
    RPC_LIMIT_MESSAGE,
    RPC_LIMIT_REQUEST_TIME,
    RPC_LIMIT_RESETS,
    RPC_LIMIT_STREAMS,
    RPC_LIMIT_HANDSHAKE, /* enforced by gRPC */
    RPC_LIMIT_KEEPALIVE, /* enforced by gRPC */
    RPC_LIMIT_DRAIN,     /* the grace of a shutdown; counted for each call that it ends */
    RPC_LIMIT_DRAINING,  /* a call that arrives while the server drains */
    N_RPC_LIMITS
};

struct rpc_server_config {
    const struct rpc_service *services; /* read by create; the pointed-to data until destroy */
    size_t n_services;
    uint32_t n_threads;
    size_t max_message_bytes;  /* a received message, before and after decoding: see message.h */
    size_t max_metadata_bytes; /* all metadata of a call */
    size_t max_pending_bytes;  /* unsent bytes of a call, see rpc_call_send */
    uint32_t max_streams;      /* per connection */
    uint32_t max_connections;  /* per TCP port; further connections are closed at once */
    uint32_t max_resets;       /* reset streams per connection and second; above, the connection
                                * is closed */
    /* Live calls in all; above: RESOURCE_EXHAUSTED, TOO_MANY_CALLS. Health and reflection have a
     * limit of the same size of their own, so that health works on a full server, too. */
    uint32_t max_calls;
    uint32_t keepalive_time_ms;    /* a silent connection is pinged after this time */
    uint32_t keepalive_timeout_ms; /* a connection that does not answer for this time is dropped */
    /* TCP's user timeout (RFC 793). The kernel drops a connection whose peer acknowledges nothing
     * for this time, or has no room in its receive buffer. 0: keepalive_timeout_ms, as gRPC sets
     * it. */
    uint32_t user_timeout_ms;
    uint32_t handshake_timeout_ms; /* a connection that has not shown its protocol by then is
                                    * closed */
    /* Optional: checks a call's metadata and peer before anything is decoded. A negative status
     * (with err) refuses the call. Also called for health and reflection. */
    int (*authorize)(void *context, struct rpc_call *call, struct error *err);
    void *authorize_context;
    /* Optional: called for each refusal, from any thread, with locks held: the callback may only
     * count. */
    void (*on_limit)(void *context, enum rpc_limit limit);
    void *limit_context;
    /* TLS of the TCP listeners; borrowed until destroy. NULL: plain text. Unix sockets have no
     * TLS: file modes protect them. */
    struct rpc_tls *tls;
    enum rpc_share share; /* sharing of ports and sockets with a successor or predecessor */
};

/* Returns how many descriptors closed connections may keep for a moment, beside those of
 * max_connections. Depends on the current RLIMIT_NOFILE. */
uint32_t rpc_server_lingering_files(void);

/* Sets the default limits: 4 MiB, 16 KiB, 64 KiB pending, 100 streams, 60 s / 20 s.
 * Also 2 threads, 4,096 calls, 1,024 connections, 500 resets per second, 10 s for the handshake. */
void rpc_server_config_init(struct rpc_server_config *config);

/* Checks the tables against the embedded descriptor set and creates a server.
 * FAILED_PRECONDITION, with the method, if a row is missing, duplicate, unknown or of another
 * shape. *out_server is owned. */
int rpc_server_create(const struct rpc_server_config *config, struct rpc_server **out_server,
                      struct error *err);

/* Before start. The socket file gets mode 0600. A file on which no process listens is replaced.
 * ALREADY_EXISTS with the path if a process listens, INVALID_ARGUMENT for a path over 107 bytes. */
int rpc_server_listen_unix(struct rpc_server *server, const char *path, struct error *err);
/* The same, with mode 0660 and group `gid`. PERMISSION_DENIED if this process may not set that
 * group. */
int rpc_server_listen_unix_group(struct rpc_server *server, const char *path, uint32_t gid,
                                 struct error *err);
/* Before start. "127.0.0.1:8001", "[::]:8001", "localhost:0". *out_port (may be NULL) is the
 * bound port. ALREADY_EXISTS with the address if it is in use. */
int rpc_server_listen_tcp(struct rpc_server *server, const char *address, uint16_t *out_port,
                          struct error *err);

int rpc_server_start(struct rpc_server *server, struct error *err);

/* With RPC_SHARE_BESIDE: `stays` is true if this process replaces the other. If false, the unix
 * sockets are given back; so does a shutdown before this call. */
void rpc_server_settle(struct rpc_server *server, bool stays);

/* The first function is true if a killed successor's file is in place of a unix socket; the
 * second restores the sockets. No successor may be starting meanwhile. For all servers of this
 * process. */
bool rpc_server_lost_socket(void);
void rpc_server_restore_sockets(void);

/* A successor has the addresses: the ports accept no new connection from now on. Call it before
 * a shutdown. */
void rpc_server_hand_over(struct rpc_server *server);

/* New calls (except health and reflection) are refused from now on: UNAVAILABLE, reason
 * DRAINING, with a short retry time. Live calls continue, and every health status is
 * NOT_SERVING. Any thread; returns at once. */
void rpc_server_drain(struct rpc_server *server);

/* Drains and ends all calls. While the grace lasts, clients are asked to open no more calls
 * (GOAWAY), and get up to a second to acknowledge. New calls are refused meanwhile. Then the
 * server waits until every call (except health and reflection) has ended, or grace_ms are over.
 * The remaining calls end with UNAVAILABLE (DRAINING; their handlers get on_cancel), which takes
 * milliseconds unless a callback blocks. After the return no callback runs, and the unix sockets
 * are gone. Not from a callback; further calls do nothing. */
void rpc_server_shutdown(struct rpc_server *server, uint32_t grace_ms);
/* Ends the grace of a running or later shutdown now. Any thread. */
void rpc_server_hurry(struct rpc_server *server);

/* Shuts down without grace if no shutdown has happened. Retained calls stay valid; every send on
 * them fails. NULL is accepted. */
void rpc_server_destroy(struct rpc_server *server);

/* Ends every call whose request is incomplete after limit_ms: DEADLINE_EXCEEDED, reason
 * REQUEST_TIMEOUT. Call it regularly, from one thread. Otherwise calls that never send their
 * request would fill max_calls while their connection lives. A call's time begins at the first
 * check, so the end is late by up to one interval. The clock of now_ns is any monotonic clock,
 * above 0. If the clock stops while the process is stopped, no call is ended for that time. */
void rpc_server_end_overdue(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms);

/* Ends with `why` every call, health and reflection included, whose client has taken nothing in
 * flight for limit_ms. Returns how many. Threads and times as above. */
uint32_t rpc_server_end_stuck(struct rpc_server *server, int64_t now_ns, uint64_t limit_ms,
                              const struct error *why);

/* The statuses of grpc.health.v1; see health.h. Borrowed until destroy. */
struct rpc_health *rpc_server_health(struct rpc_server *server);

/* Totals since start: n_accepted = Σ n_ended[] + n_live at any moment. */
struct rpc_server_stats {
    uint64_t n_accepted; /* calls that reached dispatch, including refused ones */
    uint64_t n_live;
    uint64_t
        n_ended[17]; /* by gRPC code as the client saw it; cancelled or lost calls under 1 or 4 */
    uint64_t n_messages_in, n_messages_out, bytes_in, bytes_out;
};
void rpc_server_stats(struct rpc_server *server, struct rpc_server_stats *out_stats);
/* Returns the open connections of the TCP ports. Asks the kernel about each: call it a few times
 * a second at most. */
uint32_t rpc_server_n_connections(struct rpc_server *server);
