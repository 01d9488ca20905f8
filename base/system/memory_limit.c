#include "base/system/memory_limit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/cpus.h"

enum { PATH_BYTES = 4096 };

/* Parses the number after `name` at the start of a line, in bytes; false if the line has another
 * name. */
static bool line_number(const char *line, const char *name, uint64_t *out)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || (line[n] != ' ' && line[n] != ':'))
        return false;
    *out = strtoull(line + n + 1, NULL, 10);
    return true;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* --- a single cgroup --- */

/* The files of a cgroup version. NULL if the version lacks the file. */
struct cgroup_files {
    const char *limits[2];
    const char *usage;
    const char *stat_limit;     /* line of memory.stat: a limit from any level above */
    const char *reclaimable[2]; /* lines of memory.stat: pages that the kernel can drop */
};

static const struct cgroup_files version_1 = {
    .limits = {"memory.limit_in_bytes", NULL},
    .usage = "memory.usage_in_bytes",
    .stat_limit = "hierarchical_memory_limit",
    .reclaimable = {"total_inactive_file", NULL},
};
static const struct cgroup_files version_2 = {
    .limits = {"memory.max", "memory.high"},
    .usage = "memory.current",
    .reclaimable = {"inactive_file", "slab_reclaimable"},
};

static FILE *open_file(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
        return NULL;
    return fopen(path, "re");
}

/* Reads the number in a file of a single line; false if there is no file or no number ("max"). */
static bool read_number(const char *folder, const char *name, uint64_t *out)
{
    char text[64] = "";
    FILE *file = open_file(folder, name);
    if (!file)
        return false;
    bool ok = fgets(text, sizeof(text), file) && text[0] >= '0' && text[0] <= '9';
    fclose(file);
    if (ok)
        *out = strtoull(text, NULL, 10);
    return ok;
}

static void read_stat(const char *folder, const struct cgroup_files *files, uint64_t *limit,
                      uint64_t *reclaimable)
{
    char line[256];
    uint64_t n;
    FILE *file = open_file(folder, "memory.stat");
    while (file && fgets(line, sizeof(line), file)) {
        if (files->stat_limit && line_number(line, files->stat_limit, &n) && n < *limit)
            *limit = n;
        for (int i = 0; i < 2; i++)
            if (files->reclaimable[i] && line_number(line, files->reclaimable[i], &n))
                *reclaimable += n;
    }
    if (file)
        fclose(file);
}

/* Lowers the figures to what one cgroup leaves. A limit above the machine's memory is none. */
static void bound_by_group(const char *folder, const char *group, const struct cgroup_files *files,
                           struct memory_limit *out)
{
    uint64_t limit = UINT64_MAX, usage = 0, reclaimable = 0, n;
    for (int i = 0; i < 2; i++)
        if (files->limits[i] && read_number(folder, files->limits[i], &n) && n < limit)
            limit = n;
    read_stat(folder, files, &limit, &reclaimable);
    if (limit >= out->machine_total_bytes)
        return;
    (void)read_number(folder, files->usage, &usage);
    uint64_t left = minus(limit, minus(usage, reclaimable));
    if (limit < out->total_bytes)
        out->total_bytes = limit;
    if (left >= out->free_bytes)
        return;
    out->free_bytes = left;
    out->group_limit_bytes = limit;
    snprintf(out->group, sizeof(out->group), "%.255s", group);
}

/* --- the cgroups above a process --- */

/* Applies the cgroup of the process and every cgroup above it, up to the mount's root. */
static void bound_by_groups(const char *root, const char *mount, const char *group,
                            const struct cgroup_files *files, struct memory_limit *out)
{
    char folder[PATH_BYTES], rest[PATH_BYTES];
    snprintf(rest, sizeof(rest), "%s", strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        if (snprintf(folder, sizeof(folder), "%s%s%s", root, mount, rest) < (int)sizeof(folder))
            bound_by_group(folder, rest, files, out);
        char *slash = strrchr(rest, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, ",");
        if (length == n && strncmp(at, word, n) == 0)
            return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* Opens a file of a process; NULL if the file cannot be read. */
static FILE *open_proc(const char *root, pid_t pid, const char *name)
{
    char path[PATH_BYTES], number[16] = "self";
    if (pid)
        snprintf(number, sizeof(number), "%ld", (long)pid);
    snprintf(path, sizeof(path), "%s/proc/%s/%s", root, number, name);
    return fopen(path, "re");
}

/* A line of /proc/PID/cgroup is "ID:CONTROLLERS:/GROUP"; version 2 has id 0 and no controllers. */
static void read_groups(const char *root, pid_t pid, char *v1, char *v2)
{
    char *line = NULL;
    size_t n_line = 0;
    FILE *file = open_proc(root, pid, "cgroup");
    *v1 = *v2 = '\0';
    while (file && getline(&line, &n_line, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (!group || group[1] != '/')
            continue;
        *list++ = *group++ = '\0';
        if (strcmp(line, "0") == 0 && !*list)
            snprintf(v2, PATH_BYTES, "%s", group);
        else if (has_word(list, "memory"))
            snprintf(v1, PATH_BYTES, "%s", group);
    }
    free(line);
    if (file)
        fclose(file);
}

/* The kernel writes a blank in a path as "\040". */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at;) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] && at[3]) {
            *to++ = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 4;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

/* Returns the part of `group` below the cgroup that a mount shows as its root; NULL if the group
 * lies elsewhere. A root that begins with "/.." is above this process's namespace. The path from
 * there to the group is unknown, so the mount's root alone counts. */
static const char *below_mount(const char *group, const char *mount_root)
{
    size_t n = strlen(mount_root);
    if (strcmp(mount_root, "/") == 0)
        return strncmp(group, "/..", 3) == 0 ? "" : group;
    if (strncmp(mount_root, "/..", 3) == 0)
        return "";
    if (strncmp(group, mount_root, n) != 0 || (group[n] != '/' && group[n] != '\0'))
        return NULL;
    return group + n;
}

/* A line of mountinfo: "ID PARENT DEVICE ROOT MOUNT OPTIONS... - TYPE SOURCE CONTROLLERS". */
static void bound_by_mount(const char *root, char *line, const char *v1, const char *v2,
                           struct memory_limit *out)
{
    char *words[5], *save = NULL, *type, *rest;
    char *dash = strstr(line, " - ");
    if (!dash)
        return;
    *dash = '\0';
    for (int i = 0; i < 5; i++) {
        words[i] = strtok_r(i ? NULL : line, " ", &save);
        if (!words[i])
            return;
    }
    type = strtok_r(dash + 3, " ", &save);
    rest = strtok_r(NULL, " ", &save) ? strtok_r(NULL, " \n", &save) : NULL;
    bool is_v2 = type && strcmp(type, "cgroup2") == 0;
    bool is_v1 = type && strcmp(type, "cgroup") == 0 && rest && has_word(rest, "memory");
    const char *group = is_v2 ? v2 : is_v1 ? v1 : "";
    if (!*group)
        return;
    unescape(words[3]);
    unescape(words[4]);
    group = below_mount(group, words[3]);
    if (group)
        bound_by_groups(root, words[4], group, is_v2 ? &version_2 : &version_1, out);
}

static bool read_machine(const char *root, struct memory_limit *out)
{
    char path[PATH_BYTES], line[256];
    uint64_t n;
    *out = (struct memory_limit){.total_bytes = 0};
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof(line), file)) {
        if (line_number(line, "MemTotal", &n))
            out->total_bytes = n * 1024;
        else if (line_number(line, "MemAvailable", &n))
            out->free_bytes = n * 1024;
    }
    fclose(file);
    out->machine_total_bytes = out->total_bytes;
    out->machine_free_bytes = out->free_bytes;
    return true;
}

bool memory_limit_read(const char *root, pid_t pid, struct memory_limit *out)
{
    char v1[PATH_BYTES], v2[PATH_BYTES], *line = NULL;
    size_t n_line = 0;
    if (!read_machine(root, out))
        return false;
    read_groups(root, pid, v1, v2);
    FILE *file = open_proc(root, 0, "mountinfo");
    while (file && getline(&line, &n_line, file) > 0)
        bound_by_mount(root, line, v1, v2, out);
    free(line);
    if (file)
        fclose(file);
    return true;
}

/* --- the share of a NUMA node --- */

struct node_memory {
    uint64_t total_bytes;
    uint64_t available_bytes; /* free pages, and pages that the kernel can drop */
};

/* A line is "Node 0 MemTotal:  123 kB". Without the file all is zero. */
static struct node_memory read_node(const char *root, uint32_t node)
{
    /* FilePages would count memory files too, which hold weights and cannot be dropped. */
    static const char *const available[] = {
        " MemFree:", " Active(file):", " Inactive(file):", " SReclaimable:"};
    struct node_memory memory = {0};
    char path[PATH_BYTES], line[256];
    snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%" PRIu32 "/meminfo", root, node);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        uint64_t n_bytes = colon ? strtoull(colon + 1, NULL, 10) * 1024 : 0;
        if (strstr(line, " MemTotal:"))
            memory.total_bytes += n_bytes;
        for (size_t i = 0; i < sizeof(available) / sizeof(available[0]); i++)
            if (strstr(line, available[i]))
                memory.available_bytes += n_bytes;
    }
    if (file)
        fclose(file);
    return memory;
}

/* Reads the kernel's list of nodes, which has the form of a list of CPUs. */
static struct cpus list_nodes(const char *root)
{
    struct cpus nodes, none = {{0}};
    struct error err;
    char path[PATH_BYTES], list[1024] = "";
    snprintf(path, sizeof(path), "%s/sys/devices/system/node/online", root);
    FILE *file = fopen(path, "re");
    if (!file)
        return none;
    bool is_read = fgets(list, sizeof(list), file) != NULL;
    fclose(file);
    return is_read && cpus_parse(path, list, &nodes, &err) == 0 ? nodes : none;
}

/* Exact where the node is the only one: the quotient is then 1. */
static uint64_t share(uint64_t n_bytes, uint64_t of_node, uint64_t of_all)
{
    return of_all ? (uint64_t)((double)n_bytes * ((double)of_node / (double)of_all)) : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

bool memory_limit_read_node(const char *root, uint32_t node, struct memory_limit *out)
{
    struct cpus nodes = list_nodes(root);
    struct node_memory own = {0}, all = {0};
    if (!memory_limit_read(root, 0, out))
        return false;
    for (uint32_t i = 0; (i = cpus_next(&nodes, i)) < CPUS_MAX; i++) {
        struct node_memory memory = read_node(root, i);
        own = i == node ? memory : own;
        all.total_bytes += memory.total_bytes;
        all.available_bytes += memory.available_bytes;
    }
    if (!own.total_bytes)
        return true;
    uint64_t *const totals[] = {&out->total_bytes, &out->machine_total_bytes};
    uint64_t *const frees[] = {&out->free_bytes, &out->machine_free_bytes};
    for (int i = 0; i < 2; i++) {
        *totals[i] = share(*totals[i], own.total_bytes, all.total_bytes);
        *frees[i] = smaller(share(*frees[i], own.available_bytes, all.available_bytes), *totals[i]);
    }
    return true;
}

const char *memory_limit_text(const struct memory_limit *limit, char out[MEMORY_LIMIT_TEXT])
{
    char left[32], most[32];
    format_bytes(limit->free_bytes, left);
    if (limit->group_limit_bytes)
        snprintf(out, MEMORY_LIMIT_TEXT, "%s free in a memory cgroup of %s", left,
                 format_bytes(limit->group_limit_bytes, most));
    else
        snprintf(out, MEMORY_LIMIT_TEXT, "%s free", left);
    return out;
}
