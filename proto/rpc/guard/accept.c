#include "proto/rpc/guard/accept.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/rpc/guard/connection.h"
#include "proto/rpc/guard/cork.h"
#include "proto/rpc/guard/goaway.h"
#include "proto/rpc/guard/guard.h"

/* At the limit, each new connection could start a sweep over the closed ones; this limits the
 * rate. */
enum { SWEEP_MS = 50, CHUNK = 256, MAX_CHUNKS = 4096 };
/* More than one: while one is closed to make room for a connection, another thread may open a
 * file. */
enum { SPARES = 4 };
/* Unsent bytes that the kernel may hold. */
enum { UNSENT_BYTES = 16384 };
/* gRPC may end a TLS connection this much later than its handshake timeout. How far the
 * handshake came is not known here. */
enum { LATE_MS = 1000 };
/* gRPC's clock is that of the event it handles, so its waits may be a little shorter. This many
 * microseconds count as a millisecond. */
enum { EARLY_US = 900 };
enum { MAX_PATH = sizeof(((struct sockaddr_un *)0)->sun_path) + 1 };

/* Process-wide state, because a process has only one accept4. */
static struct {
    pthread_mutex_t lock;
    struct rpc_accept *watched;
    int spares[SPARES]; /* spare descriptors for the moment when none is left; -1: lost */
    _Atomic(struct rpc_connection *) chunks[MAX_CHUNKS]; /* never freed: readers take no lock */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .spares = {-1, -1, -1, -1}};

ino_t rpc_connection_inode(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

static void open_spares(void)
{
    for (int i = 0; i < SPARES; i++)
        if (all.spares[i] < 0)
            all.spares[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

struct rpc_connection *rpc_connection_of(int fd)
{
    if (fd < 0 || fd >= CHUNK * MAX_CHUNKS)
        return NULL;
    struct rpc_connection *chunk =
        atomic_load_explicit(&all.chunks[fd / CHUNK], memory_order_acquire);
    return chunk != NULL ? &chunk[fd % CHUNK] : NULL;
}

/* Under the lock. Returns NULL if memory is exhausted or the descriptor is out of range. */
static struct rpc_connection *make_connection(int fd)
{
    if (fd >= CHUNK * MAX_CHUNKS)
        return NULL;
    if (rpc_connection_of(fd) != NULL)
        return rpc_connection_of(fd);
    struct rpc_connection *chunk = calloc(CHUNK, sizeof(struct rpc_connection));
    for (int i = 0; chunk != NULL && i < CHUNK; i++) {
        pthread_mutex_init(&chunk[i].lock, NULL);
        pthread_mutex_init(&chunk[i].out_lock, NULL);
        rpc_cork_init(&chunk[i].cork, fd / CHUNK * CHUNK + i);
    }
    atomic_store_explicit(&all.chunks[fd / CHUNK], chunk, memory_order_release);
    return rpc_connection_of(fd);
}

/* Under the lock: the connection was closed. */
static void forget(struct rpc_connection *connection)
{
    if (atomic_exchange(&connection->inode, 0) == 0)
        return;
    connection->accept->n_open--;
    pthread_mutex_lock(&connection->lock);
    rpc_guard_reset(&connection->guard);
    pthread_mutex_unlock(&connection->lock);
}

/* Under the lock: forgets closed connections, or all connections of the listener. */
static void sweep(struct rpc_accept *accept, bool every)
{
    accept->swept_ns = clock_now_ns();
    for (int i = 0; i < MAX_CHUNKS; i++) {
        struct rpc_connection *chunk = atomic_load_explicit(&all.chunks[i], memory_order_relaxed);
        for (int k = 0; chunk != NULL && k < CHUNK; k++) {
            ino_t inode = atomic_load(&chunk[k].inode);
            if (inode != 0 && chunk[k].accept == accept &&
                (every || rpc_connection_inode(i * CHUNK + k) != inode))
                forget(&chunk[k]);
        }
    }
}

struct rpc_accept *rpc_accept_watch(const struct rpc_accept_config *config)
{
    struct rpc_accept *accept = rpc_cork_start() ? calloc(1, sizeof(*accept)) : NULL;
    if (accept == NULL)
        return NULL;
    accept->config = *config;
    accept->config.guard.all_resets = &accept->all_resets;
    accept->config.path = NULL;
    if (config->path != NULL)
        snprintf(accept->path, sizeof(accept->path), "%s", config->path);
    if (config->tls)
        rpc_connection_tls_leave(false);
    pthread_mutex_lock(&all.lock);
    open_spares();
    accept->next = all.watched;
    all.watched = accept;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

void rpc_accept_forget(struct rpc_accept *accept)
{
    if (accept == NULL)
        return;
    pthread_mutex_lock(&all.lock);
    struct rpc_accept **at = &all.watched;
    while (*at != accept)
        at = &(*at)->next;
    *at = accept->next;
    sweep(accept, true);
    pthread_mutex_unlock(&all.lock);
    free(accept);
}

uint32_t rpc_accept_n_open(const void *arg)
{
    uint32_t n = 0;
    pthread_mutex_lock(&all.lock);
    for (struct rpc_accept *accept = all.watched; accept != NULL; accept = accept->next) {
        if (accept->config.arg != arg || accept->path[0] != '\0')
            continue;
        sweep(accept, false);
        n += accept->n_open;
    }
    pthread_mutex_unlock(&all.lock);
    return n;
}

/* --- accept4 --- */

/* Under the lock. accept: NULL for a listener that is not watched. */
static void open_connection(struct rpc_connection *connection, const struct rpc_accept *accept,
                            bool plain)
{
    int64_t now_ns = clock_now_ns();
    bool late = accept != NULL && accept->leaving, tls = accept != NULL && accept->config.tls;
    pthread_mutex_lock(&connection->out_lock);
    atomic_store(&connection->tls, tls);
    connection->records.serial++;
    connection->records.n_sent = 0;
    connection->records.n_own = connection->records.n_own_sent = 0;
    memset(&connection->goaway, 0, sizeof(connection->goaway));
    pthread_mutex_unlock(&connection->out_lock);
    atomic_store(&connection->leaving, false);
    atomic_store(&connection->came_late, late);
    atomic_store(&connection->unknown, tls);
    atomic_store(&connection->owner, accept != NULL ? accept->config.arg : NULL);
    atomic_store(&connection->plain, plain);
    atomic_store(&connection->broken, false);
    atomic_store(&connection->left, false);
    atomic_store(&connection->begun_ns, now_ns);
    atomic_store(&connection->heard_ns, now_ns);
    atomic_store(&connection->open, true);
}

/* Under the lock: counts a connection; false if the limit is reached. */
static bool enter_connection(struct rpc_accept *accept, int fd)
{
    struct rpc_connection *connection = make_connection(fd);
    if (connection == NULL)
        return false;
    forget(connection); /* the previous connection with this descriptor was closed */
    if (accept->n_open >= accept->config.max_connections &&
        clock_now_ns() - accept->swept_ns > SWEEP_MS * NS_PER_MS)
        sweep(accept, false);
    if (accept->n_open >= accept->config.max_connections)
        return false;
    connection->accept = accept;
    pthread_mutex_lock(&connection->lock);
    rpc_guard_reset(&connection->guard);
    connection->records.n_hello = 0;
    pthread_mutex_unlock(&connection->lock);
    atomic_store(&connection->inode, rpc_connection_inode(fd));
    open_connection(connection, accept, false);
    accept->n_open++;
    return true;
}

/* Under the lock: finds the watched unix socket by its path. */
static const struct rpc_accept *watched_by_path(const char *path)
{
    const struct rpc_accept *accept = all.watched;
    while (accept != NULL && (accept->path[0] == '\0' || strcmp(accept->path, path) != 0))
        accept = accept->next;
    return accept;
}

/* Enters a connection to a unix socket, which no limit counts; false if it must be closed. */
static bool enter_plain(int fd, const char *path)
{
    if (!rpc_cork_start())
        return true;
    pthread_mutex_lock(&all.lock);
    const struct rpc_accept *accept = watched_by_path(path);
    bool shut = accept != NULL && accept->shut;
    struct rpc_connection *connection = shut ? NULL : make_connection(fd);
    if (connection != NULL) {
        forget(connection);
        open_connection(connection, accept, true);
    }
    pthread_mutex_unlock(&all.lock);
    return !shut;
}

/* Counts a new connection; false if it must be closed. */
static bool admit(struct rpc_accept *accept, int fd)
{
    pthread_mutex_lock(&all.lock);
    bool room = !accept->shut && enter_connection(accept, fd);
    if (!room && !accept->shut)
        accept->config.on_refused(accept->config.arg, RPC_GUARD_GOOD);
    pthread_mutex_unlock(&all.lock);
    return room;
}

/* Sets two socket options. Accepted sockets inherit gRPC's user timeout, which is its keepalive
 * timeout. Unread data should wait in this process, which counts it and pauses the sequence, not
 * in megabytes of kernel buffers. */
static void set_limits(const struct rpc_accept *accept, int fd)
{
    unsigned ms = accept->config.user_timeout_ms, unsent = UNSENT_BYTES;
    if (ms > 0)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
}

static bool is_inet(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET || address->ss_family == AF_INET6;
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
    struct sockaddr_in in;
    memcpy(&in, address, sizeof(in)); /* the port of sockaddr_in6 is at the same offset */
    return ntohs(in.sin_port);
}

static struct rpc_accept *watched_by_port(uint16_t port)
{
    pthread_mutex_lock(&all.lock);
    struct rpc_accept *accept = all.watched;
    while (accept != NULL && (accept->path[0] != '\0' || accept->config.port != port))
        accept = accept->next;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

/* No descriptor is left: accepts one connection with a spare descriptor and closes it. False if
 * no connection waits: accept4 takes a descriptor first. */
static bool shed(int listener, struct rpc_accept *accept)
{
    struct pollfd waiting = {.fd = listener, .events = POLLIN};
    int fd = -1;
    pthread_mutex_lock(&all.lock);
    open_spares();
    for (int i = 0; i < SPARES && fd < 0 && poll(&waiting, 1, 0) == 1; i++) {
        if (all.spares[i] < 0)
            continue;
        close(all.spares[i]);
        all.spares[i] = -1;
        fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            close(fd);
    }
    open_spares();
    if (fd >= 0 && accept != NULL)
        accept->config.on_refused(accept->config.arg, RPC_GUARD_GOOD);
    pthread_mutex_unlock(&all.lock);
    return fd >= 0;
}

/* True for the error of a single connection that died in the queue: accept(2) says to try again. */
static bool concerns_one_connection(int err_no)
{
    return err_no == EINTR || err_no == ECONNABORTED || err_no == EPROTO || err_no == EPERM ||
           err_no == ENETDOWN || err_no == ENOPROTOOPT || err_no == EHOSTDOWN || err_no == ENONET ||
           err_no == EHOSTUNREACH || err_no == ENETUNREACH;
}

/* Tries once to accept a connection for gRPC. Returns a descriptor, or -1 with EAGAIN if no
 * connection waits or memory is exhausted, or -2 to try again. */
static int accept_one(int listener, struct rpc_accept *accept, struct sockaddr *address,
                      socklen_t *n_address, int flags)
{
    socklen_t n_room = n_address != NULL ? *n_address : 0;
    int fd = (int)syscall(SYS_accept4, listener, address, n_address, flags);
    if (fd >= 0) {
        if (accept == NULL || admit(accept, fd)) {
            if (accept != NULL)
                set_limits(accept, fd);
            return fd;
        }
        close(fd);
    } else if (errno == EMFILE || errno == ENFILE) {
        if (!shed(listener, accept)) {
            errno = EAGAIN;
            return -1;
        }
    } else if (!concerns_one_connection(errno)) {
        if (errno == ENOBUFS || errno == ENOMEM || (errno == EINVAL && accept != NULL))
            errno = EAGAIN; /* EINVAL: the socket no longer listens (share.h) */
        return -1;
    }
    if (n_address != NULL)
        *n_address = n_room;
    return -2;
}

/* Copies the path of a unix socket, which need not be NUL-terminated. */
static void path_of(const struct sockaddr_storage *address, socklen_t n_address, char *out_path,
                    size_t n_room)
{
    size_t at = offsetof(struct sockaddr_un, sun_path);
    size_t n = n_address > at ? n_address - at : 0;
    n = n < n_room - 1 ? n : n_room - 1;
    memset(out_path, 0, n_room);
    memcpy(out_path, (const char *)address + at, n);
}

int rpc_guard_accept4(int listener, struct sockaddr *address, socklen_t *n_address, int flags)
{
    char path[MAX_PATH];
    struct sockaddr_storage local;
    socklen_t n_local = sizeof(local);
    memset(&local, 0, sizeof(local));
    if (getsockname(listener, (struct sockaddr *)&local, &n_local) != 0)
        return -1;
    struct rpc_accept *accept = is_inet(&local) ? watched_by_port(port_of(&local)) : NULL;
    if (accept == NULL && is_inet(&local))
        return (int)syscall(SYS_accept4, listener, address, n_address, flags);
    path_of(&local, n_local, path, sizeof(path));
    int fd = -2;
    while (fd == -2) {
        fd = accept_one(listener, accept, address, n_address, flags);
        if (accept != NULL || fd < 0 || enter_plain(fd, path))
            continue;
        close(fd);
        fd = -2;
    }
    return fd;
}

struct rpc_accept *rpc_connection_tls_accept(void)
{
    pthread_mutex_lock(&all.lock);
    struct rpc_accept *accept = all.watched;
    while (accept != NULL && !accept->config.tls)
        accept = accept->next;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

/* --- closing --- */

/* Under the lock: true if a closing connection never made a request. */
static bool is_new(struct rpc_connection *connection, int64_t now_ns)
{
    int64_t limit_ns = connection->accept->config.handshake_timeout_ms * NS_PER_MS;
    int64_t until_ns = atomic_load(&connection->begun_ns) + limit_ns;
    if (connection->tls)
        return atomic_load(&connection->heard_ns) <= until_ns &&
               now_ns <= until_ns + LATE_MS * NS_PER_MS;
    pthread_mutex_lock(&connection->lock);
    bool silent = !connection->guard.has_spoken;
    pthread_mutex_unlock(&connection->lock);
    return silent;
}

void rpc_connection_tell_silence(struct rpc_connection *connection)
{
    int64_t now_ns = clock_now_ns();
    if (atomic_load(&connection->plain) || atomic_load(&connection->broken) ||
        atomic_load(&connection->left))
        return;
    pthread_mutex_lock(&all.lock);
    if (atomic_load(&connection->inode) != 0) {
        const struct rpc_accept_config *config = &connection->accept->config;
        bool new = is_new(connection, now_ns);
        int64_t silent_ns =
            now_ns - atomic_load(new ? &connection->begun_ns : &connection->heard_ns);
        uint32_t limit_ms = new ? config->handshake_timeout_ms : config->keepalive_timeout_ms;
        if (silent_ns >= limit_ms * EARLY_US * NS_PER_US)
            config->on_silent(config->arg, new);
    }
    pthread_mutex_unlock(&all.lock);
}

/* --- leaving --- */

static uint32_t count_connections(const void *arg, bool (*is_one)(struct rpc_connection *connection,
                                                                  const void *arg))
{
    uint32_t n = 0;
    for (int i = 0; i < MAX_CHUNKS; i++) {
        struct rpc_connection *chunk = atomic_load_explicit(&all.chunks[i], memory_order_acquire);
        for (int k = 0; chunk != NULL && k < CHUNK; k++)
            n += is_one(&chunk[k], arg);
    }
    return n;
}

static void set_leaving(const void *arg, bool leaving)
{
    pthread_mutex_lock(&all.lock);
    for (struct rpc_accept *accept = all.watched; accept != NULL; accept = accept->next) {
        if (accept->config.arg != arg)
            continue;
        accept->leaving = leaving;
        if (accept->config.tls)
            rpc_connection_tls_leave(leaving);
    }
    pthread_mutex_unlock(&all.lock);
}

uint32_t rpc_accept_leave(const void *arg)
{
    set_leaving(arg, true);
    return rpc_connection_tls_n_leaving(false) + count_connections(arg, rpc_connection_leave);
}

void rpc_accept_shut(const void *arg)
{
    pthread_mutex_lock(&all.lock);
    for (struct rpc_accept *accept = all.watched; accept != NULL; accept = accept->next)
        accept->shut = accept->shut || accept->config.arg == arg;
    pthread_mutex_unlock(&all.lock);
}

uint32_t rpc_accept_n_leaving(const void *arg, bool every)
{
    return rpc_connection_tls_n_leaving(every) +
           count_connections(arg, every ? rpc_connection_is_leaving : rpc_connection_was_leaving);
}

void rpc_accept_leave_end(const void *arg)
{
    set_leaving(arg, false);
    count_connections(arg, rpc_connection_leave_end);
}

void rpc_accept_cut(const void *arg)
{
    count_connections(arg, rpc_connection_cut);
}
