#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/http/http_budget.h"
#include "proto/http/http_private.h"
#include "proto/http/http_tls.h"

/* MAX_NAMED_PATH: bytes of a path in a refusal. MAX_METHODS: room for a list of methods. */
enum { MAX_NAMED_PATH = 200, MAX_METHODS = 32 };

static const char plain_text[] = "text/plain; charset=utf-8";

static const char *status_text(unsigned status)
{
    static const struct {
        unsigned status;
        const char *text;
    } rows[] = {{200, "OK"},
                {204, "No Content"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {403, "Forbidden"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {408, "Request Timeout"},
                {413, "Content Too Large"},
                {414, "URI Too Long"},
                {415, "Unsupported Media Type"},
                {417, "Expectation Failed"},
                {421, "Misdirected Request"},
                {422, "Unprocessable Content"},
                {424, "Failed Dependency"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {503, "Service Unavailable"},
                {504, "Gateway Timeout"},
                {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].status == status)
            return rows[i].text;
    return "Status";
}

/* --- the head of an answer --- */

static void put_head(struct http_connection *connection, unsigned status, const char *content_type,
                     const char *headers)
{
    const struct http_exchange *exchange = connection->exchange;
    struct strbuf *out = &connection->out;
    struct http_server *server = connection->loop->server;
    time_t now = time(NULL);
    struct tm utc;
    if (status <= HTTP_MAX_STATUS)
        atomic_fetch_add_explicit(&server->n_answers[status], 1, memory_order_relaxed);
    char date[64] = "";
    if (gmtime_r(&now, &utc))
        (void)strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &utc);
    strbuf_printf(out, "HTTP/1.1 %u %s\r\nDate: %s\r\n", status, status_text(status), date);
    if (content_type)
        strbuf_printf(out, "Content-Type: %s\r\n", content_type);
    if (connection->closes)
        strbuf_add_str(out, "Connection: close\r\n");
    else if (exchange->is_1_0)
        strbuf_add_str(out, "Connection: keep-alive\r\n");
    strbuf_add(out, strbuf_str(&exchange->headers), exchange->headers.n_bytes);
    if (headers)
        strbuf_add_str(out, headers);
}

/* Writes a whole answer and frees its body. */
static void put_reply(struct http_connection *connection, struct http_reply *reply)
{
    struct http_exchange *exchange = connection->exchange;
    if (strbuf_failed(&reply->body) || strbuf_failed(&exchange->headers)) {
        strbuf_clear(&reply->body);
        strbuf_clear(&exchange->headers);
        reply->status = 500;
        reply->content_type = plain_text;
        strbuf_add_str(&reply->body, "500 the answer does not fit into memory\n");
    }
    put_head(connection, reply->status, reply->body.n_bytes ? reply->content_type : NULL,
             reply->headers);
    if (reply->status != 204)
        strbuf_printf(&connection->out, "Content-Length: %zu\r\n", reply->body.n_bytes);
    strbuf_add_str(&connection->out, "\r\n");
    if (!exchange->is_head && reply->body.n_bytes)
        strbuf_add(&connection->out, reply->body.data, reply->body.n_bytes);
    strbuf_fini(&reply->body);
    exchange->has_begun = exchange->is_over = true;
}

void http_answer_forget_body(struct http_connection *connection)
{
    http_budget_move(connection->loop->server->config.budget, connection->body.n_bytes, 0);
    strbuf_fini(&connection->body);
}

/* --- routes --- */

/* Compares a path with a route's. "{}" takes one segment, whose begin and length are kept. */
static bool matches(const char *pattern, const char *path, const char *segments[], size_t lengths[])
{
    size_t n = 0;
    while (*pattern) {
        if (pattern[0] == '{' && pattern[1] == '}') {
            size_t length = strcspn(path, "/");
            if (length == 0 || n == HTTP_MAX_SEGMENTS)
                return false;
            segments[n] = path;
            lengths[n++] = length;
            pattern += 2;
            path += length;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

static unsigned methods_of(const struct http_route *route)
{
    unsigned methods = route->page ? (unsigned)HTTP_GET : route->methods;
    return methods & HTTP_GET ? methods | HTTP_HEAD : methods;
}

/* Finds the route of path and method, or else a route of the path. *out_allowed has the methods of
 * every route with that path. */
static const struct http_route *find_route(const struct http_server_config *config,
                                           const struct http_head *head, unsigned *out_allowed)
{
    const char *segments[HTTP_MAX_SEGMENTS];
    size_t lengths[HTTP_MAX_SEGMENTS];
    const struct http_route *found = NULL;
    *out_allowed = 0;
    for (size_t i = 0; i < config->n_routes; i++) {
        const struct http_route *route = &config->routes[i];
        if (!matches(route->path, head->path, segments, lengths))
            continue;
        bool is_first = !(*out_allowed & (unsigned)head->method);
        *out_allowed |= methods_of(route);
        if (!found || (is_first && (methods_of(route) & (unsigned)head->method)))
            found = route;
    }
    return found;
}

void http_answer_refuse(struct http_connection *connection, unsigned status, const char *why)
{
    const struct http_server_config *config = &connection->loop->server->config;
    struct http_exchange *exchange = connection->exchange;
    struct http_reply reply = {.status = status, .content_type = plain_text};
    char headers[HTTP_REFUSAL_HEADER_BYTES];
    unsigned allowed;
    if (!exchange->route && exchange->request->head.path)
        exchange->route = find_route(config, &exchange->request->head, &allowed);
    if (config->refuse) {
        config->refuse(config->arg, exchange, status, why, headers, &reply);
    } else {
        strbuf_printf(&reply.body, "%u %s\n", status, why);
        reply.headers = status == 503 ? "Retry-After: 1\r\n" : NULL;
    }
    connection->closes = true;
    http_answer_forget_body(connection);
    put_reply(connection, &reply);
}

void http_answer_refuse_budget(struct http_connection *connection)
{
    http_server_count(connection->loop->server, HTTP_LIMIT_BODY_BUDGET);
    http_answer_refuse(connection, 503, "too many large bodies are on their way; try again later");
}

/* Writes "GET, HEAD, OPTIONS". */
static void write_methods(unsigned methods, char out[MAX_METHODS])
{
    snprintf(out, MAX_METHODS, "%s%s%sOPTIONS", methods & HTTP_GET ? "GET, " : "",
             methods & HTTP_HEAD ? "HEAD, " : "", methods & HTTP_POST ? "POST, " : "");
}

static void add_allow(struct http_exchange *exchange, unsigned methods)
{
    char names[MAX_METHODS], line[MAX_METHODS + 16];
    write_methods(methods, names);
    snprintf(line, sizeof(line), "Allow: %s", names);
    http_exchange_add_header(exchange, line);
}

static void write_peer(const struct http_peer *peer, char out[HTTP_PEER_BYTES])
{
    char address[INET6_ADDRSTRLEN] = "";
    int family = peer->n_bytes == sizeof(struct in_addr) ? AF_INET : AF_INET6;
    if (peer->n_bytes == 0 || !inet_ntop(family, peer->bytes, address, sizeof(address)))
        snprintf(out, HTTP_PEER_BYTES, "unix");
    else
        snprintf(out, HTTP_PEER_BYTES, family == AF_INET ? "%s:%u" : "[%s]:%u", address,
                 (unsigned)peer->port);
}

static bool refuse_body(struct http_connection *connection, const struct http_head *head)
{
    const struct http_server_config *config = &connection->loop->server->config;
    bool has_body = head->is_chunked || head->n_body;
    if (has_body && head->method != HTTP_POST) {
        http_answer_refuse(connection, 400, "this request takes no body");
        return true;
    }
    if (head->n_body <= config->max_body_bytes && !(has_body && config->max_body_bytes == 0)) {
        if (http_budget_allows(config->budget, head->n_body))
            return false;
        http_answer_refuse_budget(connection);
        return true;
    }
    http_server_count(connection->loop->server, HTTP_LIMIT_BODY_BYTES);
    http_answer_refuse(connection, 413, "the body is over the limit");
    return true;
}

/* The reader of heads has refused paths with bytes outside those of a URI, so the text needs no
 * escapes. */
static void refuse_path(struct http_connection *connection, const char *path)
{
    char why[MAX_NAMED_PATH + 64];
    bool is_long = strlen(path) > MAX_NAMED_PATH;
    snprintf(why, sizeof(why), "there is nothing at the path %.*s%s", MAX_NAMED_PATH, path,
             is_long ? "..." : "");
    http_answer_refuse(connection, 404, why);
}

static void refuse_method(struct http_connection *connection, unsigned allowed)
{
    char names[MAX_METHODS], why[MAX_METHODS + 64];
    write_methods(allowed, names);
    snprintf(why, sizeof(why), "the path does not take this method; it takes %s", names);
    add_allow(connection->exchange, allowed);
    http_answer_refuse(connection, 405, why);
}

bool http_answer_head(struct http_connection *connection)
{
    const struct http_server_config *config = &connection->loop->server->config;
    struct http_exchange *exchange = connection->exchange;
    const struct http_head *head = &exchange->request->head;
    unsigned allowed;
    const struct http_route *route = find_route(config, head, &allowed);
    exchange->route = route;
    exchange->request->is_tls = connection->ssl != NULL;
    write_peer(&connection->peer, exchange->request->peer);
    if (config->admit && config->admit(config->arg, exchange)) {
        connection->closes |= head->is_chunked || head->n_body; /* the body is never read */
        return true;
    }
    if (head->method == HTTP_OPTIONS && (allowed || strcmp(head->path, "*") == 0) &&
        !head->is_chunked && !head->n_body) {
        struct http_reply reply = {.status = 204};
        add_allow(exchange, allowed ? allowed : HTTP_GET | HTTP_HEAD | HTTP_POST);
        put_reply(connection, &reply);
        return true;
    }
    if (!allowed) {
        refuse_path(connection, head->path);
        return true;
    }
    if (!(allowed & (unsigned)head->method)) {
        refuse_method(connection, allowed);
        return true;
    }
    return refuse_body(connection, head);
}

/* Undoes the escapes of a segment in place. An escaped NUL leaves the segment as it is. The head's
 * reader has refused wrong escapes. */
static void unescape(char *text)
{
    char *out = text;
    if (strstr(text, "%00"))
        return;
    for (const char *p = text; *p; p++) {
        char digits[3] = {0};
        if (*p != '%') {
            *out++ = *p;
            continue;
        }
        memcpy(digits, p + 1, 2);
        *out++ = (char)strtoul(digits, NULL, 16);
        p += 2;
    }
    *out = '\0';
}

/* Copies the segments that the route's "{}" stand for. */
static bool copy_segments(struct http_exchange *exchange, const struct http_route *route)
{
    struct http_request *request = exchange->request;
    size_t lengths[HTTP_MAX_SEGMENTS] = {0};
    exchange->path = strdup(request->head.path);
    if (!exchange->path || !matches(route->path, exchange->path, request->segments, lengths))
        return false;
    for (size_t i = 0; i < HTTP_MAX_SEGMENTS && request->segments[i]; i++) {
        char *segment = exchange->path + (request->segments[i] - exchange->path);
        segment[lengths[i]] = '\0';
        unescape(segment);
    }
    return true;
}

static void forget_request(struct http_exchange *exchange)
{
    free(exchange->request);
    free(exchange->memory);
    free(exchange->path);
    exchange->request = NULL;
    exchange->memory = exchange->path = NULL;
}

void http_answer_request(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct http_request *request = exchange->request;
    const struct http_route *route = exchange->route;
    request->body = strbuf_str(&connection->body);
    request->n_body = connection->body.n_bytes;
    if (!copy_segments(exchange, route)) {
        http_answer_refuse(connection, 500, "out of memory");
    } else if (route->page) {
        struct http_reply reply = {.status = 200, .content_type = plain_text};
        route->page(route->arg, &reply);
        if (!reply.body.n_bytes && reply.status >= 400 && !strbuf_failed(&reply.body))
            strbuf_printf(&reply.body, "%u %s\n", reply.status, status_text(reply.status));
        put_reply(connection, &reply);
    } else {
        route->handle(route->arg, exchange);
        if (!exchange->is_over && !exchange->events)
            http_answer_refuse(connection, 500, "the request has no answer");
    }
    forget_request(exchange);
    http_answer_forget_body(connection);
}

/* --- the exchange, as handlers see it --- */

const struct http_request *http_exchange_request(const struct http_exchange *exchange)
{
    return exchange->request;
}

const struct http_route *http_exchange_route(const struct http_exchange *exchange)
{
    return exchange->route;
}

void http_exchange_set_events(struct http_exchange *exchange,
                              const struct http_exchange_events *events, void *arg)
{
    exchange->events = events;
    exchange->arg = arg;
}

void http_exchange_set_caller(struct http_exchange *exchange, const char *caller)
{
    snprintf(exchange->request->caller, sizeof(exchange->request->caller), "%s", caller);
}

int http_exchange_certificate_name(const struct http_exchange *exchange, char *out_name,
                                   size_t n_out)
{
    return http_tls_peer_name(exchange->connection->ssl, out_name, n_out);
}

void http_exchange_add_header(struct http_exchange *exchange, const char *line)
{
    strbuf_add_str(&exchange->headers, line);
    strbuf_add_str(&exchange->headers, "\r\n");
}

void http_exchange_reply(struct http_exchange *exchange, struct http_reply *reply)
{
    if (exchange->connection && !exchange->has_begun)
        put_reply(exchange->connection, reply);
    else
        strbuf_fini(&reply->body);
}

void http_exchange_retain(struct http_exchange *exchange)
{
    atomic_fetch_add(&exchange->n_refs, 1);
}

void http_exchange_release(struct http_exchange *exchange)
{
    if (!exchange || atomic_fetch_sub(&exchange->n_refs, 1) != 1)
        return;
    forget_request(exchange);
    strbuf_fini(&exchange->headers);
    http_server_release(exchange->loop->server);
    free(exchange);
}

void http_exchange_wake_after(struct http_exchange *exchange, uint32_t ms)
{
    exchange->wake_ms = ms;
}

void http_exchange_kick(struct http_exchange *exchange)
{
    struct http_loop *loop = exchange->loop;
    if (atomic_exchange(&exchange->kicked, true))
        return;
    pthread_mutex_lock(&loop->lock);
    if (!loop->is_closed) {
        bool first = !loop->kicks;
        http_exchange_retain(exchange);
        exchange->next_kick = NULL;
        *loop->last_kick = exchange;
        loop->last_kick = &exchange->next_kick;
        if (first)
            ev_async_send(loop->ev, &loop->wake);
    }
    pthread_mutex_unlock(&loop->lock);
}

void http_exchange_abort(struct http_exchange *exchange)
{
    atomic_store(&exchange->aborted, true);
    http_exchange_kick(exchange);
}

/* --- a part of an answer --- */

/* Writes the size line of a chunk. */
static void put_size(struct strbuf *out, size_t n_bytes)
{
    char line[2 * sizeof(n_bytes) + 2];
    size_t at = sizeof(line);
    line[--at] = '\n';
    line[--at] = '\r';
    for (; n_bytes; n_bytes >>= 4)
        line[--at] = "0123456789abcdef"[n_bytes & 15];
    strbuf_add(out, line + at, sizeof(line) - at);
}

bool http_answer_next(struct http_connection *connection)
{
    struct http_exchange *exchange = connection->exchange;
    struct strbuf *draft = &connection->loop->draft, *out = &connection->out;
    struct http_out part = {.exchange = exchange, .draft = draft, .is_silent = exchange->is_silent};
    exchange->is_silent = false;
    strbuf_clear(draft);
    if (!out->data) {
        *out = connection->loop->spare;
        strbuf_init(&connection->loop->spare, 0);
    }
    exchange->events->next(exchange->arg, &part);
    part.has_put |= draft->n_bytes > 0;
    exchange->rests = part.rests && part.has_put;
    if (exchange->is_over && !part.finishes)
        return true; /* a whole reply */
    out->failed |= draft->failed;
    if (draft->n_bytes && !exchange->is_head) {
        if (exchange->is_chunked)
            put_size(out, draft->n_bytes);
        strbuf_add(out, draft->data, draft->n_bytes);
        if (exchange->is_chunked)
            strbuf_add_str(out, "\r\n");
    }
    if (part.finishes) {
        if (exchange->is_chunked && !exchange->is_head)
            strbuf_add_str(out, "0\r\n\r\n");
        exchange->is_over = true;
    }
    return part.has_put || part.finishes || out->failed;
}

void http_out_begin(struct http_out *out, unsigned status, const char *content_type,
                    const char *headers)
{
    struct http_exchange *exchange = out->exchange;
    struct http_connection *connection = exchange->connection;
    if (exchange->has_begun)
        return;
    exchange->has_begun = out->has_put = true;
    exchange->is_chunked = !exchange->is_1_0;
    connection->closes |= exchange->is_1_0; /* the end of the connection ends the body */
    put_head(connection, status, content_type, headers);
    strbuf_add_str(&connection->out,
                   exchange->is_chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
}

void http_out_put(struct http_out *out, const void *bytes, size_t n_bytes)
{
    strbuf_add(out->draft, bytes, n_bytes);
}

struct strbuf *http_out_text(struct http_out *out)
{
    return out->draft;
}

void http_out_rest(struct http_out *out)
{
    out->rests = true;
}

void http_out_finish(struct http_out *out)
{
    out->finishes = true;
}

void http_out_reply(struct http_out *out, struct http_reply *reply)
{
    if (!out->exchange->has_begun)
        put_reply(out->exchange->connection, reply);
    else
        strbuf_fini(&reply->body);
}

bool http_out_is_silent(const struct http_out *out)
{
    return out->is_silent;
}

bool http_out_has_begun(const struct http_out *out)
{
    return out->exchange->has_begun;
}
