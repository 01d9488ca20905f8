/* http_server.h: a small HTTP/1.1 server: GET and HEAD on a table of paths, over TCP or a unix
 * socket. libmicrohttpd parses the requests. A libev loop drives the server: on a thread of its
 * own, or the caller's loop.
 *
 * Everything that a client can hold is limited: connections (in all and per address), header
 * bytes and time. Within timeout_ms a request must be complete and answered, and the answer
 * taken. An idle connection is closed after the same time. A request with a body, an invalid
 * header or ambiguous framing gets 400. Its connection is closed, so no second request can hide
 * in it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "proto/rpc/guard/share.h"

struct error;
struct ev_loop;
struct http_server;

/* A handler's answer. Before the call: status 200 and an empty text/plain body. A body that
 * failed to grow becomes status 500. */
struct http_reply {
    unsigned status;
    const char *content_type; /* borrowed for the call */
    struct strbuf body;
};

/* Runs on the loop's thread and must not block. */
typedef void http_handler_fn(void *arg, struct http_reply *reply);

struct http_route {
    const char *path; /* compared as a whole; the query is ignored */
    http_handler_fn *handle;
    void *arg;
};

struct http_server_config {
    const char *listen;              /* "127.0.0.1:8002", "[::1]:0" or "unix:PATH" (mode 0600) */
    const struct http_route *routes; /* borrowed until destroy */
    size_t n_routes;
    struct ev_loop *loop; /* NULL: the server has a loop and a thread of its own. Otherwise create
                           * and destroy run on the loop's thread */
    uint32_t max_connections, max_connections_per_ip;
    size_t max_header_bytes; /* request line, headers, and memory for the answer */
    uint32_t timeout_ms;
    enum rpc_share share; /* sharing of the address with a successor or predecessor */
};

/* Sets the defaults: 64 connections, 32 per address, 16 KiB, 10 s. */
void http_server_config_init(struct http_server_config *config);

/* Listens and serves. ALREADY_EXISTS if the address is in use, with the process if known;
 * INVALID_ARGUMENT for an invalid address. *out_server is owned. */
int http_server_create(const struct http_server_config *config, struct http_server **out_server,
                       struct error *err);
/* Closes every connection. NULL is accepted. */
void http_server_destroy(struct http_server *server);

/* Returns the bound TCP port; 0 for a unix socket. */
uint16_t http_server_port(const struct http_server *server);
