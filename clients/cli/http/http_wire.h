/* http_wire.h: a connection to a server, as its HTTP client. A connection carries one request at a
 * time, and connects when the first one is sent. All functions and callbacks run on the thread of
 * the caller's event loop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "clients/cli/http/http_response.h"

struct error;
struct ev_loop;
struct http_target;
struct http_wire;

struct http_wire_limits {
    uint32_t connect_ms; /* for the connection and TLS */
    uint32_t idle_ms;    /* without any byte of the response; 0: no limit */
    uint64_t total_ms;   /* from http_wire_send() to the response's end; 0: no limit */
};

struct http_wire_events {
    /* Takes a part of the body. `response` has the status and the content type. An error ends the
     * request. */
    int (*on_body)(void *arg, const struct http_response *response, const char *bytes, size_t n,
                   struct error *err);
    /* The request is over, exactly once. status->status 0: the response is complete; it has its own
     * status. The callback may send the next request, or destroy the connection. */
    void (*on_end)(void *arg, const struct http_response *response, const struct error *status);
};

/* `target` and `events` are borrowed until destroy. *out_wire is owned. */
int http_wire_create(struct ev_loop *loop, const struct http_target *target,
                     const struct http_wire_limits *limits, const struct http_wire_events *events,
                     void *arg, struct http_wire **out_wire, struct error *err);
/* Ends a running request without a callback. NULL is accepted. */
void http_wire_destroy(struct http_wire *wire);

/* Sends a request: a POST with a JSON body, or a GET without one (NULL). `path` is appended to the
 * URL's base. Takes the content of `body`. A connection that the server closed while it was unused
 * is replaced once. Failures come with on_end, after this call. */
int http_wire_send(struct http_wire *wire, const char *path, struct strbuf *body,
                   struct error *err);
/* Ends a running request; on_end follows with CANCELLED before this call returns. */
void http_wire_cancel(struct http_wire *wire);
/* True if the next request can use the connection as it is. */
bool http_wire_is_open(const struct http_wire *wire);
