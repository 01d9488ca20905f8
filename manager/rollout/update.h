/* update.h: rolling updates (OPERATION_UPDATE). Carries out the decisions of update_rules.h, one
 * transaction per move. After a kill at any point, the next manager continues from the recorded
 * move. Loop thread only, except the functions on transactions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct arena;
struct catalog;
struct error;
struct txn;
struct updates;

int updates_create(struct fleet *fleet, const struct operation_ops *operations,
                   struct updates **out_updates, struct error *err);
void updates_destroy(struct updates *updates); /* NULL is accepted */

/* Adds stage and figures of the current step, which are not recorded, to a copy of the row in the
 * arena. */
void updates_overlay(struct updates *updates, struct arena *arena, pb_operation *operation);

/* --- store thread: inside transactions --- */

/* Begins the rollback: sets the traffic and the phase, and retires the version that goes. The
 * caller writes the operation's row. UPDATE_GO_BACK is possible from LOAD and SHIFT alone. */
int update_begin_rollback(struct txn *txn, pb_operation *operation, struct error *err);
/* Writes the traffic rule for `percent` of traffic on the new version. 0 keeps all traffic on
 * the old version while the new version becomes ready. */
int update_pin_traffic(struct txn *txn, const pb_operation *operation, uint32_t percent,
                       struct error *err);
/* FAILED_PRECONDITION, reason OPERATION_IN_PROGRESS, while an update of the model is open. */
int update_check_none(const struct catalog *catalog, const char *model, struct error *err);
