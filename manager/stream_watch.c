#include "manager/stream_watch.h"

#include "base/error.h"
#include "manager/loop_queue.h"
#include "proto/rpc/rpc_call.h"

static void loop_start(void *arg)
{
    struct stream_watch *watch = arg;
    watch->ops->start(watch);
}

static void loop_writable(void *arg)
{
    struct stream_watch *watch = arg;
    if (!watch->blocked)
        return;
    watch->blocked = false;
    watch->ops->writable(watch);
}

static void loop_cancel(void *arg)
{
    struct stream_watch *watch = arg;
    struct error err;
    error_set(&err, STATUS_CANCELLED, "the caller is gone");
    rpc_call_finish(watch->call, &err);
}

static void loop_done(void *arg)
{
    struct stream_watch *watch = arg;
    struct rpc_call *call = watch->call;
    watch->ops->done(watch);
    rpc_call_release(call);
}

static void on_writable(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post(watch->queue, loop_writable, watch);
}

static void on_cancel(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post(watch->queue, loop_cancel, watch);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct stream_watch *watch = arg;
    (void)call;
    loop_queue_post(watch->queue, loop_done, watch);
}

static const struct rpc_call_events call_events = {
    .on_writable = on_writable,
    .on_cancel = on_cancel,
    .on_done = on_done,
};

void stream_watch_begin(struct stream_watch *watch, struct rpc_call *call, struct loop_queue *queue,
                        const struct stream_watch_ops *ops)
{
    watch->ops = ops;
    watch->call = call;
    watch->queue = queue;
    watch->blocked = false;
    rpc_call_retain(call);
    rpc_call_set_events(call, &call_events, watch);
    loop_queue_post(queue, loop_start, watch);
}

void stream_watch_send(struct stream_watch *watch, const ProtobufCMessage *message)
{
    if (rpc_call_send(watch->call, message) == STATUS_RESOURCE_EXHAUSTED)
        watch->blocked = true;
}

void stream_watch_finish(struct stream_watch *watch, const struct error *status)
{
    rpc_call_finish(watch->call, status);
}
