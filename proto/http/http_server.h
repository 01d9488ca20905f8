/* http_server.h: a small HTTP/1.1 server: GET and HEAD on a table of paths, over TCP or a unix
 * socket. libmicrohttpd parses, one libev loop drives it: a thread of its own, or the caller's
 * loop.
 *
 * Everything a client can hold is bounded: connections (in all and per address), header bytes, time
 * (a request must be whole, answered and the answer taken within timeout_ms; an idle connection is
 * closed after the same time). A request with a body, an unsound header or an unsound framing is
 * answered 400 and its connection closed, so nothing can hide behind it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "proto/rpc/guard/share.h"

struct error;
struct ev_loop;
struct http_server;

/* What a handler answers; status 200 and an empty text/plain body before it is called. A body that
 * failed to grow becomes 500. */
struct http_reply {
    unsigned status;
    const char *content_type; /* borrowed for the call */
    struct strbuf body;
};

/* On the loop's thread: must not block. */
typedef void http_handler_fn(void *arg, struct http_reply *reply);

struct http_route {
    const char *path; /* compared whole; the query is not looked at */
    http_handler_fn *handle;
    void *arg;
};

struct http_server_config {
    const char *listen;              /* "127.0.0.1:8002", "[::1]:0" or "unix:PATH" (mode 0600) */
    const struct http_route *routes; /* borrowed until destroy */
    size_t n_routes;
    struct ev_loop *loop; /* NULL: a thread of its own; else create and destroy on its thread */
    uint32_t max_connections, max_connections_per_ip;
    size_t max_header_bytes; /* request line and headers, and what is kept to answer them */
    uint32_t timeout_ms;
    enum rpc_share share; /* of the address, with a process that comes after or before this one */
};

/* 64 connections, 32 per address, 16 KiB, 10 s. */
void http_server_config_init(struct http_server_config *config);

/* Listens and serves. ALREADY_EXISTS, with the process that holds the address where that can be
 * told; INVALID_ARGUMENT where it is none. *out_server is owned. */
int http_server_create(const struct http_server_config *config, struct http_server **out_server,
                       struct error *err);
/* Closes every connection. NULL is accepted. */
void http_server_destroy(struct http_server *server);

/* The TCP port that was bound; 0 for a unix socket. */
uint16_t http_server_port(const struct http_server *server);
