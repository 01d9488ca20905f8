/* launch.h: the launch record of a worker (sluice.worker.v1.Launch), from the rows of its replica,
 * version, deployment and device group. A start hands the record to the new process (process.h); a
 * wake sends it (worker_link.h). Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "manager/base/pb.h"

struct cpus;
struct error;
struct fleet;

/* Builds the record of a replica's worker. The process gets `n_packed_fds` descriptors with packed
 * weights, from PROCESS_FIRST_FD on. is_parked_worker: the process only keeps them; else it
 * serves. NOT_FOUND where a row is gone. *out_launch is owned; *out_cpus are the CPUs that the
 * worker gets for itself. */
int launch_create(const struct fleet *fleet, const char *replica_id, size_t n_packed_fds,
                  bool is_parked_worker, pb_launch **out_launch, struct cpus *out_cpus,
                  struct error *err);
void launch_destroy(pb_launch *launch); /* NULL is accepted */

/* The parts that `sluice-worker plan` needs too: model, devices, split and configuration. */
struct launch_plan {
    const char *model_path, *digest;
    const char *draft_path; /* absolute path of the config's draft model; empty or NULL: no draft
                             * model */
    char *const *devices;
    size_t n_devices;
    uint32_t tp, pp;
    const pb_config *config; /* may be NULL */
    const char *cpus;        /* CPUs of the worker alone; empty: none */
    uint64_t promised_bytes; /* free host memory that belongs to other replicas */
    uint64_t limit_bytes;    /* limit of the host memory; 0: no limit */
    uint64_t gpu_promised_bytes, gpu_held_bytes; /* ledger.h: taken and held on the GPU */
    bool shared;                                 /* replicas share one copy of the weights */
    bool held;                                   /* the shared copy is already in memory */
};
int launch_create_plan(const struct launch_plan *plan, uint32_t n_replicas, pb_launch **out_launch,
                       struct error *err);
