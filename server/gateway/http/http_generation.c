#include "server/gateway/http/http_generation.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "base/trace.h"
#include "proto/http/http_exchange.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/relay/relay.h"

static const char ping[] = ": ping\n\n";
/* Text of a few tokens. With more unsent text the sequence may be paused until the client has taken
 * the text. */
enum { SMALL_BYTES = 4 << 10 };

/* A prompt. The sink may live longer than the exchange's answer. */
struct part {
    struct relay_sink base;
    struct http_generation *group; /* retained */
    struct relay *relay;           /* retained */
    size_t i_prompt;
    bool is_over;
    struct error *error; /* owned; NULL: none */
};

struct http_generation {
    _Atomic uint32_t n_refs;
    struct http_exchange *http; /* retained */
    struct dispatch *dispatch;
    const struct http_generation_ops *ops;
    void *surface;
    bool streams;
    const struct error *failure; /* the error of the part that failed first; NULL: none */
    uint32_t ping_ms;
    char caller[CALLER_BYTES];
    struct trace_context trace;
    char headers[HTTP_GENERATION_HEADER_BYTES];
    size_t n_parts;
    struct part *parts[];
};

/* The place that relay_deliver_all writes to. */
struct writer {
    struct part *part;
    struct strbuf *text;
};

static void group_release(struct http_generation *group)
{
    if (atomic_fetch_sub(&group->n_refs, 1) != 1)
        return;
    group->ops->destroy(group->surface);
    http_exchange_release(group->http);
    free(group);
}

/* --- the sink of a prompt --- */

static void ready(struct relay_sink *sink)
{
    http_exchange_kick(((struct part *)sink)->group->http);
}

static void cut_off(struct relay_sink *sink, const struct error *status)
{
    (void)status;
    http_exchange_abort(((struct part *)sink)->group->http);
}

static void destroy_part(struct relay_sink *sink)
{
    struct part *part = (struct part *)sink;
    relay_release(part->relay);
    group_release(part->group);
    free(part->error);
    free(part);
}

static const struct relay_sink_ops sink_ops = {.name = "http",
                                               .ready = ready,
                                               .cut_off = cut_off,
                                               .taken_over = cut_off,
                                               .destroy = destroy_part};

static void put_frame(void *ctx, const struct relay_frame *frame)
{
    struct writer *w = ctx;
    struct part *part = w->part;
    const struct http_generation *group = part->group;
    if (frame->kind != RELAY_FRAME_NONE)
        group->ops->frame(group->surface, part->i_prompt, frame, group->streams ? w->text : NULL);
    if (!frame->last)
        return;
    part->is_over = true;
    if (!frame->error)
        return;
    part->error = malloc(sizeof(*part->error));
    if (part->error)
        *part->error = *frame->error;
    else
        w->text->failed = true;
}

/* --- prompts --- */

static int open_part(struct http_generation *group, size_t i_prompt,
                     const Sluice__V1__GenerateRequest *request, struct part **out_part,
                     struct error *err)
{
    struct part *part = calloc(1, sizeof(*part));
    const struct relay_params params = {.request = request,
                                        .caller = group->caller,
                                        .trace = &group->trace,
                                        .deadline_ns = INT64_MAX,
                                        .whole = !group->streams};
    if (!part)
        return error_no_memory(err);
    int rc = generation_open(group->dispatch, &params, &part->relay, err);
    if (rc) {
        free(part);
        return rc;
    }
    relay_sink_init(&part->base, &sink_ops);
    part->group = group;
    part->i_prompt = i_prompt;
    atomic_fetch_add(&group->n_refs, 1);
    *out_part = part;
    return 0;
}

static void start_part(struct part *part)
{
    relay_attach(part->relay, &part->base);
    generation_start(part->group->dispatch, part->relay);
}

static void close_part(struct part *part)
{
    int status = !part->is_over ? STATUS_CANCELLED : part->error ? part->error->status : STATUS_OK;
    dispatch_sink_gone(part->relay, &part->base, status);
    relay_sink_release(&part->base);
}

/* Ends the prompts that still run. */
static void cancel_all(struct http_generation *group, const char *why)
{
    struct error err;
    error_set(&err, STATUS_CANCELLED, "%s", why);
    for (size_t i = 0; i < group->n_parts; i++)
        if (!group->parts[i]->is_over)
            dispatch_cancel(group->parts[i]->relay, &err);
}

/* Lets the surface try a failed prompt again with another request. */
static void try_again(struct http_generation *group, size_t i)
{
    struct part *old = group->parts[i], *part;
    struct error err;
    if (!group->ops->again)
        return;
    const Sluice__V1__GenerateRequest *request =
        group->ops->again(group->surface, i, old->error, group->headers);
    if (!request || open_part(group, i, request, &part, &err) != 0)
        return;
    group->parts[i] = part;
    close_part(old);
    start_part(part);
}

/* --- the answer --- */

/* Only before the other parts are cancelled: their errors are not the request's. */
static const struct error *find_error(const struct http_generation *group)
{
    for (size_t i = 0; i < group->n_parts; i++)
        if (group->parts[i]->error)
            return group->parts[i]->error;
    return NULL;
}

static bool all_over(const struct http_generation *group)
{
    for (size_t i = 0; i < group->n_parts; i++)
        if (!group->parts[i]->is_over)
            return false;
    return true;
}

static void refuse(struct http_generation *group, const struct error *err, struct http_out *out)
{
    char headers[HTTP_GENERATION_HEADER_BYTES] = "";
    struct http_reply reply = {
        .status = 500, .content_type = "application/json", .headers = headers};
    group->ops->refuse(group->surface, err, headers, &reply);
    http_out_reply(out, &reply);
}

static void begin_stream(struct http_generation *group, struct http_out *out)
{
    char headers[HTTP_GENERATION_HEADER_BYTES + 64];
    if (http_out_has_begun(out))
        return;
    snprintf(headers, sizeof(headers), "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s",
             group->headers);
    http_out_begin(out, 200, "text/event-stream; charset=utf-8", headers);
}

/* Frames that put no byte leave nothing that the client could take. */
static void take_silent_frames(struct http_generation *group)
{
    for (size_t i = 0; i < group->n_parts; i++)
        relay_taken(group->parts[i]->relay, &group->parts[i]->base);
}

static void next_of_stream(struct http_generation *group, struct http_out *out, struct strbuf *text)
{
    const struct error *err = group->failure;
    bool ends = err || all_over(group);
    if (err && !http_out_has_begun(out) && !text->n_bytes) {
        refuse(group, err, out);
        return;
    }
    if (!ends && !text->n_bytes && http_out_is_silent(out))
        strbuf_add_str(text, ping);
    if (!ends && !text->n_bytes) {
        take_silent_frames(group);
        return;
    }
    begin_stream(group, out);
    if (err)
        group->ops->fail(group->surface, err, text);
    else if (ends)
        group->ops->end(group->surface, text);
    if (ends)
        http_out_finish(out);
    else if (text->n_bytes < SMALL_BYTES) /* after more text the relay may wait for `next` */
        http_out_rest(out);
}

static void next_of_whole(struct http_generation *group, struct http_out *out)
{
    const struct error *err = group->failure;
    struct http_reply reply = {
        .status = 200, .content_type = "application/json", .headers = group->headers};
    if (!all_over(group))
        return;
    if (err) {
        refuse(group, err, out);
        return;
    }
    group->ops->whole(group->surface, &reply);
    http_out_reply(out, &reply);
}

/* Hands every ready frame to the surface. */
static void deliver_all(struct http_generation *group, struct http_out *out, struct strbuf *text)
{
    for (size_t i = 0; i < group->n_parts; i++) {
        struct part *part = group->parts[i];
        struct writer writer = {part, text};
        if (!part->is_over)
            relay_deliver_all(part->relay, &part->base, put_frame, &writer);
        if (part->error && !group->failure && !text->n_bytes && !http_out_has_begun(out))
            try_again(group, i);
    }
    if (group->streams && group->ops->flush)
        group->ops->flush(group->surface, text);
}

static void next(void *arg, struct http_out *out)
{
    struct http_generation *group = arg;
    struct strbuf *text = http_out_text(out);
    deliver_all(group, out, text);
    if (!group->failure) {
        group->failure = find_error(group);
        if (group->failure)
            cancel_all(group, "another prompt of the request failed");
    }
    if (strbuf_failed(text))
        http_exchange_abort(group->http);
    else if (group->streams)
        next_of_stream(group, out, text);
    else
        next_of_whole(group, out);
}

static void on_gone(void *arg, struct http_exchange *http)
{
    (void)http;
    cancel_all(arg, "the client is gone");
}

static void on_done(void *arg, struct http_exchange *http)
{
    struct http_generation *group = arg;
    (void)http;
    for (size_t i = 0; i < group->n_parts; i++)
        close_part(group->parts[i]);
    group_release(group);
}

static const struct http_exchange_events events = {
    .next = next, .on_gone = on_gone, .on_done = on_done};

/* --- the begin --- */

static struct http_generation *make_group(struct http_exchange *http,
                                          const struct http_generation_config *config)
{
    const struct http_request *request = http_exchange_request(http);
    const char *parent = http_head_header(&request->head, "traceparent");
    struct http_generation *group =
        calloc(1, sizeof(*group) + config->n_prompts * sizeof(group->parts[0]));
    if (!group)
        return NULL;
    atomic_init(&group->n_refs, 1);
    group->http = http;
    group->dispatch = config->dispatch;
    group->ops = config->ops;
    group->streams = config->streams;
    group->ping_ms = config->ping_ms ? config->ping_ms : HTTP_GENERATION_PING_MS;
    snprintf(group->caller, sizeof(group->caller), "%s",
             request->caller[0] ? request->caller : "anonymous");
    snprintf(group->headers, sizeof(group->headers), "%s", config->headers ? config->headers : "");
    trace_accept(parent, parent ? strlen(parent) : 0, &group->trace);
    return group;
}

static void close_unstarted(struct http_generation *group, int status)
{
    for (size_t i = 0; i < group->n_parts; i++) {
        struct part *part = group->parts[i];
        dispatch_close(part->relay, status);
        relay_release(part->relay);
        free(part);
    }
    free(group);
}

int http_generation_begin(struct http_exchange *http, const struct http_generation_config *config,
                          struct error *err)
{
    struct http_generation *group = make_group(http, config);
    int rc = group ? 0 : error_no_memory(err);
    for (size_t i = 0; i < config->n_prompts && !rc; i++) {
        const Sluice__V1__GenerateRequest *request = config->prompt(config->surface, i);
        rc = request ? open_part(group, i, request, &group->parts[i], err) : error_no_memory(err);
        if (!rc)
            group->n_parts++;
    }
    if (rc) {
        if (group)
            close_unstarted(group, rc);
        return rc;
    }
    group->surface = config->surface;
    http_exchange_retain(http);
    http_exchange_set_events(http, &events, group);
    if (group->streams)
        http_exchange_wake_after(http, group->ping_ms);
    for (size_t i = 0; i < group->n_parts; i++)
        start_part(group->parts[i]);
    return 0;
}
