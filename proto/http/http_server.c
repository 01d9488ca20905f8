#include "proto/http/http_server.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ev.h>
#include <microhttpd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/http/http_listen.h"

enum { SWEEP_MS = 250, PAUSE_MS = 100, MIN_HEADER_BYTES = 1024 };

/* A client connection. since_ns is the time of the accept or of the end of its last request. */
struct connection {
    int fd;
    int64_t since_ns;
    bool ended; /* the socket was shut down */
    struct connection *next, **at;
};

struct http_server {
    struct http_server_config config;
    struct ev_loop *loop;
    struct MHD_Daemon *daemon;
    struct connection *connections;
    uint64_t n_accepted;
    char *unix_path; /* owned; NULL for TCP */
    uint16_t port;
    ev_io ready;
    ev_timer due, sweep, pause;
    ev_async stop;
    bool watching, has_thread;
    pthread_t thread;
};

/* --- requests --- */

/* True if the text is a token of RFC 9110, as header names are. */
static bool is_token(const char *text)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    if (!*text)
        return false;
    for (const char *p = text; *p; p++)
        if (!((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
              strchr(others, *p)))
            return false;
    return true;
}

struct headers {
    uint32_t n_hosts, n_lengths;
    bool invalid, has_body;
};

static enum MHD_Result check_header(void *arg, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    struct headers *headers = arg;
    (void)kind;
    if (!value)
        value = "";
    headers->invalid |= !is_token(key);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        headers->invalid |= (*p < 0x20 && *p != '\t') || *p == 0x7F;
    if (strcasecmp(key, "host") == 0)
        headers->n_hosts++;
    if (strcasecmp(key, "content-length") == 0) {
        headers->n_lengths++;
        headers->has_body |= strcmp(value, "0") != 0;
    }
    headers->has_body |= strcasecmp(key, "transfer-encoding") == 0;
    return MHD_YES;
}

static const struct http_route *find_route(const struct http_server *server, const char *path)
{
    for (size_t i = 0; i < server->config.n_routes; i++)
        if (strcmp(server->config.routes[i].path, path) == 0)
            return &server->config.routes[i];
    return NULL;
}

/* Returns the status of a refusal, or 0. An ambiguous request is refused, because a proxy could
 * read it as other requests than this server. */
static unsigned refusal(struct MHD_Connection *connection, const char *method, const char *version,
                        const struct http_route *route)
{
    struct headers headers = {0};
    bool first = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    if (!first && strcmp(version, MHD_HTTP_VERSION_1_1) != 0)
        return MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, check_header, &headers);
    if (headers.invalid || headers.has_body || headers.n_lengths > 1 || headers.n_hosts > 1 ||
        (!first && !headers.n_hosts))
        return MHD_HTTP_BAD_REQUEST;
    if (!route)
        return MHD_HTTP_NOT_FOUND;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return MHD_HTTP_METHOD_NOT_ALLOWED;
    return 0;
}

static const char *refusal_text(unsigned status)
{
    switch (status) {
    case MHD_HTTP_BAD_REQUEST:
        return "400 bad request: send a valid HTTP/1.1 request without a body\n";
    case MHD_HTTP_NOT_FOUND:
        return "404 not found\n";
    case MHD_HTTP_METHOD_NOT_ALLOWED:
        return "405 method not allowed: use GET or HEAD\n";
    case MHD_HTTP_HTTP_VERSION_NOT_SUPPORTED:
        return "505 HTTP version not supported: use 1.0 or 1.1\n";
    default:
        return "500 internal error\n";
    }
}

static enum MHD_Result send_reply(struct MHD_Connection *connection, struct http_reply *reply)
{
    bool refused = reply->status >= 400 && reply->status != MHD_HTTP_SERVICE_UNAVAILABLE;
    size_t n_bytes = reply->body.n_bytes;
    char *body = strbuf_take(&reply->body);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(body ? n_bytes : 0, body, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(body);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply->content_type);
    if (reply->status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    if (refused)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    enum MHD_Result sent = MHD_queue_response(connection, reply->status, response);
    MHD_destroy_response(response);
    return sent;
}

/* Leaves percent escapes in paths, so that a route matches a single spelling. */
static size_t keep_escapes(void *arg, struct MHD_Connection *connection, char *text)
{
    (void)arg;
    (void)connection;
    return strlen(text);
}

/* Called when the headers are complete, and again when the request is. A refusal happens in the
 * first call, before any body is read: the library then reads nothing more from that connection. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *n_upload, void **request)
{
    static char seen;
    struct http_server *server = arg;
    const struct http_route *route = find_route(server, url);
    struct http_reply reply = {.content_type = "text/plain; charset=utf-8"};
    (void)upload;
    *n_upload = 0; /* no body is read */
    if (!*request) {
        *request = &seen;
        reply.status = refusal(connection, method, version, route);
        if (reply.status == 0)
            return MHD_YES;
    } else {
        reply.status = MHD_HTTP_OK;
        route->handle(route->arg, &reply);
        if (strbuf_failed(&reply.body)) {
            strbuf_fini(&reply.body);
            strbuf_init(&reply.body, 0);
            reply.status = MHD_HTTP_INTERNAL_SERVER_ERROR;
        }
    }
    if (reply.status >= 400 && !reply.body.n_bytes)
        strbuf_add_str(&reply.body, refusal_text(reply.status));
    return send_reply(connection, &reply);
}

/* --- connections and their times --- */

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *server = arg;
    struct connection *connection = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        connection = calloc(1, sizeof(*connection));
        *context = connection;
        if (!connection || !info) {
            if (info)
                shutdown(info->connect_fd, SHUT_RDWR); /* without memory for the deadline, the
                                                        * connection is closed */
            free(connection);
            *context = NULL;
            return;
        }
        connection->fd = info->connect_fd;
        connection->since_ns = clock_now_ns();
        server->n_accepted++;
        connection->next = server->connections;
        connection->at = &server->connections;
        if (connection->next)
            connection->next->at = &connection->next;
        server->connections = connection;
        if (!ev_is_active(&server->sweep))
            ev_timer_again(server->loop, &server->sweep);
    } else if (connection) {
        *connection->at = connection->next;
        if (connection->next)
            connection->next->at = connection->at;
        free(connection);
        *context = NULL;
    }
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **request,
                         enum MHD_RequestTerminationCode how)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct connection *connection = info ? info->socket_context : NULL;
    (void)arg;
    (void)request;
    (void)how;
    if (connection)
        connection->since_ns = clock_now_ns();
}

/* --- the loop --- */

static void run_daemon(struct http_server *server)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    MHD_run(server->daemon);
    ev_timer_stop(server->loop, &server->due);
    if (MHD_get_timeout(server->daemon, &ms) == MHD_YES) {
        ev_timer_set(&server->due, (double)ms / 1e3, 0.);
        ev_timer_start(server->loop, &server->due);
    }
}

/* The socket is ready, but no connection was accepted and none exists. The process has no
 * descriptors left, and the socket stays ready. Accepting is tried again after a pause. */
static void on_ready(struct ev_loop *loop, ev_io *watcher, int events)
{
    struct http_server *server = watcher->data;
    uint64_t n_before = server->n_accepted;
    bool idle = !server->connections;
    (void)events;
    run_daemon(server);
    if (!idle || server->n_accepted != n_before)
        return;
    ev_io_stop(loop, watcher);
    ev_timer_start(loop, &server->pause);
}

static void on_pause_over(struct ev_loop *loop, ev_timer *watcher, int events)
{
    struct http_server *server = watcher->data;
    (void)events;
    ev_timer_set(watcher, PAUSE_MS / 1e3, 0.);
    ev_io_start(loop, &server->ready);
}

static void on_due(struct ev_loop *loop, ev_timer *watcher, int events)
{
    (void)loop;
    (void)events;
    run_daemon(watcher->data);
}

/* Ends connections that are too old. The library's own time-out restarts with every byte, so
 * single bytes could hold a connection for ever. A socket that is shut down reads as closed. */
static void on_sweep(struct ev_loop *loop, ev_timer *watcher, int events)
{
    struct http_server *server = watcher->data;
    int64_t limit_ns = clock_now_ns() - (int64_t)server->config.timeout_ms * NS_PER_MS;
    (void)events;
    for (struct connection *c = server->connections; c; c = c->next)
        if (!c->ended && c->since_ns < limit_ns) {
            c->ended = true;
            shutdown(c->fd, SHUT_RDWR);
        }
    run_daemon(server);
    if (!server->connections)
        ev_timer_stop(loop, watcher);
}

static void on_stop(struct ev_loop *loop, ev_async *watcher, int events)
{
    (void)watcher;
    (void)events;
    ev_break(loop, EVBREAK_ALL);
}

static void watch(struct http_server *server, int epoll_fd)
{
    ev_io_init(&server->ready, on_ready, epoll_fd, EV_READ);
    ev_timer_init(&server->due, on_due, 0., 0.);
    ev_timer_init(&server->pause, on_pause_over, PAUSE_MS / 1e3, 0.);
    ev_timer_init(&server->sweep, on_sweep, 0., SWEEP_MS / 1e3);
    ev_async_init(&server->stop, on_stop);
    server->ready.data = server->due.data = server->sweep.data = server;
    server->pause.data = server;
    ev_io_start(server->loop, &server->ready);
    if (!server->config.loop)
        ev_async_start(server->loop, &server->stop);
    server->watching = true;
}

static void *run_loop(void *arg)
{
    struct http_server *server = arg;
    ev_run(server->loop, 0);
    return NULL;
}

/* --- life --- */

void http_server_config_init(struct http_server_config *config)
{
    *config = (struct http_server_config){
        .max_connections = 64,
        .max_connections_per_ip = 32,
        .max_header_bytes = 16 << 10,
        .timeout_ms = 10000,
    };
}

static int start_daemon(struct http_server *server, int fd, struct error *err)
{
    const struct http_server_config *c = &server->config;
    size_t n_memory =
        c->max_header_bytes > MIN_HEADER_BYTES ? c->max_header_bytes : (size_t)MIN_HEADER_BYTES;
    server->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET,
                         fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)c->max_connections,
                         MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)c->max_connections_per_ip,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, n_memory, MHD_OPTION_UNESCAPE_CALLBACK,
                         keep_escapes, NULL, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        server->daemon ? MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (!server->daemon)
        close(fd); /* otherwise the daemon owns fd from here on */
    if (!info || info->epoll_fd < 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot serve HTTP on %s", c->listen);
    watch(server, info->epoll_fd);
    return 0;
}

/* The thread blocks all signals, which belong to the program's own threads. */
static int start_thread(struct http_server *server, struct error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&server->thread, NULL, run_loop, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start a thread for HTTP");
    server->has_thread = true;
    return 0;
}

int http_server_create(const struct http_server_config *config, struct http_server **out_server,
                       struct error *err)
{
    int fd = -1;
    struct http_server *server = calloc(1, sizeof(*server));
    if (!server)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "HTTP: out of memory");
    server->config = *config;
    server->loop = config->loop ? config->loop : ev_loop_new(EVFLAG_NOENV);
    int rc = server->loop ? http_listen(config->listen, config->share, &fd, &server->port, err)
                          : error_set(err, STATUS_RESOURCE_EXHAUSTED, "HTTP: no event loop");
    if (!rc && !server->port) {
        server->unix_path = strdup(config->listen + strlen("unix:"));
        if (!server->unix_path) {
            close(fd);
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "HTTP: out of memory");
        } else {
            rpc_share_own(server->unix_path);
        }
    }
    if (!rc)
        rc = start_daemon(server, fd, err);
    if (!rc && !config->loop)
        rc = start_thread(server, err);
    if (rc) {
        http_server_destroy(server);
        return rc;
    }
    *out_server = server;
    return 0;
}

void http_server_destroy(struct http_server *server)
{
    if (!server)
        return;
    if (server->has_thread) {
        ev_async_send(server->loop, &server->stop);
        pthread_join(server->thread, NULL);
    }
    if (server->watching) {
        ev_io_stop(server->loop, &server->ready);
        ev_timer_stop(server->loop, &server->due);
        ev_timer_stop(server->loop, &server->sweep);
        ev_timer_stop(server->loop, &server->pause);
        ev_async_stop(server->loop, &server->stop);
    }
    if (server->daemon)
        MHD_stop_daemon(server->daemon);
    if (server->unix_path)
        rpc_share_forget(server->unix_path);
    free(server->unix_path);
    if (!server->config.loop && server->loop)
        ev_loop_destroy(server->loop);
    free(server);
}

uint16_t http_server_port(const struct http_server *server)
{
    return server->port;
}
