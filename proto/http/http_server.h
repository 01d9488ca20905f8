/* http_server.h: a strict HTTP/1.1 server (RFC 9112) on libev, over TCP or unix sockets, with TLS
 * or without. A server has loops of its own, each with a thread, or runs on the caller's loop.
 *
 * Everything that a client can hold is limited: connections, bytes, requests per connection, and
 * time. An ambiguous request is refused and its connection closed, so no second request can hide
 * in it (http_head.h). A client has left if it closes its connection, or only its sending half,
 * while its answer is made. The exchange ends at once.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/http/http_exchange.h"
#include "proto/rpc/guard/share.h"

struct error;
struct ev_loop;
struct http_budget;
struct http_server;
struct rpc_tls;

/* A page answers a GET at once. Before the call: status 200 and an empty text/plain body. */
typedef void http_page_fn(void *arg, struct http_reply *reply);
typedef void http_handler_fn(void *arg, struct http_exchange *exchange);
/* Words an error as the API of a path does. out_headers (HTTP_REFUSAL_HEADER_BYTES) lives as long
 * as the reply. */
typedef void http_refusal_fn(const struct error *err, char *out_headers, struct http_reply *reply);

enum { HTTP_REFUSAL_HEADER_BYTES = 640 };

/* A path, compared as a whole. "{}" stands for one segment. HEAD is served where GET is, and
 * OPTIONS everywhere. */
struct http_route {
    const char *path;
    http_page_fn *page; /* GET; NULL: see `handle` */
    void *arg;
    http_handler_fn *handle;
    unsigned methods;        /* that `handle` takes: HTTP_GET, HTTP_POST or both */
    http_refusal_fn *refuse; /* optional: for the hooks; the server never calls it */
};

/* Reasons for which the server itself refuses or ends something; for counters. */
enum http_limit {
    HTTP_LIMIT_CONNECTIONS,
    HTTP_LIMIT_HANDSHAKE, /* a new connection that sends nothing, or no TLS */
    HTTP_LIMIT_HEADER_BYTES,
    HTTP_LIMIT_BODY_BYTES,
    HTTP_LIMIT_BODY_BUDGET, /* the unfinished bodies of all connections */
    HTTP_LIMIT_REQUEST_TIME,
    HTTP_LIMIT_REQUESTS,    /* a connection has sent max_requests */
    HTTP_LIMIT_IDLE,        /* a connection without a request for too long */
    HTTP_LIMIT_ANSWER_TIME, /* a whole answer that the client does not take */
    N_HTTP_LIMITS
};

enum { HTTP_MAX_STATUS = 599 };

struct http_server_config {
    const char *listen;              /* "127.0.0.1:8002", "[::1]:0" or "unix:PATH" (mode 0600) */
    const struct http_route *routes; /* borrowed until destroy */
    size_t n_routes;
    struct ev_loop *loop; /* NULL: the server has loops and threads of its own. Otherwise create
                           * and destroy run on the loop's thread */
    uint32_t n_threads;   /* loops of its own */
    uint32_t max_connections, max_connections_per_ip;
    size_t max_header_bytes; /* request line and headers */
    size_t max_body_bytes;
    struct http_budget *budget; /* for bodies; borrowed until destroy. NULL: no limit */
    uint32_t max_requests;      /* per connection; the last answer closes it */
    uint32_t handshake_ms;      /* from the accept to the first byte of a request */
    uint32_t timeout_ms; /* from the first byte of a request to its last byte, and for an answer
                          * to be taken */
    uint32_t idle_ms;    /* between two requests */
    /* Lost peers: a ping after this silence, and the end after the time-out. Data that the peer
     * does not acknowledge for user_timeout_ms also ends the connection; 0: the kernel's time. */
    uint32_t keepalive_time_ms, keepalive_timeout_ms, user_timeout_ms;
    struct rpc_tls *tls;  /* for TCP; borrowed until destroy. NULL: plain text */
    enum rpc_share share; /* sharing of the address with a successor or predecessor */
    /* Optional: checks each request before its body is read, and answers OPTIONS. Returns true if
     * it has replied. */
    bool (*admit)(void *arg, struct http_exchange *exchange);
    /* Optional: writes the body of a refusal. out_headers as in http_refusal_fn. The path of the
     * exchange is NULL if the head was not read. NULL: plain text. */
    void (*refuse)(void *arg, const struct http_exchange *exchange, unsigned status,
                   const char *why, char *out_headers, struct http_reply *reply);
    /* Optional: counts; from any loop's thread. */
    void (*on_limit)(void *arg, enum http_limit limit);
    void *arg;
};

/* Sets the defaults: 1 thread, 64 connections, 32 per address, 16 KiB, no body, 1,000 requests,
 * 10 s for each time, keepalive after 60 s for 20 s. */
void http_server_config_init(struct http_server_config *config);

/* Listens and serves. ALREADY_EXISTS if the address is in use, with the process if known;
 * INVALID_ARGUMENT for an invalid address. *out_server is owned. */
int http_server_create(const struct http_server_config *config, struct http_server **out_server,
                       struct error *err);
/* Closes the address after the connections that already wait there. Requests that run are finished.
 * A request may be on its way when the drain begins. So an idle connection may send a last request
 * within a second. Any thread. */
void http_server_drain(struct http_server *server);
/* Closes every connection; running exchanges are gone. Exchanges may be kicked and released
 * afterwards, without effect. NULL is accepted. */
void http_server_destroy(struct http_server *server);

/* Returns the bound TCP port; 0 for a unix socket. */
uint16_t http_server_port(const struct http_server *server);
/* Returns the open connections. Any thread. */
uint32_t http_server_n_connections(const struct http_server *server);
/* Returns the answers that run. Any thread. */
uint32_t http_server_n_live(const struct http_server *server);
/* Return totals since the start: refusals and ends by a limit, and answers with a status. Any
 * thread. */
uint64_t http_server_n_limited(const struct http_server *server, enum http_limit limit);
uint64_t http_server_n_answers(const struct http_server *server, unsigned status);
