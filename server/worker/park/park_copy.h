/* park_copy.h: the KeepWeights call. Before a worker of a GPU is parked, its weights are copied
 * from the device into sealed host memory while it serves on. The manager takes that memory over
 * through /proc/PID/fd, then ends the worker and starts a parked process (parked.h) with it. The
 * memory is freed where no manager takes it over. Lock inside; any thread, save for create and
 * destroy. */
#pragma once

#include <protobuf-c/protobuf-c.h>

struct error;
struct executor_packed;
struct park_copy;
struct rpc_call;
struct worker;

/* Called by the copying thread where the engine cannot copy. Returns where the worker lives on. */
typedef void park_copy_failed_fn(struct worker *worker, const struct error *why);

/* For `worker`, which is borrowed until destroy. *out_copy is owned. RESOURCE_EXHAUSTED. */
int park_copy_create(struct worker *worker, park_copy_failed_fn *on_failure,
                     struct park_copy **out_copy, struct error *err);
/* Ends the copy under way and frees what was copied: before the engine is closed. */
void park_copy_stop(struct park_copy *copy);
/* After park_copy_stop(), or before any call came. NULL is accepted. */
void park_copy_destroy(struct park_copy *copy);

/* rpc_handler_fn of KeepWeights; context is the worker. */
void park_copy_handle_keep(void *context, struct rpc_call *call, const ProtobufCMessage *request);

/* The copied weights (n_ranks 0: none), borrowed until park_copy_return(). Holds the lock. */
const struct executor_packed *park_copy_borrow(struct park_copy *copy);
void park_copy_return(struct park_copy *copy);
