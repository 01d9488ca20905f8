#include "server/gateway/http/http_front.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "proto/http/http_origin.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/listen.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/http/http_error.h"

enum { MAX_ADDRESS = 256, MAX_REQUEST_ID = 128, MAX_LINE = 512 };

/* One address. */
struct listener {
    struct http_front *front;
    struct http_server *server;
    char address[MAX_ADDRESS];
    bool is_local; /* a loopback address: only names of this machine lead here honestly */
};

struct http_front {
    struct http_front_config config;
    struct http_route *routes;
    size_t n_routes, n_listeners;
    struct listener listeners[HTTP_FRONT_MAX_LISTENERS];
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

/* True for a page. A POST to the path of a page goes to an API. */
static bool is_open(const struct http_front *front, const struct http_head *head)
{
    if (head->method == HTTP_POST)
        return false;
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

static bool refuse(struct http_exchange *exchange, unsigned status, const char *why)
{
    struct http_reply reply = {.status = status};
    http_error_refuse(status, why, &reply);
    http_exchange_reply(exchange, &reply);
    return true;
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

/* Checks from which page a browser sends the request. True if the request is answered. */
static bool check_origin(const struct listener *listener, struct http_exchange *exchange)
{
    const struct http_head *head = &http_exchange_request(exchange)->head;
    const char *origin = http_head_header(head, "origin");
    const char *host = http_head_header(head, "host");
    const char *listed = listener->front->config.origins;
    if (listener->is_local && host && !http_origin_host_is_local(host))
        return refuse(exchange, 421,
                      "Host: the name is not this machine's; use localhost or an address");
    if (!origin)
        return false;
    if (!http_origin_is_local(origin) && !http_origin_is_listed(origin, listed))
        return refuse(exchange, 403,
                      "Origin: pages of this site may not use the server; --http-origins allows "
                      "them");
    add_line(exchange, "Access-Control-Allow-Origin", origin);
    http_exchange_add_header(exchange, "Vary: Origin");
    http_exchange_add_header(
        exchange, "Access-Control-Expose-Headers: X-Request-Id, Retry-After, X-Sluice-Ignored");
    if (head->method == HTTP_OPTIONS && http_head_header(head, "access-control-request-method"))
        return reply_preflight(exchange);
    return false;
}

static size_t count_headers(const struct http_head *head, const char *name)
{
    size_t n = 0;
    for (uint32_t i = 0; i < head->n_headers; i++)
        n += strcmp(head->headers[i].name, name) == 0;
    return n;
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
    char headers[HTTP_ERROR_HEADER_BYTES];
    if (is_open(listener->front, head) || head->method == HTTP_OPTIONS)
        return false;
    peer.n_authorization = peer.authorization ? strlen(peer.authorization) : 0;
    peer.sends_many = count_headers(head, "authorization") + count_headers(head, "x-api-key") > 1;
    if (access_identify(listener->front->config.access, &peer, &identity, &err) == 0) {
        http_exchange_set_caller(exchange, identity.tenant);
        return false;
    }
    struct http_reply reply = {.status = 401};
    http_error_reply(&err, headers, &reply);
    http_exchange_reply(exchange, &reply);
    return true;
}

static bool admit(void *arg, struct http_exchange *exchange)
{
    const struct listener *listener = arg;
    name_request(exchange);
    return check_origin(listener, exchange) || check_caller(listener, exchange);
}

static void refuse_request(void *arg, unsigned status, const char *why, struct http_reply *reply)
{
    (void)arg;
    http_error_refuse(status, why, reply);
}

static void on_limit(void *arg, enum http_limit limit)
{
    const struct listener *listener = arg;
    static const enum gateway_limit limits[N_HTTP_LIMITS] = {
        [HTTP_LIMIT_CONNECTIONS] = LIMIT_CONNECTIONS,
        [HTTP_LIMIT_HEADER_BYTES] = LIMIT_METADATA_BYTES,
        [HTTP_LIMIT_BODY_BYTES] = LIMIT_MESSAGE_BYTES,
        [HTTP_LIMIT_REQUEST_TIME] = LIMIT_REQUEST_TIMEOUT,
        [HTTP_LIMIT_ANSWER_TIME] = LIMIT_SLOW_READER,
    };
    counters_refusal(listener->front->config.counters, limits[limit]);
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

static int listen_on(struct http_front *front, const char *address, size_t n, struct error *err)
{
    const struct gateway_limits *limits = front->config.limits;
    struct listener *listener = &front->listeners[front->n_listeners];
    struct http_server_config config;
    if (n >= sizeof(listener->address) || front->n_listeners == HTTP_FRONT_MAX_LISTENERS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "more than %d addresses, or one is too long",
                         HTTP_FRONT_MAX_LISTENERS);
    listener->front = front;
    snprintf(listener->address, sizeof(listener->address), "%.*s", (int)n, address);
    bool is_unix = strncmp(listener->address, "unix:", 5) == 0;
    listener->is_local = !is_unix && rpc_listen_is_loopback(listener->address);
    http_server_config_init(&config);
    config.listen = listener->address;
    config.routes = front->routes;
    config.n_routes = front->n_routes;
    config.max_connections = config.max_connections_per_ip = (uint32_t)limits->max_connections;
    config.max_header_bytes = limits->max_metadata_bytes;
    config.max_body_bytes = limits->max_message_bytes;
    config.max_requests = UINT32_MAX;
    config.timeout_ms = (uint32_t)limits->request_timeout_ms;
    config.idle_ms = (uint32_t)limits->http_idle_ms;
    config.tls = access_tls(front->config.access);
    config.share = front->config.share;
    config.admit = admit;
    config.refuse = refuse_request;
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
    int rc = make_routes(front, err);
    const char *at = config->listen;
    while (!rc && *at) {
        at += strspn(at, ", ");
        size_t n = strcspn(at, ", ");
        if (n)
            rc = listen_on(front, at, n, err);
        at += n;
    }
    if (rc) {
        error_prefix(err, "--http-listen");
        http_front_destroy(front);
        return rc;
    }
    *out_front = front;
    return 0;
}

void http_front_drain(struct http_front *front)
{
    for (size_t i = 0; i < front->n_listeners; i++)
        http_server_drain(front->listeners[i].server);
}

uint32_t http_front_n_live(const struct http_front *front)
{
    uint32_t n = 0;
    for (size_t i = 0; i < front->n_listeners; i++)
        n += http_server_n_live(front->listeners[i].server);
    return n;
}

void http_front_destroy(struct http_front *front)
{
    if (!front)
        return;
    for (size_t i = 0; i < front->n_listeners; i++)
        http_server_destroy(front->listeners[i].server);
    free(front->routes);
    free(front);
}

uint16_t http_front_port(const struct http_front *front)
{
    uint16_t port = 0;
    for (size_t i = 0; i < front->n_listeners && !port; i++)
        port = http_server_port(front->listeners[i].server);
    return port;
}
