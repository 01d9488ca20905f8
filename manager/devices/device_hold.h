/* device_hold.h: quarantined devices: their recorded holds after faults, and the effect of holds
 * on replicas. A hold belongs to the device's UUID where known, since device numbers may change
 * when a device disappears. Reads: any owner of a catalog; reports: loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/base/names.h"
#include "manager/base/pb.h"
#include "manager/devices/device_policy.h"

struct catalog;
struct context;
struct device_holds;
struct error;
struct txn;

/* The hold on a device, by the device's name; NULL: the device is usable. Borrowed from the
 * catalog. */
const pb_hold *device_hold_find(const struct catalog *catalog, const char *device);
/* Writes the names of the group's devices without a hold, in order. The names are borrowed. Returns
 * their number. */
size_t device_hold_choose(const struct catalog *catalog, const pb_group *group,
                          char *out_devices[DEVICES_MAX]);
/* FAILED_PRECONDITION, reason DEVICE_QUARANTINED, naming a held device, where holds leave fewer
 * devices than a replica of n_ranks takes. */
int device_hold_check(const struct catalog *catalog, const pb_group *group, uint32_t n_ranks,
                      struct error *err);

/* A fault of a device. */
struct device_report {
    char device[24]; /* "cuda:0" */
    uint64_t xid;    /* 0: no Xid, but `fault` ended a worker */
    Sluice__Worker__V1__DeviceFault fault;
    char replica_id[24]; /* replica whose worker ended, or empty */
    char message[256];   /* text of the worker's report, or empty */
};

int device_holds_create(struct context *context, struct device_holds **out_holds,
                        struct error *err);
void device_holds_destroy(struct device_holds *holds); /* NULL is accepted */

/* Records the report, and the holds that device_policy.h demands. Tries again until the record is
 * durable (or in memory, while the disk is full). Returns the action taken. */
enum device_action device_holds_report(struct device_holds *holds,
                                       const struct device_report *report);

/* Ends the hold on a device, given by name or key, in a transaction. *out_hold is a copy of the
 * ended hold (owned). NOT_FOUND, reason DEVICE_NOT_FOUND; FAILED_PRECONDITION, reason
 * DEVICE_NOT_HELD. */
int device_hold_release(struct txn *txn, const char *device, pb_hold **out_hold, struct error *err);
