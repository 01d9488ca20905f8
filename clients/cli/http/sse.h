/* sse.h: reads a stream of server-sent events (WHATWG HTML, section 9.2.6). The caller feeds bytes
 * as they come, cut anywhere. Lines end with LF, CR or CRLF. Comments are dropped, and the data
 * lines of an event are joined with LF. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"

struct error;

enum { SSE_LINE_BYTES = 4 << 20, SSE_EVENT_BYTES = 4 << 20, SSE_NAME_BYTES = 64 };

/* Takes an event. `name` is empty unless the event has one. `data` is terminated, and may have NUL
 * bytes inside. An error ends sse_feed(). */
typedef int sse_event_fn(void *ctx, const char *name, const char *data, size_t n_bytes,
                         struct error *err);

struct sse {
    sse_event_fn *on_event;
    void *ctx;
    struct strbuf line, data; /* owned */
    char name[SSE_NAME_BYTES];
    bool has_data, after_cr, has_line; /* has_line: the first line has ended */
};

void sse_init(struct sse *sse, sse_event_fn *on_event, void *ctx);
void sse_fini(struct sse *sse);

/* RESOURCE_EXHAUSTED for a line or an event above its limit; else the error of on_event. */
int sse_feed(struct sse *sse, const char *bytes, size_t n_bytes, struct error *err);

/* The stream has ended. An event without its empty line still counts: some servers leave out the
 * last line. */
int sse_end(struct sse *sse, struct error *err);
