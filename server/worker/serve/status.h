/* status.h: WatchStatus: the worker's state, sent at once, on every change and at the requested
 * interval. */
#pragma once

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct rpc_call;
struct worker;

/* rpc_handler_fn; context is the worker. */
void status_handle_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* Pthread start routine: pushes until worker->ending, then ends every watcher's stream. */
void *status_run(void *worker);

/* executor_progress_fn; ctx is the worker. */
void status_on_progress(void *ctx, uint32_t rank, uint64_t bytes_done, uint64_t bytes_total);

/* Fills the worker's current state, in the arena. Any thread; does not block. */
void status_fill(struct worker *worker, struct arena *arena,
                 Sluice__Worker__V1__WorkerStatus *status);

/* Memory of each of the worker's devices, in the arena. */
void status_memory(struct worker *worker, struct arena *arena, size_t *out_n,
                   Sluice__V1__DeviceMemory ***out_memory);

/* Frees the watchers whose calls have ended. After the server's shutdown these are all. */
void status_sweep(struct worker *worker);
