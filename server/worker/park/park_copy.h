/* park_copy.h: the KeepWeights call. Before a GPU worker is parked, its weights are copied into
 * sealed host memory while the worker serves on. The manager takes that memory over through
 * /proc/PID/fd, then ends the worker and starts a parked process (parked.h) with it. The memory
 * is freed if no manager takes it over. Lock inside; any thread, except for create and destroy. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct error;
struct executor_packed;
struct park_copy;
struct rpc_call;
struct worker;

/* Called by the copying thread if the engine cannot copy. Ends the process if the worker cannot
 * continue. */
typedef void park_copy_failed_fn(struct worker *worker, const struct error *why);

/* Creates the state for `worker`, which is borrowed until destroy. *out_copy is owned.
 * RESOURCE_EXHAUSTED if memory is exhausted. */
int park_copy_create(struct worker *worker, park_copy_failed_fn *on_failure,
                     struct park_copy **out_copy, struct error *err);
/* Cancels a running copy and frees a finished one. Call it before the engine is closed. */
void park_copy_stop(struct park_copy *copy);
/* Call it after park_copy_stop(), or before any call arrived. NULL is accepted. */
void park_copy_destroy(struct park_copy *copy);

/* rpc_handler_fn of KeepWeights; context is the worker. */
void park_copy_handle_keep(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* Takes the lock and returns the copied weights (n_ranks 0: none), borrowed until
 * park_copy_return(), which releases the lock. */
const struct executor_packed *park_copy_borrow(struct park_copy *copy);
void park_copy_return(struct park_copy *copy);
