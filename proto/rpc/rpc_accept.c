#include "proto/rpc/rpc_accept.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "proto/rpc/rpc_cork.h"

/* At the limit every new connection could ask anew which of the old ones are gone. */
enum { SWEEP_MS = 50, CHUNK = 256, MAX_CHUNKS = 4096 };
/* More than one: while one is shut to take a connection with, another thread may open a file. */
enum { SPARES = 4 };
/* What the kernel may hold that it has not sent yet. */
enum { UNSENT_BYTES = 16384 };
/* How much later than its handshake timeout gRPC may end a connection of TLS, of which it is not
 * known here how far it came. */
enum { LATE_MS = 1000 };
/* gRPC's time is that of the event it handles, so that its waits may be a little shorter: of each
 * millisecond this much counts as one. */
enum { EARLY_US = 900 };

struct rpc_accept {
    struct rpc_accept *next;
    struct rpc_accept_config config;
    uint32_t n_open;
    int64_t swept_ns;
    _Atomic(int64_t) all_resets; /* rpc_guard.h */
};

/* By descriptor. gRPC closes them without a word: a descriptor that has another inode, or none, is
 * another's by now. */
struct connection {
    _Atomic(ino_t) inode; /* of the socket that was accepted as this descriptor; 0: none */
    struct rpc_accept *accept;
    bool tls;             /* the guard is in the SSL */
    pthread_mutex_t lock; /* of the guard: one thread reads, another writes */
    struct rpc_guard guard;
    atomic_bool open;   /* not closed since it was accepted */
    atomic_bool plain;  /* of a Unix socket: nothing is held back */
    atomic_bool broken; /* the guard ended it (not with TLS: an SSL knows no descriptor): nothing is
                           owed to who is there */
    atomic_bool left;   /* its peer ended it, or the network */
    _Atomic int64_t begun_ns, heard_ns; /* when it was accepted, and when bytes came last */
    struct rpc_cork cork;
};

/* The one thing in this library that is the process's: there is one accept4. */
static struct {
    pthread_mutex_t lock;
    struct rpc_accept *watched;
    int spares[SPARES]; /* descriptors to have one where there is none; -1: lost */
    _Atomic(struct connection *) chunks[MAX_CHUNKS]; /* never freed: readers take no lock */
} all = {.lock = PTHREAD_MUTEX_INITIALIZER, .spares = {-1, -1, -1, -1}};

static ino_t inode_of(int fd)
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

/* NULL: none of its chunk has ever been accepted. */
static struct connection *connection_of(int fd)
{
    if (fd < 0 || fd >= CHUNK * MAX_CHUNKS)
        return NULL;
    struct connection *chunk = atomic_load_explicit(&all.chunks[fd / CHUNK], memory_order_acquire);
    return chunk != NULL ? &chunk[fd % CHUNK] : NULL;
}

/* Under the lock. NULL: no memory, or a descriptor beyond all reason. */
static struct connection *make_connection(int fd)
{
    if (fd >= CHUNK * MAX_CHUNKS)
        return NULL;
    if (connection_of(fd) != NULL)
        return connection_of(fd);
    struct connection *chunk = calloc(CHUNK, sizeof(struct connection));
    for (int i = 0; chunk != NULL && i < CHUNK; i++) {
        pthread_mutex_init(&chunk[i].lock, NULL);
        rpc_cork_init(&chunk[i].cork, fd / CHUNK * CHUNK + i);
    }
    atomic_store_explicit(&all.chunks[fd / CHUNK], chunk, memory_order_release);
    return connection_of(fd);
}

/* Under the lock. */
static void forget(struct connection *connection)
{
    if (atomic_exchange(&connection->inode, 0) == 0)
        return;
    connection->accept->n_open--;
    pthread_mutex_lock(&connection->lock);
    rpc_guard_reset(&connection->guard);
    pthread_mutex_unlock(&connection->lock);
}

/* Under the lock: forgets connections that are closed, or all. */
static void sweep(struct rpc_accept *accept, bool every)
{
    accept->swept_ns = clock_now_ns();
    for (int i = 0; i < MAX_CHUNKS; i++) {
        struct connection *chunk = atomic_load_explicit(&all.chunks[i], memory_order_relaxed);
        for (int k = 0; chunk != NULL && k < CHUNK; k++) {
            ino_t inode = atomic_load(&chunk[k].inode);
            if (inode != 0 && chunk[k].accept == accept &&
                (every || inode_of(i * CHUNK + k) != inode))
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

uint32_t rpc_accept_n_open(struct rpc_accept *accept)
{
    pthread_mutex_lock(&all.lock);
    sweep(accept, false);
    uint32_t n = accept->n_open;
    pthread_mutex_unlock(&all.lock);
    return n;
}

/* --- accept4 --- */

static void open_connection(struct connection *connection, bool plain)
{
    int64_t now_ns = clock_now_ns();
    atomic_store(&connection->plain, plain);
    atomic_store(&connection->broken, false);
    atomic_store(&connection->left, false);
    atomic_store(&connection->begun_ns, now_ns);
    atomic_store(&connection->heard_ns, now_ns);
    atomic_store(&connection->open, true);
}

/* Under the lock. */
static bool enter_connection(struct rpc_accept *accept, int fd)
{
    struct connection *connection = make_connection(fd);
    if (connection == NULL)
        return false;
    forget(connection); /* the one before it was closed */
    if (accept->n_open >= accept->config.max_connections &&
        clock_now_ns() - accept->swept_ns > SWEEP_MS * NS_PER_MS)
        sweep(accept, false);
    if (accept->n_open >= accept->config.max_connections)
        return false;
    connection->accept = accept;
    pthread_mutex_lock(&connection->lock);
    connection->tls = accept->config.tls;
    rpc_guard_reset(&connection->guard);
    pthread_mutex_unlock(&connection->lock);
    atomic_store(&connection->inode, inode_of(fd));
    open_connection(connection, false);
    accept->n_open++;
    return true;
}

/* A connection to a Unix socket, which no limit counts. */
static void enter_plain(int fd)
{
    if (!rpc_cork_start())
        return;
    pthread_mutex_lock(&all.lock);
    struct connection *connection = make_connection(fd);
    if (connection != NULL) {
        forget(connection);
        open_connection(connection, true);
    }
    pthread_mutex_unlock(&all.lock);
}

/* Counts a new connection in; false where it has to go. */
static bool admit(struct rpc_accept *accept, int fd)
{
    pthread_mutex_lock(&all.lock);
    bool room = enter_connection(accept, fd);
    if (!room)
        accept->config.on_refused(accept->config.arg, RPC_GUARD_GOOD);
    pthread_mutex_unlock(&all.lock);
    return room;
}

/* gRPC sets the listener's user timeout, which those that are accepted have from it, to its
 * keepalive timeout. What a reader does not take is to wait in this process, where it is counted
 * and pauses its sequence, not in megabytes of the kernel's. */
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
    memcpy(&in, address, sizeof(in)); /* the port of in6 is at the same place */
    return ntohs(in.sin_port);
}

static struct rpc_accept *watched_by_port(uint16_t port)
{
    pthread_mutex_lock(&all.lock);
    struct rpc_accept *accept = all.watched;
    while (accept != NULL && accept->config.port != port)
        accept = accept->next;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

/* Without a descriptor left: takes one connection off the queue, with a spare one, and drops it.
 * False where there is none to take: accept4 looks for a descriptor first. */
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

/* Of a connection that died in the queue: accept(2) says to try again. */
static bool concerns_one_connection(int err_no)
{
    return err_no == EINTR || err_no == ECONNABORTED || err_no == EPROTO || err_no == EPERM ||
           err_no == ENETDOWN || err_no == ENOPROTOOPT || err_no == EHOSTDOWN || err_no == ENONET ||
           err_no == EHOSTUNREACH || err_no == ENETUNREACH;
}

/* One attempt for gRPC: a descriptor, -1 with EAGAIN where there is nothing (more) to take or no
 * memory to take it, or -2: again. */
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
        if (errno == ENOBUFS || errno == ENOMEM)
            errno = EAGAIN;
        return -1;
    }
    if (n_address != NULL)
        *n_address = n_room;
    return -2;
}

/* In place of the C library's; see rpc_accept.h. By its symbol only: glibc declares accept4 with a
 * union that ISO C cannot repeat. */
int accept_instead(int listener, struct sockaddr *address, socklen_t *n_address,
                   int flags) __asm__("accept4");

int accept_instead(int listener, struct sockaddr *address, socklen_t *n_address, int flags)
{
    struct sockaddr_storage local;
    socklen_t n_local = sizeof(local);
    memset(&local, 0, sizeof(local));
    if (getsockname(listener, (struct sockaddr *)&local, &n_local) != 0)
        return -1;
    struct rpc_accept *accept = is_inet(&local) ? watched_by_port(port_of(&local)) : NULL;
    if (accept == NULL && is_inet(&local))
        return (int)syscall(SYS_accept4, listener, address, n_address, flags);
    int fd = -2;
    while (fd == -2)
        fd = accept_one(listener, accept, address, n_address, flags);
    if (accept == NULL && fd >= 0)
        enter_plain(fd);
    return fd;
}

/* --- reading along --- */

static bool is_good(struct rpc_accept *accept, struct rpc_guard *guard, const void *bytes, size_t n)
{
    enum rpc_guard_verdict verdict =
        rpc_guard_feed(guard, &accept->config.guard, bytes, n, clock_now_ns());
    if (verdict != RPC_GUARD_GOOD)
        accept->config.on_refused(accept->config.arg, verdict);
    return verdict == RPC_GUARD_GOOD;
}

/* What each of the first n bytes of a message is part of. */
static struct iovec part_of(const struct msghdr *message, size_t i, size_t *left)
{
    struct iovec part = message->msg_iov[i];
    part.iov_len = part.iov_len < *left ? part.iov_len : *left;
    *left -= part.iov_len;
    return part;
}

static bool is_good_message(struct connection *connection, const struct msghdr *message, size_t n)
{
    bool good = true;
    pthread_mutex_lock(&connection->lock);
    for (size_t i = 0; i < message->msg_iovlen && n > 0 && good; i++) {
        const struct iovec part = part_of(message, i, &n);
        good = is_good(connection->accept, &connection->guard, part.iov_base, part.iov_len);
    }
    pthread_mutex_unlock(&connection->lock);
    return good;
}

/* What a read of a connection gave; errno is that of a read that failed. */
static void note_read(struct connection *connection, ssize_t n)
{
    if (n > 0)
        atomic_store(&connection->heard_ns, clock_now_ns());
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        atomic_store(&connection->left, true);
}

ssize_t recvmsg_instead(int fd, struct msghdr *message, int flags) __asm__("recvmsg");

ssize_t recvmsg_instead(int fd, struct msghdr *message, int flags)
{
    ssize_t n = (ssize_t)syscall(SYS_recvmsg, fd, message, flags);
    struct connection *connection = flags == 0 ? connection_of(fd) : NULL;
    if (connection != NULL && atomic_load(&connection->open))
        note_read(connection, n);
    if (n <= 0 || connection == NULL || atomic_load(&connection->inode) == 0 || connection->tls ||
        atomic_load(&connection->inode) != inode_of(fd))
        return n;
    if (is_good_message(connection, message, (size_t)n))
        return n;
    atomic_store(&connection->broken, true);
    shutdown(fd, SHUT_RDWR);
    return 0; /* gRPC sees the end of the connection */
}

ssize_t sendmsg_instead(int fd, const struct msghdr *message, int flags) __asm__("sendmsg");

/* A descriptor that is another's by now does not matter: its guard is asked nothing any more. */
ssize_t sendmsg_instead(int fd, const struct msghdr *message, int flags)
{
    struct connection *connection = connection_of(fd);
    if (connection == NULL || !atomic_load(&connection->open) || atomic_load(&connection->plain))
        return (ssize_t)syscall(SYS_sendmsg, fd, message, flags);
    ssize_t n = rpc_cork_send(&connection->cork, message, flags);
    if (n <= 0 || atomic_load(&connection->inode) == 0 || connection->tls)
        return n;
    size_t left = (size_t)n;
    pthread_mutex_lock(&connection->lock);
    for (size_t i = 0; i < message->msg_iovlen && left > 0; i++) {
        const struct iovec part = part_of(message, i, &left);
        rpc_guard_sent(&connection->guard, part.iov_base, part.iov_len);
    }
    pthread_mutex_unlock(&connection->lock);
    return n;
}

int shutdown_instead(int fd, int how) __asm__("shutdown");

int shutdown_instead(int fd, int how)
{
    struct connection *connection = how != SHUT_RD ? connection_of(fd) : NULL;
    if (connection == NULL || !atomic_load(&connection->open) || atomic_load(&connection->broken))
        return (int)syscall(SYS_shutdown, fd, how);
    rpc_cork_shutdown(&connection->cork); /* gRPC itself stops reading */
    return 0;
}

/* Under the lock: whether a connection that is being closed never came to its first request. */
static bool is_new(struct connection *connection, int64_t now_ns)
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

/* gRPC closes it. Where neither its peer nor the guard has ended it before, and nothing has come
 * for as long as gRPC waits, that is why. */
static void tell_silence(struct connection *connection)
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

int close_instead(int fd) __asm__("close");

int close_instead(int fd)
{
    struct connection *connection = connection_of(fd);
    if (connection != NULL && atomic_exchange(&connection->open, false)) {
        tell_silence(connection);
        rpc_cork_leave(&connection->cork, !atomic_load(&connection->broken));
    }
    return (int)syscall(SYS_close, fd);
}

static void free_guard(void *parent, void *guard, CRYPTO_EX_DATA *data, int index, long n,
                       void *arg)
{
    (void)parent;
    (void)data;
    (void)index;
    (void)n;
    (void)arg;
    if (guard != NULL)
        rpc_guard_reset(guard);
    free(guard);
}

typedef int ssl_read_fn(SSL *ssl, void *bytes, int n);
typedef int ssl_write_fn(SSL *ssl, const void *bytes, int n);

static struct {
    pthread_once_t once;
    ssl_read_fn *read;
    ssl_write_fn *write;
    int index; /* of the guard in an SSL */
} tls = {.once = PTHREAD_ONCE_INIT};

/* A linked-in libssl has no next one: there the linker turns gRPC's calls here (--wrap). */
#if SLUICE_STATIC
#define SSL_OURS "__wrap_"
int ssl_read_of_libssl(SSL *ssl, void *bytes, int n) __asm__("__real_SSL_read");
int ssl_write_of_libssl(SSL *ssl, const void *bytes, int n) __asm__("__real_SSL_write");

static void find_calls(void)
{
    tls.read = ssl_read_of_libssl;
    tls.write = ssl_write_of_libssl;
}
#else
#define SSL_OURS ""

static void find_calls(void)
{
    union {
        void *symbol;
        ssl_read_fn *read;
        ssl_write_fn *write;
    } next = {dlsym(RTLD_NEXT, "SSL_read")};
    tls.read = next.read;
    next.symbol = dlsym(RTLD_NEXT, "SSL_write");
    tls.write = next.write;
}
#endif

static void find_ssl(void)
{
    find_calls();
    tls.index = SSL_get_ex_new_index(0, NULL, NULL, NULL, free_guard);
}

/* No lock: an SSL is used by one thread at a time. */
static struct rpc_guard *guard_of(SSL *ssl)
{
    struct rpc_guard *guard = SSL_get_ex_data(ssl, tls.index);
    if (guard != NULL)
        return guard;
    guard = calloc(1, sizeof(*guard));
    if (guard != NULL && SSL_set_ex_data(ssl, tls.index, guard) == 1)
        return guard;
    free(guard);
    return NULL;
}

static struct rpc_accept *watched_with_tls(void)
{
    pthread_mutex_lock(&all.lock);
    struct rpc_accept *accept = all.watched;
    while (accept != NULL && !accept->config.tls)
        accept = accept->next;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

int ssl_read_instead(SSL *ssl, void *bytes, int n) __asm__(SSL_OURS "SSL_read");

int ssl_read_instead(SSL *ssl, void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    int n_read = tls.read(ssl, bytes, n);
    if (n_read <= 0 || !SSL_is_server(ssl))
        return n_read;
    struct rpc_accept *accept = watched_with_tls();
    struct rpc_guard *guard = accept != NULL ? guard_of(ssl) : NULL;
    if (accept == NULL || (guard != NULL && is_good(accept, guard, bytes, (size_t)n_read)))
        return n_read;
    ERR_raise(ERR_LIB_USER, ERR_R_OPERATION_FAIL); /* so SSL_get_error says that it is broken */
    return -1;
}

int ssl_write_instead(SSL *ssl, const void *bytes, int n) __asm__(SSL_OURS "SSL_write");

/* Without memory for a guard the next read ends the connection. */
int ssl_write_instead(SSL *ssl, const void *bytes, int n)
{
    pthread_once(&tls.once, find_ssl);
    int n_written = tls.write(ssl, bytes, n);
    if (n_written <= 0 || !SSL_is_server(ssl))
        return n_written;
    struct rpc_guard *guard = SSL_get_ex_data(ssl, tls.index);
    if (guard == NULL && watched_with_tls() != NULL)
        guard = guard_of(ssl);
    if (guard != NULL)
        rpc_guard_sent(guard, bytes, (size_t)n_written);
    return n_written;
}
