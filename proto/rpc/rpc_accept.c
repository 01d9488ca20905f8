#include "proto/rpc/rpc_accept.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

/* At the limit every new connection could ask anew which of the old ones are gone. */
enum { SWEEP_MS = 50 };

struct rpc_accept {
    struct rpc_accept *next;
    uint16_t port;
    uint32_t max_connections;
    void (*on_refused)(void *arg);
    void *arg;
    /* By descriptor: the inode of the socket that was accepted as it, 0: none. gRPC closes them
     * without a word; a descriptor that has another inode, or none, is another's. */
    ino_t *sockets;
    size_t n_sockets;
    uint32_t n_open; /* entries that are not 0 */
    int64_t swept_ns;
};

/* The one thing in this library that is the process's: there is one accept4. */
static struct {
    pthread_mutex_t lock;
    struct rpc_accept *watched;
    int spare; /* a descriptor to have one where there is none; -1: lost */
} all = {PTHREAD_MUTEX_INITIALIZER, NULL, -1};

static ino_t inode_of(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

static void open_spare(void)
{
    if (all.spare < 0)
        all.spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

struct rpc_accept *rpc_accept_watch(uint16_t port, uint32_t max_connections,
                                    void (*on_refused)(void *arg), void *arg)
{
    struct rpc_accept *accept = calloc(1, sizeof(*accept));
    if (accept == NULL)
        return NULL;
    accept->port = port;
    accept->max_connections = max_connections;
    accept->on_refused = on_refused;
    accept->arg = arg;
    pthread_mutex_lock(&all.lock);
    open_spare();
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
    pthread_mutex_unlock(&all.lock);
    free(accept->sockets);
    free(accept);
}

/* Under the lock: forgets connections that are closed. */
static void sweep(struct rpc_accept *accept)
{
    accept->swept_ns = clock_now_ns();
    for (size_t fd = 0; fd < accept->n_sockets; fd++) {
        if (accept->sockets[fd] == 0 || inode_of((int)fd) == accept->sockets[fd])
            continue;
        accept->sockets[fd] = 0;
        accept->n_open--;
    }
}

uint32_t rpc_accept_n_open(struct rpc_accept *accept)
{
    pthread_mutex_lock(&all.lock);
    sweep(accept);
    uint32_t n = accept->n_open;
    pthread_mutex_unlock(&all.lock);
    return n;
}

/* Under the lock. */
static bool has_room(struct rpc_accept *accept, size_t fd)
{
    if (fd >= accept->n_sockets) {
        size_t n = fd < 128 ? 256 : 2 * fd;
        ino_t *grown = realloc(accept->sockets, n * sizeof(*grown));
        if (grown == NULL)
            return false;
        memset(grown + accept->n_sockets, 0, (n - accept->n_sockets) * sizeof(*grown));
        accept->sockets = grown;
        accept->n_sockets = n;
    }
    if (accept->sockets[fd] != 0) { /* the one before it was closed */
        accept->sockets[fd] = 0;
        accept->n_open--;
    }
    if (accept->n_open >= accept->max_connections &&
        clock_now_ns() - accept->swept_ns > SWEEP_MS * NS_PER_MS)
        sweep(accept);
    return accept->n_open < accept->max_connections;
}

/* Counts a new connection in; false where it has to go. */
static bool admit(struct rpc_accept *accept, int fd)
{
    pthread_mutex_lock(&all.lock);
    bool room = has_room(accept, (size_t)fd);
    if (room) {
        accept->sockets[fd] = inode_of(fd);
        accept->n_open += accept->sockets[fd] != 0;
    } else {
        accept->on_refused(accept->arg);
    }
    pthread_mutex_unlock(&all.lock);
    return room;
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
    while (accept != NULL && accept->port != port)
        accept = accept->next;
    pthread_mutex_unlock(&all.lock);
    return accept;
}

/* Without a descriptor left: takes one connection off the queue, with the spare one, and drops it.
 * False where there is none to take: accept4 looks for a descriptor first. */
static bool shed(int listener, struct rpc_accept *accept)
{
    struct pollfd waiting = {.fd = listener, .events = POLLIN};
    int fd = -1;
    pthread_mutex_lock(&all.lock);
    open_spare();
    if (all.spare >= 0 && poll(&waiting, 1, 0) == 1) {
        close(all.spare);
        all.spare = -1;
        fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            close(fd);
        open_spare();
    }
    if (fd >= 0 && accept != NULL)
        accept->on_refused(accept->arg);
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
        if (accept == NULL || admit(accept, fd))
            return fd;
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
    return fd;
}
