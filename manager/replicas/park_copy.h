/* park_copy.h: the copy of a replica's weights in the machine's memory, which a worker on a GPU
 * makes before it is parked (slots/weights.h). Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

/* True where the process is to be parked and has weights on a GPU without a copy. */
bool park_copy_is_needed(const struct slot *slot);
/* True where the last copy failed a moment ago, and the deployment is still to be parked for the
 * same command. */
bool park_copy_has_failed(const struct slot *slot);
/* When the worker may be asked for the next copy. A new command to park resets the wait. */
int64_t park_copy_at_ns(const struct slot *slot);
/* Asks the worker for a copy. */
void park_copy_start(struct slot *slot);
/* The answer of the worker: status 0, or why there is no copy. */
void park_copy_on_answer(struct slot *slot, const struct error *status);

/* True where the replica would load on a GPU only to be parked, as after a restart of the machine,
 * and must wait: another replica comes first, or the GPU has no room. */
bool park_copy_waits_for_gpu(const struct slot *slot);
/* True where the version is parked, the replica has no process, and the next process will not
 * serve. A replica whose weights still must be copied from a GPU serves first. */
bool park_copy_sleeps(const struct slot *slot);
/* True where the replica has no process for that, and no GPU seems to have room. */
bool park_copy_lacks_gpu(const struct slot *slot);

/* Why the replicas of a failed OPERATION_PARK serve on. False: no replica has said why. */
bool park_copy_why_not(const struct fleet *fleet, const pb_operation *operation,
                       struct error *out_why);
/* False for a while after the weights of the deployment could not be kept. */
bool park_copy_is_possible(struct fleet *fleet, const pb_deployment *deployment);
