/* accept.h: what stands between the network and gRPC. gRPC 1.51 knows no limit on connections;
 * when accept fails because the process has no descriptor left it never listens again; and it lets
 * a client go on for ever with what frames.h is about. It calls accept4, recvmsg, sendmsg,
 * shutdown, close, SSL_read, SSL_write and SSL_get_error through the dynamic linker, so that those
 * of this file are called instead, by the whole program. They do what the real ones do, and on
 * watched ports:
 * - a connection beyond the limit, or one there is no descriptor for, is closed at once;
 * - what a client sends is read along with, and where the guard says so, the connection ends as if
 *   the client had closed it;
 * - one that gRPC ends because nothing came from it is told;
 * - what is sent while one event is handled goes out at its end (cork.h);
 * - before gRPC says that it takes no more calls, clients are told so (goaway.h).
 * On these and on Unix sockets, a connection that gRPC closes is read a moment longer (cork.h);
 * it counts as closed.
 * Private to proto/rpc. Any thread; lock inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc/guard/frames.h"

struct rpc_accept;

struct rpc_accept_config {
    uint16_t port; /* TCP */
    /* In its place: the Unix socket as it was bound. Of what follows, `arg` alone. */
    const char *path;
    bool tls; /* the guard reads what SSL_read gives; one TLS port per process */
    uint32_t max_connections;
    uint32_t handshake_timeout_ms, keepalive_timeout_ms; /* gRPC's own */
    uint32_t user_timeout_ms;                            /* server.h */
    struct rpc_guard_limits guard;
    /* For each connection that is refused (GOOD: it was one too many) or ended. Called with locks
     * held: it may only count. */
    void (*on_refused)(void *arg, enum rpc_guard_verdict why);
    /* The same for each that gRPC itself ended: a new one that did not say in time what it is, or
     * one that left a ping unanswered. */
    void (*on_silent)(void *arg, bool is_new);
    void *arg;
};

/* NULL where memory is exhausted or no thread can be made. */
struct rpc_accept *rpc_accept_watch(const struct rpc_accept_config *config);
/* After the port and its connections have been closed. NULL is accepted. */
void rpc_accept_forget(struct rpc_accept *accept);

/* Connections that are open now, of all ports of `arg`. */
uint32_t rpc_accept_n_open(const void *arg);

/* Tells the clients of all listeners of `arg`, and who comes from now on, to open no more calls
 * (goaway.h), and returns how many there are. */
uint32_t rpc_accept_leave(const void *arg);
/* How many clients have not yet said that they know, of those that were there then or of `every`
 * one; what could not be sent to them before is tried again. */
uint32_t rpc_accept_n_leaving(const void *arg, bool every);
/* Whoever comes from now on is closed at once, as if the port were no more. */
void rpc_accept_shut(const void *arg);
/* Ends the connections that gRPC has not closed: it does so once what it has begun to write is
 * taken, for which a client that reads nothing lets it wait for ever. */
void rpc_accept_cut(const void *arg);
/* gRPC's own GOAWAY comes now: nothing of this kind may come after it. */
void rpc_accept_leave_end(const void *arg);
