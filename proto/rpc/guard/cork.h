/* cork.h: what a thread writes to the streams of one connection while it handles one event goes
 * out in one system call. A step of the engine brings a token for every stream at once, and gRPC
 * writes each of them by itself: a thousand tokens are a thousand sendmsg, which cost more than all
 * the rest.
 *
 * Between begin and end what the thread sends is only copied; end writes it. To gRPC it is sent, so
 * that what the kernel does not take then is kept, RPC_CORK_BYTES at most per connection: gRPC
 * hears EAGAIN until that is written, and a thread of this file writes it as soon as the peer
 * reads, also where gRPC has nothing more to say or has closed the descriptor.
 *
 * A connection that gRPC closes is closed for writing, and read, into nothing, until the peer has
 * closed it too or a second is over. Where a socket is closed with something unread, or something
 * comes afterwards (a client gives back window all the time), the kernel resets the connection, and
 * the client loses what it has not read yet: the end of its stream. Where too many linger already
 * (rpc_cork_max_lingering()), what is held is dropped and the kernel does as it does.
 *
 * Private to proto/rpc (accept.c calls it in place of sendmsg, shutdown and close). Any thread;
 * lock inside. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { RPC_CORK_BYTES = 16 << 10 };

/* One per descriptor; never freed. */
struct rpc_cork {
    pthread_mutex_t lock;
    int fd;
    _Atomic(uint32_t) n_held; /* bytes; changes under the lock */
    uint32_t start;           /* of the first of them within `bytes` */
    uint8_t *bytes;           /* RPC_CORK_BYTES while some are held */
    bool stuck; /* in the thread's list: the kernel took no more, or gRPC has closed it */
    struct rpc_cork *next_stuck;
    bool handed_on; /* a copy of the descriptor does the rest */
    /* Of such a copy. */
    bool left, half_closed;
    int64_t deadline_ns;
};

/* Starts the thread, once; false where there can be none. */
bool rpc_cork_start(void);

void rpc_cork_init(struct rpc_cork *cork, int fd);

/* Around the handling of one event on this thread. */
void rpc_cork_begin(void);
void rpc_cork_end(void);

/* As sendmsg on a socket that does not block. */
ssize_t rpc_cork_send(struct rpc_cork *cork, const struct msghdr *message, int flags);

/* In place of shutdown of both sides: what is held goes out, then the writing side is closed. What
 * cannot be written at once is given five seconds more. */
void rpc_cork_shutdown(struct rpc_cork *cork);

/* Before the descriptor is closed: the same, and with `lingers` what is said above. The caller
 * closes it. */
void rpc_cork_leave(struct rpc_cork *cork, bool lingers);

/* Connections that may linger at once, a descriptor each: 512, or an eighth of RLIMIT_NOFILE. */
uint32_t rpc_cork_max_lingering(void);

/* Waits, at most so long, until no connection lingers: before the process ends. */
void rpc_cork_settle(uint32_t limit_ms);
