/* http_fetch.h: one HTTP request of a command, on the calling thread. Each event of an answer that
 * streams is handed on; an answer that does not stream is one event. Single-threaded, except
 * http_fetch_stop. */
#pragma once

#include <stdint.h>

#include "clients/cli/http/http_wire.h"
#include "clients/cli/http/sse.h"

enum { HTTP_FETCH_BODY_BYTES = 16 << 20 };

struct http_fetch;

int http_fetch_create(const struct http_target *target, const struct http_wire_limits *limits,
                      struct http_fetch **out_fetch, struct error *err);
void http_fetch_destroy(struct http_fetch *fetch); /* NULL is accepted */

/* Sends the request (see http_wire_send), and returns at its end. Errors: those of on_event, of the
 * connection, and of a status other than 200 (openai_error.h). CANCELLED after http_fetch_stop. */
int http_fetch_run(struct http_fetch *fetch, const char *path, struct strbuf *body,
                   sse_event_fn *on_event, void *ctx, struct error *err);
/* Ends a running request, or the next one. Any thread. */
void http_fetch_stop(struct http_fetch *fetch);
