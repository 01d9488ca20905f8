/* memory_claims.h: the memory that replicas take and were promised, and whether more fits. Loop
 * thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"

struct error;

/* Host memory that a parked replica will take once it serves; 0: unknown. */
uint64_t memory_serving_bytes(const struct slot *slot);

/* Free memory that live replicas will still take. */
struct memory_promises {
    uint64_t n_bytes;        /* planned and not yet resident */
    uint32_t n_unsized;      /* replicas to come that have not reported a plan */
    uint32_t n_unsized_same; /* those of the same deployment as `but_id` */
};
/* Sum over all replicas but `but_id` (NULL: all). */
struct memory_promises memory_promises(const struct fleet *fleet, const char *but_id);
/* Bytes of one CPU device ("cpu:1") that live replicas have planned and not yet taken. A replica
 * on several devices counts in equal parts on each. */
uint64_t memory_promised_on(const struct fleet *fleet, const char *device);

/* Host memory of all replicas but `but_id` (NULL: all): the larger of planned and held bytes of
 * each. Shared packed weights count once. A parked worker that waits for Wake counts as serving
 * for a plan (NULL), else with its weights alone. A replica that died and will return counts
 * with the memory that it served with. */
uint64_t memory_taken_bytes(const struct fleet *fleet, const char *but_id);
/* The same for one CPU device ("cpu:1"). A replica on several devices counts in equal parts on
 * each. Weights that replicas on several devices share count on each device. *out_n_processes:
 * processes on the device. */
uint64_t memory_taken_on(const struct fleet *fleet, const char *device, const char *but_id,
                         uint32_t *out_n_processes);
/* Bytes that --memory-budget leaves on these devices for a new replica, or for `but_id` beyond
 * its kept weights; at least 1. 0: there is no budget. */
uint64_t memory_left_in_budget(const struct fleet *fleet, const char *but_id, char *const *devices,
                               size_t n_devices);
/* Checks that the last of n parked deployments can wake while the deployments before it serve.
 * The deployment needs room on its GPUs beside all other claims, and within --memory-budget.
 * RESOURCE_EXHAUSTED, reason DEVICE_MEMORY. Sizes that are not yet known count as 0. */
int memory_check_wake(const struct fleet *fleet, const pb_deployment *const *deployments, size_t n,
                      struct error *err);
/* Bytes that the end of one deployment frees, on all its devices or on a GPU ("cuda:0"). */
uint64_t memory_freed_by(const struct fleet *fleet, const pb_deployment *deployment,
                         const char *device);

/* The ids of shared memory that a sum has counted already. A zeroed set is empty. */
struct memory_share_set {
    uint64_t ids[64];
    size_t n_ids;
};
/* Returns `n_bytes`, or without `shared_bytes` where the set already holds `id` (0: nothing is
 * shared). */
uint64_t memory_share_add(struct memory_share_set *set, uint64_t n_bytes, uint64_t shared_bytes,
                          uint64_t id);
