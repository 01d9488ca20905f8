/* park_copy.h: the copy of a replica's weights in the machine's memory, which a worker on a GPU
 * makes before it is parked (slots/weights.h). Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

/* Whether its process, which is to be parked, has weights on a GPU that nobody has kept. */
bool park_copy_is_needed(const struct slot *slot);
/* Whether they could not be kept when its deployment was told to park last, a moment ago. */
bool park_copy_has_failed(const struct slot *slot);
/* When it may be asked for a copy of them: not at once again, unless it is told to park anew. */
int64_t park_copy_at_ns(const struct slot *slot);
/* Asks its process for a copy of them. */
void park_copy_start(struct slot *slot);
/* The answer: status 0, or why there is none. */
void park_copy_on_answer(struct slot *slot, const struct error *status);

/* Whether it is to load on a GPU for nothing but to be parked, as after a restart of the machine,
 * and another comes first, or there is no room: it takes nothing from who serves. */
bool park_copy_waits_for_gpu(const struct slot *slot);
/* Whether its version is parked, it has no process, and the next one will not serve: a keeper, or
 * one that waits as above. Another, whose weights on a GPU are still to be copied, serves first. */
bool park_copy_sleeps(const struct slot *slot);
/* Whether it has no process for that, and there is no room as far as can be seen. */
bool park_copy_lacks_gpu(const struct slot *slot);

/* Why the replicas of an operation that was to park them serve on. False: none has said. */
bool park_copy_why_not(const struct fleet *fleet, const pb_operation *operation,
                       struct error *out_why);
/* False for a while after the weights of the deployment could not be kept. */
bool park_copy_is_possible(struct fleet *fleet, const pb_deployment *deployment);
