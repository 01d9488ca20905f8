/* memory_claims.h: what replicas take of memory and were promised, and whether more has room. Loop
 * thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"

struct error;

/* What a replica that keeps weights will take of the machine's memory once it serves, as far as is
 * known; 0: it is not. */
uint64_t memory_serving_bytes(const struct slot *slot);
/* As slot_planned_bytes; and of one that waits for its turn to be woken what it will take. For a
 * plan: who starts for good is not held up by those that are to come after it. */
uint64_t memory_expected_bytes(const struct slot *slot);

/* What the live replicas will take of the memory that is free now. */
struct memory_promises {
    uint64_t n_bytes;        /* planned and not resident */
    uint32_t n_unsized;      /* replicas to come that have not said what they plan */
    uint32_t n_unsized_same; /* of them those of the same deployment as `but_id` */
};
/* Over all replicas but `but_id` (NULL: all). */
struct memory_promises memory_promises(const struct fleet *fleet, const char *but_id);
/* The bytes of one CPU device ("cpu:1") that the live replicas on it have planned and not yet
 * taken. A replica on several devices counts in equal parts on each. */
uint64_t memory_promised_on(const struct fleet *fleet, const char *device);

/* Of the machine's memory what the processes of all replicas but `but_id` (NULL: all) plan to take
 * or hold, whichever is more; packed weights that several share count once. A keeper that waits for
 * its turn to be woken counts as one that serves for a plan (NULL), and with its weights for what
 * starts before it; one that died and is to come back with what it served with. */
uint64_t memory_taken_bytes(const struct fleet *fleet, const char *but_id);
/* The same of one device alone ("cpu:1"): what is on several devices is in equal parts on each, and
 * weights that replicas on several share count on each. *out_n_processes: of those on it. */
uint64_t memory_taken_on(const struct fleet *fleet, const char *device, const char *but_id,
                         uint32_t *out_n_processes);
/* What --memory-budget leaves for one more on these devices, or for `but_id` beside its weights
 * that are kept, at least 1; 0: there is no budget. */
uint64_t memory_left_in_budget(const struct fleet *fleet, const char *but_id, char *const *devices,
                               size_t n_devices);
/* Whether the last of n parked deployments has room for its replicas to serve where those before it
 * do as well: on its GPUs that nothing holds, and in --memory-budget. RESOURCE_EXHAUSTED, reason
 * DEVICE_MEMORY. What is not known yet of their size is no reason. */
int memory_check_wake(const struct fleet *fleet, const pb_deployment *const *deployments, size_t n,
                      struct error *err);
/* What is taken of one deployment alone, on all its devices, or of a GPU's memory ("cuda:0"). */
uint64_t memory_freed_by(const struct fleet *fleet, const pb_deployment *deployment,
                         const char *device);

/* Counts memory that several replicas share once. Zeroed: empty. */
struct memory_share_set {
    uint64_t ids[64];
    size_t n_ids;
};
/* `n_bytes` of a replica, of which `shared_bytes` (id 0: none) are to be left out where the set has
 * seen them. */
uint64_t memory_share_add(struct memory_share_set *set, uint64_t n_bytes, uint64_t shared_bytes,
                          uint64_t id);
