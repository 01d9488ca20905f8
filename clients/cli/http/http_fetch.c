#include "clients/cli/http/http_fetch.h"

#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/error.h"
#include "clients/cli/http/openai_error.h"

struct http_fetch {
    struct ev_loop *loop;
    ev_async stop;
    struct http_wire *wire;
    struct sse sse;
    struct strbuf whole; /* body of an answer that does not stream */
    bool streams, stopped;
    struct error result;
};

static bool is_stream(const struct http_response *response)
{
    return response->status == 200 && strcmp(response->content_type, "text/event-stream") == 0;
}

static int on_body(void *arg, const struct http_response *response, const char *bytes, size_t n,
                   struct error *err)
{
    struct http_fetch *fetch = arg;
    if (is_stream(response))
        return sse_feed(&fetch->sse, bytes, n, err);
    if (!strbuf_add(&fetch->whole, bytes, n))
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "the server's answer has over %d bytes",
                         HTTP_FETCH_BODY_BYTES);
    return 0;
}

static void on_end(void *arg, const struct http_response *response, const struct error *status)
{
    struct http_fetch *fetch = arg;
    const char *whole = strbuf_str(&fetch->whole);
    size_t n = fetch->whole.n_bytes;
    fetch->result = *status;
    if (!status->status && response->status != 200)
        openai_error_of_response(response->status, response->location, whole, n, &fetch->result);
    else if (!status->status && is_stream(response))
        (void)sse_end(&fetch->sse, &fetch->result);
    else if (!status->status)
        (void)fetch->sse.on_event(fetch->sse.ctx, "", whole, n, &fetch->result);
    ev_break(fetch->loop, EVBREAK_ALL);
}

static void on_stop(EV_P_ ev_async *watcher, int events)
{
    struct http_fetch *fetch = watcher->data;
    (void)loop;
    (void)events;
    fetch->stopped = true;
    if (fetch->wire)
        http_wire_cancel(fetch->wire);
}

static const struct http_wire_events wire_events = {.on_body = on_body, .on_end = on_end};

int http_fetch_create(const struct http_target *target, const struct http_wire_limits *limits,
                      struct http_fetch **out_fetch, struct error *err)
{
    struct http_fetch *fetch = calloc(1, sizeof(*fetch));
    if (!fetch)
        return error_no_memory(err);
    fetch->loop = ev_loop_new(EVFLAG_AUTO);
    int rc = fetch->loop ? http_wire_create(fetch->loop, target, limits, &wire_events, fetch,
                                            &fetch->wire, err)
                         : error_no_memory(err);
    if (rc) {
        http_fetch_destroy(fetch);
        return rc;
    }
    ev_async_init(&fetch->stop, on_stop);
    fetch->stop.data = fetch;
    ev_async_start(fetch->loop, &fetch->stop);
    strbuf_init(&fetch->whole, HTTP_FETCH_BODY_BYTES);
    *out_fetch = fetch;
    return 0;
}

void http_fetch_destroy(struct http_fetch *fetch)
{
    if (!fetch)
        return;
    http_wire_destroy(fetch->wire);
    if (fetch->loop)
        ev_loop_destroy(fetch->loop);
    strbuf_fini(&fetch->whole);
    free(fetch);
}

int http_fetch_run(struct http_fetch *fetch, const char *path, struct strbuf *body,
                   sse_event_fn *on_event, void *ctx, struct error *err)
{
    sse_init(&fetch->sse, on_event, ctx);
    strbuf_clear(&fetch->whole);
    fetch->result = (struct error){0};
    int rc = http_wire_send(fetch->wire, path, body, &fetch->result);
    if (!rc)
        ev_run(fetch->loop, 0);
    sse_fini(&fetch->sse);
    if (fetch->result.status)
        *err = fetch->result;
    return fetch->result.status;
}

void http_fetch_stop(struct http_fetch *fetch)
{
    ev_async_send(fetch->loop, &fetch->stop);
}
