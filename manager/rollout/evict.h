/* evict.h: chooses the idle versions to evict so that a plan fits. Loop thread only. */
#pragma once

#include <stddef.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

enum { EVICT_MAX = 64 }; /* replicas */

/* For a plan of a version on a group that does not fit: chooses the replicas to evict.
 * Candidates are `evictable` deployments of other versions, idle for at least two status
 * intervals, least recently used first. No more are chosen than needed. *out_evictions is owned
 * (evict_free) and has plan->n_evictions rows; none where all candidates together free too
 * little. */
void evict_choose(struct fleet *fleet, const char *model, const char *version, const char *group,
                  Sluice__V1__Plan *plan, Sluice__V1__Eviction ***out_evictions);
void evict_free(Sluice__V1__Eviction **evictions, size_t n_evictions);
