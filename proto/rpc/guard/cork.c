#include "proto/rpc/guard/cork.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

/* WRITE_S: time to write the held bytes of a connection that gRPC closed. LINGER_S: time for the
 * peer to close it, too. FILES_SHARE: an eighth of the descriptors may linger. */
enum { MAX_TOUCHED = 256, POLL_MS = 20, WRITE_S = 5, LINGER_S = 1 };
enum { MAX_LINGERING = 512, FILES_SHARE = 8 };

/* The corks that this thread writes at the end of the event. */
static _Thread_local struct {
    bool open;
    uint32_t n_touched;
    struct rpc_cork *touched[MAX_TOUCHED];
} window;

/* Corks with work for the cork thread. Only that thread removes corks. The lock is taken after a
 * cork's own. */
static struct {
    pthread_once_t once;
    pthread_mutex_t lock;
    pthread_cond_t some, none_left;
    struct rpc_cork *first;
    uint32_t n_left; /* corks of connections that gRPC has closed */
    bool running;
} stuck = {
    .once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};

void rpc_cork_init(struct rpc_cork *cork, int fd)
{
    memset(cork, 0, sizeof(*cork));
    pthread_mutex_init(&cork->lock, NULL);
    cork->fd = fd;
}

/* --- under the cork's lock --- */

static uint32_t n_held(struct rpc_cork *cork)
{
    return atomic_load_explicit(&cork->n_held, memory_order_relaxed);
}

static void set_held(struct rpc_cork *cork, uint32_t n)
{
    atomic_store_explicit(&cork->n_held, n, memory_order_release);
    if (n == 0) {
        free(cork->bytes);
        cork->bytes = NULL;
        cork->start = 0;
    }
}

/* Writes the held bytes; false if the kernel does not take all of them. A broken connection
 * takes everything: gRPC notices the break when it reads. */
static bool flush(struct rpc_cork *cork)
{
    while (n_held(cork) > 0) {
        ssize_t n = syscall(SYS_sendto, cork->fd, cork->bytes + cork->start, n_held(cork),
                            MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
        if (n > 0) {
            cork->start += (uint32_t)n;
            set_held(cork, n_held(cork) - (uint32_t)n);
        } else if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) {
            return false;
        } else if (n == 0 || errno != EINTR) {
            set_held(cork, 0);
        }
    }
    return true;
}

static void give_to_thread(struct rpc_cork *cork)
{
    if (cork->stuck)
        return;
    cork->stuck = true;
    pthread_mutex_lock(&stuck.lock);
    cork->next_stuck = stuck.first;
    stuck.first = cork;
    stuck.n_left += cork->left;
    pthread_cond_signal(&stuck.some);
    pthread_mutex_unlock(&stuck.lock);
}

static void take_from_thread(struct rpc_cork *cork)
{
    pthread_mutex_lock(&stuck.lock);
    struct rpc_cork **at = &stuck.first;
    while (*at != cork)
        at = &(*at)->next_stuck;
    *at = cork->next_stuck;
    pthread_mutex_unlock(&stuck.lock);
    cork->stuck = false;
}

/* n_left counts the descriptor until it is closed, because rpc_cork_settle waits for that. */
static void close_left(struct rpc_cork *cork)
{
    syscall(SYS_close, cork->fd);
    pthread_mutex_lock(&stuck.lock);
    if (--stuck.n_left == 0)
        pthread_cond_broadcast(&stuck.none_left);
    pthread_mutex_unlock(&stuck.lock);
    pthread_mutex_destroy(&cork->lock);
    free(cork);
}

/* Reads and drops the peer's bytes; false once nothing more can come. */
static bool may_send_more(int fd)
{
    uint8_t bytes[4096];
    for (int i = 0; i < 64; i++) {
        ssize_t n = syscall(SYS_recvfrom, fd, bytes, sizeof(bytes), MSG_DONTWAIT, NULL, NULL);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (n < 0 && errno == EAGAIN)
            return true;
    }
    return true;
}

/* --- the cork thread --- */

/* Under the cork's lock: everything is written, so the writing side is closed. */
static void close_half(struct rpc_cork *cork)
{
    if (cork->half_closed)
        return;
    cork->half_closed = true;
    cork->deadline_ns = clock_now_ns() + LINGER_S * NS_PER_S;
    syscall(SYS_shutdown, cork->fd, SHUT_WR);
}

/* Under the cork's lock, for a connection that gRPC has closed: true if the descriptor can be
 * closed. */
static bool has_left(struct rpc_cork *cork)
{
    if (clock_now_ns() < cork->deadline_ns) {
        if (!flush(cork))
            return false;
        close_half(cork);
        return !may_send_more(cork->fd);
    }
    set_held(cork, 0);
    return true;
}

static void work_on(struct rpc_cork *cork)
{
    pthread_mutex_lock(&cork->lock);
    bool left = cork->left, done = left ? has_left(cork) : flush(cork);
    if (done)
        take_from_thread(cork);
    pthread_mutex_unlock(&cork->lock);
    if (done && left)
        close_left(cork);
}

struct rounds {
    struct pollfd *polled;
    struct rpc_cork **corks;
    size_t n, n_room;
};

/* Under the list's lock. If memory is exhausted, only those that fit are polled in this round. */
static void collect(struct rounds *rounds)
{
    size_t n = 0;
    for (struct rpc_cork *cork = stuck.first; cork != NULL; cork = cork->next_stuck)
        n++;
    if (n > rounds->n_room) {
        struct pollfd *polled = realloc(rounds->polled, n * sizeof(*polled));
        if (polled != NULL)
            rounds->polled = polled;
        struct rpc_cork **corks = realloc(rounds->corks, n * sizeof(struct rpc_cork *));
        if (corks != NULL)
            rounds->corks = corks;
        if (polled != NULL && corks != NULL)
            rounds->n_room = n;
    }
    rounds->n = 0;
    for (struct rpc_cork *cork = stuck.first; cork != NULL && rounds->n < rounds->n_room;
         cork = cork->next_stuck) {
        short events = n_held(cork) > 0 ? POLLOUT : POLLIN;
        rounds->polled[rounds->n] = (struct pollfd){.fd = cork->fd, .events = events};
        rounds->corks[rounds->n++] = cork;
    }
}

/* True if the cork needs work without an event on its descriptor. An empty cork that gRPC has
 * not closed may have a descriptor of another connection by now. */
static bool is_due(struct rpc_cork *cork)
{
    if (cork->left)
        return !cork->half_closed || clock_now_ns() >= cork->deadline_ns;
    return atomic_load_explicit(&cork->n_held, memory_order_acquire) == 0;
}

static void *run(void *unused)
{
    struct rounds rounds = {0};
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&stuck.lock);
        while (stuck.first == NULL)
            pthread_cond_wait(&stuck.some, &stuck.lock);
        collect(&rounds);
        pthread_mutex_unlock(&stuck.lock);
        poll(rounds.polled, rounds.n, POLL_MS);
        for (size_t i = 0; i < rounds.n; i++)
            if (rounds.polled[i].revents != 0 || is_due(rounds.corks[i]))
                work_on(rounds.corks[i]);
    }
    return NULL;
}

static void start_once(void)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_condattr_t monotonic;
    sigset_t every, before;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stuck.none_left, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    stuck.running = pthread_create(&thread, &attr, run, NULL) == 0;
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool rpc_cork_start(void)
{
    pthread_once(&stuck.once, start_once);
    return stuck.running;
}

/* --- for the callers of sendmsg --- */

void rpc_cork_begin(void)
{
    window.open = true;
}

void rpc_cork_end(void)
{
    for (uint32_t i = 0; i < window.n_touched; i++) {
        struct rpc_cork *cork = window.touched[i];
        pthread_mutex_lock(&cork->lock);
        if (!flush(cork))
            give_to_thread(cork);
        pthread_mutex_unlock(&cork->lock);
    }
    window.n_touched = 0;
    window.open = false;
}

static size_t total(const struct msghdr *message)
{
    size_t n = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        n += message->msg_iov[i].iov_len;
    return n;
}

/* True if the bytes may be held until the end of the event. If another thread holds earlier bytes,
 * that thread writes these bytes too. */
static bool may_hold(struct rpc_cork *cork, size_t n, const struct msghdr *message)
{
    if (!window.open || cork->stuck || n > RPC_CORK_BYTES - n_held(cork) ||
        message->msg_controllen > 0)
        return false;
    if (n_held(cork) > 0)
        return true;
    if (window.n_touched == MAX_TOUCHED)
        return false;
    cork->bytes = malloc(RPC_CORK_BYTES);
    if (cork->bytes == NULL)
        return false;
    window.touched[window.n_touched++] = cork;
    return true;
}

/* tests/tsan.supp names this function. */
static void copy_sent(struct rpc_cork *cork, size_t n, const struct msghdr *message)
{
    uint8_t *at = cork->bytes + cork->start + n_held(cork);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        memcpy(at, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        at += message->msg_iov[i].iov_len;
    }
    set_held(cork, n_held(cork) + (uint32_t)n);
}

ssize_t rpc_cork_send(struct rpc_cork *cork, const struct msghdr *message, int flags)
{
    ssize_t result = (ssize_t)total(message);
    pthread_mutex_lock(&cork->lock);
    if (result > 0 && may_hold(cork, (size_t)result, message)) {
        copy_sent(cork, (size_t)result, message);
    } else if (!flush(cork)) {
        give_to_thread(cork);
        errno = EAGAIN;
        result = -1;
    } else if (result > 0 && may_hold(cork, (size_t)result, message)) {
        copy_sent(cork, (size_t)result, message);
    } else {
        result = (ssize_t)syscall(SYS_sendmsg, cork->fd, message, flags);
    }
    pthread_mutex_unlock(&cork->lock);
    return result;
}

uint32_t rpc_cork_max_lingering(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / FILES_SHARE > MAX_LINGERING)
        return MAX_LINGERING;
    return (uint32_t)(files.rlim_cur / FILES_SHARE);
}

static bool too_many_linger(void)
{
    uint32_t most = rpc_cork_max_lingering();
    pthread_mutex_lock(&stuck.lock);
    bool many = stuck.n_left >= most;
    pthread_mutex_unlock(&stuck.lock);
    return many;
}

/* Under the cork's lock: a copy of the descriptor takes over the held bytes and the wait for the
 * peer. While the copy exists, gRPC's epoll set may_hold the socket. A stray event is only a false
 * alarm, because gRPC reuses its state of a closed descriptor. */
static bool hand_on(struct rpc_cork *cork)
{
    struct rpc_cork *rest = too_many_linger() ? NULL : malloc(sizeof(*rest));
    int fd = rest != NULL ? fcntl(cork->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0) {
        free(rest);
        return false;
    }
    rpc_cork_init(rest, fd);
    rest->bytes = cork->bytes;
    rest->start = cork->start;
    atomic_init(&rest->n_held, n_held(cork));
    rest->left = true;
    rest->deadline_ns = clock_now_ns() + WRITE_S * NS_PER_S;
    cork->bytes = NULL;
    cork->handed_on = true;
    set_held(cork, 0);
    pthread_mutex_lock(&rest->lock);
    give_to_thread(rest);
    pthread_mutex_unlock(&rest->lock);
    return true;
}

void rpc_cork_shutdown(struct rpc_cork *cork)
{
    pthread_mutex_lock(&cork->lock);
    if (!flush(cork) && !cork->handed_on && !hand_on(cork))
        set_held(cork, 0);
    if (!cork->handed_on)
        syscall(SYS_shutdown, cork->fd, SHUT_WR);
    pthread_mutex_unlock(&cork->lock);
}

void rpc_cork_leave(struct rpc_cork *cork, bool lingers)
{
    pthread_mutex_lock(&cork->lock);
    bool flushed = flush(cork);
    if (!cork->handed_on && (!flushed || (lingers && may_send_more(cork->fd))))
        hand_on(cork);
    set_held(cork, 0);
    cork->handed_on = false; /* the descriptor may belong to another connection from now on */
    pthread_mutex_unlock(&cork->lock);
}

void rpc_cork_settle(uint32_t limit_ms)
{
    int64_t until_ns = clock_now_ns() + (int64_t)limit_ms * NS_PER_MS;
    struct timespec until = {until_ns / NS_PER_S, until_ns % NS_PER_S};
    pthread_mutex_lock(&stuck.lock);
    while (stuck.n_left > 0 && clock_now_ns() < until_ns)
        pthread_cond_timedwait(&stuck.none_left, &stuck.lock, &until);
    pthread_mutex_unlock(&stuck.lock);
}
