/* operations.h: operations as clients see them: the recorded row with the progress of the workers
 * laid over it; those who watch and wait; and the record of their end. Loop thread only, save
 * operations_watch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct error;
struct operations;
struct rpc_call;
struct updates;

int operations_create(struct fleet *fleet, struct operations **out_operations, struct error *err);
/* No watch may be left: the server has been shut down. NULL is accepted. */
void operations_destroy(struct operations *operations);
/* Ends every watch and wait with `status`: the manager is stopping. */
void operations_end_watches(struct operations *operations, const struct error *status);

/* The operation as it is now; owned (message_free). NULL: none of that id, or no memory. */
pb_operation *operations_build(struct operations *operations, const char *id);

/* What the supervisor and updates ask; lives as long as `operations`. */
struct operation_ops operations_ops(struct operations *operations);
/* Lets the figures of updates (borrowed) be laid over their operations. At the start. */
void operations_show_updates(struct operations *operations, struct updates *updates);

/* -- for the service: the handlers of WatchOperation and WaitOperation, on the server thread. With
 * `once` the call is answered when the operation has ended or timeout_ms (0: no limit) are over. */
void operations_watch(struct operations *operations, struct rpc_call *call, const char *id,
                      bool once, uint32_t timeout_ms);
