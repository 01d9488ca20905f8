/* placement.h: which CPUs a program's compute threads take. A pure function of the topology:
 *
 *   1. one thread per core before any core has a second (SMT siblings come last);
 *   2. on one node where the threads fit, the one with the most cores free; else spread evenly
 *      over as few nodes as there must be, each node's threads in a row;
 *   3. within a node, domain by domain (CPUs that share their last cache), the largest first, so
 *      that the threads of a program share a cache and two programs do not.
 *
 * Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/system/cpus.h"
#include "base/system/topology.h"

struct error;

enum { PLACEMENT_MAX_THREADS = 1024 };

struct placement {
    uint32_t n_threads;
    bool crowded;     /* more threads than CPUs: several of `cpus` are equal */
    uint32_t n_nodes; /* that the threads are on */
    uint16_t nodes[TOPOLOGY_MAX_NODES];
    uint16_t cpus[PLACEMENT_MAX_THREADS];
    uint16_t node_of[PLACEMENT_MAX_THREADS];
};

/* Threads for the CPUs of `allowed`: one per core, and no more than the CPU time that a cgroup
 * allows, in thousandths of a CPU (0: no limit), rounded up. At least 1. */
uint32_t placement_default_threads(const struct topology *topology, const struct cpus *allowed,
                                   uint64_t quota_milli);

/* n_threads 1 to PLACEMENT_MAX_THREADS, on CPUs of `allowed` that are online. INVALID_ARGUMENT
 * where there is none, or the number is out of range. */
int placement_choose(const struct topology *topology, const struct cpus *allowed,
                     uint32_t n_threads, struct placement *out, struct error *err);

/* Of `allowed`, the CPUs for one program with n_threads threads beside others: `n_users` says how
 * many sit on each CPU already (by CPU number, [CPUS_MAX]). The cores that fewest use, as above,
 * and all of `allowed` that belongs to them. *out_shared: of those CPUs some are used by others. */
int placement_share(const struct topology *topology, const struct cpus *allowed,
                    const uint16_t *n_users, uint32_t n_threads, struct cpus *out, bool *out_shared,
                    struct error *err);

/* Where thread i may run: its CPU alone, or all of `allowed` that share its cache on its node. */
void placement_mask(const struct topology *topology, const struct placement *placement, uint32_t i,
                    bool alone, const struct cpus *allowed, struct cpus *out);

/* CPU time that the process's cgroups (of version 1 or 2) allow it, in thousandths of a CPU; 0: no
 * limit. `proc_root` and `sys_root` are "/proc" and "/sys". What cannot be read limits nothing. */
uint64_t placement_quota_milli(const char *proc_root, const char *sys_root);
