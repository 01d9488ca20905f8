/* cpu_share.h: chooses the CPUs of a replica among those that its deployment may use, so that
 * replicas do not share CPUs needlessly. Loop thread only. */
#pragma once

#include <stdint.h>

#include "base/system/cpus.h"

struct error;

/* Checks that `list` names CPUs of this machine that workers may use; empty is valid.
 * INVALID_ARGUMENT naming `field`. */
int cpu_share_check(const char *field, const char *list, struct error *err);

/* Chooses the replica's CPUs from `list`: n_threads cores (0: the cores divided by n_replicas,
 * at least one) with their SMT siblings. Cores with the fewest users among other replicas come
 * first, close to one another. An empty list gives an empty set. n_users: see
 * fleet_count_cpu_users(). */
int cpu_share_take(const char *replica_id, const char *list, uint32_t n_threads,
                   uint32_t n_replicas, const uint16_t *n_users, struct cpus *out,
                   struct error *err);
