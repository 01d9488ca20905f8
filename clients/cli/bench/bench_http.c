#include "clients/cli/bench/bench_http.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "clients/cli/bench/bench_load.h"
#include "clients/cli/bench/bench_transport.h"
#include "clients/cli/http/http_wire.h"
#include "clients/cli/http/openai_error.h"
#include "clients/cli/http/openai_reply.h"
#include "clients/cli/http/sse.h"

enum { CONNECT_MS = 10000, IDLE_MS = 600000, MAX_ERROR_BYTES = 64 << 10 };

/* A connection, with its request. On the loop's thread only. */
struct place {
    struct bench_http *owner;
    struct place *next; /* in the list of places without a request */
    struct http_wire *wire;
    struct call *call; /* NULL: without a request */
    bool was_used;
};

/* A request. The loop's thread uses a call from its start until its end is reported. */
struct call {
    struct call *next; /* in the queue of requests to start */
    struct bench_slot *slot;
    struct strbuf body;
    const char *path;
    bool cancelled; /* under the lock */
    struct sse sse;
    struct strbuf refusal; /* body of a response that is no stream */
    struct openai_reply reply;
    uint64_t n_counted; /* tokens reported to the load */
    uint64_t n_usage;   /* the server's count at the end */
    uint64_t n_prompt, n_cached;
    bool has_usage, counts_exactly, has_finish, is_length;
};

struct bench_http {
    struct bench_transport base;
    const struct bench_http_config *config;
    struct http_wire_limits limits;
    struct ev_loop *loop;
    ev_async wake;
    pthread_t thread;
    bool has_thread;
    struct place *places; /* owned; [n_clients] */
    struct place *idle;
    pthread_mutex_t lock; /* guards the fields below, and cancelled of the calls */
    struct call *queue, **last;
    bool stops, cancels;
    uint32_t n_connections;
};

/* --- the request; on the load's thread --- */

static void add_text(struct strbuf *out, const char *name, const char *value)
{
    strbuf_printf(out, "\"%s\":", name);
    json_write_text(out, value, strlen(value));
}

static void add_prompt(const struct bench_load_config *c, const struct bench_prompt *prompt,
                       struct strbuf *out)
{
    strbuf_add_char(out, ',');
    if (!prompt->text) {
        strbuf_add_str(out, "\"prompt\":[");
        for (uint32_t i = 0; i < prompt->n_ids; i++)
            strbuf_printf(out, i ? ",%" PRIu32 : "%" PRIu32, prompt->ids[i]);
        strbuf_add_char(out, ']');
    } else if (c->chat) {
        strbuf_add_str(out, "\"messages\":[{\"role\":\"user\",");
        add_text(out, "content", prompt->text);
        strbuf_add_str(out, "}]");
    } else {
        add_text(out, "prompt", prompt->text);
    }
}

static void write_body(const struct bench_http *t, const struct bench_request *request,
                       struct strbuf *out)
{
    const struct bench_load_config *c = t->config->load;
    strbuf_add_char(out, '{');
    add_text(out, "model", c->model);
    add_prompt(c, &request->prompt, out);
    strbuf_printf(out,
                  ",\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                  "\"continuous_usage_stats\":true},\"max_tokens\":%" PRIu32
                  ",\"temperature\":%.9g,\"seed\":%" PRIu64,
                  request->prompt.max_tokens, c->temperature, request->seed);
    if (c->ignore_eos)
        strbuf_add_str(out, ",\"ignore_eos\":true");
    if (c->has_priority)
        strbuf_printf(out, ",\"priority\":%" PRId32, c->priority);
    if (t->config->is_llama_cpp) {
        strbuf_add_str(out, ",\"timings_per_token\":true");
        if (c->cache_salt[0])
            strbuf_add_str(out, ",\"cache_prompt\":false");
    } else if (c->cache_salt[0]) {
        strbuf_add_char(out, ',');
        add_text(out, "cache_salt", c->cache_salt);
    }
    strbuf_add_char(out, '}');
}

/* --- answers; on the loop's thread --- */

/* Counts the tokens of a chunk. A usage that comes with the finish reason alone is the total, which
 * finish() takes. */
static void count_tokens(struct call *call)
{
    const struct openai_reply *reply = &call->reply;
    bool has_text = reply->text.n_bytes || reply->reasoning.n_bytes;
    bool has_count = reply->has_usage && (call->counts_exactly || !reply->finish[0]);
    uint64_t n_total = call->n_counted + has_text;
    if (has_count || reply->has_predicted) {
        n_total = has_count ? reply->n_generated : reply->n_predicted;
        call->counts_exactly = true;
    }
    if (n_total <= call->n_counted)
        return;
    bench_slot_tokens(call->slot, n_total - call->n_counted);
    call->n_counted = n_total;
}

static int on_event(void *ctx, const char *name, const char *json, size_t n_bytes,
                    struct error *err)
{
    struct call *call = ctx;
    struct openai_reply *reply = &call->reply;
    (void)name;
    if (n_bytes >= 6 && memcmp(json, "[DONE]", 6) == 0)
        return 0;
    int rc = openai_reply_read(reply, json, n_bytes, err);
    if (rc)
        return rc;
    if (reply->has_choice)
        count_tokens(call);
    if (reply->finish[0]) {
        call->has_finish = true;
        call->is_length = strcmp(reply->finish, "length") == 0;
    }
    if (reply->has_usage) {
        call->has_usage = true;
        call->n_usage = reply->n_generated;
        call->n_prompt = reply->n_prompt;
        call->n_cached = reply->n_cached;
    }
    return 0;
}

static bool is_stream(const struct http_response *response)
{
    return response->status == 200 && strcmp(response->content_type, "text/event-stream") == 0;
}

static int on_body(void *arg, const struct http_response *response, const char *bytes, size_t n,
                   struct error *err)
{
    struct call *call = ((struct place *)arg)->call;
    if (is_stream(response))
        return sse_feed(&call->sse, bytes, n, err);
    if (response->status == 200)
        return error_set(err, STATUS_UNIMPLEMENTED, "the server does not stream its answers");
    (void)strbuf_add(&call->refusal, bytes, n); /* the begin of a long text is enough */
    return 0;
}

/* Compares the server's count with the chunks, and counts tokens that came without a chunk. */
static void finish(struct call *call, struct error *err)
{
    struct bench_finish end = {.n_tokens = call->has_usage ? call->n_usage : call->n_counted,
                               .is_length = call->is_length,
                               .hides_one = call->has_finish && !call->is_length};
    if (!call->has_finish && !call->has_usage) {
        error_set(err, STATUS_DATA_LOSS, "the server's stream ended within the answer");
        return;
    }
    if (call->has_usage)
        bench_slot_prompt(call->slot, (uint32_t)call->n_prompt, (uint32_t)call->n_cached);
    if (!call->counts_exactly && end.n_tokens > call->n_counted)
        bench_slot_late_tokens(call->slot, end.n_tokens - call->n_counted);
    bench_slot_finished(call->slot, &end);
}

static void on_end(void *arg, const struct http_response *response, const struct error *status)
{
    struct place *place = arg;
    struct bench_http *t = place->owner;
    struct call *call = place->call;
    struct error err = *status;
    if (!err.status && response->status != 200)
        openai_error_of_response(response->status, response->location, strbuf_str(&call->refusal),
                                 call->refusal.n_bytes, &err);
    else if (!err.status && sse_end(&call->sse, &err) == 0)
        finish(call, &err);
    place->call = NULL;
    place->next = t->idle;
    t->idle = place;
    bench_slot_end(call->slot, &err); /* the load may free the call now */
}

static const struct http_wire_events wire_events = {.on_body = on_body, .on_end = on_end};

/* --- the loop's thread --- */

/* Returns a place without a request: an open connection if there is one. */
static struct place *take_place(struct bench_http *t)
{
    struct place **at = &t->idle, **best = &t->idle;
    for (; *at; at = &(*at)->next)
        if (http_wire_is_open((*at)->wire)) {
            best = at;
            break;
        }
    struct place *place = *best;
    if (place)
        *best = place->next;
    return place;
}

static void begin_call(struct bench_http *t, struct call *call)
{
    struct place *place = take_place(t);
    struct error err;
    if (!place) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "no connection is free");
        bench_slot_end(call->slot, &err);
        return;
    }
    if (!place->was_used) {
        pthread_mutex_lock(&t->lock);
        t->n_connections++;
        pthread_mutex_unlock(&t->lock);
    }
    place->was_used = true;
    place->call = call;
    if (http_wire_send(place->wire, call->path, &call->body, &err) == 0)
        return;
    place->call = NULL;
    place->next = t->idle;
    t->idle = place;
    bench_slot_end(call->slot, &err);
}

/* Ends the running calls that are cancelled. */
static void cancel_calls(struct bench_http *t)
{
    for (uint32_t i = 0; i < t->config->load->n_clients; i++) {
        struct place *place = &t->places[i];
        pthread_mutex_lock(&t->lock);
        bool cancelled = place->call && place->call->cancelled;
        pthread_mutex_unlock(&t->lock);
        if (cancelled)
            http_wire_cancel(place->wire);
    }
}

static void on_wake(EV_P_ ev_async *watcher, int events)
{
    struct bench_http *t = watcher->data;
    (void)events;
    pthread_mutex_lock(&t->lock);
    struct call *queue = t->queue;
    bool stops = t->stops, cancels = t->cancels;
    t->queue = NULL;
    t->last = &t->queue;
    t->cancels = false;
    pthread_mutex_unlock(&t->lock);
    while (queue) {
        struct call *call = queue;
        queue = call->next;
        begin_call(t, call);
    }
    if (cancels)
        cancel_calls(t);
    if (stops)
        ev_break(EV_A, EVBREAK_ALL);
}

static void *run_loop(void *arg)
{
    struct bench_http *t = arg;
    ev_run(t->loop, 0);
    return NULL;
}

/* --- the transport; on the load's thread --- */

static int prepare(struct bench_transport *transport, uint32_t n_requests, struct error *err)
{
    (void)transport;
    (void)n_requests;
    (void)err;
    return 0; /* each request of the warm-up opens a connection, which later requests use */
}

static int connect_next(struct bench_transport *transport, void **out_connection, struct error *err)
{
    (void)transport;
    (void)err;
    *out_connection = NULL;
    return 0;
}

static void free_call(struct call *call)
{
    strbuf_fini(&call->body);
    strbuf_fini(&call->refusal);
    sse_fini(&call->sse);
    openai_reply_fini(&call->reply);
    free(call);
}

static int start(struct bench_transport *transport, void *connection,
                 const struct bench_request *request, struct bench_slot *slot, void **out_call,
                 struct error *err)
{
    struct bench_http *t = (struct bench_http *)transport;
    struct call *call = calloc(1, sizeof(*call));
    (void)connection;
    if (!call)
        return error_no_memory(err);
    call->slot = slot;
    call->path =
        request->prompt.text && t->config->load->chat ? "/chat/completions" : "/completions";
    strbuf_init(&call->refusal, MAX_ERROR_BYTES);
    sse_init(&call->sse, on_event, call);
    write_body(t, request, &call->body);
    if (strbuf_failed(&call->body)) {
        free_call(call);
        return error_no_memory(err);
    }
    *out_call = call;
    pthread_mutex_lock(&t->lock);
    *t->last = call;
    t->last = &call->next;
    pthread_mutex_unlock(&t->lock);
    ev_async_send(t->loop, &t->wake);
    return 0;
}

static void cancel(struct bench_transport *transport, void *call)
{
    struct bench_http *t = (struct bench_http *)transport;
    pthread_mutex_lock(&t->lock);
    ((struct call *)call)->cancelled = true;
    t->cancels = true;
    pthread_mutex_unlock(&t->lock);
    ev_async_send(t->loop, &t->wake);
}

static void release(struct bench_transport *transport, void *call)
{
    (void)transport;
    free_call(call);
}

static uint32_t n_connections(const struct bench_transport *transport)
{
    struct bench_http *t = (struct bench_http *)(uintptr_t)transport;
    pthread_mutex_lock(&t->lock);
    uint32_t n = t->n_connections;
    pthread_mutex_unlock(&t->lock);
    return n;
}

static void destroy(struct bench_transport *transport)
{
    struct bench_http *t = (struct bench_http *)transport;
    if (t->has_thread) {
        pthread_mutex_lock(&t->lock);
        t->stops = true;
        pthread_mutex_unlock(&t->lock);
        ev_async_send(t->loop, &t->wake);
        pthread_join(t->thread, NULL);
    }
    for (uint32_t i = 0; t->places && i < t->config->load->n_clients; i++)
        http_wire_destroy(t->places[i].wire);
    if (t->loop)
        ev_loop_destroy(t->loop);
    pthread_mutex_destroy(&t->lock);
    free(t->places);
    free(t);
}

static const struct bench_transport_ops ops = {.name = "http",
                                               .prepare = prepare,
                                               .connect = connect_next,
                                               .start = start,
                                               .cancel = cancel,
                                               .release = release,
                                               .n_connections = n_connections,
                                               .destroy = destroy};

static int make_places(struct bench_http *t, struct error *err)
{
    uint32_t n = t->config->load->n_clients;
    int rc = 0;
    t->places = calloc(n, sizeof(*t->places));
    if (!t->places)
        return error_no_memory(err);
    for (uint32_t i = n; !rc && i-- > 0;) {
        struct place *place = &t->places[i];
        place->owner = t;
        place->next = t->idle;
        t->idle = place;
        rc = http_wire_create(t->loop, t->config->target, &t->limits, &wire_events, place,
                              &place->wire, err);
    }
    return rc;
}

int bench_http_create(const struct bench_http_config *config,
                      struct bench_transport **out_transport, struct error *err)
{
    struct bench_http *t = calloc(1, sizeof(*t));
    if (!t)
        return error_no_memory(err);
    t->base.ops = &ops;
    t->config = config;
    t->limits = (struct http_wire_limits){CONNECT_MS, IDLE_MS, config->load->timeout_ms};
    t->last = &t->queue;
    pthread_mutex_init(&t->lock, NULL);
    t->loop = ev_loop_new(EVFLAG_AUTO);
    int rc = t->loop ? make_places(t, err) : error_no_memory(err);
    if (!rc) {
        ev_async_init(&t->wake, on_wake);
        t->wake.data = t;
        ev_async_start(t->loop, &t->wake);
        t->has_thread = pthread_create(&t->thread, NULL, run_loop, t) == 0;
        if (!t->has_thread)
            rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start a thread");
    }
    if (rc)
        destroy(&t->base);
    else
        *out_transport = &t->base;
    return rc;
}
