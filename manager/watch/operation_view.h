/* operation_view.h: how far an operation is: what its replicas' records and workers say now, laid
 * over its own record. Loop thread only. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"

struct fleet;
struct updates;

/* Fills in ranks, bytes, the time left and the stage. False where memory is exhausted. */
bool operation_view_lay_over(struct fleet *fleet, struct updates *updates, pb_operation *operation);
/* Its first replica that has failed (the catalog's), or NULL. */
const pb_replica *operation_view_failed(const struct fleet *fleet, const pb_operation *operation);
/* The stage that is recorded with an end; static, or the catalog's. */
const char *operation_view_final_stage(const struct fleet *fleet, const pb_operation *operation,
                                       enum operation_state state);
/* The error of one that did not end DONE: the first failed replica's own, or the reason it has, and
 * what is not undone; owned. NULL where memory is exhausted. `reason` may be NULL. */
pb_error *operation_view_error(const struct fleet *fleet, const pb_operation *operation,
                               const char *reason);
