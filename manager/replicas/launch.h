/* launch.h: the command line of a worker, made from the records of its replica, version,
 * deployment and device group: everything a worker is told. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "manager/base/pb.h"

struct cpus;
struct error;
struct fleet;
struct launch;

/* `n_packed_fds` descriptors from 3 on are handed down with it; it `keeps` them and does nothing
 * else, or serves. NOT_FOUND where one of the records
 * is gone. *out_heritage is owned; *out_cpus are those that the worker is told are its own. */
int launch_create(const struct fleet *fleet, const char *replica_id, size_t n_packed_fds,
                  bool keeps, struct launch **out_heritage, struct cpus *out_cpus,
                  struct error *err);
void launch_destroy(struct launch *launch); /* NULL is accepted */

/* NULL-terminated; borrowed until destroy. */
char *const *launch_argv(const struct launch *launch);

/* The part that `sluice-worker plan` shares: model, devices, split and configuration. Appended to
 * argv[*n..]; -1 where memory or room is exhausted. */
struct launch_plan {
    const char *model_path, *digest;
    const char *draft_path; /* of the config's draft model, absolute; empty or NULL: none */
    char *const *devices;
    size_t n_devices;
    uint32_t tp, pp;
    const pb_config *config;                     /* may be NULL */
    const char *cpus;                            /* the worker's own; empty: none */
    uint64_t promised_bytes;                     /* of free memory, to other replicas */
    uint64_t limit_bytes;                        /* of the machine's memory; 0: none */
    uint64_t gpu_promised_bytes, gpu_held_bytes; /* device_room.h, of the GPU */
    bool shared;                                 /* the replicas share one copy of the weights */
    bool held;                                   /* and it is in memory */
};
int launch_create_plan(const struct launch_plan *plan, uint32_t n_replicas,
                       struct launch **out_heritage, struct error *err);
