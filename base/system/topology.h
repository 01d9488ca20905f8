/* topology.h: how the machine's CPUs lie: nodes of memory, packages, cores and their threads,
 * caches; read from a tree like /sys. What a kernel does not tell is one of everything. Plain data
 * once read: any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/system/cpus.h"

struct error;

enum { TOPOLOGY_MAX_NODES = 64, TOPOLOGY_MAX_LEVEL = 4 };

/* Data and unified caches of one level, as a CPU sees it; bytes 0: there is none. */
struct topology_cache {
    uint64_t bytes;
    uint16_t first; /* lowest CPU that shares it */
};

/* One CPU (hardware thread) that is online. */
struct topology_cpu {
    uint16_t id, node, package;
    uint16_t core;    /* lowest CPU of the same core */
    uint16_t sibling; /* place among the threads of the core: 0 for the first */
    uint16_t domain;  /* lowest CPU of those that share the last cache, on this node */
    struct topology_cache caches[TOPOLOGY_MAX_LEVEL + 1]; /* by level; [0] is unused */
};

struct topology {
    uint32_t n_cpus, n_nodes;
    uint16_t nodes[TOPOLOGY_MAX_NODES]; /* that have CPUs, ascending */
    struct cpus online;
    struct topology_cpu *cpus; /* owned; ascending */
};

/* Reads `root` ("/sys"). INVALID_ARGUMENT names the file and what is wrong in it; NOT_FOUND: the
 * tree does not say which CPUs are online. topology_fini() in any case. */
int topology_init(struct topology *topology, const char *root, struct error *err);
/* One node and one cache over n CPUs, for machines that say nothing. */
int topology_init_flat(struct topology *topology, const struct cpus *cpus, struct error *err);
void topology_fini(struct topology *topology);

/* NULL: it is not online. */
const struct topology_cpu *topology_cpu(const struct topology *topology, uint32_t id);
/* False: no node of this number has CPUs. */
bool topology_node_cpus(const struct topology *topology, uint32_t node, struct cpus *out);
/* Of a set: cores that have a thread in it, nodes, and how many caches of a level it reaches, with
 * the bytes of one. */
uint32_t topology_n_cores(const struct topology *topology, const struct cpus *set);
uint32_t topology_n_nodes(const struct topology *topology, const struct cpus *set);
uint32_t topology_n_caches(const struct topology *topology, const struct cpus *set, uint32_t level,
                           uint64_t *out_bytes);

/* CPUs as an operator writes them: numbers, ranges, and node:N for all of a node ("0-7,16-23",
 * "node:0,node:1"). INVALID_ARGUMENT begins with `what` and names the byte, the CPU that is not
 * online or the node that there is not. */
int topology_parse(const struct topology *topology, const char *what, const char *text,
                   struct cpus *out, struct error *err);
