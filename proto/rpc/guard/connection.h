/* connection.h: an accepted connection. Its recvmsg, sendmsg, shutdown and close are replaced by
 * connection.c. Its SSL_read, SSL_write and SSL_get_error are replaced by connection_tls.c; see
 * accept.h. The table of connections belongs to accept.c. Private to proto/rpc. Any thread; lock
 * inside: the table's lock is taken before a connection's. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/rpc/guard/accept.h"
#include "proto/rpc/guard/cork.h"
#include "proto/rpc/guard/frames.h"
#include "proto/rpc/guard/goaway.h"

struct rpc_accept {
    struct rpc_accept *next;
    struct rpc_accept_config config;
    char path[108]; /* path of a unix socket; empty for a port */
    uint32_t n_open;
    int64_t swept_ns;
    bool leaving;                /* new clients receive a GOAWAY */
    bool shut;                   /* new connections are closed at once */
    _Atomic(int64_t) all_resets; /* see frames.h */
};

/* Sizes of a TLS record of ours and of a client hello. */
enum { RPC_RECORD_BYTES = 512, RPC_HELLO_BYTES = 43, RPC_RANDOM_BYTES = 32 };

/* The TLS state of a connection: which SSL belongs to it, and what may be sent between gRPC's
 * records. */
struct rpc_records {
    uint32_t serial;                /* counts the connections of this descriptor */
    uint8_t hello[RPC_HELLO_BYTES]; /* under the guard's lock: the first received bytes, up to
                                     * the end of the client's random */
    uint8_t n_hello;
    uint64_t n_sent;               /* bytes sent by gRPC */
    uint8_t own[RPC_RECORD_BYTES]; /* a record of ours; n_own_sent bytes of it are sent */
    size_t n_own, n_own_sent;
};

/* Indexed by descriptor. Sockets may be closed unseen: if the descriptor has another inode or
 * none, the entry is stale. */
struct rpc_connection {
    _Atomic(ino_t) inode; /* inode of the accepted socket; 0: none */
    struct rpc_accept *accept;
    atomic_bool tls;      /* true: the SSL has the guard in use (connection_tls.c) */
    pthread_mutex_t lock; /* protects the guard: reads and writes may run on different threads */
    struct rpc_guard guard;
    atomic_bool open;   /* accepted and not closed since */
    atomic_bool plain;  /* a unix socket: its writes are not corked */
    atomic_bool broken; /* ended here, by the guard or at the server's end: nothing is delivered
                         * to the client. The guard sets it without TLS only, because an SSL
                         * knows no descriptor */
    atomic_bool left;   /* the peer or the network ended the connection */
    _Atomic int64_t begun_ns, heard_ns; /* when the connection was accepted, and when the last
                                         * bytes arrived */
    struct rpc_cork cork;
    _Atomic(const void *) owner; /* arg of the listener's configuration */
    pthread_mutex_t out_lock;    /* protects sends, `goaway` and `records` */
    struct rpc_goaway goaway;
    atomic_bool leaving;   /* a GOAWAY was begun; not with TLS */
    atomic_bool came_late; /* accepted after the GOAWAYs were sent */
    atomic_bool unknown;   /* TLS: its SSL has not been found, as before the end of the handshake */
    struct rpc_records records;
};

/* Returns NULL if no descriptor in this part of the table was ever accepted. */
struct rpc_connection *rpc_connection_of(int fd);
/* Returns 0 if the descriptor is not a socket or is not open. */
ino_t rpc_connection_inode(int fd);

/* Feeds the next bytes of a connection to its guard. False if the connection must be closed;
 * that is counted. */
bool rpc_accept_is_good(struct rpc_accept *accept, struct rpc_guard *guard, const void *bytes,
                        size_t n_bytes);

/* Called when gRPC closes the connection. If nothing arrived for as long as gRPC waits, the
 * silence is reported. Connections that the peer or the guard ended are not reported. */
void rpc_connection_tell_silence(struct rpc_connection *connection);

/* The four functions below act on connections that `arg` accepted (goaway.h), and return false for
 * all others. They return false with TLS too, unless the connection is `unknown`: an unknown
 * connection counts as not acknowledged. */
/* Sends a GOAWAY. */
bool rpc_connection_leave(struct rpc_connection *connection, const void *arg);
/* True if the client has not acknowledged the GOAWAY. Sends unsent parts, also to late clients. */
bool rpc_connection_is_leaving(struct rpc_connection *connection, const void *arg);
/* The same, but false for clients that connected after rpc_connection_leave(). */
bool rpc_connection_was_leaving(struct rpc_connection *connection, const void *arg);
/* Sends no more parts. */
bool rpc_connection_leave_end(struct rpc_connection *connection, const void *arg);
/* Ends an open connection of `arg`, with any unsent bytes; false if it is not one. */
bool rpc_connection_cut(struct rpc_connection *connection, const void *arg);

/* Returns the listener whose port has TLS; NULL: none. */
struct rpc_accept *rpc_connection_tls_accept(void);
/* While set, clients of TLS receive a GOAWAY with gRPC's next bytes. If gRPC has sent all its
 * encrypted bytes, the GOAWAY goes in a record of its own. */
void rpc_connection_tls_leave(bool leaving);
/* Returns how many clients have not acknowledged the GOAWAY. Counts clients that were connected at
 * the leave; with `every` also later clients. Unsent GOAWAYs are tried again. If the connection of
 * an SSL is unknown, the answer to the first PING suffices. A second PING would have to wait for
 * gRPC's next write. */
uint32_t rpc_connection_tls_n_leaving(bool every);

/* For connection_tls.c: the TLS connection that this thread read last, NULL: none. gRPC decrypts
 * on the thread that has read. */
struct rpc_connection *rpc_connection_last_read(void);
/* True if the connection began with this client random; its SSL is known from then on. */
bool rpc_connection_is_of(struct rpc_connection *connection, const uint8_t random[RPC_RANDOM_BYTES],
                          uint32_t *out_serial);
/* True if all n bytes of the SSL are sent and no record of ours is left. False if the connection
 * was closed. */
bool rpc_connection_has_sent(struct rpc_connection *connection, uint32_t serial, uint64_t n);
/* Sends a record between gRPC's, while gRPC can make none. */
void rpc_connection_send_record(struct rpc_connection *connection, uint32_t serial,
                                const uint8_t *record, size_t n);
