/* nvml.h: NVIDIA's management library, opened at run time: what GPUs there are, how they are, and
 * the critical errors (Xid) that the driver tells of. Nothing links it, so where there is no driver
 * it is merely not there. One thread at a time; calls may take long where a GPU does not answer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct nvml;

enum { NVML_MAX_DEVICES = 64, NVML_NO_DEVICE = 0xffff };

/* Opens `library`, or where it is NULL what SLUICE_NVML_LIBRARY names, or libnvidia-ml.so.1.
 * NOT_FOUND: no such library; FAILED_PRECONDITION: it lacks a function that is needed, or the
 * driver does not serve it. *out_nvml is owned. */
int nvml_open(const char *library, struct nvml **out_nvml, struct error *err);
void nvml_close(struct nvml *nvml); /* NULL is accepted */

uint32_t nvml_n_devices(const struct nvml *nvml);
/* Of the driver, "580.65.06"; empty where it does not tell. Borrowed. */
const char *nvml_driver_version(const struct nvml *nvml);

/* Empty members: the device does not tell. */
struct nvml_identity {
    char name[96];
    char uuid[96];       /* "GPU-..." */
    char pci_bus_id[32]; /* "00000000:3B:00.0" */
    char compute_capability[16];
};
void nvml_identify(const struct nvml *nvml, uint32_t index, struct nvml_identity *out_identity);

/* Whether the index-th device is the one known by these (empty: unknown), or where nothing of the
 * kind is known of both by its index. */
bool nvml_is_device(const struct nvml_identity *identity, uint32_t index, const char *uuid,
                    const char *pci_bus_id, uint32_t device_index);

/* Why clocks are lower than they could be; by bits, names in nvml_throttle_name. */
enum {
    NVML_THROTTLE_APP_CLOCKS = 0x2,
    NVML_THROTTLE_POWER_CAP = 0x4,
    NVML_THROTTLE_HW_SLOWDOWN = 0x8,
    NVML_THROTTLE_SYNC_BOOST = 0x10,
    NVML_THROTTLE_SW_THERMAL = 0x20,
    NVML_THROTTLE_HW_THERMAL = 0x40,
    NVML_THROTTLE_HW_POWER_BRAKE = 0x80,
    NVML_THROTTLE_DISPLAY_CLOCKS = 0x100,
    NVML_N_THROTTLES = 8
};
/* Of the i-th kind (below NVML_N_THROTTLES) its name, "power_cap", and its bit. */
const char *nvml_throttle_name(uint32_t i, uint64_t *out_bit);

/* A process that holds memory of a device, as the driver numbers it: in a container that may be by
 * the numbers outside. */
struct nvml_process {
    uint32_t pid;
    uint64_t bytes;
};
enum { NVML_MAX_PROCESSES = 32 };

struct nvml_figures {
    bool has_memory, has_utilization, has_temperature, has_power, has_power_limit, has_sm_clock,
        has_memory_clock, has_throttle, has_ecc_corrected, has_ecc_uncorrected;
    uint64_t memory_total_bytes, memory_used_bytes;
    uint32_t utilization_percent, memory_utilization_percent;
    uint32_t temperature_celsius, power_milliwatts, power_limit_milliwatts;
    uint32_t sm_clock_mhz, memory_clock_mhz;
    uint64_t throttle; /* bits */
    uint64_t ecc_corrected, ecc_uncorrected;
    bool has_processes; /* all of them are told of, those whose bytes are not known left out */
    uint32_t n_processes;
    struct nvml_process processes[NVML_MAX_PROCESSES];
};
/* What the device does not support is left out. UNAVAILABLE, in the library's words, where the
 * device itself does not answer (it is lost, or must be reset): nothing is filled in. */
int nvml_sample(const struct nvml *nvml, uint32_t index, struct nvml_figures *out_figures,
                struct error *err);

/* Waits up to timeout_ms for one critical error. *out_xid 0: none came. *out_index NVML_NO_DEVICE:
 * the library does not say of which device. UNIMPLEMENTED where no device tells of any (at once);
 * UNAVAILABLE where waiting fails. */
int nvml_wait_xid(struct nvml *nvml, uint32_t timeout_ms, uint32_t *out_index, uint64_t *out_xid,
                  struct error *err);
