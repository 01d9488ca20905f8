#include "manager/watch/stream_watch.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/loop_queue.h"
#include "manager/settings/settings.h"
#include "proto/rpc/server/call.h"

static void loop_start(void *arg)
{
    struct stream_watch *watch = arg;
    watch->next = watch->watches->first;
    watch->watches->first = watch;
    watch->watches->n++;
    watch->ops->start(watch);
}

static void loop_writable(void *arg)
{
    struct stream_watch *watch = arg;
    if (!watch->blocked)
        return;
    watch->blocked = false;
    ev_timer_stop(watch->context->loop, &watch->too_slow);
    watch->ops->writable(watch);
}

static void loop_cancel(void *arg)
{
    struct stream_watch *watch = arg;
    struct error err;
    error_set(&err, STATUS_CANCELLED, "the caller has disconnected");
    rpc_call_finish(watch->call, &err);
}

static void loop_done(void *arg)
{
    struct stream_watch *watch = arg;
    struct rpc_call *call = watch->call;
    struct stream_watch **at = &watch->watches->first;
    while (*at != watch)
        at = &(*at)->next;
    *at = watch->next;
    watch->watches->n--;
    ev_timer_stop(watch->context->loop, &watch->too_slow);
    watch->ops->done(watch);
    rpc_call_release(call);
}

static void on_writable(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post_own(watch->context->queue, &watch->more, loop_writable, watch);
}

static void on_cancel(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post_own(watch->context->queue, &watch->cancelling, loop_cancel, watch);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post_own(watch->context->queue, &watch->ending, loop_done, watch);
}

static const struct rpc_call_events call_events = {
    .on_writable = on_writable,
    .on_cancel = on_cancel,
    .on_done = on_done,
};

static void on_too_slow(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct stream_watch *watch = timer->data;
    unsigned long long ms = watch->context->settings->slow_reader_ms;
    struct error err;
    (void)loop;
    (void)events;
    error_set(&err, STATUS_RESOURCE_EXHAUSTED, "the caller has not read its messages for %llu ms",
              ms);
    error_reason(&err, REASON_SLOW_READER);
    log_warn(LOG_EVENT("slow reader ended"), LOG_STR("method", rpc_call_method(watch->call)),
             LOG_U64("ms", ms));
    rpc_call_abort(watch->call, &err);
}

void *stream_watch_create(size_t n_bytes, struct rpc_call *call)
{
    struct error err;
    void *watch = calloc(1, n_bytes);
    if (watch)
        return watch;
    error_no_memory(&err);
    rpc_call_finish(call, &err);
    return NULL;
}

void stream_watch_begin(struct stream_watch *watch, struct rpc_call *call, struct context *context,
                        const struct stream_watch_ops *ops, struct stream_watches *watches)
{
    watch->ops = ops;
    watch->watches = watches;
    watch->call = call;
    watch->context = context;
    watch->blocked = false;
    ev_timer_init(&watch->too_slow, on_too_slow, 0., 0.);
    watch->too_slow.data = watch;
    rpc_call_retain(call);
    rpc_call_set_events(call, &call_events, watch);
    loop_queue_post_own(context->queue, &watch->starting, loop_start, watch);
}

void stream_watch_send(struct stream_watch *watch, const ProtobufCMessage *message)
{
    if (rpc_call_send(watch->call, message) != STATUS_RESOURCE_EXHAUSTED)
        return;
    watch->blocked = true;
    ev_timer_stop(watch->context->loop, &watch->too_slow);
    ev_timer_set(&watch->too_slow, (double)watch->context->settings->slow_reader_ms / 1e3, 0.);
    ev_timer_start(watch->context->loop, &watch->too_slow);
}

void stream_watch_finish(struct stream_watch *watch, const struct error *status)
{
    rpc_call_finish(watch->call, status);
}

void stream_watch_finish_all(const struct stream_watches *watches, const struct error *status)
{
    for (struct stream_watch *watch = watches->first; watch; watch = watch->next)
        stream_watch_finish(watch, status);
}
