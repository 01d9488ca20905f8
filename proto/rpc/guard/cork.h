/* cork.h: joins the writes of a thread to a connection during one event into one system call. A
 * step of the engine brings a token for every stream at once, and gRPC writes each separately. A
 * thousand tokens would be a thousand sendmsg calls, which cost more than everything else.
 *
 * Between begin and end the thread's sends are only copied; end writes them. For gRPC they are
 * sent. Bytes that the kernel does not take are held, at most RPC_CORK_BYTES per connection. gRPC
 * gets EAGAIN until they are written. A thread of this file writes them as soon as the peer reads,
 * even if gRPC has closed the descriptor.
 *
 * A connection that gRPC closes is closed for writing only. Its further bytes are read and
 * dropped until the peer closes it or a second is over. The kernel resets a connection that is
 * closed with unread bytes, or that gets bytes later. Clients send window updates all the time. A
 * reset would cost the client the unread end of its stream. If too many connections linger
 * (rpc_cork_max_lingering()), held bytes are dropped and the kernel may reset.
 *
 * Private to proto/rpc (called in place of sendmsg, shutdown and close). Any thread; lock
 * inside. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { RPC_CORK_BYTES = 16 << 10 };

/* Every descriptor has a single cork, which is never freed. */
struct rpc_cork {
    pthread_mutex_t lock;
    int fd;
    _Atomic(uint32_t) n_held; /* bytes held; changes under the lock */
    uint32_t start;           /* offset of the first held byte in `bytes` */
    uint8_t *bytes;           /* RPC_CORK_BYTES, allocated while bytes are held */
    bool stuck; /* in the cork thread's list: the kernel took no more bytes, or gRPC has closed the
                 * connection */
    struct rpc_cork *next_stuck;
    bool handed_on; /* a copy of the descriptor does the rest */
    /* for a copy only */
    bool left, half_closed;
    int64_t deadline_ns;
};

/* Starts the thread, once; false if no thread can be started. */
bool rpc_cork_start(void);

void rpc_cork_init(struct rpc_cork *cork, int fd);

/* Called before and after the handling of an event, on the thread that handles the event. */
void rpc_cork_begin(void);
void rpc_cork_end(void);

/* Like sendmsg on a non-blocking socket. */
ssize_t rpc_cork_send(struct rpc_cork *cork, const struct msghdr *message, int flags);

/* In place of a shutdown of both sides: writes the held bytes, then closes the writing side.
 * Bytes that cannot be written at once get five more seconds. */
void rpc_cork_shutdown(struct rpc_cork *cork);

/* Call it before the descriptor is closed. Like rpc_cork_shutdown; with `lingers` the connection
 * is read a moment longer. The caller closes the descriptor. */
void rpc_cork_leave(struct rpc_cork *cork, bool lingers);

/* Returns how many connections may linger at once, with a descriptor each: 512, or an eighth of
 * RLIMIT_NOFILE. */
uint32_t rpc_cork_max_lingering(void);

/* Waits, at most limit_ms, until no connection lingers. Call it before the process ends. */
void rpc_cork_settle(uint32_t limit_ms);
