/* idle.h: parks or unloads a deployment that had no requests for ModelConfig.idle_after_ms. The
 * time is measured on the supervisor's monotonic clock, and starts again with each manager. Each
 * tick checks every deployment; at most one deployment is changed at a time. Loop thread only. */
#pragma once

#include <stdint.h>

struct error;
struct fleet;
struct idle;

int idle_create(struct fleet *fleet, struct idle **out_idle, struct error *err);
/* Must not be called while a change is on its way to the store. NULL is accepted. */
void idle_destroy(struct idle *idle);

/* Numbers of deployments that were parked and unloaded so far. */
struct idle_counts {
    uint64_t n_parked, n_unloaded;
};
struct idle_counts idle_counts(const struct idle *idle);
