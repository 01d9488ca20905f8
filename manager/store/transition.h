/* transition.h: the allowed state changes of replicas, operations and update phases. The
 * function txn_put checks every row, so that neither a bug nor a wrong worker status writes an
 * impossible row. Pure; any thread. */
#pragma once

#include "manager/store/row.h"

struct error;

/* `before` NULL: the row is new. INTERNAL, reason ILLEGAL_TRANSITION, with the row and both
 * states in the text. Rows of other tables are not checked. */
int transition_check(const struct row *before, const struct row *after, struct error *err);
