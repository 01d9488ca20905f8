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
    INTERVAL_BUSY_MS = 50,    /* while loading, to show progress */
    SHUTDOWN_EXTRA_MS = 5000, /* beyond the grace, for the answer */
    WAKE_MS = 5000,
    KEEP_MS = 600000, /* to copy a GPU's weights over a slow bus */
};
static const double socket_poll_s = 0.01; /* until the worker has bound its socket */
static const double retry_s = 0.1;

struct worker_link {
    atomic_uint n_refs; /* references of the owner, the stream, and each open call and posted
                         * task */
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

/* An event of the client's thread on its way to the loop. */
struct link_event {
    struct worker_link *link;
    struct rpc_stream *stream; /* stream of the event; compared, never followed */
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

/* Drops a reference while the caller holds another, so this is never the last reference. */
static void link_unretain(struct worker_link *link)
{
    atomic_fetch_sub_explicit(&link->n_refs, 1, memory_order_relaxed);
}

static void post_event(struct worker_link *link, struct rpc_stream *stream, loop_fn *fn,
                       const ProtobufCMessage *message, const struct error *err)
{
    struct link_event *link_event = calloc(1, sizeof(*link_event));
    if (!link_event)
        return; /* the next status replaces this one; a lost end shows when the process ends */
    link_event->link = link;
    link_event->stream = stream;
    link_event->message = message_copy(message);
    if (err)
        link_event->err = *err;
    link_retain(link);
    if (loop_queue_post(link->queue, fn, link_event) != 0) {
        message_free(link_event->message);
        free(link_event);
        link_unretain(link);
    }
}

static void link_event_free(struct link_event *link_event)
{
    message_free(link_event->message);
    link_release(link_event->link);
    free(link_event);
}

static int open_stream(struct worker_link *link);

static void retry_in(struct worker_link *link, ev_tstamp seconds)
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

/* Checks the version in a status. Workers refuse requests of other versions themselves; this is
 * for workers that do not. */
static bool check_protocol(const pb_status *status, struct error *err)
{
    if (!status->protocol_max ||
        (status->protocol_min <= PROTOCOL && status->protocol_max >= PROTOCOL))
        return true;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "no common protocol version: the worker has %u to %u, this manager %d",
              status->protocol_min, status->protocol_max, PROTOCOL);
    (void)error_reason(err, REASON_PROTOCOL_MISMATCH);
    return false;
}

static void deliver_status(void *arg)
{
    struct link_event *link_event = arg;
    struct worker_link *link = link_event->link;
    const pb_status *status = (const pb_status *)link_event->message;
    struct error err;
    bool current = !link->closed && status && link_event->stream == link->stream;
    if (current && !check_protocol(status, &err)) {
        refuse(link, &err);
    } else if (current) {
        bool calm = (int)status->state == WORKER_READY && link->interval_ms != link->calm_ms;
        link->events->on_status(link->arg, status);
        if (calm && !link->closed) {
            link->interval_ms = link->calm_ms;
            if (open_stream(link) != 0)
                retry_in(link, retry_s);
        }
    }
    link_event_free(link_event);
}

static void deliver_end(void *arg)
{
    struct link_event *link_event = arg;
    struct worker_link *link = link_event->link;
    if (!link->closed && link_event->stream == link->stream) {
        log_debug(LOG_EVENT("worker link lost"), LOG_STR("socket", link->socket_path),
                  LOG_STR("why", link_event->err.message));
        if (link_event->err.reason == REASON_PROTOCOL_MISMATCH) {
            refuse(link, &link_event->err);
        } else {
            rpc_stream_release(link->stream);
            link->stream = NULL;
            retry_in(link, retry_s);
        }
    }
    link_event_free(link_event);
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    post_event(arg, stream, deliver_status, message, NULL);
}

static void on_end(void *arg, struct rpc_stream *stream, const struct error *status)
{
    post_event(arg, stream, deliver_end, NULL, status);
    link_release(arg);
}

static const struct rpc_stream_events stream_events = {
    .on_message = on_message,
    .on_status = on_end,
};

/* Starts the status stream, in place of any earlier one. */
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
    /* gRPC waits long after a failed attempt, so the link connects only once the socket exists. */
    bool there = access(link->socket_path, F_OK) == 0;
    if (there && connect_client(link) == 0 && open_stream(link) == 0)
        return;
    retry_in(link, there ? retry_s : socket_poll_s);
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

/* Calls a method of the worker. After 0 the reply always comes; the reply handler releases the
 * link. */
static int call_worker(struct worker_link *link, const char *method,
                       const ProtobufCMessage *request, uint64_t timeout_ms, rpc_reply_fn *on_reply,
                       struct error *err)
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
    struct link_event *link_event = arg;
    struct worker_link *link = link_event->link;
    if (!link->closed)
        link->events->on_shutdown(link->arg,
                                  (const Sluice__Worker__V1__ShutdownResponse *)link_event->message,
                                  &link_event->err);
    link_event_free(link_event);
}

static void on_shutdown_reply(void *arg, const ProtobufCMessage *response,
                              const struct error *status)
{
    post_event(arg, NULL, deliver_shutdown, response, status);
    link_release(arg);
}

int worker_link_shutdown(struct worker_link *link, uint32_t grace_ms, struct error *err)
{
    Sluice__Worker__V1__ShutdownRequest request = SLUICE__WORKER__V1__SHUTDOWN_REQUEST__INIT;
    request.has_grace_ms = 1;
    request.grace_ms = grace_ms;
    return call_worker(link, "Shutdown", &request.base, (uint64_t)grace_ms + SHUTDOWN_EXTRA_MS,
                       on_shutdown_reply, err);
}

static void deliver_wake(void *arg)
{
    struct link_event *link_event = arg;
    if (!link_event->link->closed)
        link_event->link->events->on_wake(link_event->link->arg, &link_event->err);
    link_event_free(link_event);
}

static void on_wake_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)response;
    post_event(arg, NULL, deliver_wake, NULL, status);
    link_release(arg);
}

int worker_link_wake(struct worker_link *link, const pb_launch *record, struct error *err)
{
    Sluice__Worker__V1__WakeRequest request = SLUICE__WORKER__V1__WAKE_REQUEST__INIT;
    request.launch = (pb_launch *)(uintptr_t)record;
    return call_worker(link, "Wake", &request.base, WAKE_MS, on_wake_reply, err);
}

static void deliver_keep(void *arg)
{
    struct link_event *link_event = arg;
    if (!link_event->link->closed)
        link_event->link->events->on_keep(link_event->link->arg, &link_event->err);
    link_event_free(link_event);
}

static void on_keep_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    (void)response;
    post_event(arg, NULL, deliver_keep, NULL, status);
    link_release(arg);
}

int worker_link_keep(struct worker_link *link, uint64_t promised_bytes, uint64_t limit_bytes,
                     struct error *err)
{
    Sluice__Worker__V1__KeepWeightsRequest request = SLUICE__WORKER__V1__KEEP_WEIGHTS_REQUEST__INIT;
    request.promised_bytes = promised_bytes;
    request.limit_bytes = limit_bytes;
    return call_worker(link, "KeepWeights", &request.base, KEEP_MS, on_keep_reply, err);
}
