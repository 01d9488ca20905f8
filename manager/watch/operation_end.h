/* operation_end.h: the part of a transaction that records the end of an operation. Store thread
 * only. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"

struct error;
struct txn;

/* Writes `done`, the final row of the open operation `id`, with its time and event. Deletes the
 * oldest ended operation beyond the limit. Sets or clears the version's last_error, except for an
 * unload and a cancelled operation. With `not_kept`, `done` is a park that kept no weights: the
 * version's last_error stays, and the deployment is no longer parked. Does nothing if the row is
 * missing or has already ended. */
int operation_end_record(struct txn *txn, const char *id, const pb_operation *done, bool not_kept,
                         struct error *err);
