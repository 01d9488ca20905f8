/* memory_budget.h: what workers may take of the machine's memory, all together and on single NUMA
 * nodes, as an operator writes it: "32G", "node:0=8G,node:1=24G", "32G,node:0=8G". In absolute
 * bytes: what else the machine does is no business of it. Plain data; any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;

enum { MEMORY_BUDGET_NODES = 64 }; /* TOPOLOGY_MAX_NODES */

struct memory_budget {
    uint64_t total_bytes; /* 0: no limit */
    bool has_node[MEMORY_BUDGET_NODES];
    uint64_t node_bytes[MEMORY_BUDGET_NODES];
};

/* Empty, or "0": no limit. INVALID_ARGUMENT names the option `name` and what is wrong. */
int memory_budget_parse(const char *name, const char *text, struct memory_budget *out,
                        struct error *err);
/* Whether the machine that `root` ("/sys") tells of has the nodes that have a budget: one for a
 * node that is not there would bound nothing. INVALID_ARGUMENT names the option, the node and those
 * that there are. A tree that tells of no nodes refuses none. */
int memory_budget_check_nodes(const char *name, const struct memory_budget *budget,
                              const char *root, struct error *err);
/* Of a device: true where "cpu:N" has a budget of its own. */
bool memory_budget_of(const struct memory_budget *budget, const char *device, uint64_t *out_bytes);
