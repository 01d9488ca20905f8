/* transition.h: what may follow what, for rows that have states: replicas, operations and the
 * phases of an update. The store asks before it writes (txn_put), so that no code path, and no
 * worker that says nonsense, makes a row that cannot be. Pure; any thread. */
#pragma once

#include "manager/store/row.h"

struct error;

/* `before` NULL: the row is new. INTERNAL, reason ILLEGAL_TRANSITION, naming the row and both
 * states. Rows of other tables may become anything. */
int transition_check(const struct row *before, const struct row *after, struct error *err);
