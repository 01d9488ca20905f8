/* update.h: rolling updates (OPERATION_UPDATE): carries out what update_rules.h decides, one
 * transaction a move, so that a manager which is killed anywhere goes on where it was. Loop thread
 * only, save the functions on transactions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/replicas/operation_ops.h"
#include "manager/slots/fleet.h"

struct catalog;
struct error;
struct txn;
struct updates;

int updates_create(struct fleet *fleet, const struct operation_ops *operations,
                   struct updates **out_updates, struct error *err);
void updates_destroy(struct updates *updates); /* NULL is accepted */

/* What is seen and not recorded: the stage, and the figures of this step. False where memory is
 * exhausted. */
bool updates_lay_over(struct updates *updates, pb_operation *operation);

/* -- store thread: inside transactions ------------------------------------------------------------
 */

/* The traffic of the phase, and in ROLL_BACK or DRAIN the version that goes retired; the
 * operation's row is the caller's to write. UPDATE_GO_BACK from LOAD or SHIFT alone. */
int update_begin_rollback(struct txn *txn, pb_operation *operation, struct error *err);
/* The old version keeps all its traffic whatever gets ready beside it. */
int update_pin_traffic(struct txn *txn, const pb_operation *operation, uint32_t percent,
                       struct error *err);
/* FAILED_PRECONDITION, reason OPERATION_IN_PROGRESS, while an update of the model is open. */
int update_check_none(const struct catalog *catalog, const char *model, struct error *err);
