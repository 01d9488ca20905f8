/* device_room.h: how much of each GPU's memory is promised, and where a new worker finds room. What
 * is free now says too little: a worker that starts has not taken yet what it was told that it may
 * have, and one that died comes back for it. So workers are told what is promised to the others on
 * their GPU, and while one takes its memory no other is started there. Processes that are not ours
 * are not asked: what they hold is not free. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct device_room {
    /* Of all replicas that are on the device or come back to it what they planned or hold,
     * whichever is more; and of that what they hold. */
    uint64_t promised_bytes, held_bytes;
    uint32_t n_processes;
    uint32_t n_unsized;       /* replicas there, or to come, that have not said what they take */
    bool is_there;            /* the machine has the device, as far as the last probe tells */
    uint64_t available_bytes; /* neither used nor promised, as far as NVML and the probe tell */
    uint64_t ended_bytes;     /* more, which processes had that ended since NVML was asked */
};

/* Of all replicas but `but_id`. NULL: of all, and budgets count too of those whose process is still
 * to be started: for a plan, which nobody waits for. Nothing of a CPU. */
void device_room_look(const struct fleet *fleet, const char *device, const char *but_id,
                      struct device_room *out_room);

/* What is to be placed. */
struct device_wish {
    const char *but_id; /* the replica itself; NULL: a plan */
    const pb_version *version;
    const char *group;
    uint32_t n_ranks;
    const pb_config *config; /* of version and deployment together */
};

/* A replica of one rank takes one device of its group, as `placement` of its configuration, or of
 * the manager, says (fit.h): of the GPUs one always, of the CPU's nodes where that is not "auto".
 * devices[0] becomes that device. What it wants is known of a GPU where `gpu_memory_bytes` says so,
 * or where it had a process before that served; of a node it is what a live replica of the same
 * deployment has planned, else what the file and the KV cache that is asked for come to. Returns
 * how many devices the replica gets: 1, or n_devices where it takes all. */
size_t device_room_choose(const struct fleet *fleet, const struct device_wish *wish,
                          char *devices[], size_t n_devices);

/* Of the machine's memory, what a replica that is to serve will take, where a KV cache of some size
 * is asked for: as another of its deployment has planned, else its weights and that. 0: none is
 * asked for, it is what is free. */
uint64_t device_room_estimate(const struct fleet *fleet, const char *replica_id);

/* Of a GPU's, what a replica that is woken will take, as far as is known: what its last process
 * that served planned, else what its load allows it, else its weights. */
uint64_t device_room_of_gpu(const struct fleet *fleet, const char *replica_id);

/* Whether another worker that was started on a GPU of the replica's group has yet to take its
 * memory: what is free there would be counted for both. */
bool device_room_is_being_taken(struct fleet *fleet, const char *replica_id);
