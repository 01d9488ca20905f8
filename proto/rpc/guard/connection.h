/* connection.h: one accepted connection, and what stands in place of recvmsg, sendmsg, shutdown
 * and close (connection.c), and of SSL_read, SSL_write and SSL_get_error
 * (connection_tls.c), for it; see accept.h. The table of connections is accept.c's.
 * Private to proto/rpc. Any thread; lock inside: the table's is taken before a connection's. */
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
    char path[108]; /* a Unix socket's; empty: a port's */
    uint32_t n_open;
    int64_t swept_ns;
    bool leaving;                /* whoever comes is told to go */
    bool shut;                   /* whoever comes is closed at once */
    _Atomic(int64_t) all_resets; /* frames.h */
};

/* What a record of ours has room in. */
enum { RPC_RECORD_BYTES = 512, RPC_HELLO_BYTES = 43, RPC_RANDOM_BYTES = 32 };

/* Of a connection with TLS: which SSL is its own, and what may be put between gRPC's records. */
struct rpc_records {
    uint32_t serial;                /* of all connections of this descriptor */
    uint8_t hello[RPC_HELLO_BYTES]; /* under the guard's lock: the first bytes that came, up to the
                                       end of the client's random */
    uint8_t n_hello;
    uint64_t n_sent;               /* by gRPC */
    uint8_t own[RPC_RECORD_BYTES]; /* a record of ours, of which a part has been sent */
    size_t n_own, n_own_sent;
};

/* By descriptor. gRPC closes them without a word: a descriptor that has another inode, or none, is
 * another's by now. */
struct rpc_connection {
    _Atomic(ino_t) inode; /* of the socket that was accepted as this descriptor; 0: none */
    struct rpc_accept *accept;
    atomic_bool tls;      /* the guard is in the SSL */
    pthread_mutex_t lock; /* of the guard: one thread reads, another writes */
    struct rpc_guard guard;
    atomic_bool open;   /* not closed since it was accepted */
    atomic_bool plain;  /* of a Unix socket: nothing is held back */
    atomic_bool broken; /* ended here, by the guard (not with TLS: an SSL knows no descriptor) or at
                           the server's end: nothing is owed to who is there */
    atomic_bool left;   /* its peer ended it, or the network */
    _Atomic int64_t begun_ns, heard_ns; /* when it was accepted, and when bytes came last */
    struct rpc_cork cork;
    _Atomic(const void *) owner; /* arg of its listener's configuration */
    pthread_mutex_t out_lock;    /* of what is sent to it, and of `goaway` and `records` */
    struct rpc_goaway goaway;
    atomic_bool leaving;   /* it was begun: not with TLS */
    atomic_bool came_late; /* when it was so for all */
    atomic_bool unknown;   /* with TLS: its SSL has not been found, as before its handshake's end */
    struct rpc_records records;
};

/* NULL: none of its part of the table has ever been accepted. */
struct rpc_connection *rpc_connection_of(int fd);
/* 0: no socket, or none at all. */
ino_t rpc_connection_inode(int fd);

/* What one connection of it sent next; false where the connection has to go, which is counted. */
bool rpc_accept_is_good(struct rpc_accept *accept, struct rpc_guard *guard, const void *bytes,
                        size_t n_bytes);

/* gRPC closes it. Where neither its peer nor the guard has ended it before, and nothing has come
 * for as long as gRPC waits, that is why, and it is told. */
void rpc_connection_tell_silence(struct rpc_connection *connection);

/* Of one that `arg` accepted (goaway.h): tells its client to go; whether it has not answered
 * (and says what could not be said before, in time also to who came late), and was there when all
 * were told; says no more. Each is
 * false for another's, and with TLS, but that one which is `unknown` has not answered. */
bool rpc_connection_leave(struct rpc_connection *connection, const void *arg);
bool rpc_connection_is_leaving(struct rpc_connection *connection, const void *arg);
bool rpc_connection_was_leaving(struct rpc_connection *connection, const void *arg);
bool rpc_connection_leave_end(struct rpc_connection *connection, const void *arg);
/* Ends one of `arg`'s that is open, whatever waits to be sent to it; false where it is not. */
bool rpc_connection_cut(struct rpc_connection *connection, const void *arg);

/* The one whose port has TLS; NULL: none. */
struct rpc_accept *rpc_connection_tls_accept(void);
/* While it is so, clients of TLS are told to go: as gRPC writes to them, or, where gRPC has sent
 * all that it has encrypted, by a record of their own. */
void rpc_connection_tls_leave(bool leaving);
/* Who has not answered, of those that were there then or of `every` one; what could not be said
 * before is tried again. Of an SSL whose connection is not known the first PING's answer will do:
 * the second has to wait for gRPC to write again. */
uint32_t rpc_connection_tls_n_leaving(bool every);

/* For connection_tls.c: the connection with TLS that this thread read last, NULL: none. gRPC
 * decrypts on the thread that has read. */
struct rpc_connection *rpc_connection_last_read(void);
/* Whether it began with this random of a client; if so it is known from now on. */
bool rpc_connection_is_of(struct rpc_connection *connection, const uint8_t random[RPC_RANDOM_BYTES],
                          uint32_t *out_serial);
/* Whether all n bytes that its SSL has made were sent, and no record of ours is left. False where
 * it has been closed. */
bool rpc_connection_has_sent(struct rpc_connection *connection, uint32_t serial, uint64_t n);
/* Sends a record after that, while nothing can be made. */
void rpc_connection_send_record(struct rpc_connection *connection, uint32_t serial,
                                const uint8_t *record, size_t n);
