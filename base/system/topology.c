#include "base/system/topology.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* The list of every second CPU of 4,096 has 10,240 bytes. */
enum { FILE_BYTES = 16384, PATH_BYTES = 512, MAX_CACHES = 16, MAX_ID = 0xFFFF };

struct reading {
    const char *root;
    char path[PATH_BYTES]; /* the file read last, relative to root */
    char text[FILE_BYTES];
};

/* Reads a file into r->text and ends the text with a NUL. NOT_FOUND if there is no file. */
static int read_file(struct reading *r, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int read_file(struct reading *r, struct error *err, const char *format, ...)
{
    char path[2 * PATH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(r->path, sizeof(r->path), format, args);
    va_end(args);
    snprintf(path, sizeof(path), "%s/%s", r->root, r->path);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return errno == ENOENT || errno == ENOTDIR
                   ? error_set(err, STATUS_NOT_FOUND, "topology: there is no %s", r->path)
                   : error_errno(err, errno, "topology: %s", r->path);
    size_t n = fread(r->text, 1, sizeof(r->text), file);
    /* An attribute of a CPU that has just gone offline can be opened but not read. */
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed)
        return error_set(err, STATUS_NOT_FOUND, "topology: %s cannot be read", r->path);
    if (n == sizeof(r->text) || memchr(r->text, '\0', n) != NULL)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         n == sizeof(r->text) ? "topology: %s: longer than %d bytes"
                                              : "topology: %s: a NUL among its %d bytes or fewer",
                         r->path, FILE_BYTES - 1);
    r->text[n] = '\0';
    return 0;
}

/* Parses the list of CPUs in the file just read. */
static int parse_list(const struct reading *r, struct cpus *out, struct error *err)
{
    int rc = cpus_parse(r->path, r->text, out, err);
    return rc ? error_prefix(err, "topology") : 0;
}

/* Parses a whole number in the file just read; *out_unit is the byte after it. */
static int parse_number(const struct reading *r, uint64_t max, uint64_t *out, char *out_unit,
                        struct error *err)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(r->text, &end, 10);
    if (!isdigit((unsigned char)r->text[0]) || errno != 0 || value > max)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "topology: %s: \"%.40s\" is not a number from 0 to %llu", r->path, r->text,
                         (unsigned long long)max);
    *out = value;
    if (out_unit != NULL)
        *out_unit = *end;
    return 0;
}

static void set_error_ok(int *rc, struct error *err)
{
    if (*rc == STATUS_NOT_FOUND) {
        *rc = 0;
        error_clear(err);
    }
}

static struct topology_cpu *find(const struct topology *t, uint32_t id)
{
    uint32_t low = 0, high = t->n_cpus;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (t->cpus[middle].id == id)
            return &t->cpus[middle];
        if (t->cpus[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* --- CPUs --- */

static int read_core(struct reading *r, const struct topology *t, struct topology_cpu *cpu,
                     struct error *err)
{
    struct cpus siblings;
    uint64_t package = 0;
    int rc = read_file(r, err, "devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu->id);
    if (rc == 0)
        rc = parse_list(r, &siblings, err);
    if (rc == 0) {
        cpus_and(&siblings, &t->online);
        if (!cpus_has(&siblings, cpu->id))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "topology: %s: CPU %u is not among its own siblings", r->path,
                             cpu->id);
        cpu->core = (uint16_t)cpus_next(&siblings, 0);
        for (uint32_t i = cpu->core; i != cpu->id; i = cpus_next(&siblings, i + 1))
            cpu->sibling++;
    }
    set_error_ok(&rc, err);
    if (rc == 0)
        rc = read_file(r, err, "devices/system/cpu/cpu%u/topology/physical_package_id", cpu->id);
    if (rc == 0 && r->text[0] != '-') /* -1: unknown */
        rc = parse_number(r, MAX_ID, &package, NULL, err);
    set_error_ok(&rc, err);
    cpu->package = (uint16_t)package;
    return rc;
}

/* Reads a cache of a CPU. NOT_FOUND if `index` is past the CPU's last cache. */
static int read_cache(struct reading *r, const struct topology *t, struct topology_cpu *cpu,
                      uint32_t index, struct error *err)
{
    uint64_t level = 0, size = 0;
    char unit = '\0';
    struct cpus shared;
    int rc = read_file(r, err, "devices/system/cpu/cpu%u/cache/index%u/level", cpu->id, index);
    if (rc == 0)
        rc = parse_number(r, MAX_ID, &level, NULL, err);
    if (rc != 0 || level == 0 || level > TOPOLOGY_MAX_LEVEL)
        return rc;
    rc = read_file(r, err, "devices/system/cpu/cpu%u/cache/index%u/type", cpu->id, index);
    if (rc == 0 && strncmp(r->text, "Instruction", 11) == 0)
        return 0;
    set_error_ok(&rc, err);
    if (rc == 0)
        rc = read_file(r, err, "devices/system/cpu/cpu%u/cache/index%u/size", cpu->id, index);
    if (rc == 0)
        rc = parse_number(r, 1ULL << 40, &size, &unit, err);
    set_error_ok(&rc, err);
    size <<= unit == 'K' ? 10 : unit == 'M' ? 20 : 0;
    if (rc == 0)
        rc = read_file(r, err, "devices/system/cpu/cpu%u/cache/index%u/shared_cpu_list", cpu->id,
                       index);
    if (rc == 0)
        rc = parse_list(r, &shared, err);
    if (rc == STATUS_NOT_FOUND) {
        shared = (struct cpus){{0}};
        cpus_add(&shared, cpu->id);
    }
    set_error_ok(&rc, err);
    if (rc != 0)
        return rc;
    cpus_and(&shared, &t->online);
    if (!cpus_has(&shared, cpu->id))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "topology: %s: CPU %u does not share its own cache", r->path, cpu->id);
    /* Some machines report sharing without a size: 1 byte then marks the cache as present. */
    cpu->caches[level] =
        (struct topology_cache){size > 0 ? size : 1, (uint16_t)cpus_next(&shared, 0)};
    return 0;
}

static int read_cpu(struct reading *r, const struct topology *t, struct topology_cpu *cpu,
                    struct error *err)
{
    cpu->core = cpu->id;
    int rc = read_core(r, t, cpu, err);
    for (uint32_t i = 0; rc == 0 && i < MAX_CACHES; i++) {
        rc = read_cache(r, t, cpu, i, err);
        if (rc == STATUS_NOT_FOUND) {
            set_error_ok(&rc, err);
            break;
        }
    }
    return rc;
}

/* --- nodes --- */

static int read_node(struct reading *r, struct topology *t, uint32_t node, struct cpus *seen,
                     struct error *err)
{
    struct cpus cpus;
    int rc = read_file(r, err, "devices/system/node/node%u/cpulist", node);
    if (rc == 0)
        rc = parse_list(r, &cpus, err);
    if (rc != 0)
        return rc;
    cpus_and(&cpus, &t->online);
    uint32_t id = cpus_next(&cpus, 0);
    if (id == CPUS_MAX)
        return 0; /* a node of memory without CPUs */
    for (; id < CPUS_MAX; id = cpus_next(&cpus, id + 1)) {
        if (cpus_has(seen, id))
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "topology: %s: CPU %u also belongs to another node", r->path, id);
        find(t, id)->node = (uint16_t)node;
    }
    cpus_or(seen, &cpus);
    t->nodes[t->n_nodes++] = (uint16_t)node;
    return 0;
}

static int read_nodes(struct reading *r, struct topology *t, struct error *err)
{
    struct cpus nodes, seen = {{0}};
    int rc = read_file(r, err, "devices/system/node/online");
    if (rc == 0)
        rc = parse_list(r, &nodes, err);
    for (uint32_t i = 0; rc == 0 && (i = cpus_next(&nodes, i)) < CPUS_MAX; i++) {
        if (i >= TOPOLOGY_MAX_NODES)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "topology: devices/system/node/online: node %u: numbers go from 0 to "
                             "%d",
                             i, TOPOLOGY_MAX_NODES - 1);
        rc = read_node(r, t, i, &seen, err);
        set_error_ok(&rc, err);
    }
    set_error_ok(&rc, err);
    if (rc != 0)
        return rc;
    if (t->n_nodes > 0 && !cpus_equal(&seen, &t->online)) {
        cpus_remove(&t->online, &seen);
        uint32_t first = cpus_next(&t->online, 0);
        cpus_or(&t->online, &seen);
        return error_set(err, STATUS_INVALID_ARGUMENT, "topology: CPU %u belongs to no node",
                         first);
    }
    if (t->n_nodes == 0) /* the kernel has no NUMA */
        t->nodes[t->n_nodes++] = 0;
    return 0;
}

/* Sets the domain of each CPU: the CPUs on its node that share its last-level cache. A cache may
 * span nodes; a domain does not. */
static void find_domains(struct topology *t)
{
    for (uint32_t i = 0; i < t->n_cpus; i++) {
        struct topology_cpu *cpu = &t->cpus[i];
        uint32_t level = TOPOLOGY_MAX_LEVEL;
        while (level > 2 && cpu->caches[level].bytes == 0)
            level--;
        for (uint32_t j = 0; j <= i; j++) {
            const struct topology_cpu *other = &t->cpus[j];
            bool same = level > 2 ? other->caches[level].bytes > 0 &&
                                        other->caches[level].first == cpu->caches[level].first
                                  : other->package == cpu->package;
            if (j == i || (same && other->node == cpu->node)) {
                cpu->domain = other->id;
                break;
            }
        }
    }
}

static int make_cpus(struct topology *t, struct error *err)
{
    uint32_t n = cpus_count(&t->online);
    if (n == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "topology: no CPU is online");
    t->cpus = calloc(n, sizeof(*t->cpus));
    if (t->cpus == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "topology: out of memory");
    for (uint32_t id = cpus_next(&t->online, 0); id < CPUS_MAX; id = cpus_next(&t->online, id + 1))
        t->cpus[t->n_cpus++] = (struct topology_cpu){.id = (uint16_t)id};
    return 0;
}

int topology_init(struct topology *topology, const char *root, struct error *err)
{
    *topology = (struct topology){0};
    struct reading *r = malloc(sizeof(*r));
    if (r == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "topology: out of memory");
    r->root = root;
    int rc = read_file(r, err, "devices/system/cpu/online");
    if (rc == 0)
        rc = parse_list(r, &topology->online, err);
    if (rc == 0)
        rc = make_cpus(topology, err);
    for (uint32_t i = 0; rc == 0 && i < topology->n_cpus; i++)
        rc = read_cpu(r, topology, &topology->cpus[i], err);
    if (rc == 0)
        rc = read_nodes(r, topology, err);
    if (rc == 0)
        find_domains(topology);
    free(r);
    return rc;
}

int topology_init_flat(struct topology *topology, const struct cpus *cpus, struct error *err)
{
    *topology = (struct topology){.online = *cpus, .n_nodes = 1};
    int rc = make_cpus(topology, err);
    for (uint32_t i = 0; i < topology->n_cpus; i++) {
        topology->cpus[i].core = topology->cpus[i].id;
        topology->cpus[i].domain = topology->cpus[0].id;
    }
    return rc;
}

void topology_fini(struct topology *topology)
{
    free(topology->cpus);
    *topology = (struct topology){0};
}

/* --- questions --- */

const struct topology_cpu *topology_cpu(const struct topology *topology, uint32_t id)
{
    return find(topology, id);
}

bool topology_node_cpus(const struct topology *topology, uint32_t node, struct cpus *out)
{
    struct cpus set = {{0}};
    for (uint32_t i = 0; i < topology->n_cpus; i++)
        if (topology->cpus[i].node == node)
            cpus_add(&set, topology->cpus[i].id);
    *out = set;
    return cpus_next(&set, 0) < CPUS_MAX;
}

uint32_t topology_n_cores(const struct topology *topology, const struct cpus *set)
{
    struct cpus cores = {{0}};
    for (uint32_t i = 0; i < topology->n_cpus; i++)
        if (cpus_has(set, topology->cpus[i].id))
            cpus_add(&cores, topology->cpus[i].core);
    return cpus_count(&cores);
}

uint32_t topology_n_nodes(const struct topology *topology, const struct cpus *set)
{
    uint64_t nodes = 0;
    for (uint32_t i = 0; i < topology->n_cpus; i++)
        if (cpus_has(set, topology->cpus[i].id))
            nodes |= 1ULL << topology->cpus[i].node;
    return (uint32_t)__builtin_popcountll(nodes);
}

uint32_t topology_n_caches(const struct topology *topology, const struct cpus *set, uint32_t level,
                           uint64_t *out_bytes)
{
    struct cpus firsts = {{0}};
    *out_bytes = 0;
    for (uint32_t i = 0; i < topology->n_cpus; i++) {
        const struct topology_cache *cache = &topology->cpus[i].caches[level];
        if (!cpus_has(set, topology->cpus[i].id) || cache->bytes == 0)
            continue;
        cpus_add(&firsts, cache->first);
        *out_bytes = cache->bytes > *out_bytes ? cache->bytes : *out_bytes;
    }
    return cpus_count(&firsts);
}

static int parse_node(const struct topology *topology, const char *what, const char *text,
                      const char **at, struct cpus *set, struct error *err)
{
    struct cpus cpus;
    char *end;
    const char *digits = *at + strlen("node:");
    unsigned long node = strtoul(digits, &end, 10);
    if (!isdigit((unsigned char)*digits))
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: \"%.60s\": no node number at byte %td",
                         what, text, digits - text);
    if (node >= TOPOLOGY_MAX_NODES || !topology_node_cpus(topology, (uint32_t)node, &cpus))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s: \"%.60s\": no node %.*s with CPUs; this machine's last is %u", what,
                         text, (int)(end - digits < 20 ? end - digits : 20), digits,
                         topology->nodes[topology->n_nodes - 1]);
    cpus_or(set, &cpus);
    *at = end;
    return 0;
}

int topology_parse(const struct topology *topology, const char *what, const char *text,
                   struct cpus *out, struct error *err)
{
    struct cpus set = {{0}};
    for (const char *at = text;; at++) {
        int rc = strncmp(at, "node:", 5) == 0 ? parse_node(topology, what, text, &at, &set, err)
                                              : cpus_read(what, text, &at, &set, err);
        if (rc != 0)
            return rc;
        if (*at == '\0')
            break;
        if (*at != ',')
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "%s: \"%.60s\": byte %td does not belong to a list of CPUs", what,
                             text, at - text);
    }
    struct cpus missing = set;
    cpus_remove(&missing, &topology->online);
    if (cpus_next(&missing, 0) < CPUS_MAX)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: \"%.60s\": CPU %u is not online", what,
                         text, cpus_next(&missing, 0));
    *out = set;
    return 0;
}
