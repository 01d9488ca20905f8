/* operation_view.h: the progress of an operation, from the rows and statuses of its replicas.
 * Loop thread only. */
#pragma once

#include <stdbool.h>

#include "base/reason.h"
#include "manager/base/pb.h"

struct fleet;
struct updates;

/* Adds ranks, bytes, remaining time and stage to a copy of the operation's row. False where
 * memory is exhausted. */
bool operation_view_overlay(struct fleet *fleet, struct updates *updates, pb_operation *operation);
/* The stage to record at the end of the operation; static, or the catalog's. */
const char *operation_view_final_stage(const struct fleet *fleet, const pb_operation *operation,
                                       enum operation_state state);
/* The error of an operation that did not end DONE. If a replica failed: the error of the first
 * failed replica, the state that remains, and what to do. Owned; NULL where memory is exhausted.
 * `reason` may be REASON_NONE. */
pb_error *operation_view_error(const struct fleet *fleet, const pb_operation *operation,
                               enum reason reason);
