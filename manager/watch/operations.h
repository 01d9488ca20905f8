/* operations.h: operations as clients see them: the recorded row with the progress of the workers
 * laid over it; those who watch and wait; and the record of their end. Loop thread only, save
 * operations_watch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/manager.h"

struct error;
struct operations;
struct rpc_call;

int operations_create(struct manager *manager, struct operations **out_operations,
                      struct error *err);
/* No watch may be left: the server has been shut down. NULL is accepted. */
void operations_destroy(struct operations *operations);
/* Ends every watch and wait with `status`: the manager is stopping. */
void operations_end_watches(struct operations *operations, const struct error *status);

/* A replica's worker has said something new. */
void operations_progress(struct operations *operations, const char *replica_id);
/* Records have changed. */
void operations_changed(struct operations *operations);

/* The operation as it is now; owned (message_free). NULL: none of that id, or no memory. */
pb_operation *operations_build(struct operations *operations, const char *id);

/* -- for the supervisor */
bool operations_busy(struct operations *operations, const char *id, int64_t now_ns);
int64_t operations_hold_ns(struct operations *operations, int64_t now_ns);
/* Grace of the open operation that unloads this replica, else the default. */
uint32_t operations_grace_ms(struct operations *operations, const char *replica_id);
/* Records the end of an operation, with its result. */
void operations_finish(struct operations *operations, const char *id, enum operation_state state,
                       const char *reason);

/* -- for the service: the handlers of WatchOperation and WaitOperation, on the server thread. With
 * `once` the call is answered when the operation has ended or timeout_ms (0: no limit) are over. */
void operations_watch(struct operations *operations, struct rpc_call *call, const char *id,
                      bool once, uint32_t timeout_ms);
