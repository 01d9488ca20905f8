/* topology.h: the machine's NUMA nodes, packages, cores, hardware threads and caches, read from a
 * tree like /sys. Where the kernel reports nothing, there is a single node, package or cache. Plain
 * data once read: any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/system/cpus.h"

struct error;

enum { TOPOLOGY_MAX_NODES = 64, TOPOLOGY_MAX_LEVEL = 4 };

/* The data or unified cache of a level, as a CPU sees it; bytes 0: there is none. */
struct topology_cache {
    uint64_t bytes;
    uint16_t first; /* lowest CPU that shares it */
};

/* An online CPU (hardware thread). */
struct topology_cpu {
    uint16_t id, node, package;
    uint16_t core;    /* lowest CPU of the same core */
    uint16_t sibling; /* index among the threads of the core: 0 for the first */
    uint16_t domain;  /* lowest CPU on this node that shares the last-level cache */
    struct topology_cache caches[TOPOLOGY_MAX_LEVEL + 1]; /* by level; [0] is unused */
};

struct topology {
    uint32_t n_cpus, n_nodes;
    uint16_t nodes[TOPOLOGY_MAX_NODES]; /* nodes that have CPUs, ascending */
    struct cpus online;
    struct topology_cpu *cpus; /* owned; ascending */
};

/* Reads `root` ("/sys"). INVALID_ARGUMENT names the file and the error in it; NOT_FOUND: the tree
 * does not list the online CPUs. Call topology_fini() in any case. */
int topology_init(struct topology *topology, const char *root, struct error *err);
/* Makes a topology of one node and one cache over n CPUs, for machines that report nothing. */
int topology_init_flat(struct topology *topology, const struct cpus *cpus, struct error *err);
void topology_fini(struct topology *topology);

/* Returns NULL if the CPU is not online. */
const struct topology_cpu *topology_cpu(const struct topology *topology, uint32_t id);
/* Gets the CPUs of a node; false if no node of this number has CPUs. */
bool topology_node_cpus(const struct topology *topology, uint32_t node, struct cpus *out);
/* Count, for a set of CPUs: the cores with a thread in the set, the nodes, the caches of a level.
 * *out_bytes is the size of one such cache. */
uint32_t topology_n_cores(const struct topology *topology, const struct cpus *set);
uint32_t topology_n_nodes(const struct topology *topology, const struct cpus *set);
uint32_t topology_n_caches(const struct topology *topology, const struct cpus *set, uint32_t level,
                           uint64_t *out_bytes);

/* Parses CPUs as an operator writes them: numbers, ranges, and node:N for all CPUs of a node
 * ("0-7,16-23", "node:0,node:1"). INVALID_ARGUMENT begins with `what` and names the byte, the CPU
 * that is not online, or the missing node. */
int topology_parse(const struct topology *topology, const char *what, const char *text,
                   struct cpus *out, struct error *err);
