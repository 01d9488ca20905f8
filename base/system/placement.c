#include "base/system/placement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

uint32_t placement_default_threads(const struct topology *topology, const struct cpus *allowed,
                                   uint64_t quota_milli)
{
    uint64_t n = topology_n_cores(topology, allowed);
    uint64_t most = (quota_milli + 999) / 1000;
    if (quota_milli > 0 && n > most)
        n = most;
    n = n < PLACEMENT_MAX_THREADS ? n : PLACEMENT_MAX_THREADS;
    return n > 0 ? (uint32_t)n : 1;
}

/* A CPU that the threads may use, and its place in the order. */
struct candidate {
    const struct topology_cpu *cpu;
    uint32_t rank;     /* index among the usable threads of its core: 0 for the first */
    uint32_t n_domain; /* usable cores of its domain */
};

struct choice {
    struct candidate *candidates; /* [n], in the order of use within a node */
    uint32_t n;
    struct {
        uint16_t id;
        uint32_t n_cores, n_cpus; /* usable */
        uint32_t n_wanted;        /* threads that the node gets */
    } nodes[TOPOLOGY_MAX_NODES];
    uint32_t n_nodes;
};

static int by_order_of_use(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->n_domain != y->n_domain)
        return x->n_domain > y->n_domain ? -1 : 1;
    if (x->cpu->domain != y->cpu->domain)
        return x->cpu->domain < y->cpu->domain ? -1 : 1;
    return x->cpu->id < y->cpu->id ? -1 : 1;
}

static void count_node(struct choice *c, const struct candidate *candidate)
{
    uint32_t i = 0;
    while (i < c->n_nodes && c->nodes[i].id != candidate->cpu->node)
        i++;
    if (i == c->n_nodes)
        c->nodes[c->n_nodes++].id = candidate->cpu->node;
    c->nodes[i].n_cpus++;
    c->nodes[i].n_cores += candidate->rank == 0;
}

static int list_candidates(const struct topology *topology, const struct cpus *allowed,
                           struct choice *c, struct error *err)
{
    struct {
        uint32_t of_core[CPUS_MAX], of_domain[CPUS_MAX];
    } *n = calloc(1, sizeof(*n));
    *c = (struct choice){.candidates = calloc(topology->n_cpus + 1, sizeof(*c->candidates))};
    if (n == NULL || c->candidates == NULL) {
        free(n);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "placement: out of memory");
    }
    for (uint32_t i = 0; i < topology->n_cpus; i++) {
        const struct topology_cpu *cpu = &topology->cpus[i];
        if (!cpus_has(allowed, cpu->id))
            continue;
        struct candidate *candidate = &c->candidates[c->n++];
        *candidate = (struct candidate){.cpu = cpu, .rank = n->of_core[cpu->core]++};
        n->of_domain[cpu->domain] += candidate->rank == 0;
        count_node(c, candidate);
    }
    for (uint32_t i = 0; i < c->n; i++)
        c->candidates[i].n_domain = n->of_domain[c->candidates[i].cpu->domain];
    free(n);
    qsort(c->candidates, c->n, sizeof(*c->candidates), by_order_of_use);
    if (c->n == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "placement: none of the allowed CPUs is online");
    return 0;
}

/* Splits n threads over the first n_nodes nodes as evenly as their size allows. */
static void spread(struct choice *c, uint32_t n_nodes, bool siblings, uint32_t n)
{
    for (uint32_t i = 0; i < c->n_nodes; i++)
        c->nodes[i].n_wanted = 0;
    while (n > 0) {
        uint32_t before = n;
        for (uint32_t i = 0; i < n_nodes && n > 0; i++) {
            uint32_t room = siblings ? c->nodes[i].n_cpus : c->nodes[i].n_cores;
            if (c->nodes[i].n_wanted < room) {
                c->nodes[i].n_wanted++;
                n--;
            }
        }
        if (n == before)
            return;
    }
}

/* Sets how many threads each node gets; n is at most the number of CPUs. */
static void divide(struct choice *c, uint32_t n)
{
    /* Sort by number of cores, descending; the sort is stable. */
    for (uint32_t i = 1; i < c->n_nodes; i++)
        for (uint32_t j = i; j > 0 && c->nodes[j].n_cores > c->nodes[j - 1].n_cores; j--) {
            __typeof__(c->nodes[0]) node = c->nodes[j];
            c->nodes[j] = c->nodes[j - 1];
            c->nodes[j - 1] = node;
        }
    uint32_t n_cores = 0;
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        n_cores += c->nodes[i].n_cores;
        if (n <= n_cores) {
            spread(c, i + 1, false, n);
            return;
        }
    }
    spread(c, c->n_nodes, true, n);
}

static void place_threads(const struct choice *c, uint32_t n_turns, struct placement *p)
{
    for (uint32_t i = 0; i < c->n_nodes; i++) {
        uint32_t left = c->nodes[i].n_wanted;
        if (left > 0)
            p->nodes[p->n_nodes++] = c->nodes[i].id;
        for (uint32_t j = 0; j < c->n && left > 0; j++) {
            const struct topology_cpu *cpu = c->candidates[j].cpu;
            if (cpu->node != c->nodes[i].id)
                continue;
            left--;
            for (uint32_t turn = 0; turn < n_turns && p->n_threads < PLACEMENT_MAX_THREADS;
                 turn++) {
                p->cpus[p->n_threads] = cpu->id;
                p->node_of[p->n_threads++] = cpu->node;
            }
        }
    }
}

int placement_choose(const struct topology *topology, const struct cpus *allowed,
                     uint32_t n_threads, struct placement *out, struct error *err)
{
    struct choice c;
    struct placement p = {0};
    if (n_threads == 0 || n_threads > PLACEMENT_MAX_THREADS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "placement: %u threads, limit 1..%d",
                         n_threads, PLACEMENT_MAX_THREADS);
    int rc = list_candidates(topology, allowed, &c, err);
    uint32_t n_cpus = c.n > 0 ? c.n : 1; /* with no CPU rc is an error already */
    if (rc == 0) {
        p.crowded = n_threads > n_cpus;
        divide(&c, p.crowded ? n_cpus : n_threads);
        place_threads(&c, (n_threads + n_cpus - 1) / n_cpus, &p);
        p.n_threads = n_threads;
        *out = p;
    }
    free(c.candidates);
    return rc;
}

int placement_share(const struct topology *topology, const struct cpus *allowed,
                    const uint16_t *n_users, uint32_t n_threads, struct cpus *out, bool *out_shared,
                    struct error *err)
{
    struct placement p;
    struct cpus usable = *allowed, cores = {{0}}, set = {{0}};
    uint16_t level = 0;
    cpus_and(&usable, &topology->online);
    uint32_t most = topology_n_cores(topology, &usable);
    uint32_t wanted = n_threads < most ? n_threads : most;
    /* The use of a core is that of its most used hardware thread. */
    uint16_t *of_core = calloc(CPUS_MAX, sizeof(*of_core));
    if (of_core == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "placement: out of memory");
    for (uint32_t i = 0; i < topology->n_cpus; i++) {
        const struct topology_cpu *cpu = &topology->cpus[i];
        if (n_users[cpu->id] > of_core[cpu->core])
            of_core[cpu->core] = n_users[cpu->id];
    }
    for (;; level++) {
        struct cpus free_cpus = {{0}};
        for (uint32_t i = 0; i < topology->n_cpus; i++)
            if (cpus_has(&usable, topology->cpus[i].id) && of_core[topology->cpus[i].core] <= level)
                cpus_add(&free_cpus, topology->cpus[i].id);
        if (topology_n_cores(topology, &free_cpus) >= wanted || level == UINT16_MAX) {
            usable = free_cpus;
            break;
        }
    }
    free(of_core);
    int rc = placement_choose(topology, &usable, wanted > 0 ? wanted : 1, &p, err);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < p.n_threads; i++)
        cpus_add(&cores, topology_cpu(topology, p.cpus[i])->core);
    for (uint32_t i = 0; i < topology->n_cpus; i++)
        if (cpus_has(&usable, topology->cpus[i].id) && cpus_has(&cores, topology->cpus[i].core))
            cpus_add(&set, topology->cpus[i].id);
    *out = set;
    *out_shared = level > 0;
    return 0;
}

void placement_mask(const struct topology *topology, const struct placement *placement, uint32_t i,
                    bool alone, const struct cpus *allowed, struct cpus *out)
{
    struct cpus set = {{0}};
    const struct topology_cpu *own = topology_cpu(topology, placement->cpus[i]);
    cpus_add(&set, placement->cpus[i]);
    for (uint32_t j = 0; own != NULL && !alone && j < topology->n_cpus; j++)
        if (topology->cpus[j].domain == own->domain && cpus_has(allowed, topology->cpus[j].id))
            cpus_add(&set, topology->cpus[j].id);
    *out = set;
}

/* --- limits of cgroups --- */

/* Mount of a cgroup hierarchy below /sys/fs/cgroup. */
struct cgroups {
    const char *sys_root;
    const char *mount; /* "" or "/cpu" */
    bool is_v1;
};

/* Reads the first line of a cgroup's file; false if there is no file. */
static bool read_group(const struct cgroups *cgroups, const char *group, const char *name,
                       char *out, int n_bytes)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/fs/cgroup%s%s/%s", cgroups->sys_root, cgroups->mount, group,
             name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool ok = fgets(out, n_bytes, file) != NULL;
    fclose(file);
    return ok;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the limit of a cgroup in thousandths of a CPU; 0: no limit. Version 2 has "MAX PERIOD" in
 * cpu.max, version 1 has two files. */
static uint64_t quota_at(const struct cgroups *cgroups, const char *group)
{
    char text[64] = "", second[64] = "", *end;
    if (!read_group(cgroups, group, cgroups->is_v1 ? "cpu.cfs_quota_us" : "cpu.max", text,
                    sizeof(text)) ||
        !is_digit(text[0]))
        return 0; /* "max" or "-1": no limit */
    uint64_t quota = strtoull(text, &end, 10);
    if (cgroups->is_v1) {
        if (!read_group(cgroups, group, "cpu.cfs_period_us", second, sizeof(second)))
            return 0;
        end = second;
    }
    uint64_t period = strtoull(end, NULL, 10);
    if (period == 0 || quota > UINT64_MAX / 1000)
        return 0;
    uint64_t milli = quota * 1000 / period;
    return milli > 0 ? milli : 1;
}

static void take_least(uint64_t *least, uint64_t milli)
{
    if (milli > 0 && (*least == 0 || milli < *least))
        *least = milli;
}

/* Applies the limits of a cgroup and of those above it; the smallest holds. */
static void apply_groups(const struct cgroups *cgroups, const char *of, uint64_t *least)
{
    char group[512];
    snprintf(group, sizeof(group), "%s", of);
    for (char *slash = group + strlen(group); slash != NULL; slash = strrchr(group, '/')) {
        *slash = '\0';
        take_least(least, quota_at(cgroups, group));
    }
}

/* Returns true if a comma-separated list contains the controller. */
static bool has_controller(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, n) == 0 && (at[n] == '\0' || at[n] == ','))
            return true;
    }
    return false;
}

/* Applies a line of /proc/self/cgroup: "ID:CONTROLLERS:/GROUP". */
static void apply_line(const char *sys_root, char *line, uint64_t *least)
{
    char mount[256];
    char *list = strchr(line, ':'), *group = list != NULL ? strchr(list + 1, ':') : NULL;
    if (group == NULL || group[1] != '/')
        return;
    *list++ = *group++ = '\0';
    struct cgroups cgroups = {.sys_root = sys_root, .mount = "", .is_v1 = *list != '\0'};
    if (!cgroups.is_v1 && strcmp(line, "0") == 0)
        apply_groups(&cgroups, group, least);
    if (!cgroups.is_v1 || !has_controller(list, "cpu"))
        return;
    /* The mount has the controller's name, or the name of the whole list of controllers. */
    cgroups.mount = "/cpu";
    apply_groups(&cgroups, group, least);
    if (strcmp(list, "cpu") == 0 || strchr(list, '/') != NULL)
        return;
    snprintf(mount, sizeof(mount), "/%s", list);
    cgroups.mount = mount;
    apply_groups(&cgroups, group, least);
}

uint64_t placement_quota_milli(const char *proc_root, const char *sys_root)
{
    char path[1024], line[512];
    uint64_t least = 0;
    snprintf(path, sizeof(path), "%s/self/cgroup", proc_root);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        apply_line(sys_root, line, &least);
    }
    fclose(file);
    return least;
}
