/* park_copy.h: the park copy: a copy of a replica's weights in host memory, which a worker on a
 * GPU makes before a park (slots/weights.h). Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

/* True where the replica is to be parked and the manager does not hold its weights. On a GPU the
 * park copy is missing; on a CPU the memory was not taken over. */
bool park_copy_is_needed(const struct slot *slot);
/* True where the last park copy failed a moment ago, and the same command to park still holds. */
bool park_copy_has_failed(const struct slot *slot);
/* Earliest time to ask the worker for the next copy. A new command to park resets the wait. */
int64_t park_copy_at_ns(const struct slot *slot);
/* Asks the worker for a copy. On a CPU: tries to take the worker's memory over. */
void park_copy_start(struct slot *slot);
/* Handles the worker's answer: status 0, or the reason why there is no copy. */
void park_copy_on_answer(struct slot *slot, const struct error *status);

/* True where the replica must wait to load on a GPU for a park alone, as after a restart of the
 * machine. Another replica comes first, or the GPU has no room. */
bool park_copy_waits_for_gpu(const struct slot *slot);
/* True where the version is parked, the replica has no process, and the next process will be a
 * parked worker. A replica that must first load its weights on a GPU serves in between. */
bool park_copy_sleeps(const struct slot *slot);
/* True where the replica has no process because no GPU seems to have room for that load. */
bool park_copy_lacks_gpu(const struct slot *slot);

/* Why the replicas of a failed OPERATION_PARK still serve. False: no replica has a reason. */
bool park_copy_why_not(const struct fleet *fleet, const pb_operation *operation,
                       struct error *out_why);
/* False for a while after a park copy of the deployment failed. */
bool park_copy_is_possible(struct fleet *fleet, const pb_deployment *deployment);
