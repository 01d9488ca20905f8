/* device_room.h: how much of each GPU's memory is promised to replicas, and where a new worker
 * finds room. Free memory alone is not enough. A starting worker has not yet taken its budget,
 * and a worker that died will return. So a worker receives the bytes promised to other replicas
 * on its GPU. While one worker takes its memory, no other worker is started there. Memory of
 * foreign processes counts as used. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct device_room {
    /* Sums over the replicas that are or will be on the device. A replica promises the larger of
     * planned and held bytes. */
    uint64_t promised_bytes, held_bytes;
    uint32_t n_processes;
    uint32_t n_unsized;       /* replicas there or to come that have not reported their size */
    bool is_there;            /* the machine has the device, by the last probe */
    uint64_t available_bytes; /* neither used nor promised, by NVML and the probe */
    uint64_t ended_bytes;     /* not in available_bytes: memory of processes that ended after the
                               * last NVML sample */
};

/* Reads the room of a GPU over all replicas but `but_id`; all zero for a CPU. NULL means a plan:
 * all replicas count, and those that have not started count with their budget. */
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
 * `gpu_memory_bytes`, or the size of the earlier process that served. On a CPU node it is the
 * plan of a live replica of the deployment. Without a replica it is the weights plus the
 * requested KV cache and states. Returns the number of devices that the replica gets: 1, or
 * n_devices where it takes all. */
size_t device_room_choose(const struct fleet *fleet, const struct device_wish *wish,
                          char *devices[], size_t n_devices);

/* Host memory that a replica will take to serve: another replica's plan, else weights plus KV
 * cache plus states. 0: the configuration sets no size of the KV cache, so the worker takes what is
 * free. */
uint64_t device_room_estimate(const struct fleet *fleet, const char *replica_id);

/* Bytes of the recurrent states that a configuration asks for: all slots, or one if it sets no
 * number. 0: the model has no recurrent layers. */
uint64_t device_room_state_bytes(const pb_info *info, const pb_config *config);

/* Bytes of the KV cache that a configuration asks for; 0: it sets no size. A cache of type int8
 * also has scales, which are not counted. */
uint64_t device_room_kv_bytes(const pb_info *info, const pb_config *config);

/* GPU memory that a replica will take after a wake: the plan of its last serving process, else
 * its budget or weights. */
uint64_t device_room_of_gpu(const struct fleet *fleet, const char *replica_id);

/* True while another worker on a GPU of the replica's group has started and not yet taken its
 * memory. Both workers would count the same free bytes. */
bool device_room_is_being_taken(struct fleet *fleet, const char *replica_id);
