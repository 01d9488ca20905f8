/* operation_view.h: the progress of an operation, from the rows and statuses of its replicas.
 * Loop thread only. */
#pragma once

#include "base/reason.h"
#include "manager/base/pb.h"

struct arena;
struct fleet;
struct updates;

/* Adds ranks, bytes, remaining time and stage to a copy of the operation's row in the arena. */
void operation_view_overlay(struct fleet *fleet, struct updates *updates, struct arena *arena,
                            pb_operation *operation);
/* The stage to record at the end of the operation; static, or the catalog's. */
const char *operation_view_final_stage(const struct fleet *fleet, const pb_operation *operation,
                                       enum operation_state state);
/* The error of an operation that did not end DONE. If a replica failed: the error of the first
 * failed replica, the state that remains, and what to do. In the arena. `reason` may be
 * REASON_NONE. */
pb_error *operation_view_error(const struct fleet *fleet, struct arena *arena,
                               const pb_operation *operation, enum reason reason);
