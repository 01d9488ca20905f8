/* http_exchange.h: one request and its answer, as a handler sees them. The handler runs on the
 * loop's thread when the request is complete, and must not block. The handler
 * answers at once with http_exchange_reply(), or sets events and lets `next` answer later.
 *
 * An exchange is reference counted. Any thread may retain, release, kick and abort it. Every other
 * function and callback belongs to the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"
#include "proto/http/http_head.h"

struct http_exchange;
struct http_out;
struct http_route;

enum { HTTP_MAX_SEGMENTS = 4, HTTP_PEER_BYTES = 64, HTTP_CALLER_BYTES = 129 };

/* The request; valid until the handler returns. */
struct http_request {
    struct http_head head;
    const char *body; /* NUL after n_body bytes */
    size_t n_body;
    /* The parts of the path that the route's "{}" stand for; NUL-terminated, without escapes. */
    const char *segments[HTTP_MAX_SEGMENTS];
    char peer[HTTP_PEER_BYTES]; /* "127.0.0.1:51234", "[::1]:51234" or "unix" */
    bool is_tls;
    char caller[HTTP_CALLER_BYTES]; /* from http_exchange_set_caller; empty at first */
};

/* A whole answer. A body that failed to grow becomes status 500. */
struct http_reply {
    unsigned status;
    const char *content_type; /* borrowed for the call */
    struct strbuf body;
    const char *headers; /* further lines, each with its CRLF; NULL: none. Borrowed */
};

struct http_exchange_events {
    /* The client has taken everything: put more (http_out_put), the end (http_out_finish), or
     * nothing. Put all that is ready at once: a slow reader then gets bigger parts, and no longer
     * queue. Runs after http_exchange_kick(), and after the client took the last part. */
    void (*next)(void *arg, struct http_out *out);
    /* The client has left, or the answer was cut off. At most once, before on_done. */
    void (*on_gone)(void *arg, struct http_exchange *exchange);
    /* The exchange is over. Exactly once, as the last callback. */
    void (*on_done)(void *arg, struct http_exchange *exchange);
};

const struct http_request *http_exchange_request(const struct http_exchange *exchange);
/* In a hook or the handler: the route of path and method, else a route of the path; NULL: none. */
const struct http_route *http_exchange_route(const struct http_exchange *exchange);

/* In the handler: the answer comes from `next`. `events` is borrowed until on_done. */
void http_exchange_set_events(struct http_exchange *exchange,
                              const struct http_exchange_events *events, void *arg);
/* In the handler or the admit hook: adds a line "Name: value" to the head of the answer. */
void http_exchange_add_header(struct http_exchange *exchange, const char *line);
/* In the admit hook: keeps the caller's identity for the handler. */
void http_exchange_set_caller(struct http_exchange *exchange, const char *caller);
/* In the admit hook or the handler: copies the name in the client's verified certificate. The first
 * URI counts, else the first DNS name, else the common name. NOT_FOUND without a certificate;
 * INVALID_ARGUMENT if the name is longer than n_out - 1, or not printable ASCII without spaces. */
int http_exchange_certificate_name(const struct http_exchange *exchange, char *out_name,
                                   size_t n_out);
/* In the handler: the whole answer. Takes the reply's body. */
void http_exchange_reply(struct http_exchange *exchange, struct http_reply *reply);

void http_exchange_retain(struct http_exchange *exchange);
void http_exchange_release(struct http_exchange *exchange); /* NULL is accepted */
/* Calls `next` soon, unless a part is on its way. */
void http_exchange_kick(struct http_exchange *exchange);
/* In the handler: also calls `next` whenever the client got nothing for this long. The time is
 * precise to a quarter of a second. Comments keep a connection alive in this way. */
void http_exchange_wake_after(struct http_exchange *exchange, uint32_t ms);
/* Cuts the answer off: the client sees a broken answer. on_gone and on_done follow. */
void http_exchange_abort(struct http_exchange *exchange);
/* In `next` only. A stream begins with http_out_begin(), which sends status and headers. Each put
 * is a part of the body. http_out_reply() answers with a whole reply in place of a stream. */
void http_out_begin(struct http_out *out, unsigned status, const char *content_type,
                    const char *headers);
void http_out_put(struct http_out *out, const void *bytes, size_t n_bytes);
/* Returns the buffer of the part, to append to it in place of http_out_put. */
struct strbuf *http_out_text(struct http_out *out);
/* Everything that is ready was put. So `next` need not run as soon as the client took the part. A
 * kick runs `next`, or the next quarter of a second does. */
void http_out_rest(struct http_out *out);
void http_out_finish(struct http_out *out);
void http_out_reply(struct http_out *out, struct http_reply *reply);
/* True if `next` runs because the client got nothing for the time of http_exchange_wake_after. */
bool http_out_is_silent(const struct http_out *out);
/* True if http_out_begin() was called, in this or an earlier `next`. */
bool http_out_has_begun(const struct http_out *out);
