/* placement.h: chooses the CPUs of a program's compute threads. A pure function of the topology:
 *
 *   1. each core gets its first thread before any core gets a second (SMT siblings come last);
 *   2. if the threads fit on a node, the node with the most usable cores; otherwise an even split
 *      over the smallest number of nodes, with each node's threads in a row;
 *   3. within a node, domain by domain (CPUs that share their last-level cache), the largest first,
 *      so that a program's threads share a cache and two programs do not.
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
    bool crowded;     /* more threads than CPUs: `cpus` contains duplicates */
    uint32_t n_nodes; /* nodes that have threads */
    uint16_t nodes[TOPOLOGY_MAX_NODES];
    uint16_t cpus[PLACEMENT_MAX_THREADS];
    uint16_t node_of[PLACEMENT_MAX_THREADS];
};

/* Returns the default number of threads for the CPUs of `allowed`: one per core. At most the
 * cgroup's CPU time `quota_milli` in thousandths of a CPU (0: no limit), rounded up. At least 1. */
uint32_t placement_default_threads(const struct topology *topology, const struct cpus *allowed,
                                   uint64_t quota_milli);

/* Places n_threads, 1 to PLACEMENT_MAX_THREADS, on CPUs of `allowed` that are online.
 * INVALID_ARGUMENT if there is no such CPU or the number is out of range. */
int placement_choose(const struct topology *topology, const struct cpus *allowed,
                     uint32_t n_threads, struct placement *out, struct error *err);

/* Chooses CPUs of `allowed` for a program with n_threads threads beside other programs.
 * n_users[CPUS_MAX] counts the programs on each CPU. The least used cores are chosen by the rules
 * above, with all their CPUs in `allowed`. *out_shared: other programs use some of these CPUs. */
int placement_share(const struct topology *topology, const struct cpus *allowed,
                    const uint16_t *n_users, uint32_t n_threads, struct cpus *out, bool *out_shared,
                    struct error *err);

/* Gets the CPUs of thread i: its own CPU alone, or all of `allowed` that share its cache on its
 * node. */
void placement_mask(const struct topology *topology, const struct placement *placement, uint32_t i,
                    bool alone, const struct cpus *allowed, struct cpus *out);

/* Returns the CPU time that the process's cgroups (version 1 or 2) allow, in thousandths of a CPU;
 * 0: no limit. `proc_root` and `sys_root` are "/proc" and "/sys". A file that cannot be read sets
 * no limit. */
uint64_t placement_quota_milli(const char *proc_root, const char *sys_root);
