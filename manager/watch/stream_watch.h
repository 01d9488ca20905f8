/* stream_watch.h: a call that stays open and is fed from the loop (WatchOperation, WatchRoutes,
 * WatchEvents, WaitOperation). Carries the call's events from its server thread to the loop, in
 * order. Holds at most the server's max_pending_bytes for a receiver that is behind, and ends one
 * that stays behind for the slow reader's time: RESOURCE_EXHAUSTED, reason SLOW_READER. Embed as
 * the first member. */
#pragma once

#include <stdbool.h>

#include <ev.h>
#include <protobuf-c/protobuf-c.h>

#include "manager/base/loop_queue.h"

struct error;
struct context;
struct rpc_call;
struct stream_watch;

/* All on the loop thread, none after `done`. */
struct stream_watch_ops {
    void (*start)(struct stream_watch *watch);    /* the call has arrived */
    void (*writable)(struct stream_watch *watch); /* after a refused send there is room again */
    void (*done)(struct stream_watch *watch);     /* it is over: unlink and free it */
};

struct stream_watch {
    const struct stream_watch_ops *ops;
    struct rpc_call *call; /* a reference until done */
    struct context *context;
    bool blocked;      /* the last send was refused */
    ev_timer too_slow; /* while blocked */
    /* Without memory a watch must still begin and end. */
    struct loop_task starting, more, cancelling, ending;
};

/* In the handler, on the server thread. */
void stream_watch_begin(struct stream_watch *watch, struct rpc_call *call, struct context *context,
                        const struct stream_watch_ops *ops);

/* Loop thread. Sends, or notes that the receiver is behind (then `writable` will come). */
void stream_watch_send(struct stream_watch *watch, const ProtobufCMessage *message);
void stream_watch_finish(struct stream_watch *watch, const struct error *status);
