/* keep.h: KeepWeights: before a worker of a GPU is parked, what the device has of its weights is
 * copied into sealed host memory while it serves on. The manager takes that memory over through
 * /proc/PID/fd, then ends the worker and starts a keeper (parked.h) with it. Where that does not
 * come about, the memory is let go of again. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "engine/forward/executor.h"

struct rpc_call;
struct worker;

struct keep {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, copies, stops; /* stops: the worker ends */
    struct executor_packed kept;    /* n_ranks 0: nothing is */
    int64_t until_ns;               /* it is, at least */
    uint64_t promised_bytes, limit_bytes;
    struct rpc_call *call; /* that waits for the copy; retained */
    atomic_bool cancel;
};

void keep_init(struct keep *keep);
/* Ends what is under way, and lets go of what is kept: before the engine is closed. */
void keep_stop(struct keep *keep);
void keep_fini(struct keep *keep);

/* rpc_handler_fn; context is the worker. */
void handle_keep_weights(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* What is kept, of which nothing is closed between keep_begin() and keep_done(). Any thread. */
const struct executor_packed *keep_begin(struct keep *keep);
void keep_done(struct keep *keep);
