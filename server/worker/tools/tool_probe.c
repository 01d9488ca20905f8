#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "base/system/cpu.h"
#include "base/system/memory_limit.h"
#include "base/system/nvml.h"
#include "base/system/placement.h"
#include "base/system/topology.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/rpc/server/device_figures.h"
#include "server/worker/base/message.h"
#include "server/worker/tools/tool.h"

enum { MAX_DEVICES = TOPOLOGY_MAX_NODES + 64 };

struct probing {
    struct arena *arena;
    Sluice__Worker__V1__ProbeReport *report;
    struct topology topology;
    struct cpus allowed;
};

static char *cpus_text(struct probing *p, const struct cpus *cpus)
{
    struct strbuf text = {0};
    cpus_format(cpus, &text);
    char *copy = message_text(p->arena, strbuf_str(&text));
    strbuf_fini(&text);
    return copy;
}

static void add_caches(struct probing *p, const struct cpus *cpus, Sluice__V1__Device *device)
{
    device->caches = arena_calloc(p->arena, TOPOLOGY_MAX_LEVEL, sizeof(*device->caches));
    for (uint32_t level = 1; device->caches && level <= TOPOLOGY_MAX_LEVEL; level++) {
        uint64_t bytes;
        uint32_t n = topology_n_caches(&p->topology, cpus, level, &bytes);
        Sluice__V1__CpuCache *cache = n ? arena_alloc(p->arena, sizeof(*cache)) : NULL;
        if (!cache)
            continue;
        sluice__v1__cpu_cache__init(cache);
        cache->level = level;
        cache->n_caches = n;
        cache->bytes = bytes > 1 ? bytes : 0; /* topology.c stores an unknown size as 1 */
        device->caches[device->n_caches++] = cache;
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

static void add_cpu_node(struct probing *p, uint32_t node)
{
    struct cpus cpus;
    struct memory_limit limit;
    Sluice__V1__Device *device =
        add_device(p, SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU, "cpu", (int)node);
    if (!device)
        return;
    (void)topology_node_cpus(&p->topology, node, &cpus);
    cpus_and(&cpus, &p->allowed);
    device->description = message_text(p->arena, cpu_features()->brand);
    device->has_numa_node = true;
    device->numa_node = node;
    device->n_threads = cpus_count(&cpus);
    device->n_cores = topology_n_cores(&p->topology, &cpus);
    device->cpus = cpus_text(p, &cpus);
    (void)memory_limit_read_node("", node, &limit);
    device->memory_total_bytes = limit.total_bytes;
    device->memory_free_bytes = limit.free_bytes;
    add_features(p, device);
    add_caches(p, &cpus, device);
    if (device->n_threads)
        device->default_threads =
            placement_default_threads(&p->topology, &cpus, placement_quota_milli("/proc", "/sys"));
    else
        device->unusable_reason = message_text(p->arena, "this process may use none of its CPUs");
}

/* A machine without a readable topology counts as one node of the allowed CPUs. */
static int add_cpus(struct probing *p, struct error *err)
{
    struct error why;
    int rc = cpus_allowed(&p->allowed, err);
    if (!rc && topology_init(&p->topology, "/sys", &why) != 0) {
        log_warn(LOG_EVENT("topology unknown"), LOG_STR("why", why.message));
        topology_fini(&p->topology);
        rc = topology_init_flat(&p->topology, &p->allowed, err);
    }
    for (uint32_t i = 0; !rc && i < p->topology.n_nodes; i++)
        add_cpu_node(p, p->topology.nodes[i]);
    topology_fini(&p->topology);
    return rc;
}

static void describe(struct probing *p, struct device *opened, Sluice__V1__Device *device)
{
    struct device_description text;
    struct error err;
    if (!opened->ops->describe || opened->ops->describe(opened, &text, &err) != 0)
        return;
    device->description = message_text(p->arena, text.name);
    device->uuid = message_text(p->arena, text.uuid);
    device->pci_bus_id = message_text(p->arena, text.pci_bus_id);
    device->compute_capability = message_text(p->arena, text.compute_capability);
}

static void add_kernels(struct probing *p, const struct backend_module *module,
                        const struct device *opened, Sluice__V1__Device *device)
{
    char text[256];
    module->describe(opened, text, sizeof(text));
    device->features = arena_calloc(p->arena, 1, sizeof(*device->features));
    if (device->features)
        device->features[device->n_features++] = message_text(p->arena, text);
}

static void add_throttles(struct probing *p, uint64_t bits, Sluice__V1__DeviceFigures *figures)
{
    figures->throttle_reasons =
        arena_calloc(p->arena, NVML_N_THROTTLES, sizeof(*figures->throttle_reasons));
    for (uint32_t i = 0; figures->throttle_reasons && i < NVML_N_THROTTLES; i++) {
        uint64_t bit;
        const char *name = nvml_throttle_name(i, &bit);
        if (bits & bit)
            figures->throttle_reasons[figures->n_throttle_reasons++] = message_text(p->arena, name);
    }
}

/* NVML may number GPUs in another order than CUDA. */
static void add_figures(struct probing *p, const struct nvml *nvml, Sluice__V1__Device *device)
{
    struct nvml_identity identity;
    struct nvml_figures figures;
    struct error err;
    uint32_t i = 0;
    for (; i < nvml_n_devices(nvml); i++) {
        nvml_identify(nvml, i, &identity);
        if (nvml_is_device(&identity, i, device->uuid, device->pci_bus_id, device->index))
            break;
    }
    if (i == nvml_n_devices(nvml))
        return;
    device->driver_version = message_text(p->arena, nvml_driver_version(nvml));
    device->figures = arena_alloc(p->arena, sizeof(*device->figures));
    if (!device->figures)
        return;
    sluice__v1__device_figures__init(device->figures);
    device->figures->sampled_unix_ns = clock_wall_ns();
    if (nvml_sample(nvml, i, &figures, &err) != 0) {
        device->figures->error = message_text(p->arena, err.message);
        return;
    }
    device_figures_fill(device->figures, &figures);
    add_throttles(p, figures.throttle, device->figures);
}

static bool add_cuda_device(struct probing *p, const struct backend_module *module,
                            const struct nvml *nvml, uint32_t i)
{
    struct device *opened = NULL;
    struct device_memory memory;
    struct error err = {0};
    Sluice__V1__Device *device =
        add_device(p, SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA, "cuda", (int)i);
    if (!device)
        return false;
    int rc = module->device_ops->open(i, &opened, &err);
    if (!rc)
        rc = module->device_ops->memory(opened, &memory, &err);
    if (rc) {
        device->unusable_reason = message_text(p->arena, err.message);
    } else {
        device->memory_total_bytes = memory.total_bytes;
        device->memory_free_bytes = memory.free_bytes;
    }
    if (opened) {
        describe(p, opened, device);
        add_kernels(p, module, opened, device);
        module->device_ops->close(opened);
    }
    if (nvml)
        add_figures(p, nvml, device);
    return true;
}

static void add_cuda(struct probing *p)
{
    struct backend_module module;
    struct nvml *nvml = NULL;
    struct error err = {0}, why;
    if (backend_cuda(&module, &err) != 0) {
        p->report->cuda_unusable_reason = message_text(p->arena, err.message);
        return;
    }
    if (nvml_open(NULL, &nvml, &why) != 0)
        log_info(LOG_EVENT("no figures of GPUs"), LOG_STR("why", why.message));
    for (uint32_t i = 0; i < module.n_devices; i++)
        if (!add_cuda_device(p, &module, nvml, i))
            break;
    nvml_close(nvml);
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
    p.report->amx_unusable_reason = message_text(arena, ops_why_no_amx());
    if (add_cpus(&p, err) != 0)
        return err->status;
    add_cuda(&p);
    report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE;
    report->probe = p.report;
    return 0;
}
