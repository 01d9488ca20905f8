/* nvml.h: NVIDIA's management library, opened at run time: the GPUs, their state, and the driver's
 * critical errors (Xid). No program links the library, so a machine without a driver only lacks
 * these data. Calls from a single thread at a time; a call may take long if a GPU hangs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct nvml;

enum { NVML_MAX_DEVICES = 64, NVML_NO_DEVICE = 0xffff };

/* Opens `library`; if NULL, the library that SLUICE_NVML_LIBRARY names, or libnvidia-ml.so.1.
 * NOT_FOUND: no such library. FAILED_PRECONDITION: the library lacks a required function, or does
 * not work with the driver. *out_nvml is owned. */
int nvml_open(const char *library, struct nvml **out_nvml, struct error *err);
void nvml_close(struct nvml *nvml); /* NULL is accepted */

uint32_t nvml_n_devices(const struct nvml *nvml);
/* Returns the driver's version "580.65.06"; empty if the driver does not report it. Borrowed. */
const char *nvml_driver_version(const struct nvml *nvml);

/* A member is empty if the device does not report it. */
struct nvml_identity {
    char name[96];
    char uuid[96];       /* "GPU-..." */
    char pci_bus_id[32]; /* "00000000:3B:00.0" */
    char compute_capability[16];
};
void nvml_identify(const struct nvml *nvml, uint32_t index, struct nvml_identity *out_identity);

/* Returns true if the index-th device has this UUID, or this bus id (empty: unknown). If neither
 * can be compared, true if the index is device_index. */
bool nvml_is_device(const struct nvml_identity *identity, uint32_t index, const char *uuid,
                    const char *pci_bus_id, uint32_t device_index);

/* Reasons why clocks are reduced, as bits; nvml_throttle_name gives names. */
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
/* Returns the name of the i-th reason (i below NVML_N_THROTTLES), for example "power_cap", and its
 * bit. */
const char *nvml_throttle_name(uint32_t i, uint64_t *out_bit);

/* A process that holds memory of a device. The driver's pid may be the one outside the
 * container. */
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
    uint64_t throttle; /* bits NVML_THROTTLE_* */
    uint64_t ecc_corrected, ecc_uncorrected;
    bool has_processes; /* the list is complete, except for processes of unknown size */
    uint32_t n_processes;
    struct nvml_process processes[NVML_MAX_PROCESSES];
};
/* Samples a device; figures that the device does not support are left out. UNAVAILABLE, with the
 * library's text, if the device is lost or must be reset; nothing is filled in. */
int nvml_sample(const struct nvml *nvml, uint32_t index, struct nvml_figures *out_figures,
                struct error *err);

/* Waits up to timeout_ms for a critical error. *out_xid 0: none came. *out_index NVML_NO_DEVICE:
 * the library does not name the device. UNIMPLEMENTED, at once, if no device reports errors;
 * UNAVAILABLE if waiting fails. */
int nvml_wait_xid(struct nvml *nvml, uint32_t timeout_ms, uint32_t *out_index, uint64_t *out_xid,
                  struct error *err);
