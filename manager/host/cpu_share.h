/* cpu_share.h: the CPUs that a replica is given of those its deployment may use, so that the
 * replicas of a machine do not sit on one another. Loop thread only. */
#pragma once

#include <stdint.h>

#include "base/system/cpus.h"

struct error;

/* Whether `list` names CPUs of this machine that workers may use; empty is right. INVALID_ARGUMENT
 * naming `field`. */
int cpu_share_check(const char *field, const char *list, struct error *err);

/* What the replica is to have of `list`: n_threads cores (0: the cores over n_replicas, at least
 * one) with their SMT siblings, of those that fewest of the other replicas' processes have, close
 * to one another. An empty list gives an empty set. */
int cpu_share_take(const char *replica_id, const char *list, uint32_t n_threads,
                   uint32_t n_replicas, const uint16_t *n_users, struct cpus *out,
                   struct error *err);
