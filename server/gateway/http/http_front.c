#include "server/gateway/http/http_front.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "proto/http/http_budget.h"
#include "proto/http/http_origin.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/listen.h"
#include "proto/rpc/server/listeners.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/http/http_error.h"

enum { MAX_REQUEST_ID = 128, MAX_LINE = 512, RETRY_MS = 1000 };

/* An address of --http-listen, with its server. */
struct listener {
    struct http_front *front;
    const char *address;
    struct http_server *server; /* NULL: closed; under the front's lock */
    bool is_local;          /* a loopback address: only names of this machine lead here honestly */
    atomic_bool has_warned; /* the log names a client of HTTP/2 once */
};

struct http_front {
    struct http_front_config config;
    struct rpc_addresses addresses;
    pthread_mutex_t lock;
    atomic_bool refuses; /* the server drains */
    struct http_budget budget;
    struct http_route *routes;
    size_t n_routes, n_listeners;
    struct listener listeners[RPC_MAX_ADDRESSES];
};

/* --- pages --- */

/* The process serves, also while models load or while it drains. */
static void page_health(void *arg, struct http_reply *reply)
{
    (void)arg;
    reply->content_type = "application/json";
    strbuf_add_str(&reply->body, "{\"status\":\"ok\"}\n");
}

static void page_version(void *arg, struct http_reply *reply)
{
    (void)arg;
    reply->content_type = "application/json";
    strbuf_printf(&reply->body, "{\"version\":\"%s\"}\n", SLUICE_VERSION);
}

static const struct http_route own_pages[] = {
    {.path = "/health", .page = page_health},
    {.path = "/ping", .page = page_health},
    {.path = "/version", .page = page_version},
};

enum { N_OWN_PAGES = sizeof(own_pages) / sizeof(own_pages[0]) };

/* True for a GET of a page. The figures need a key like everything else, unless an option opens
 * them. Another method on the path of a page is no page. */
static bool is_open(const struct http_front *front, const struct http_head *head)
{
    if (head->method != HTTP_GET && head->method != HTTP_HEAD)
        return head->method == HTTP_OPTIONS;
    if (strcmp(head->path, "/metrics") == 0)
        return front->config.metrics_are_open;
    for (size_t i = 0; i < front->n_routes; i++)
        if (front->routes[i].page && strcmp(front->routes[i].path, head->path) == 0)
            return true;
    return false;
}

/* --- admission --- */

static void add_line(struct http_exchange *exchange, const char *name, const char *value)
{
    char line[MAX_LINE];
    int n = snprintf(line, sizeof(line), "%s: %s", name, value);
    if (n > 0 && (size_t)n < sizeof(line))
        http_exchange_add_header(exchange, line);
}

/* True for a text that is harmless in a header and in a log. */
static bool is_request_id(const char *text)
{
    size_t n = strlen(text);
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("._-:/+=", *p))
            return false;
    return n >= 1 && n <= MAX_REQUEST_ID;
}

static void name_request(struct http_exchange *exchange)
{
    const char *given = http_head_header(&http_exchange_request(exchange)->head, "x-request-id");
    char made[UUID_BYTES];
    if (!given || !is_request_id(given)) {
        rng_uuid(made);
        given = made;
    }
    add_line(exchange, "X-Request-Id", given);
}

/* --- refusals --- */

/* Returns the words of the API that has the path above this path; NULL: none has. */
static http_refusal_fn *find_above(const struct http_front *front, const char *path)
{
    for (size_t i = 0; i < front->n_routes; i++) {
        const struct http_route *route = &front->routes[i];
        size_t n = strlen(route->path);
        if (route->refuse && n > 1 && strncmp(route->path, path, n) == 0 && path[n] == '/')
            return route->refuse;
    }
    return NULL;
}

/* Writes an error in the form of the path's API. An unknown path below an API's path belongs to
 * that API. */
static void write_error(const struct http_front *front, const struct http_exchange *exchange,
                        const struct error *err, char *out_headers, struct http_reply *reply)
{
    const struct http_route *route = http_exchange_route(exchange);
    const char *path = http_exchange_request(exchange)->head.path;
    http_refusal_fn *words = route ? route->refuse : NULL;
    if (!words && path)
        words = find_above(front, path);
    if (!words)
        words = http_error_reply;
    words(err, out_headers, reply);
}

static void reply_error(const struct listener *listener, struct http_exchange *exchange,
                        const struct error *err)
{
    char headers[HTTP_REFUSAL_HEADER_BYTES];
    struct http_reply reply = {.status = 500};
    write_error(listener->front, exchange, err, headers, &reply);
    http_exchange_reply(exchange, &reply);
}

/* A refusal by HTTP's own rules: the status is given, the API chooses the form. */
static void write_refusal(const struct http_front *front, const struct http_exchange *exchange,
                          unsigned status, const char *why, char *out_headers,
                          struct http_reply *reply)
{
    struct error err;
    error_set(&err,
              status == 403   ? STATUS_PERMISSION_DENIED
              : status == 500 ? STATUS_INTERNAL
              : status == 503 ? STATUS_UNAVAILABLE
                              : STATUS_INVALID_ARGUMENT,
              "%s", why);
    if (status == 503)
        err.retry_after_ms = RETRY_MS;
    write_error(front, exchange, &err, out_headers, reply);
    reply->status = status;
}

/* A client of gRPC shows no body of HTTP/1.1 to its user, so the log names the address too. */
static void name_grpc(struct listener *listener, char out_why[MAX_LINE])
{
    const char *grpc = listener->front->config.grpc;
    snprintf(out_why, MAX_LINE, "this port speaks HTTP/1.1; the address of gRPC is %.300s", grpc);
    if (!atomic_exchange(&listener->has_warned, true))
        log_warn(LOG_EVENT("client of HTTP/2 at a port of HTTP/1.1"),
                 LOG_STR("http_listen", listener->address), LOG_STR("grpc", grpc));
}

/* True if the text is an address that a client can use. Port 0 stands for any port. */
static bool is_address(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    return n > 0 && (n < 2 || strcmp(text + n - 2, ":0") != 0);
}

/* Adds to a refusal by HTTP's own rules what the client may have meant. */
static void on_refusal(void *arg, const struct http_exchange *exchange, unsigned status,
                       const char *why, char *out_headers, struct http_reply *reply)
{
    struct listener *listener = arg;
    char text[MAX_LINE];
    snprintf(text, sizeof(text), "%.400s", why);
    if (status == 505 && is_address(listener->front->config.grpc))
        name_grpc(listener, text);
    else if (status == 404) /* base URLs often lack /v1 */
        snprintf(text, sizeof(text), "%.400s; OpenAI's paths begin with /v1, KServe's with /v2",
                 why);
    write_refusal(listener->front, exchange, status, text, out_headers, reply);
}

static bool refuse(const struct listener *listener, struct http_exchange *exchange, unsigned status,
                   const char *why)
{
    char headers[HTTP_REFUSAL_HEADER_BYTES];
    struct http_reply reply = {.status = status};
    write_refusal(listener->front, exchange, status, why, headers, &reply);
    http_exchange_reply(exchange, &reply);
    return true;
}

/* --- origins and callers --- */

static size_t count_headers(const struct http_head *head, const char *name)
{
    size_t n = 0;
    for (uint32_t i = 0; i < head->n_headers; i++)
        n += strcmp(head->headers[i].name, name) == 0;
    return n;
}

/* Answers a browser that asks whether a page may send a request. */
static bool reply_preflight(struct http_exchange *exchange)
{
    const struct http_head *head = &http_exchange_request(exchange)->head;
    const char *headers = http_head_header(head, "access-control-request-headers");
    struct http_reply reply = {.status = 204};
    http_exchange_add_header(exchange, "Access-Control-Allow-Methods: GET, POST, OPTIONS");
    http_exchange_add_header(exchange, "Access-Control-Max-Age: 600");
    if (headers)
        add_line(exchange, "Access-Control-Allow-Headers", headers);
    if (http_head_header(head, "access-control-request-private-network"))
        http_exchange_add_header(exchange, "Access-Control-Allow-Private-Network: true");
    http_exchange_reply(exchange, &reply);
    return true;
}

/* True for a page of this server. A site can make its own name lead to this server, and its page
 * then has the server's Origin. No site can do that with an address or under TLS, and none has a
 * user's key. */
static bool is_own_page(const struct listener *listener, const struct http_request *request,
                        const char *origin)
{
    const char *host = http_head_header(&request->head, "host");
    return host && http_origin_is_of_host(origin, host) &&
           (http_origin_host_is_local(host) || request->is_tls ||
            access_has_keys(listener->front->config.access));
}

/* Checks from which page a browser sends the request. True if the request is answered. */
static bool check_origin(const struct listener *listener, struct http_exchange *exchange)
{
    const struct http_head *head = &http_exchange_request(exchange)->head;
    const char *origin = http_head_header(head, "origin");
    const char *host = http_head_header(head, "host");
    const char *listed = listener->front->config.origins;
    if (listener->is_local && host && !http_origin_host_is_local(host))
        return refuse(listener, exchange, 421,
                      "Host: the name is not this machine's; use localhost or an address");
    if (count_headers(head, "origin") > 1)
        return refuse(listener, exchange, 400, "Origin is given more than once");
    if (!origin)
        return false;
    if (!http_origin_is_local(origin) && !http_origin_is_listed(origin, listed) &&
        !is_own_page(listener, http_exchange_request(exchange), origin))
        return refuse(listener, exchange, 403,
                      "Origin: pages of this site may not use the server; --http-origins allows "
                      "them");
    add_line(exchange, "Access-Control-Allow-Origin", origin);
    http_exchange_add_header(exchange, "Vary: Origin");
    http_exchange_add_header(exchange, "Access-Control-Expose-Headers: X-Request-Id, Retry-After, "
                                       "Retry-After-Ms, X-Should-Retry, X-Sluice-Ignored, "
                                       "X-Sluice-Changed");
    if (head->method == HTTP_OPTIONS && http_head_header(head, "access-control-request-method"))
        return reply_preflight(exchange);
    return false;
}

static int certificate_name(const void *peer, char *out_name, size_t n_out)
{
    return http_exchange_certificate_name(peer, out_name, n_out);
}

/* Identifies the caller. True if the request is refused. */
static bool check_caller(const struct listener *listener, struct http_exchange *exchange)
{
    const struct http_request *request = http_exchange_request(exchange);
    const struct http_head *head = &request->head;
    struct access_peer peer = {.authorization = http_head_header(head, "authorization"),
                               .api_key = http_head_header(head, "x-api-key"),
                               .is_local = strcmp(request->peer, "unix") == 0,
                               .certificate_name = certificate_name,
                               .peer = exchange};
    struct access_identity identity;
    struct error err;
    if (is_open(listener->front, head))
        return false;
    peer.n_authorization = peer.authorization ? strlen(peer.authorization) : 0;
    peer.sends_many = count_headers(head, "authorization") + count_headers(head, "x-api-key") > 1;
    if (access_identify(listener->front->config.access, &peer, &identity, &err) == 0) {
        http_exchange_set_caller(exchange, identity.tenant);
        return false;
    }
    reply_error(listener, exchange, &err);
    return true;
}

/* Refuses requests while the server drains; pages go on. True if the request is refused. */
static bool check_drain(const struct listener *listener, struct http_exchange *exchange)
{
    const struct http_head *head = &http_exchange_request(exchange)->head;
    struct http_front *front = listener->front;
    struct error err;
    if (!atomic_load(&front->refuses) || is_open(front, head))
        return false;
    counters_refusal(front->config.counters, LIMIT_DRAINING);
    error_set(&err, STATUS_UNAVAILABLE, "the server is shutting down");
    error_reason(&err, REASON_DRAINING);
    err.retry_after_ms = RETRY_MS;
    reply_error(listener, exchange, &err);
    return true;
}

static bool admit(void *arg, struct http_exchange *exchange)
{
    const struct listener *listener = arg;
    name_request(exchange);
    return check_origin(listener, exchange) || check_caller(listener, exchange) ||
           check_drain(listener, exchange);
}

enum gateway_limit http_front_limit(enum http_limit limit)
{
    static const enum gateway_limit limits[N_HTTP_LIMITS] = {
        [HTTP_LIMIT_CONNECTIONS] = LIMIT_CONNECTIONS,
        [HTTP_LIMIT_HANDSHAKE] = LIMIT_HANDSHAKE,
        [HTTP_LIMIT_HEADER_BYTES] = LIMIT_METADATA_BYTES,
        [HTTP_LIMIT_BODY_BYTES] = LIMIT_MESSAGE_BYTES,
        [HTTP_LIMIT_BODY_BUDGET] = LIMIT_HTTP_BODY_BUDGET,
        [HTTP_LIMIT_REQUEST_TIME] = LIMIT_REQUEST_TIMEOUT,
        [HTTP_LIMIT_REQUESTS] = LIMIT_CONNECTION_REQUESTS,
        [HTTP_LIMIT_IDLE] = LIMIT_HTTP_IDLE,
        [HTTP_LIMIT_ANSWER_TIME] = LIMIT_SLOW_READER,
    };
    return limits[limit];
}

static void on_limit(void *arg, enum http_limit limit)
{
    const struct listener *listener = arg;
    counters_refusal(listener->front->config.counters, http_front_limit(limit));
}

/* --- life --- */

static void add_routes(struct http_front *front, const struct http_route *routes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        front->routes[front->n_routes++] = routes[i];
}

static int make_routes(struct http_front *front, struct error *err)
{
    const struct http_front_config *config = &front->config;
    front->routes = calloc(N_OWN_PAGES + config->n_routes, sizeof(*front->routes));
    if (!front->routes)
        return error_no_memory(err);
    add_routes(front, own_pages, N_OWN_PAGES);
    add_routes(front, config->routes, config->n_routes);
    return 0;
}

static int listen_on(struct http_front *front, const char *address, struct error *err)
{
    const struct gateway_limits *limits = front->config.limits;
    struct listener *listener = &front->listeners[front->n_listeners];
    struct http_server_config config;
    listener->front = front;
    listener->address = address;
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    listener->is_local = !is_unix && rpc_listen_is_loopback(address);
    http_server_config_init(&config);
    config.listen = address;
    config.routes = front->routes;
    config.n_routes = front->n_routes;
    config.n_threads = front->config.n_threads;
    config.max_connections = config.max_connections_per_ip = front->config.max_connections;
    config.max_header_bytes = limits->max_metadata_bytes;
    config.max_body_bytes = limits->max_message_bytes;
    config.budget = &front->budget;
    config.max_requests = (uint32_t)limits->max_connection_requests;
    config.handshake_ms = (uint32_t)limits->handshake_timeout_ms;
    config.timeout_ms = (uint32_t)limits->request_timeout_ms;
    config.idle_ms = (uint32_t)limits->http_idle_ms;
    config.keepalive_time_ms = front->config.keepalive_time_ms;
    config.keepalive_timeout_ms = front->config.keepalive_timeout_ms;
    config.user_timeout_ms = front->config.user_timeout_ms;
    config.tls = access_tls(front->config.access);
    config.share = front->config.share;
    config.admit = admit;
    config.refuse = on_refusal;
    config.on_limit = on_limit;
    config.arg = listener;
    int rc = http_server_create(&config, &listener->server, err);
    if (!rc)
        front->n_listeners++;
    return rc;
}

int http_front_create(const struct http_front_config *config, struct http_front **out_front,
                      struct error *err)
{
    struct http_front *front = calloc(1, sizeof(*front));
    if (!front)
        return error_no_memory(err);
    front->config = *config;
    pthread_mutex_init(&front->lock, NULL);
    http_budget_init(&front->budget, config->limits->http_body_budget,
                     config->limits->max_message_bytes);
    int rc = rpc_listeners_split("--http-listen", config->listen, &front->addresses, err);
    if (!rc)
        rc = make_routes(front, err);
    for (size_t i = 0; i < front->addresses.n && !rc; i++) {
        rc = listen_on(front, front->addresses.list[i], err);
        if (rc) {
            struct error cause = *err;
            error_set(err, cause.status, "--http-listen: %s; an empty address turns HTTP off",
                      cause.message);
            error_reason_of(err, &cause);
        }
    }
    if (rc) {
        http_front_destroy(front);
        return rc;
    }
    *out_front = front;
    return 0;
}

void http_front_drain(struct http_front *front, bool refuses)
{
    atomic_store(&front->refuses, refuses);
    pthread_mutex_lock(&front->lock);
    for (size_t i = 0; i < front->n_listeners; i++)
        if (front->listeners[i].server)
            http_server_drain(front->listeners[i].server);
    pthread_mutex_unlock(&front->lock);
}

/* A scrape may read the figures meanwhile, on a thread of a server that ends here. */
void http_front_close(struct http_front *front)
{
    for (size_t i = 0; i < front->n_listeners; i++) {
        pthread_mutex_lock(&front->lock);
        struct http_server *server = front->listeners[i].server;
        front->listeners[i].server = NULL;
        pthread_mutex_unlock(&front->lock);
        http_server_destroy(server);
    }
}

void http_front_destroy(struct http_front *front)
{
    if (!front)
        return;
    http_front_close(front);
    pthread_mutex_destroy(&front->lock);
    free(front->routes);
    free(front);
}

uint16_t http_front_port(struct http_front *front)
{
    uint16_t port = 0;
    pthread_mutex_lock(&front->lock);
    for (size_t i = 0; i < front->n_listeners && !port; i++)
        if (front->listeners[i].server)
            port = http_server_port(front->listeners[i].server);
    pthread_mutex_unlock(&front->lock);
    return port;
}

/* --- figures --- */

struct figures {
    uint32_t n_live, n_connections;
    uint64_t n_answers;
};

static struct figures add_up(struct http_front *front, unsigned status)
{
    struct figures sum = {0};
    pthread_mutex_lock(&front->lock);
    for (size_t i = 0; i < front->n_listeners; i++) {
        const struct http_server *server = front->listeners[i].server;
        if (!server)
            continue;
        sum.n_live += http_server_n_live(server);
        sum.n_connections += http_server_n_connections(server);
        sum.n_answers += http_server_n_answers(server, status);
    }
    pthread_mutex_unlock(&front->lock);
    return sum;
}

uint32_t http_front_n_live(struct http_front *front)
{
    return add_up(front, 0).n_live;
}

uint32_t http_front_n_connections(struct http_front *front)
{
    return add_up(front, 0).n_connections;
}

uint64_t http_front_n_answers(struct http_front *front, unsigned status)
{
    return add_up(front, status).n_answers;
}
