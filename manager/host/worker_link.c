#include "manager/host/worker_link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include <ev.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/base/loop_queue.h"
#include "manager/base/message.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"

enum {
    PROTOCOL = 1,
    INTERVAL_BUSY_MS = 50,    /* while loading: progress is to be seen */
    SHUTDOWN_EXTRA_MS = 5000, /* beyond the grace, for the answer */
    WAKE_MS = 5000,
    KEEP_MS = 600000, /* to copy what a GPU has, by a slow bus */
};
static const double socket_poll_s = 0.01; /* until the worker has bound its socket */
static const double retry_s = 0.1;
static const char mismatch[] = "PROTOCOL_MISMATCH"; /* as the worker names it */

struct worker_link {
    atomic_uint n_refs; /* the owner's, the stream's, one per shutdown call and posted task */
    struct ev_loop *loop;
    struct loop_queue *queue;
    const struct worker_link_events *events;
    void *arg;
    char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct rpc_client *client;
    struct rpc_stream *stream;
    ev_timer timer;
    uint32_t interval_ms, calm_ms;
    bool closed;
};

/* Something that happened on the client's thread, on its way to the loop. */
struct news {
    struct worker_link *link;
    struct rpc_stream *stream; /* which one; compared, never followed */
    ProtobufCMessage *message;
    struct error err;
};

static void link_release(struct worker_link *link)
{
    if (atomic_fetch_sub_explicit(&link->n_refs, 1, memory_order_acq_rel) == 1)
        free(link);
}

static void link_retain(struct worker_link *link)
{
    atomic_fetch_add_explicit(&link->n_refs, 1, memory_order_relaxed);
}

/* Takes a link_retain back where the caller holds a reference of its own: it is never the last. */
static void link_unretain(struct worker_link *link)
{
    atomic_fetch_sub_explicit(&link->n_refs, 1, memory_order_relaxed);
}

static void post(struct worker_link *link, struct rpc_stream *stream, loop_fn *fn,
                 const ProtobufCMessage *message, const struct error *err)
{
    struct news *news = calloc(1, sizeof(*news));
    if (!news)
        return; /* the next status replaces this one; a lost end shows when the process ends */
    news->link = link;
    news->stream = stream;
    news->message = message_copy(message);
    if (err)
        news->err = *err;
    link_retain(link);
    if (loop_queue_post(link->queue, fn, news) != 0) {
        message_free(news->message);
        free(news);
        link_unretain(link);
    }
}

static void news_free(struct news *news)
{
    message_free(news->message);
    link_release(news->link);
    free(news);
}

static int open_stream(struct worker_link *link);

static void try_again_in(struct worker_link *link, ev_tstamp seconds)
{
    ev_timer_stop(link->loop, &link->timer);
    ev_timer_set(&link->timer, seconds, 0.);
    ev_timer_start(link->loop, &link->timer);
}

static void refuse(struct worker_link *link, const struct error *why)
{
    rpc_stream_release(link->stream);
    link->stream = NULL;
    link->events->on_refused(link->arg, why);
}

/* The worker is to refuse a request of another version; this is for one that does not look. */
static bool is_ours(const pb_status *status, struct error *err)
{
    if (!status->protocol_max ||
        (status->protocol_min <= PROTOCOL && status->protocol_max >= PROTOCOL))
        return true;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "no common protocol version: the worker speaks %u to %u, this manager %d",
              status->protocol_min, status->protocol_max, PROTOCOL);
    (void)error_reason(err, mismatch);
    return false;
}

static void deliver_status(void *arg)
{
    struct news *news = arg;
    struct worker_link *link = news->link;
    const pb_status *status = (const pb_status *)news->message;
    struct error err;
    bool current = !link->closed && status && news->stream == link->stream;
    if (current && !is_ours(status, &err)) {
        refuse(link, &err);
    } else if (current) {
        bool calm = (int)status->state == WORKER_READY && link->interval_ms != link->calm_ms;
        link->events->on_status(link->arg, status);
        if (calm && !link->closed) {
            link->interval_ms = link->calm_ms;
            if (open_stream(link) != 0)
                try_again_in(link, retry_s);
        }
    }
    news_free(news);
}

static void deliver_end(void *arg)
{
    struct news *news = arg;
    struct worker_link *link = news->link;
    if (!link->closed && news->stream == link->stream) {
        log_debug(LOG_EVENT("worker link lost"), LOG_STR("socket", link->socket_path),
                  LOG_STR("why", news->err.message));
        if (strcmp(news->err.reason, mismatch) == 0) {
            refuse(link, &news->err);
        } else {
            rpc_stream_release(link->stream);
            link->stream = NULL;
            try_again_in(link, retry_s);
        }
    }
    news_free(news);
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    post(arg, stream, deliver_status, message, NULL);
}

static void on_end(void *arg, struct rpc_stream *stream, const struct error *status)
{
    post(arg, stream, deliver_end, NULL, status);
    link_release(arg);
}

static const struct rpc_stream_events stream_events = {
    .on_message = on_message,
    .on_status = on_end,
};

/* Starts the status stream, in place of the one there was. */
static int open_stream(struct worker_link *link)
{
    Sluice__Worker__V1__WatchStatusRequest request = SLUICE__WORKER__V1__WATCH_STATUS_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    struct error err;
    request.interval_ms = link->interval_ms;
    request.protocol_min = request.protocol_max = PROTOCOL;
    rpc_stream_release(link->stream);
    link->stream = NULL;
    link_retain(link);
    rpc_client_connect_now(link->client);
    int rc = rpc_stream_open(link->client, &sluice__worker__v1__worker__descriptor, "WatchStatus",
                             &request.base, NULL, &stream_events, link, &stream, &err);
    if (rc != 0)
        link_unretain(link);
    link->stream = stream;
    return rc;
}

static int connect_client(struct worker_link *link)
{
    char target[160];
    struct rpc_client_config config;
    struct error err;
    if (link->client)
        return 0;
    snprintf(target, sizeof(target), "unix:%s", link->socket_path);
    rpc_client_config_init(&config);
    config.target = target;
    return rpc_client_create(&config, &link->client, &err);
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct worker_link *link = timer->data;
    (void)loop;
    (void)events;
    /* gRPC waits long after a failed attempt, so none is made before there is a socket. */
    bool there = access(link->socket_path, F_OK) == 0;
    if (there && connect_client(link) == 0 && open_stream(link) == 0)
        return;
    try_again_in(link, there ? retry_s : socket_poll_s);
}

int worker_link_open(struct ev_loop *loop, struct loop_queue *queue, const char *socket_path,
                     uint32_t interval_ms, const struct worker_link_events *events, void *arg,
                     struct worker_link **out_link, struct error *err)
{
    struct worker_link *link = calloc(1, sizeof(*link));
    if (!link)
        return error_no_memory(err);
    if (strlen(socket_path) >= sizeof(link->socket_path)) {
        free(link);
        return error_set(err, STATUS_INVALID_ARGUMENT, "socket path of %zu bytes; %zu is the limit",
                         strlen(socket_path), sizeof(link->socket_path) - 1);
    }
    atomic_init(&link->n_refs, 1);
    link->loop = loop;
    link->queue = queue;
    link->events = events;
    link->arg = arg;
    link->interval_ms = INTERVAL_BUSY_MS;
    link->calm_ms = interval_ms;
    memcpy(link->socket_path, socket_path, strlen(socket_path) + 1);
    ev_timer_init(&link->timer, on_timer, 0., 0.);
    link->timer.data = link;
    ev_timer_start(loop, &link->timer);
    *out_link = link;
    return 0;
}

void worker_link_close(struct worker_link *link)
{
    if (!link)
        return;
    link->closed = true;
    ev_timer_stop(link->loop, &link->timer);
    rpc_stream_release(link->stream);
    link->stream = NULL;
    rpc_client_destroy(link->client);
    link->client = NULL;
    link_release(link);
}

/* The reply, which comes in any case where this returns 0, lets the link go. */
static int ask(struct worker_link *link, const char *method, const ProtobufCMessage *request,
               uint64_t timeout_ms, rpc_reply_fn *on_reply, struct error *err)
{
    struct rpc_call_options options = {.timeout_ms = timeout_ms};
    if (!link->client)
        return error_set(err, STATUS_UNAVAILABLE, "the worker has not opened its socket");
    link_retain(link);
    int rc = rpc_client_unary_async(link->client, &sluice__worker__v1__worker__descriptor, method,
                                    request, &options, on_reply, link, err);
    if (rc != 0)
        link_unretain(link);
    return rc;
}

static void deliver_shutdown(void *arg)
{
    struct news *news = arg;
    struct worker_link *link = news->link;
    if (!link->closed)
        link->events->on_shutdown(
            link->arg, (const Sluice__Worker__V1__ShutdownResponse *)news->message, &news->err);
    news_free(news);
}

static void on_shutdown_reply(void *arg, const ProtobufCMessage *response,
                              const struct error *status)
{
    post(arg, NULL, deliver_shutdown, response, status);
    link_release(arg);
}

int worker_link_shutdown(struct worker_link *link, uint32_t grace_ms, struct error *err)
{
    Sluice__Worker__V1__ShutdownRequest request = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    request.has_grace_ms = 1;
    request.grace_ms = grace_ms;
    return ask(link, "Shutdown", &request.base, (uint64_t)grace_ms + SHUTDOWN_EXTRA_MS,
               on_shutdown_reply, err);
}

static void deliver_wake(void *arg)
{
    struct news *news = arg;
    if (!news->link->closed)
        news->link->events->on_wake(news->link->arg, &news->err);
    news_free(news);
}

static void on_wake_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)response;
    post(arg, NULL, deliver_wake, NULL, status);
    link_release(arg);
}

int worker_link_wake(struct worker_link *link, char *const *flags, struct error *err)
{
    Sluice__Worker__V1__WakeRequest request = SLUICE__WORKER__V1__WAKE_REQUEST__INIT;
    request.flags = (char **)(uintptr_t)flags;
    while (flags[request.n_flags])
        request.n_flags++;
    return ask(link, "Wake", &request.base, WAKE_MS, on_wake_reply, err);
}

static void deliver_keep(void *arg)
{
    struct news *news = arg;
    if (!news->link->closed)
        news->link->events->on_keep(news->link->arg, &news->err);
    news_free(news);
}

static void on_keep_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)response;
    post(arg, NULL, deliver_keep, NULL, status);
    link_release(arg);
}

int worker_link_keep(struct worker_link *link, uint64_t promised_bytes, uint64_t limit_bytes,
                     struct error *err)
{
    Sluice__Worker__V1__KeepWeightsRequest request = SLUICE__WORKER__V1__KEEP_WEIGHTS_REQUEST__INIT;
    request.promised_bytes = promised_bytes;
    request.limit_bytes = limit_bytes;
    return ask(link, "KeepWeights", &request.base, KEEP_MS, on_keep_reply, err);
}
