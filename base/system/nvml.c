#include "base/system/nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

/* The part of the library's interface that is used here. Its structures are stable: a new version
 * of a structure comes with a function of another suffix. */
typedef int result;
typedef void *device_handle;
enum {
    RESULT_OK = 0,
    RESULT_TIMEOUT = 10,
    RESULT_GPU_IS_LOST = 15,
    RESULT_RESET_REQUIRED = 16,
    RESULT_UNKNOWN = 999,
    SENSOR_GPU = 0,
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    ECC_CORRECTED = 0,
    ECC_UNCORRECTED = 1,
    COUNTED_SINCE_LOAD = 0,
    EVENT_XID = 0x8,
};
struct memory_info {
    unsigned long long total, n_free, used;
};
struct utilization {
    unsigned int gpu, memory;
};
struct pci_info {
    char legacy_bus_id[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct process_info {
    unsigned int pid;
    unsigned long long used; /* ULLONG_MAX: unknown */
    unsigned int gpu_instance, compute_instance;
};
struct event_data {
    device_handle device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

struct functions {
    result (*init)(void);
    result (*shutdown)(void);
    const char *(*error_string)(result);
    result (*count)(unsigned int *);
    result (*handle)(unsigned int, device_handle *);
    result (*driver_version)(char *, unsigned int);
    result (*name)(device_handle, char *, unsigned int);
    result (*uuid)(device_handle, char *, unsigned int);
    result (*pci_info)(device_handle, struct pci_info *);
    result (*capability)(device_handle, int *, int *);
    result (*memory)(device_handle, struct memory_info *);
    result (*utilization)(device_handle, struct utilization *);
    result (*temperature)(device_handle, int, unsigned int *);
    result (*power)(device_handle, unsigned int *);
    result (*power_limit)(device_handle, unsigned int *);
    result (*clock)(device_handle, int, unsigned int *);
    result (*throttle)(device_handle, unsigned long long *);
    result (*ecc)(device_handle, int, int, unsigned long long *);
    result (*processes)(device_handle, unsigned int *, struct process_info *);
    result (*events_create)(void **);
    result (*events_free)(void *);
    result (*events_register)(device_handle, unsigned long long, void *);
    result (*events_wait)(void *, struct event_data *, unsigned int);
};

struct nvml {
    void *library;
    struct functions f;
    bool started;
    device_handle devices[NVML_MAX_DEVICES]; /* NULL: no handle */
    uint32_t n_devices;
    char driver_version[80];
    void *events; /* NULL: no device reports errors */
};

/* `older` is the name in older drivers, with the same arguments. */
static const struct symbol {
    const char *name, *older;
    size_t offset;
    bool needed;
} symbols[] = {
#define SYMBOL(member, name, older, needed)                                                        \
    {                                                                                              \
        name, older, offsetof(struct functions, member), needed                                    \
    }
    SYMBOL(init, "nvmlInit_v2", NULL, true),
    SYMBOL(shutdown, "nvmlShutdown", NULL, true),
    SYMBOL(count, "nvmlDeviceGetCount_v2", NULL, true),
    SYMBOL(handle, "nvmlDeviceGetHandleByIndex_v2", NULL, true),
    SYMBOL(error_string, "nvmlErrorString", NULL, false),
    SYMBOL(driver_version, "nvmlSystemGetDriverVersion", NULL, false),
    SYMBOL(name, "nvmlDeviceGetName", NULL, false),
    SYMBOL(uuid, "nvmlDeviceGetUUID", NULL, false),
    SYMBOL(pci_info, "nvmlDeviceGetPciInfo_v3", NULL, false),
    SYMBOL(capability, "nvmlDeviceGetCudaComputeCapability", NULL, false),
    SYMBOL(memory, "nvmlDeviceGetMemoryInfo", NULL, false),
    SYMBOL(utilization, "nvmlDeviceGetUtilizationRates", NULL, false),
    SYMBOL(temperature, "nvmlDeviceGetTemperature", NULL, false),
    SYMBOL(power, "nvmlDeviceGetPowerUsage", NULL, false),
    SYMBOL(power_limit, "nvmlDeviceGetEnforcedPowerLimit", NULL, false),
    SYMBOL(clock, "nvmlDeviceGetClockInfo", NULL, false),
    SYMBOL(throttle, "nvmlDeviceGetCurrentClocksEventReasons",
           "nvmlDeviceGetCurrentClocksThrottleReasons", false),
    SYMBOL(ecc, "nvmlDeviceGetTotalEccErrors", NULL, false),
    SYMBOL(processes, "nvmlDeviceGetComputeRunningProcesses_v3",
           "nvmlDeviceGetComputeRunningProcesses_v2", false),
    SYMBOL(events_create, "nvmlEventSetCreate", NULL, false),
    SYMBOL(events_free, "nvmlEventSetFree", NULL, false),
    SYMBOL(events_register, "nvmlDeviceRegisterEvents", NULL, false),
    SYMBOL(events_wait, "nvmlEventSetWait_v2", NULL, false),
#undef SYMBOL
};

static const char *words(const struct nvml *nvml, result code)
{
    const char *text = nvml->f.error_string ? nvml->f.error_string(code) : NULL;
    return text ? text : "unknown error";
}

/* -- opening --------------------------------------------------------------------------------------
 */

static int load(struct nvml *nvml, const char *library, struct error *err)
{
    nvml->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        return error_set(err, STATUS_NOT_FOUND, "NVML: no NVIDIA driver on this machine: %.300s",
                         dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(nvml->library, symbols[i].name);
        if (!found && symbols[i].older)
            found = dlsym(nvml->library, symbols[i].older);
        if (!found && symbols[i].needed)
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "NVML: the library has no function %s", symbols[i].name);
        memcpy((char *)&nvml->f + symbols[i].offset, &found, sizeof(found));
    }
    return 0;
}

static int start(struct nvml *nvml, struct error *err)
{
    unsigned int n = 0;
    result code = nvml->f.init();
    if (code != RESULT_OK)
        return error_set(err, STATUS_FAILED_PRECONDITION, "NVML: %.200s (%d)", words(nvml, code),
                         code);
    nvml->started = true;
    code = nvml->f.count(&n);
    if (code != RESULT_OK)
        return error_set(err, STATUS_FAILED_PRECONDITION, "NVML: counting GPUs: %.200s (%d)",
                         words(nvml, code), code);
    nvml->n_devices = n < NVML_MAX_DEVICES ? n : NVML_MAX_DEVICES;
    for (uint32_t i = 0; i < nvml->n_devices; i++)
        if (nvml->f.handle(i, &nvml->devices[i]) != RESULT_OK)
            nvml->devices[i] = NULL;
    if (!nvml->f.driver_version ||
        nvml->f.driver_version(nvml->driver_version, sizeof(nvml->driver_version)) != RESULT_OK)
        nvml->driver_version[0] = '\0';
    return 0;
}

/* Leaves `events` NULL if no device reports errors: nothing to wait for. */
static void register_events(struct nvml *nvml)
{
    const struct functions *f = &nvml->f;
    bool any = false;
    if (!f->events_create || !f->events_free || !f->events_register || !f->events_wait ||
        f->events_create(&nvml->events) != RESULT_OK) {
        nvml->events = NULL;
        return;
    }
    for (uint32_t i = 0; i < nvml->n_devices; i++)
        any |= nvml->devices[i] &&
               f->events_register(nvml->devices[i], EVENT_XID, nvml->events) == RESULT_OK;
    if (any)
        return;
    f->events_free(nvml->events);
    nvml->events = NULL;
}

int nvml_open(const char *library, struct nvml **out_nvml, struct error *err)
{
    struct nvml *nvml = calloc(1, sizeof(*nvml));
    if (!nvml)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "NVML: out of memory");
    if (!library)
        library = getenv("SLUICE_NVML_LIBRARY");
    int rc = load(nvml, library && *library ? library : "libnvidia-ml.so.1", err);
    if (!rc)
        rc = start(nvml, err);
    if (rc) {
        nvml_close(nvml);
        return rc;
    }
    register_events(nvml);
    *out_nvml = nvml;
    return 0;
}

void nvml_close(struct nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->events)
        nvml->f.events_free(nvml->events);
    if (nvml->started)
        nvml->f.shutdown();
    if (nvml->library)
        dlclose(nvml->library);
    free(nvml);
}

/* -- devices --------------------------------------------------------------------------------------
 */

uint32_t nvml_n_devices(const struct nvml *nvml)
{
    return nvml->n_devices;
}

const char *nvml_driver_version(const struct nvml *nvml)
{
    return nvml->driver_version;
}

void nvml_identify(const struct nvml *nvml, uint32_t index, struct nvml_identity *out)
{
    const struct functions *f = &nvml->f;
    struct pci_info pci = {.bus_id = ""};
    int major, minor;
    *out = (struct nvml_identity){.name = ""};
    device_handle device = index < nvml->n_devices ? nvml->devices[index] : NULL;
    if (!device)
        return;
    if (!f->name || f->name(device, out->name, sizeof(out->name)) != RESULT_OK)
        out->name[0] = '\0';
    if (!f->uuid || f->uuid(device, out->uuid, sizeof(out->uuid)) != RESULT_OK)
        out->uuid[0] = '\0';
    if (f->pci_info && f->pci_info(device, &pci) == RESULT_OK)
        snprintf(out->pci_bus_id, sizeof(out->pci_bus_id), "%.31s", pci.bus_id);
    if (f->capability && f->capability(device, &major, &minor) == RESULT_OK)
        snprintf(out->compute_capability, sizeof(out->compute_capability), "%d.%d", major % 1000,
                 minor % 100);
}

/* Compares bus ids without leading zeros, because the digits of the domain differ: "0000:3B:00.0",
 * "00000000:3B:00.0". */
static bool same_bus(const char *a, const char *b)
{
    return strcasecmp(a + strspn(a, "0"), b + strspn(b, "0")) == 0;
}

bool nvml_is_device(const struct nvml_identity *identity, uint32_t index, const char *uuid,
                    const char *pci_bus_id, uint32_t device_index)
{
    if (*uuid && *identity->uuid)
        return strcmp(uuid, identity->uuid) == 0;
    if (*pci_bus_id && *identity->pci_bus_id)
        return same_bus(pci_bus_id, identity->pci_bus_id);
    return index == device_index;
}

const char *nvml_throttle_name(uint32_t i, uint64_t *out_bit)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } all[NVML_N_THROTTLES] = {{NVML_THROTTLE_APP_CLOCKS, "app_clocks"},
                               {NVML_THROTTLE_POWER_CAP, "power_cap"},
                               {NVML_THROTTLE_HW_SLOWDOWN, "hw_slowdown"},
                               {NVML_THROTTLE_SYNC_BOOST, "sync_boost"},
                               {NVML_THROTTLE_SW_THERMAL, "sw_thermal"},
                               {NVML_THROTTLE_HW_THERMAL, "hw_thermal"},
                               {NVML_THROTTLE_HW_POWER_BRAKE, "hw_power_brake"},
                               {NVML_THROTTLE_DISPLAY_CLOCKS, "display_clocks"}};
    *out_bit = all[i].bit;
    return all[i].name;
}

/* Returns true for codes that a lost device returns for every query. */
static bool is_gone(result code)
{
    return code == RESULT_GPU_IS_LOST || code == RESULT_RESET_REQUIRED || code == RESULT_UNKNOWN;
}

/* The state of a sample. Each figure is queried on its own. Once a query reports that the device is
 * lost, `gone` is set and the remaining queries are skipped. */
struct asking {
    const struct functions *f;
    device_handle device;
    result gone;
};

#define ASK(asking, function, ...)                                                                 \
    ((asking)->f->function && !(asking)->gone &&                                                   \
     answered(asking, (asking)->f->function((asking)->device, __VA_ARGS__)))

static bool answered(struct asking *asking, result code)
{
    if (is_gone(code))
        asking->gone = code;
    return code == RESULT_OK;
}

static void ask_counts(struct asking *a, struct nvml_figures *out)
{
    struct memory_info memory;
    unsigned long long n;
    out->has_memory = ASK(a, memory, &memory);
    if (out->has_memory) {
        out->memory_total_bytes = memory.total;
        out->memory_used_bytes = memory.used;
    }
    out->has_throttle = ASK(a, throttle, &n);
    if (out->has_throttle)
        out->throttle = n;
    out->has_ecc_corrected = ASK(a, ecc, ECC_CORRECTED, COUNTED_SINCE_LOAD, &n);
    if (out->has_ecc_corrected)
        out->ecc_corrected = n;
    out->has_ecc_uncorrected = ASK(a, ecc, ECC_UNCORRECTED, COUNTED_SINCE_LOAD, &n);
    if (out->has_ecc_uncorrected)
        out->ecc_uncorrected = n;
}

static void ask_levels(struct asking *a, struct nvml_figures *out)
{
    struct utilization utilization;
    out->has_utilization = ASK(a, utilization, &utilization);
    if (out->has_utilization) {
        out->utilization_percent = utilization.gpu;
        out->memory_utilization_percent = utilization.memory;
    }
    out->has_temperature = ASK(a, temperature, SENSOR_GPU, &out->temperature_celsius);
    out->has_power = ASK(a, power, &out->power_milliwatts);
    out->has_power_limit = ASK(a, power_limit, &out->power_limit_milliwatts);
    out->has_sm_clock = ASK(a, clock, CLOCK_SM, &out->sm_clock_mhz);
    out->has_memory_clock = ASK(a, clock, CLOCK_MEMORY, &out->memory_clock_mhz);
}

static void ask_processes(struct asking *a, struct nvml_figures *out)
{
    struct process_info infos[NVML_MAX_PROCESSES];
    unsigned int n = NVML_MAX_PROCESSES;
    out->has_processes = ASK(a, processes, &n, infos) && n <= NVML_MAX_PROCESSES;
    for (unsigned int i = 0; out->has_processes && i < n; i++)
        if (infos[i].used != ULLONG_MAX)
            out->processes[out->n_processes++] =
                (struct nvml_process){.pid = infos[i].pid, .bytes = infos[i].used};
}

int nvml_sample(const struct nvml *nvml, uint32_t index, struct nvml_figures *out_figures,
                struct error *err)
{
    struct nvml_figures figures = {.has_memory = false};
    device_handle device = index < nvml->n_devices ? nvml->devices[index] : NULL;
    struct asking asking = {.f = &nvml->f, .device = device};
    if (!device)
        return error_set(err, STATUS_UNAVAILABLE, "NVML: no handle of GPU %u", index);
    ask_counts(&asking, &figures);
    ask_levels(&asking, &figures);
    ask_processes(&asking, &figures);
    if (asking.gone)
        return error_set(err, STATUS_UNAVAILABLE, "NVML: GPU %u: %.200s (%d)", index,
                         words(nvml, asking.gone), asking.gone);
    *out_figures = figures;
    return 0;
}

/* -- critical errors ------------------------------------------------------------------------------
 */

/* Returns the device index by handle; if the event has another handle of the same device, by
 * UUID. */
static uint32_t index_of(const struct nvml *nvml, device_handle device)
{
    char uuid[96];
    struct nvml_identity identity;
    for (uint32_t i = 0; device && i < nvml->n_devices; i++)
        if (nvml->devices[i] == device)
            return i;
    if (!device || !nvml->f.uuid || nvml->f.uuid(device, uuid, sizeof(uuid)) != RESULT_OK)
        return NVML_NO_DEVICE;
    for (uint32_t i = 0; i < nvml->n_devices; i++) {
        nvml_identify(nvml, i, &identity);
        if (strcmp(identity.uuid, uuid) == 0)
            return i;
    }
    return NVML_NO_DEVICE;
}

int nvml_wait_xid(struct nvml *nvml, uint32_t timeout_ms, uint32_t *out_index, uint64_t *out_xid,
                  struct error *err)
{
    struct event_data event = {.type = 0};
    if (!nvml->events)
        return error_set(err, STATUS_UNIMPLEMENTED, "NVML: no GPU reports critical errors");
    result code = nvml->f.events_wait(nvml->events, &event, timeout_ms);
    if (code != RESULT_OK && code != RESULT_TIMEOUT)
        return error_set(err, STATUS_UNAVAILABLE, "NVML: cannot wait for events: %.200s (%d)",
                         words(nvml, code), code);
    bool has_xid = code == RESULT_OK && (event.type & EVENT_XID);
    *out_xid = has_xid ? event.data : 0;
    *out_index = has_xid ? index_of(nvml, event.device) : NVML_NO_DEVICE;
    return 0;
}
