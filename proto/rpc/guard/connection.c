#include "proto/rpc/guard/connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/rpc/guard/guard.h"

/* --- reading --- */

bool rpc_accept_is_good(struct rpc_accept *accept, struct rpc_guard *guard, const void *bytes,
                        size_t n)
{
    enum rpc_guard_verdict verdict =
        rpc_guard_feed(guard, &accept->config.guard, bytes, n, clock_now_ns());
    if (verdict != RPC_GUARD_GOOD)
        accept->config.on_refused(accept->config.arg, verdict);
    return verdict == RPC_GUARD_GOOD;
}

/* Returns the part of the i-th buffer that is within the first n bytes of a message. */
static struct iovec part_of(const struct msghdr *message, size_t i, size_t *left)
{
    struct iovec part = message->msg_iov[i];
    part.iov_len = part.iov_len < *left ? part.iov_len : *left;
    *left -= part.iov_len;
    return part;
}

static bool is_good_message(struct rpc_connection *connection, const struct msghdr *message,
                            size_t n)
{
    bool good = true;
    pthread_mutex_lock(&connection->lock);
    for (size_t i = 0; i < message->msg_iovlen && n > 0 && good; i++) {
        const struct iovec part = part_of(message, i, &n);
        good =
            rpc_accept_is_good(connection->accept, &connection->guard, part.iov_base, part.iov_len);
    }
    pthread_mutex_unlock(&connection->lock);
    return good;
}

/* The TLS connection that this thread read last. */
static _Thread_local struct rpc_connection *last_read;

struct rpc_connection *rpc_connection_last_read(void)
{
    return last_read;
}

static void note_hello(struct rpc_connection *connection, const struct msghdr *message, size_t n)
{
    struct rpc_records *records = &connection->records;
    last_read = connection;
    pthread_mutex_lock(&connection->lock);
    for (size_t i = 0; i < message->msg_iovlen && n > 0; i++) {
        const struct iovec part = part_of(message, i, &n);
        size_t room = sizeof(records->hello) - records->n_hello;
        size_t n_new = part.iov_len < room ? part.iov_len : room;
        memcpy(records->hello + records->n_hello, part.iov_base, n_new);
        records->n_hello += (uint8_t)n_new;
    }
    pthread_mutex_unlock(&connection->lock);
}

bool rpc_connection_is_of(struct rpc_connection *connection, const uint8_t random[RPC_RANDOM_BYTES],
                          uint32_t *out_serial)
{
    const struct rpc_records *records = &connection->records;
    pthread_mutex_lock(&connection->out_lock);
    pthread_mutex_lock(&connection->lock);
    bool is =
        atomic_load(&connection->open) && records->n_hello == RPC_HELLO_BYTES &&
        memcmp(records->hello + RPC_HELLO_BYTES - RPC_RANDOM_BYTES, random, RPC_RANDOM_BYTES) == 0;
    pthread_mutex_unlock(&connection->lock);
    if (is)
        *out_serial = records->serial;
    pthread_mutex_unlock(&connection->out_lock);
    if (is)
        atomic_store(&connection->unknown, false);
    return is;
}

/* Records the result of a read; errno is that of a failed read. */
static void note_read(struct rpc_connection *connection, ssize_t n)
{
    if (n > 0)
        atomic_store(&connection->heard_ns, clock_now_ns());
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        atomic_store(&connection->left, true);
}

/* --- writing; under the connection's out_lock --- */

static ssize_t put(struct rpc_connection *connection, const struct msghdr *message, int flags)
{
    if (atomic_load(&connection->plain))
        return (ssize_t)syscall(SYS_sendmsg, connection->cork.fd, message, flags);
    return rpc_cork_send(&connection->cork, message, flags);
}

/* Sends bytes of ours; returns how many were sent, 0: later. A broken connection takes
 * everything: gRPC notices the break when it reads. */
static size_t put_own(struct rpc_connection *connection, const uint8_t *bytes, size_t n_bytes)
{
    struct iovec part = {(void *)(uintptr_t)bytes, n_bytes};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t n = put(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM))
        return 0;
    return n < 0 ? n_bytes : (size_t)n;
}

static bool put_record(struct rpc_records *records, struct rpc_connection *connection)
{
    size_t n = 1;
    while (n > 0 && records->n_own > records->n_own_sent) {
        n = put_own(connection, records->own + records->n_own_sent,
                    records->n_own - records->n_own_sent);
        records->n_own_sent += n;
    }
    return n > 0;
}

/* Sends what is due at this point: GOAWAY, PING or a TLS record. False if a part is left, which
 * must be sent before anything else. */
static bool put_due(struct rpc_connection *connection)
{
    size_t n_bytes, n = 1;
    uint8_t *bytes;
    if (connection->tls)
        return put_record(&connection->records, connection);
    while (n > 0 && (n_bytes = rpc_goaway_next(&connection->goaway, &bytes)) > 0) {
        n = put_own(connection, bytes, n_bytes);
        rpc_goaway_said(&connection->goaway, n);
    }
    return !rpc_goaway_is_midway(&connection->goaway);
}

static void note_sent(struct rpc_connection *connection, const struct msghdr *message, size_t n)
{
    if (connection->tls) {
        connection->records.n_sent += n;
        return;
    }
    bool guarded = atomic_load(&connection->inode) != 0;
    for (size_t i = 0; i < message->msg_iovlen && n > 0; i++) {
        const struct iovec part = part_of(message, i, &n);
        rpc_goaway_sent(&connection->goaway, part.iov_base, part.iov_len);
        if (!guarded)
            continue;
        pthread_mutex_lock(&connection->lock);
        rpc_guard_sent(&connection->guard, part.iov_base, part.iov_len);
        pthread_mutex_unlock(&connection->lock);
    }
}

static ssize_t send_along(struct rpc_connection *connection, const struct msghdr *message,
                          int flags)
{
    if (!put_due(connection)) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t n = put(connection, message, flags);
    if (n <= 0)
        return n;
    note_sent(connection, message, (size_t)n);
    put_due(connection);
    return n;
}

static void feed_goaway(struct rpc_connection *connection, const struct msghdr *message, size_t n)
{
    pthread_mutex_lock(&connection->out_lock);
    for (size_t i = 0; i < message->msg_iovlen && n > 0; i++) {
        const struct iovec part = part_of(message, i, &n);
        rpc_goaway_heard(&connection->goaway, part.iov_base, part.iov_len);
    }
    if (atomic_load(&connection->open))
        put_due(connection);
    pthread_mutex_unlock(&connection->out_lock);
}

/* --- recvmsg, sendmsg, shutdown, close --- */

ssize_t rpc_guard_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t n = (ssize_t)syscall(SYS_recvmsg, fd, message, flags);
    struct rpc_connection *connection = flags == 0 ? rpc_connection_of(fd) : NULL;
    bool open = connection != NULL && atomic_load(&connection->open);
    if (open)
        note_read(connection, n);
    if (open && n > 0 && connection->tls)
        note_hello(connection, message, (size_t)n);
    if (open && n > 0 && atomic_load(&connection->leaving))
        feed_goaway(connection, message, (size_t)n);
    if (n <= 0 || connection == NULL || atomic_load(&connection->inode) == 0 || connection->tls ||
        atomic_load(&connection->inode) != rpc_connection_inode(fd))
        return n;
    if (is_good_message(connection, message, (size_t)n))
        return n;
    atomic_store(&connection->broken, true);
    shutdown(fd, SHUT_RDWR);
    return 0; /* gRPC sees the end of the connection */
}

/* The descriptor may already belong to another connection: no guard is asked here, so that does
 * no harm. */
ssize_t rpc_guard_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct rpc_connection *connection = rpc_connection_of(fd);
    if (connection == NULL || !atomic_load(&connection->open))
        return (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
    pthread_mutex_lock(&connection->out_lock);
    ssize_t n = send_along(connection, message, flags);
    int err_no = errno;
    pthread_mutex_unlock(&connection->out_lock);
    errno = err_no;
    return n;
}

int rpc_guard_shutdown(int fd, int how)
{
    struct rpc_connection *connection = how != SHUT_RD ? rpc_connection_of(fd) : NULL;
    if (connection == NULL || !atomic_load(&connection->open) || atomic_load(&connection->broken))
        return (int)syscall(SYS_shutdown, fd, how);
    rpc_cork_shutdown(&connection->cork); /* gRPC stops reading by itself */
    return 0;
}

/* Returns true if the connection was open. No bytes of ours are sent afterwards. */
static bool end_connection(struct rpc_connection *connection)
{
    pthread_mutex_lock(&connection->out_lock);
    bool was_open = atomic_exchange(&connection->open, false);
    pthread_mutex_unlock(&connection->out_lock);
    return was_open;
}

int rpc_guard_close(int fd)
{
    struct rpc_connection *connection = rpc_connection_of(fd);
    if (connection != NULL && atomic_load(&connection->open) && end_connection(connection)) {
        rpc_connection_tell_silence(connection);
        rpc_cork_leave(&connection->cork, !atomic_load(&connection->broken));
    }
    return (int)syscall(SYS_close, fd);
}

/* --- leaving --- */

static bool is_young(struct rpc_connection *connection)
{
    return clock_now_ns() - atomic_load(&connection->begun_ns) < RPC_GOAWAY_AGE_MS * NS_PER_MS;
}

/* Under out_lock. */
static void begin_leaving(struct rpc_connection *connection)
{
    rpc_goaway_begin(&connection->goaway);
    atomic_store(&connection->leaving, true);
}

bool rpc_connection_leave(struct rpc_connection *connection, const void *arg)
{
    if (!atomic_load(&connection->open))
        return false;
    pthread_mutex_lock(&connection->out_lock);
    bool leaves = atomic_load(&connection->open) && atomic_load(&connection->owner) == arg &&
                  !connection->tls;
    if (leaves && is_young(connection)) {
        atomic_store(&connection->came_late, true);
    } else if (leaves) {
        begin_leaving(connection);
        put_due(connection);
    }
    pthread_mutex_unlock(&connection->out_lock);
    return leaves;
}

/* True if the connection came after the GOAWAYs were sent and has not received one. */
static bool is_without_goaway(struct rpc_connection *connection)
{
    return atomic_load(&connection->came_late) && !atomic_load(&connection->leaving);
}

bool rpc_connection_is_leaving(struct rpc_connection *connection, const void *arg)
{
    bool is = false, unknown = atomic_load(&connection->unknown);
    if (!atomic_load(&connection->open))
        return false;
    pthread_mutex_lock(&connection->out_lock);
    bool late = !connection->tls && is_without_goaway(connection);
    if (atomic_load(&connection->open) && atomic_load(&connection->owner) == arg) {
        if (late && !is_young(connection))
            begin_leaving(connection);
        put_due(connection);
        is = (unknown || late || rpc_goaway_is_open(&connection->goaway)) &&
             !atomic_load(&connection->left);
    }
    pthread_mutex_unlock(&connection->out_lock);
    return is;
}

bool rpc_connection_was_leaving(struct rpc_connection *connection, const void *arg)
{
    return !atomic_load(&connection->came_late) && rpc_connection_is_leaving(connection, arg);
}

bool rpc_connection_leave_end(struct rpc_connection *connection, const void *arg)
{
    if (!atomic_load(&connection->leaving))
        return false;
    pthread_mutex_lock(&connection->out_lock);
    bool was_open =
        atomic_load(&connection->owner) == arg && rpc_goaway_is_open(&connection->goaway);
    if (was_open)
        rpc_goaway_end(&connection->goaway);
    pthread_mutex_unlock(&connection->out_lock);
    return was_open;
}

bool rpc_connection_cut(struct rpc_connection *connection, const void *arg)
{
    if (!atomic_load(&connection->open))
        return false;
    pthread_mutex_lock(&connection->out_lock); /* the descriptor belongs to the connection while
                                                * that is open */
    bool is = atomic_load(&connection->open) && atomic_load(&connection->owner) == arg;
    if (is) {
        atomic_store(&connection->broken, true);
        syscall(SYS_shutdown, connection->cork.fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&connection->out_lock);
    return is;
}

/* --- TLS records --- */

/* Under out_lock: true if the descriptor still has the same connection. */
static bool is_same_connection(const struct rpc_connection *connection, uint32_t serial)
{
    return atomic_load(&connection->open) && connection->records.serial == serial;
}

bool rpc_connection_has_sent(struct rpc_connection *connection, uint32_t serial, uint64_t n)
{
    pthread_mutex_lock(&connection->out_lock);
    bool has = is_same_connection(connection, serial) && connection->records.n_sent == n &&
               put_due(connection);
    pthread_mutex_unlock(&connection->out_lock);
    return has;
}

void rpc_connection_send_record(struct rpc_connection *connection, uint32_t serial,
                                const uint8_t *record, size_t n)
{
    struct rpc_records *records = &connection->records;
    pthread_mutex_lock(&connection->out_lock);
    if (is_same_connection(connection, serial) && n <= sizeof(records->own)) {
        memcpy(records->own, record, n);
        records->n_own = n;
        records->n_own_sent = 0;
        put_due(connection);
    }
    pthread_mutex_unlock(&connection->out_lock);
}
