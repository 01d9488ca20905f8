/* memory_budget.h: the limit of memory that all workers may take, in total and per NUMA node, as
 * an operator writes it: "32G", "node:0=8G,node:1=24G", "32G,node:0=8G". The limits are absolute
 * and do not follow the machine's free memory. Plain data; any thread. */
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

/* Empty or "0": no limit. INVALID_ARGUMENT names the option `name` and the fault. */
int memory_budget_parse(const char *name, const char *text, struct memory_budget *out,
                        struct error *err);
/* Checks that the machine of the tree `root` ("/sys") has every node with a budget.
 * INVALID_ARGUMENT names the option, the node and the existing nodes. A tree without nodes
 * passes. */
int memory_budget_check_nodes(const char *name, const struct memory_budget *budget,
                              const char *root, struct error *err);
/* True where the device "cpu:N" has a budget of its own. */
bool memory_budget_of(const struct memory_budget *budget, const char *device, uint64_t *out_bytes);
