#include "proto/http/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/http/http_listen.h"
#include "proto/http/http_private.h"
#include "proto/http/http_tls.h"

enum { PAUSE_MS = 100, ACCEPTS_AT_ONCE = 64, MAX_WAITING = 4096 };

/* --- a loop --- */

static void run_kicks(struct http_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct http_exchange *kicks = loop->kicks;
    loop->kicks = NULL;
    loop->last_kick = &loop->kicks;
    pthread_mutex_unlock(&loop->lock);
    while (kicks) {
        struct http_exchange *exchange = kicks;
        kicks = exchange->next_kick;
        atomic_store(&exchange->kicked, false);
        if (exchange->connection)
            http_connection_on_kick(exchange->connection);
        http_exchange_release(exchange);
    }
}

static void start_accepted(struct http_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct http_connection *accepted = loop->accepted;
    loop->accepted = NULL;
    pthread_mutex_unlock(&loop->lock);
    while (accepted) {
        struct http_connection *connection = accepted;
        accepted = connection->next;
        http_connection_start(connection);
    }
}

static void accept_waiting(struct http_server *server);

static void close_address(struct http_server *server)
{
    if (server->listen_fd < 0)
        return;
    ev_io_stop(server->loops[0].ev, &server->acceptor);
    ev_timer_stop(server->loops[0].ev, &server->pause);
    close(server->listen_fd);
    server->listen_fd = -1;
}

static void drain_loop(struct http_loop *loop)
{
    if (loop->is_draining)
        return;
    loop->is_draining = true;
    if (loop == loop->server->loops) {
        accept_waiting(loop->server);
        close_address(loop->server);
    }
    for (struct http_connection *c = loop->connections; c; c = c->next)
        http_connection_drain(c);
}

static void on_wake(struct ev_loop *ev, ev_async *watcher, int events)
{
    struct http_loop *loop = watcher->data;
    (void)events;
    pthread_mutex_lock(&loop->lock);
    bool stops = loop->stops, drains = loop->drains;
    pthread_mutex_unlock(&loop->lock);
    start_accepted(loop);
    run_kicks(loop);
    if (drains)
        drain_loop(loop);
    if (stops)
        ev_break(ev, EVBREAK_ALL);
}

/* Runs before the turn's other callbacks. Times of connections need no better clock. */
static void on_tick(struct ev_loop *ev, ev_check *watcher, int events)
{
    struct http_loop *loop = watcher->data;
    (void)ev;
    (void)events;
    loop->now_ns = clock_now_ns();
}

static void on_sweep(struct ev_loop *ev, ev_timer *watcher, int events)
{
    struct http_loop *loop = watcher->data;
    struct http_connection *next;
    (void)ev;
    (void)events;
    for (struct http_connection *c = loop->connections; c; c = next) {
        next = c->next;
        http_connection_sweep(c);
    }
}

static void *run_loop(void *arg)
{
    struct http_loop *loop = arg;
    pthread_setname_np(pthread_self(), "sluice-http");
    ev_run(loop->ev, 0);
    return NULL;
}

/* The thread blocks all signals, which belong to the program's own threads. */
static int start_thread(struct http_loop *loop, struct error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&loop->thread, NULL, run_loop, loop);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start a thread for HTTP");
    loop->has_thread = true;
    return 0;
}

static int open_loop(struct http_loop *loop, struct http_server *server, struct error *err)
{
    loop->server = server;
    pthread_mutex_init(&loop->lock, NULL);
    loop->last_kick = &loop->kicks;
    strbuf_init(&loop->draft, 0);
    loop->ev = server->config.loop ? server->config.loop : ev_loop_new(EVFLAG_NOENV);
    loop->scratch = malloc(HTTP_SCRATCH_BYTES);
    if (!loop->ev || !loop->scratch)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "HTTP: no event loop");
    ev_async_init(&loop->wake, on_wake);
    ev_timer_init(&loop->sweep, on_sweep, HTTP_SWEEP_MS / 1e3, HTTP_SWEEP_MS / 1e3);
    ev_check_init(&loop->tick, on_tick);
    ev_set_priority(&loop->tick, EV_MAXPRI);
    loop->wake.data = loop->sweep.data = loop->tick.data = loop;
    ev_async_start(loop->ev, &loop->wake);
    ev_timer_start(loop->ev, &loop->sweep);
    ev_check_start(loop->ev, &loop->tick);
    loop->is_watching = true;
    return 0;
}

static void wake_loop(struct http_loop *loop, bool stops, bool drains)
{
    pthread_mutex_lock(&loop->lock);
    loop->stops |= stops;
    loop->drains |= drains;
    ev_async_send(loop->ev, &loop->wake);
    pthread_mutex_unlock(&loop->lock);
}

/* After the thread has ended. */
static void close_loop(struct http_loop *loop)
{
    if (!loop->server)
        return;
    start_accepted(loop); /* so that all are in the list */
    while (loop->connections)
        http_connection_destroy(loop->connections);
    if (loop->is_watching) {
        ev_async_stop(loop->ev, &loop->wake);
        ev_timer_stop(loop->ev, &loop->sweep);
        ev_check_stop(loop->ev, &loop->tick);
    }
    pthread_mutex_lock(&loop->lock);
    loop->is_closed = true;
    pthread_mutex_unlock(&loop->lock);
    run_kicks(loop);
    if (loop->ev && !loop->server->config.loop)
        ev_loop_destroy(loop->ev);
    free(loop->scratch);
    strbuf_fini(&loop->draft);
    strbuf_fini(&loop->spare);
}

/* --- accept --- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage storage;
};

static void read_peer(const union address *address, struct http_peer *out_peer)
{
    *out_peer = (struct http_peer){0};
    if (address->any.sa_family == AF_INET) {
        out_peer->n_bytes = sizeof(address->v4.sin_addr);
        memcpy(out_peer->bytes, &address->v4.sin_addr, sizeof(address->v4.sin_addr));
        out_peer->port = ntohs(address->v4.sin_port);
    } else if (address->any.sa_family == AF_INET6) {
        out_peer->n_bytes = sizeof(address->v6.sin6_addr);
        memcpy(out_peer->bytes, &address->v6.sin6_addr, sizeof(address->v6.sin6_addr));
        out_peer->port = ntohs(address->v6.sin6_port);
    }
}

/* The map's values are numbers above 0, in place of pointers. */
static void *number_value(uintptr_t n)
{
    return (void *)n; /* NOLINT(performance-no-int-to-ptr) */
}

/* Counts a new connection. False if there are too many. */
static bool admit_peer(struct http_server *server, const struct http_peer *peer)
{
    if (atomic_load(&server->n_connections) >= server->config.max_connections)
        return false;
    bool fits = true;
    if (peer->n_bytes) {
        pthread_mutex_lock(&server->peers_lock);
        uintptr_t n = (uintptr_t)hash_map_get(&server->peers, peer->bytes, peer->n_bytes);
        fits = n < server->config.max_connections_per_ip &&
               hash_map_put(&server->peers, peer->bytes, peer->n_bytes, number_value(n + 1));
        pthread_mutex_unlock(&server->peers_lock);
    }
    if (fits)
        atomic_fetch_add(&server->n_connections, 1);
    return fits;
}

void http_server_count(struct http_server *server, enum http_limit limit)
{
    atomic_fetch_add_explicit(&server->n_limits[limit], 1, memory_order_relaxed);
    if (server->config.on_limit)
        server->config.on_limit(server->config.arg, limit);
}

void http_server_forget(struct http_server *server, const struct http_peer *peer)
{
    atomic_fetch_sub(&server->n_connections, 1);
    if (!peer->n_bytes)
        return;
    pthread_mutex_lock(&server->peers_lock);
    uintptr_t n = (uintptr_t)hash_map_get(&server->peers, peer->bytes, peer->n_bytes);
    if (n > 1)
        (void)hash_map_put(&server->peers, peer->bytes, peer->n_bytes, number_value(n - 1));
    else
        (void)hash_map_remove(&server->peers, peer->bytes, peer->n_bytes);
    pthread_mutex_unlock(&server->peers_lock);
}

/* Gives a new connection to the next loop. */
static void hand_out(struct http_server *server, int fd, const struct http_peer *peer)
{
    struct http_loop *loop = &server->loops[server->next_loop++ % server->n_loops];
    struct http_connection *connection = http_connection_create(loop, fd, peer);
    if (connection && loop == server->loops) { /* the acceptor's own loop */
        http_connection_start(connection);
    } else if (connection) {
        pthread_mutex_lock(&loop->lock);
        connection->next = loop->accepted;
        loop->accepted = connection;
        ev_async_send(loop->ev, &loop->wake);
        pthread_mutex_unlock(&loop->lock);
    }
}

/* Accepts one connection. False if none waits, or none can be accepted (errno). */
static bool accept_one(struct http_server *server)
{
    union address address = {.any.sa_family = AF_UNSPEC};
    socklen_t n_address = sizeof(address);
    struct http_peer peer;
    int fd = accept4(server->listen_fd, &address.any, &n_address, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EINTR || errno == ECONNABORTED;
    read_peer(&address, &peer);
    if (admit_peer(server, &peer)) {
        hand_out(server, fd, &peer);
        return true;
    }
    close(fd);
    http_server_count(server, HTTP_LIMIT_CONNECTIONS);
    return true;
}

/* Clients that connected before the address closes are served. */
static void accept_waiting(struct http_server *server)
{
    for (int i = 0; i < MAX_WAITING && server->listen_fd >= 0 && accept_one(server); i++)
        continue;
}

/* If the process has no free descriptor, accept() fails and the socket stays ready. The loop then
 * pauses before it accepts again. */
static void on_acceptable(struct ev_loop *ev, ev_io *watcher, int events)
{
    struct http_server *server = watcher->data;
    int n = 0;
    (void)events;
    while (n < ACCEPTS_AT_ONCE && accept_one(server))
        n++;
    if (n < ACCEPTS_AT_ONCE && errno != EAGAIN && errno != EWOULDBLOCK) {
        ev_io_stop(ev, watcher);
        ev_timer_start(ev, &server->pause);
    }
}

static void on_pause_over(struct ev_loop *ev, ev_timer *watcher, int events)
{
    struct http_server *server = watcher->data;
    (void)events;
    ev_timer_set(watcher, PAUSE_MS / 1e3, 0.);
    ev_io_start(ev, &server->acceptor);
}

/* --- life --- */

void http_server_config_init(struct http_server_config *config)
{
    *config = (struct http_server_config){
        .n_threads = 1,
        .max_connections = 64,
        .max_connections_per_ip = 32,
        .max_header_bytes = 16 << 10,
        .max_requests = 1000,
        .handshake_ms = 10000,
        .timeout_ms = 10000,
        .idle_ms = 10000,
        .keepalive_time_ms = 60000,
        .keepalive_timeout_ms = 20000,
    };
}

static int start_listening(struct http_server *server, struct error *err)
{
    const struct http_server_config *config = &server->config;
    int rc = http_listen(config->listen, config->share, &server->listen_fd, &server->port, err);
    if (rc)
        return rc;
    if (!server->port) {
        server->unix_path = strdup(config->listen + strlen("unix:"));
        if (!server->unix_path)
            return error_no_memory(err);
        rpc_share_own(server->unix_path);
    }
    ev_io_init(&server->acceptor, on_acceptable, server->listen_fd, EV_READ);
    ev_timer_init(&server->pause, on_pause_over, PAUSE_MS / 1e3, 0.);
    server->acceptor.data = server->pause.data = server;
    ev_io_start(server->loops[0].ev, &server->acceptor);
    return 0;
}

static int open_loops(struct http_server *server, struct error *err)
{
    uint32_t n = server->config.loop ? 1 : server->config.n_threads;
    server->loops = calloc(n ? n : 1, sizeof(*server->loops));
    if (!server->loops)
        return error_no_memory(err);
    server->n_loops = n ? n : 1;
    int rc = 0;
    for (uint32_t i = 0; i < server->n_loops && !rc; i++)
        rc = open_loop(&server->loops[i], server, err);
    return rc;
}

int http_server_create(const struct http_server_config *config, struct http_server **out_server,
                       struct error *err)
{
    struct http_server *server = calloc(1, sizeof(*server));
    if (!server)
        return error_no_memory(err);
    atomic_init(&server->n_refs, 1);
    server->config = *config;
    server->listen_fd = -1;
    pthread_mutex_init(&server->tls_lock, NULL);
    pthread_mutex_init(&server->peers_lock, NULL);
    int rc = open_loops(server, err);
    if (!rc && config->tls && strncmp(config->listen, "unix:", 5) != 0)
        rc = http_tls_create(config->tls, &server->tls, err);
    if (!rc)
        rc = start_listening(server, err);
    for (uint32_t i = 0; i < server->n_loops && !rc && !config->loop; i++)
        rc = start_thread(&server->loops[i], err);
    if (rc) {
        http_server_destroy(server);
        return rc;
    }
    *out_server = server;
    return 0;
}

void http_server_drain(struct http_server *server)
{
    for (uint32_t i = 0; i < server->n_loops; i++)
        wake_loop(&server->loops[i], false, true);
}

void http_server_destroy(struct http_server *server)
{
    if (!server)
        return;
    for (uint32_t i = 0; i < server->n_loops; i++)
        if (server->loops[i].has_thread)
            wake_loop(&server->loops[i], true, false);
    for (uint32_t i = 0; i < server->n_loops; i++)
        if (server->loops[i].has_thread)
            pthread_join(server->loops[i].thread, NULL);
    close_address(server);
    for (uint32_t i = 0; i < server->n_loops; i++)
        close_loop(&server->loops[i]);
    http_tls_destroy(server->tls);
    if (server->unix_path)
        rpc_share_forget(server->unix_path);
    http_server_release(server);
}

void http_server_release(struct http_server *server)
{
    if (atomic_fetch_sub(&server->n_refs, 1) != 1)
        return;
    for (uint32_t i = 0; i < server->n_loops; i++)
        if (server->loops[i].server)
            pthread_mutex_destroy(&server->loops[i].lock);
    free(server->loops);
    free(server->unix_path);
    hash_map_fini(&server->peers);
    pthread_mutex_destroy(&server->peers_lock);
    pthread_mutex_destroy(&server->tls_lock);
    free(server);
}

uint16_t http_server_port(const struct http_server *server)
{
    return server->port;
}

uint32_t http_server_n_connections(const struct http_server *server)
{
    return atomic_load(&server->n_connections);
}

uint32_t http_server_n_live(const struct http_server *server)
{
    return atomic_load(&server->n_live);
}

uint64_t http_server_n_limited(const struct http_server *server, enum http_limit limit)
{
    return atomic_load_explicit(&server->n_limits[limit], memory_order_relaxed);
}

uint64_t http_server_n_answers(const struct http_server *server, unsigned status)
{
    return atomic_load_explicit(&server->n_answers[status], memory_order_relaxed);
}
