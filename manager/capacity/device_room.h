/* device_room.h: whether more fits: the room on each device, beside the claims of the ledger.
 * Free memory alone is not enough. A starting worker has not yet taken its budget, and a worker
 * that died will return. So a worker receives the bytes promised to other replicas on its GPU.
 * While one worker takes its memory, no other worker is started there. Memory of foreign
 * processes counts as used. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/capacity/ledger.h"
#include "manager/slots/fleet.h"

struct error;

struct device_room {
    struct ledger_sum claims;
    bool is_there;            /* the machine has the device, by the last probe */
    uint64_t available_bytes; /* neither used nor promised, by NVML and the probe */
    uint64_t ended_bytes;     /* not in available_bytes: memory of processes that ended after the
                               * last NVML sample */
};

/* Reads the room of a GPU beside all replicas but `but_id` (ledger_query); all zero for a CPU. */
void device_room_read(const struct fleet *fleet, const char *device, const char *but_id,
                      struct device_room *out_room);

/* A replica to be placed. */
struct device_wish {
    const char *but_id; /* the replica itself; NULL: a plan */
    const pb_version *version;
    const char *group;
    uint32_t n_ranks;
    const pb_config *config; /* merged from version and deployment */
};

/* Chooses the device of a replica with one rank and writes it to devices[0]. The policy is the
 * `placement` of the configuration, or of the manager (fit.h). Replicas on GPUs always choose
 * one; replicas on CPU nodes only where the policy is not "auto". The wanted size on a GPU is
 * `gpu_memory_bytes`, or the size of the earlier process that served. On a CPU node it is
 * estimate_host_bytes(). Returns the number of devices that the replica gets: 1, or n_devices
 * where it takes all. */
size_t device_room_choose(const struct fleet *fleet, const struct device_wish *wish,
                          char *devices[], size_t n_devices);

/* Bytes that --memory-budget leaves on these devices for a new replica, or for `but_id` beyond
 * its kept weights; at least 1. 0: there is no budget. */
uint64_t device_room_in_budget(const struct fleet *fleet, const char *but_id, char *const *devices,
                               size_t n_devices);

/* Bytes that the end of a deployment's replicas frees. The device is a GPU ("cuda:0"), or a CPU
 * node with a budget; any other name stands for the host memory. */
uint64_t device_room_freed_by(const struct fleet *fleet, const pb_deployment *deployment,
                              const char *device);

/* Checks that the last of n parked deployments can wake while the deployments before it serve.
 * The deployment needs room on its GPUs beside all other claims, and within --memory-budget.
 * RESOURCE_EXHAUSTED, reason DEVICE_MEMORY. Sizes that are not yet known count as 0. */
int device_room_check_wake(const struct fleet *fleet, const pb_deployment *const *deployments,
                           size_t n, struct error *err);

/* True while another worker on a GPU of the replica's group has started and not yet taken its
 * memory. Both workers would count the same free bytes. */
bool device_room_is_being_taken(const struct fleet *fleet, const char *replica_id);
