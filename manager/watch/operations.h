/* operations.h: operations for clients: rows with the workers' progress, WatchOperation and
 * WaitOperation calls, and the record of the end. Loop thread only, except operations_watch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct arena;
struct error;
struct operations;
struct rpc_call;
struct updates;

int operations_create(struct fleet *fleet, struct operations **out_operations, struct error *err);
/* All watches must have ended: the server has been shut down. NULL is accepted. */
void operations_destroy(struct operations *operations);
/* Ends every watch and wait with `status`: the manager is stopping. */
void operations_end_watches(struct operations *operations, const struct error *status);

/* The operation with its current progress, in the arena. NULL: no such id, or memory is
 * exhausted. */
pb_operation *operations_build(struct operations *operations, struct arena *arena, const char *id);

/* The functions that supervisor and updates call; valid as long as `operations`. */
struct operation_ops operations_ops(struct operations *operations);
/* Adds the figures of updates (borrowed) to their operations from now on. Called once at the
 * start. */
void operations_show_updates(struct operations *operations, struct updates *updates);

/* For the service: handler of WatchOperation and WaitOperation, on the server thread. With
 * `once` the call is answered when the operation ends, or after timeout_ms (0: no limit). */
void operations_watch(struct operations *operations, struct rpc_call *call, const char *id,
                      bool once, uint32_t timeout_ms);
