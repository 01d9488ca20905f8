/* idle.h: parks or unloads what has served nobody for as long as its deployment says
 * (ModelConfig.idle_after_ms). The time is of the supervisor's monotonic clock, and begins anew
 * with each manager: what was before is not known. Each tick looks at every deployment; at most one
 * deployment is acted on at a time. Loop thread only. */
#pragma once

#include <stdint.h>

struct error;
struct fleet;
struct idle;

int idle_create(struct fleet *fleet, struct idle **out_idle, struct error *err);
/* No change may be on its way to the store. NULL is accepted. */
void idle_destroy(struct idle *idle);

/* Deployments that were parked and unloaded so far. */
struct idle_counts {
    uint64_t n_parked, n_unloaded;
};
struct idle_counts idle_counts(const struct idle *idle);
