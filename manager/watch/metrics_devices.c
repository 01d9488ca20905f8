#include "manager/watch/metrics_devices.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/metrics/metrics.h"
#include "manager/base/context.h"
#include "manager/devices/device_hold.h"
#include "manager/devices/device_watch.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

enum {
    FAMILY_STATE,
    FAMILY_NVML,
    FAMILY_ANSWERS,
    FAMILY_UTILIZATION,
    FAMILY_MEMORY_UTILIZATION,
    FAMILY_MEMORY_USED,
    FAMILY_MEMORY_TOTAL,
    FAMILY_TEMPERATURE,
    FAMILY_POWER,
    FAMILY_POWER_LIMIT,
    FAMILY_CLOCK,
    FAMILY_THROTTLED,
    FAMILY_ECC,
    FAMILY_XIDS,
    N_FAMILIES
};

#define BY_DEVICE .labels = {"device"}

static const struct metric_spec specs[N_FAMILIES] = {
    [FAMILY_STATE] = {.name = "sluice_device_state",
                      .help =
                          "1, with the device's state as a label: usable, cordoned (nothing new "
                          "starts there), quarantined (nothing runs there).",
                      .type = METRIC_GAUGE,
                      .labels = {"device", "state"}},
    [FAMILY_NVML] = {.name = "sluice_device_nvml_up",
                     .help = "1 where NVIDIA's management library reports on the GPUs.",
                     .type = METRIC_GAUGE},
    [FAMILY_ANSWERS] = {.name = "sluice_device_answers",
                        .help = "0 while the GPU does not answer its driver.",
                        .type = METRIC_GAUGE,
                        BY_DEVICE},
    [FAMILY_UTILIZATION] = {.name = "sluice_device_utilization_ratio",
                            .help = "Share of the last sample period in which a kernel ran.",
                            .type = METRIC_GAUGE,
                            BY_DEVICE},
    [FAMILY_MEMORY_UTILIZATION] =
        {.name = "sluice_device_memory_utilization_ratio",
         .help = "Share of the sample period in which device memory was read or "
                 "written.",
         .type = METRIC_GAUGE,
         BY_DEVICE},
    [FAMILY_MEMORY_USED] = {.name = "sluice_device_memory_used_bytes",
                            .help = "Device memory in use by all processes.",
                            .type = METRIC_GAUGE,
                            BY_DEVICE},
    [FAMILY_MEMORY_TOTAL] = {.name = "sluice_device_memory_total_bytes",
                             .help = "Total device memory.",
                             .type = METRIC_GAUGE,
                             BY_DEVICE},
    [FAMILY_TEMPERATURE] = {.name = "sluice_device_temperature_celsius",
                            .help = "Temperature of the GPU.",
                            .type = METRIC_GAUGE,
                            BY_DEVICE},
    [FAMILY_POWER] = {.name = "sluice_device_power_watts",
                      .help = "Power that the GPU draws.",
                      .type = METRIC_GAUGE,
                      BY_DEVICE},
    [FAMILY_POWER_LIMIT] = {.name = "sluice_device_power_limit_watts",
                            .help = "Power limit of the GPU.",
                            .type = METRIC_GAUGE,
                            BY_DEVICE},
    [FAMILY_CLOCK] = {.name = "sluice_device_clock_hertz",
                      .help = "Clocks of the GPU: sm, memory.",
                      .type = METRIC_GAUGE,
                      .labels = {"device", "clock"}},
    [FAMILY_THROTTLED] = {.name = "sluice_device_throttled",
                          .help = "1 while this reason lowers the clocks.",
                          .type = METRIC_GAUGE,
                          .labels = {"device", "reason"}},
    [FAMILY_ECC] = {.name = "sluice_device_ecc_errors_total",
                    .help = "Memory errors since the driver was loaded: corrected, uncorrected.",
                    .type = METRIC_COUNTER,
                    .labels = {"device", "kind"}},
    [FAMILY_XIDS] =
        {.name = "sluice_device_xids_total",
         .help = "Critical errors (Xids) that the driver reported since the manager started, by "
                 "Xid; 0: all beyond the first few kinds.",
         .type = METRIC_COUNTER,
         .labels = {"device", "xid"}},
};

struct metrics_devices {
    struct fleet *fleet;
    struct metrics_family *families[N_FAMILIES];
};

static void put_sample(const struct metrics_devices *m, struct metrics_sink *sink, int family,
                       bool has, const char *device, const char *label, double value)
{
    const char *const values[] = {device, label};
    if (has)
        metrics_sample(sink, m->families[family], values, value);
}

static void sample_figures(const struct metrics_devices *m, struct metrics_sink *sink,
                           const char *name, const struct nvml_figures *f)
{
    put_sample(m, sink, FAMILY_UTILIZATION, f->has_utilization, name, NULL,
               f->utilization_percent / 1e2);
    put_sample(m, sink, FAMILY_MEMORY_UTILIZATION, f->has_utilization, name, NULL,
               f->memory_utilization_percent / 1e2);
    put_sample(m, sink, FAMILY_MEMORY_USED, f->has_memory, name, NULL,
               (double)f->memory_used_bytes);
    put_sample(m, sink, FAMILY_MEMORY_TOTAL, f->has_memory, name, NULL,
               (double)f->memory_total_bytes);
    put_sample(m, sink, FAMILY_TEMPERATURE, f->has_temperature, name, NULL, f->temperature_celsius);
    put_sample(m, sink, FAMILY_POWER, f->has_power, name, NULL, f->power_milliwatts / 1e3);
    put_sample(m, sink, FAMILY_POWER_LIMIT, f->has_power_limit, name, NULL,
               f->power_limit_milliwatts / 1e3);
    put_sample(m, sink, FAMILY_CLOCK, f->has_sm_clock, name, "sm", f->sm_clock_mhz * 1e6);
    put_sample(m, sink, FAMILY_CLOCK, f->has_memory_clock, name, "memory",
               f->memory_clock_mhz * 1e6);
    for (uint32_t i = 0; i < NVML_N_THROTTLES; i++) {
        uint64_t bit;
        const char *reason = nvml_throttle_name(i, &bit);
        put_sample(m, sink, FAMILY_THROTTLED, f->has_throttle, name, reason,
                   (f->throttle & bit) != 0);
    }
    put_sample(m, sink, FAMILY_ECC, f->has_ecc_corrected, name, "corrected",
               (double)f->ecc_corrected);
    put_sample(m, sink, FAMILY_ECC, f->has_ecc_uncorrected, name, "uncorrected",
               (double)f->ecc_uncorrected);
}

static void sample_device(const struct metrics_devices *m, struct metrics_sink *sink,
                          const pb_device *device)
{
    static const char *const states[] = {"", "usable", "cordoned", "quarantined"};
    const pb_hold *hold = device_hold_find(m->fleet->context->catalog, device->name);
    struct device_view view;
    put_sample(m, sink, FAMILY_STATE, true, device->name,
               states[hold ? (unsigned)hold->state % 4 : DEVICE_USABLE], 1);
    if (!device_watch_view(m->fleet->device_watch, device, &view))
        return;
    put_sample(m, sink, FAMILY_ANSWERS, true, device->name, NULL, view.sampled);
    if (view.sampled)
        sample_figures(m, sink, device->name, &view.figures);
    for (size_t i = 0; i < DEVICE_WATCH_MAX_XIDS; i++) {
        char xid[24];
        snprintf(xid, sizeof(xid), "%" PRIu64, view.xids[i].xid);
        put_sample(m, sink, FAMILY_XIDS, view.xids[i].n > 0, device->name, xid,
                   (double)view.xids[i].n);
    }
}

static void collect(void *arg, struct metrics_sink *sink)
{
    const struct metrics_devices *m = arg;
    const struct catalog *catalog = m->fleet->context->catalog;
    for (size_t i = 0; catalog_device_at(catalog, i); i++)
        sample_device(m, sink, catalog_device_at(catalog, i));
    metrics_sample(sink, m->families[FAMILY_NVML], NULL,
                   device_watch_is_up(m->fleet->device_watch));
}

int metrics_devices_create(struct fleet *fleet, struct metrics *registry,
                           struct metrics_devices **out_devices, struct error *err)
{
    struct metrics_devices *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    m->fleet = fleet;
    if (metrics_add(registry, specs, N_FAMILIES, m->families, err) != 0 ||
        metrics_add_collector(registry, collect, m, err) != 0) {
        free(m);
        return err->status;
    }
    *out_devices = m;
    return 0;
}

void metrics_devices_destroy(struct metrics_devices *devices)
{
    free(devices);
}
