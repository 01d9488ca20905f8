#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cpu.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "server/worker/message.h"
#include "server/worker/process.h"
#include "server/worker/tool.h"

enum { MAX_NODES = 64, MAX_DEVICES = MAX_NODES + 64 };

struct probing {
    struct arena *arena;
    Sluice__Worker__V1__ProbeReport *report;
    cpu_set_t allowed;
};

static bool read_line(const char *path, char *out, size_t n_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool ok = fgets(out, (int)n_bytes, file) != NULL;
    fclose(file);
    return ok;
}

/* "0-3,8" → how many of these CPUs this process may use, and how many physical cores they are. */
static void count_cpus(const cpu_set_t *allowed, const char *list, uint32_t *out_threads,
                       uint32_t *out_cores)
{
    *out_threads = *out_cores = 0;
    while (isdigit((unsigned char)*list)) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) {
            char path[96], siblings[256];
            if (!CPU_ISSET(cpu, allowed))
                continue;
            (*out_threads)++;
            snprintf(path, sizeof(path),
                     "/sys/devices/system/cpu/cpu%lu/topology/thread_siblings_list", cpu);
            /* The first of the threads that share a core stands for it. */
            *out_cores +=
                !read_line(path, siblings, sizeof(siblings)) || strtoul(siblings, NULL, 10) == cpu;
        }
        list = *end == ',' ? end + 1 : end;
    }
}

static void node_memory(int node, uint64_t *out_total, uint64_t *out_free)
{
    char path[96], line[256];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "re");
    process_machine_memory(out_total, out_free);
    if (!file)
        return;
    uint64_t total = 0, available = 0;
    while (fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        uint64_t bytes = colon ? strtoull(colon + 1, NULL, 10) * 1024 : 0;
        if (strstr(line, " MemTotal:"))
            total = bytes;
        /* A node has no MemAvailable: free pages and the file cache come near it. */
        if (strstr(line, " MemFree:") || strstr(line, " FilePages:"))
            available += bytes;
    }
    fclose(file);
    if (total && total < *out_total) {
        *out_total = total;
        *out_free = available < *out_free ? available : *out_free;
    }
}

static void add_features(struct probing *p, Sluice__V1__Device *device)
{
    const struct cpu_features *f = cpu_features();
    const struct {
        bool has;
        const char *name;
    } all[] = {{f->avx2, "avx2"},
               {f->avx512, "avx512"},
               {f->avx512_vnni, "avx512_vnni"},
               {f->avx512_bf16, "avx512_bf16"},
               {f->amx_int8, "amx_int8"},
               {f->amx_bf16, "amx_bf16"}};
    device->features = arena_calloc(p->arena, 6, sizeof(*device->features));
    for (size_t i = 0; device->features && i < 6; i++)
        if (all[i].has)
            device->features[device->n_features++] = message_text(p->arena, all[i].name);
}

static Sluice__V1__Device *add_device(struct probing *p, Sluice__V1__DeviceKind kind,
                                      const char *prefix, int index)
{
    char name[32];
    Sluice__V1__Device *device = arena_alloc(p->arena, sizeof(*device));
    if (!device || p->report->n_devices == MAX_DEVICES)
        return NULL;
    sluice__v1__device__init(device);
    snprintf(name, sizeof(name), "%s:%d", prefix, index);
    device->name = message_text(p->arena, name);
    device->kind = kind;
    device->index = (uint32_t)index;
    p->report->devices[p->report->n_devices++] = device;
    return device;
}

static void add_cpu_node(struct probing *p, int node, const char *cpu_list)
{
    uint32_t n_threads, n_cores;
    count_cpus(&p->allowed, cpu_list, &n_threads, &n_cores);
    Sluice__V1__Device *device =
        add_device(p, SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU, "cpu", node);
    if (!device)
        return;
    device->description = message_text(p->arena, cpu_features()->brand);
    device->has_numa_node = true;
    device->numa_node = (uint32_t)node;
    device->n_threads = n_threads;
    device->n_cores = n_cores;
    node_memory(node, &device->memory_total_bytes, &device->memory_free_bytes);
    add_features(p, device);
    if (!n_threads)
        device->unusable_reason = message_text(p->arena, "no CPU of it may be used");
}

static void add_cpus(struct probing *p)
{
    char path[96], list[1024];
    CPU_ZERO(&p->allowed);
    sched_getaffinity(0, sizeof(p->allowed), &p->allowed);
    for (int node = 0; node < MAX_NODES; node++) {
        snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
        if (read_line(path, list, sizeof(list)) && isdigit((unsigned char)list[0]))
            add_cpu_node(p, node, list);
    }
    if (p->report->n_devices) /* else a kernel without NUMA: one node of everything */
        return;
    if (!read_line("/sys/devices/system/cpu/online", list, sizeof(list)))
        snprintf(list, sizeof(list), "0-%d", CPU_SETSIZE - 1);
    add_cpu_node(p, 0, list);
}

static void add_cuda(struct probing *p)
{
    struct backend_module module;
    struct error err = {0};
    if (backend_cuda(&module, &err) != 0) {
        p->report->cuda_unusable_reason = message_text(p->arena, err.message);
        return;
    }
    for (uint32_t i = 0; i < module.n_devices; i++) {
        struct device *opened = NULL;
        struct device_memory memory;
        Sluice__V1__Device *device =
            add_device(p, SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA, "cuda", (int)i);
        if (!device)
            return;
        int rc = module.device_ops->open(i, &opened, &err);
        if (!rc)
            rc = module.device_ops->memory(opened, &memory, &err);
        if (rc) {
            device->unusable_reason = message_text(p->arena, err.message);
        } else {
            device->memory_total_bytes = memory.total_bytes;
            device->memory_free_bytes = memory.free_bytes;
        }
        if (opened)
            module.device_ops->close(opened);
    }
}

int tool_probe(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    struct probing p = {.arena = arena};
    struct utsname host;
    const struct op_table *ops = NULL;
    struct error why;
    (void)settings;
    p.report = arena_alloc(arena, sizeof(*p.report));
    if (!p.report)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "probe: out of memory");
    sluice__worker__v1__probe_report__init(p.report);
    p.report->devices = arena_calloc(arena, MAX_DEVICES, sizeof(*p.report->devices));
    if (!p.report->devices)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "probe: out of memory");
    if (uname(&host) == 0) {
        p.report->host_name = message_text(arena, host.nodename);
        p.report->kernel_version = message_text(arena, host.release);
    }
    p.report->software_version = message_text(arena, SLUICE_VERSION);
    if (op_table_cpu("auto", &ops, &why) == 0)
        p.report->cpu_kernels = message_text(arena, ops->name);
    p.report->amx_unusable_reason = message_text(arena, why_no_amx());
    add_cpus(&p);
    add_cuda(&p);
    report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE;
    report->probe = p.report;
    return 0;
}
