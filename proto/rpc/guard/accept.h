/* accept.h: the layer between the network and gRPC. gRPC 1.51 has no limit on connections. If
 * accept fails for lack of descriptors, gRPC never listens again. gRPC also tolerates the frames
 * that frames.h limits.
 *
 * gRPC calls accept4, recvmsg, sendmsg, shutdown, close, SSL_read, SSL_write, SSL_get_error and
 * pthread_create (reserve.h) through the dynamic linker. So this folder's versions are called
 * instead, by the whole program. They do what the real functions do, and more on watched ports:
 *
 *   - a connection beyond the limit, or without a descriptor, is closed at once;
 *   - the client's bytes go through the guard, whose verdict may end the connection;
 *   - a connection that gRPC ends for silence is counted (on_silent);
 *   - bytes that are sent while an event is handled go out together at its end (cork.h);
 *   - before gRPC stops taking calls, the clients receive a GOAWAY (goaway.h).
 *
 * On these ports and on unix sockets, a connection that gRPC closes is read a moment longer
 * (cork.h); it counts as closed. Private to proto/rpc. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc/guard/frames.h"

struct rpc_accept;

struct rpc_accept_config {
    uint16_t port; /* TCP */
    /* In place of the port: the path of a unix socket, as bound. The other fields below, except
     * `arg`, are unused then. */
    const char *path;
    bool tls; /* the guard reads the output of SSL_read; a process has at most one TLS port */
    uint32_t max_connections;
    uint32_t handshake_timeout_ms, keepalive_timeout_ms; /* gRPC's own timeouts */
    uint32_t user_timeout_ms;                            /* see server.h */
    struct rpc_guard_limits guard;
    /* Called for each connection that is refused (GOOD: too many connections) or ended. Locks
     * are held: the callback may only count. */
    void (*on_refused)(void *arg, enum rpc_guard_verdict why);
    /* Called for each connection that gRPC ended, with locks held. A new connection did not show
     * its protocol in time; an older one left a ping unanswered. The callback may only count. */
    void (*on_silent)(void *arg, bool is_new);
    void *arg;
};

/* Returns NULL if memory is exhausted or no thread can be started. */
struct rpc_accept *rpc_accept_watch(const struct rpc_accept_config *config);
/* Call it after the port and its connections are closed. NULL is accepted. */
void rpc_accept_forget(struct rpc_accept *accept);

/* Returns the open connections of all ports of `arg`. */
uint32_t rpc_accept_n_open(const void *arg);

/* Asks the clients of all listeners of `arg`, and clients that connect later, to open no more
 * calls (goaway.h). Returns the number of clients. */
uint32_t rpc_accept_leave(const void *arg);
/* Returns how many clients have not acknowledged the GOAWAY. Counts clients that were connected at
 * rpc_accept_leave(); with `every` also later clients. GOAWAYs that could not be sent are tried
 * again. */
uint32_t rpc_accept_n_leaving(const void *arg, bool every);
/* New connections are closed at once from now on, as if the port were closed. */
void rpc_accept_shut(const void *arg);
/* Ends the connections that gRPC has not closed. gRPC waits until the client has taken the last
 * bytes. If a client reads nothing, gRPC would wait for ever. */
void rpc_accept_cut(const void *arg);
/* gRPC sends its own GOAWAY now: none of ours may follow. */
void rpc_accept_leave_end(const void *arg);
