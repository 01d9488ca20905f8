#include "manager/settings/memory_budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/system/topology.h"

enum { PART_BYTES = 64 };

/* Number of a node, like "8" or "63"; -1: not a node number. */
static long node_number(const char *text, const char *end)
{
    char *stop;
    if (text == end || *text < '0' || *text > '9')
        return -1;
    unsigned long n = strtoul(text, &stop, 10);
    return stop == end && n < MEMORY_BUDGET_NODES ? (long)n : -1;
}

static int parse_part(const char *name, const char *part, struct memory_budget *budget,
                      struct error *err)
{
    static const char node[] = "node:";
    struct numbers value;
    const char *equals = strchr(part, '=');
    const char *text = equals ? equals + 1 : part;
    long n = -1;
    if (equals && strncmp(part, node, sizeof(node) - 1) == 0)
        n = node_number(part + sizeof(node) - 1, equals);
    if (equals && n < 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: \"%s\"; must be BYTES, or node:N=BYTES with N up to %d", name, part,
                         MEMORY_BUDGET_NODES - 1);
    /* numbers_parse() adds "--" */
    const char *bare = strncmp(name, "--", 2) == 0 ? name + 2 : name;
    if (numbers_parse(bare, text, 0, INT64_MAX, &value, err) != 0)
        return err->status;
    if (n >= 0 ? budget->has_node[n] : budget->total_bytes != 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: \"%s\": is given twice", name, part);
    if (n >= 0) {
        budget->has_node[n] = true;
        budget->node_bytes[n] = value.values[0];
    } else {
        budget->total_bytes = value.values[0];
    }
    return 0;
}

int memory_budget_parse(const char *name, const char *text, struct memory_budget *out,
                        struct error *err)
{
    struct memory_budget budget = {.total_bytes = 0};
    for (const char *at = text; *text;) {
        char part[PART_BYTES];
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof(part))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: \"%.80s\"; must be a list of BYTES and node:N=BYTES", name, text);
        memcpy(part, at, n);
        part[n] = '\0';
        if (parse_part(name, part, &budget, err) != 0)
            return err->status;
        at += n;
        if (*at == '\0')
            break;
        at++;
    }
    *out = budget;
    return 0;
}

static int check_nodes(const char *name, const struct memory_budget *budget,
                       const struct topology *topology, struct error *err)
{
    char there[TOPOLOGY_MAX_NODES * 8] = "";
    for (uint32_t i = 0; i < topology->n_nodes; i++) {
        size_t n = strlen(there);
        snprintf(there + n, sizeof(there) - n, "%snode:%u", i ? ", " : "", topology->nodes[i]);
    }
    for (uint32_t node = 0; node < MEMORY_BUDGET_NODES; node++) {
        struct cpus cpus;
        if (budget->has_node[node] && !topology_node_cpus(topology, node, &cpus))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: node:%u: this machine has no NUMA node %u with processors; it "
                             "has %s",
                             name, node, node, there);
    }
    return 0;
}

int memory_budget_check_nodes(const char *name, const struct memory_budget *budget,
                              const char *root, struct error *err)
{
    struct topology topology = {0};
    struct error why;
    int rc = 0;
    if (topology_init(&topology, root, &why) == 0 && topology.n_nodes)
        rc = check_nodes(name, budget, &topology, err);
    topology_fini(&topology);
    return rc;
}

bool memory_budget_of(const struct memory_budget *budget, const char *device, uint64_t *out_bytes)
{
    static const char cpu[] = "cpu:";
    if (strncmp(device, cpu, sizeof(cpu) - 1) != 0)
        return false;
    long n = node_number(device + sizeof(cpu) - 1, device + strlen(device));
    if (n < 0 || !budget->has_node[n])
        return false;
    *out_bytes = budget->node_bytes[n];
    return true;
}
