/* evict.h: which idle versions would have to go so that a plan fits. Loop thread only. */
#pragma once

#include <stddef.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

enum { EVICT_MAX = 64 }; /* replicas */

/* For a plan that does not fit, of a version on a group: the replicas of those deployments that are
 * `evictable`, have served nobody for at least two words of their workers, and are not the plan's
 * own; least recently used first, no more than are needed. *out_evictions is owned (evict_free), of
 * plan->n_evictions; none where all of them would not make room enough. */
void evict_choose(struct fleet *fleet, const char *model, const char *version, const char *group,
                  Sluice__V1__Plan *plan, Sluice__V1__Eviction ***out_evictions);
void evict_free(Sluice__V1__Eviction **evictions, size_t n_evictions);
