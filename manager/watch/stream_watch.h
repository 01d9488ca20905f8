/* stream_watch.h: a streaming call that the loop feeds (WatchOperation, WatchRoutes,
 * WatchEvents, WaitOperation). Carries the call's events from its server thread to the loop, in
 * order. Buffers at most the server's max_pending_bytes for a slow receiver. A receiver that
 * stays slow for the slow-reader time is ended: RESOURCE_EXHAUSTED, reason SLOW_READER. Embed as
 * the first member. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <ev.h>
#include <protobuf-c/protobuf-c.h>

#include "manager/base/loop_queue.h"

struct error;
struct context;
struct rpc_call;
struct stream_watch;

/* All are called on the loop thread, and none after `done`. */
struct stream_watch_ops {
    void (*start)(struct stream_watch *watch);    /* the call has arrived */
    void (*writable)(struct stream_watch *watch); /* after a refused send there is room again */
    void (*done)(struct stream_watch *watch);     /* the call is over: free the watch */
};

/* The open watches of one kind; loop thread only. Zeroed: none. */
struct stream_watches {
    struct stream_watch *first;
    size_t n;
};

struct stream_watch {
    const struct stream_watch_ops *ops;
    struct rpc_call *call; /* a reference until done */
    struct context *context;
    struct stream_watches *watches; /* those of its kind, from start until done */
    struct stream_watch *next;
    bool blocked;      /* the last send was refused */
    ev_timer too_slow; /* runs while blocked */
    /* Preallocated: a watch must begin and end even without memory. */
    struct loop_task starting, more, cancelling, ending;
};

/* Zeroed memory for a watch of n_bytes; NULL after the call was answered with an error. */
void *stream_watch_create(size_t n_bytes, struct rpc_call *call);
/* Called in the handler, on the server thread. `watches` lives as long as the watch. */
void stream_watch_begin(struct stream_watch *watch, struct rpc_call *call, struct context *context,
                        const struct stream_watch_ops *ops, struct stream_watches *watches);

/* Loop thread. Sends the message, or notes that the receiver is slow (`writable` follows). */
void stream_watch_send(struct stream_watch *watch, const ProtobufCMessage *message);
void stream_watch_finish(struct stream_watch *watch, const struct error *status);
/* Ends all of these watches with `status`. */
void stream_watch_finish_all(const struct stream_watches *watches, const struct error *status);
