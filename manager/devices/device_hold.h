/* device_hold.h: devices that are put aside because they failed: what is recorded of them, and what
 * it means for replicas. A hold belongs to the device's UUID where it has one, since devices may be
 * numbered anew when one of them is gone. Reads: whoever has the catalog; reports: loop thread. */
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

/* The hold on a device, by its name; NULL: it is usable. Borrowed from the catalog. */
const pb_hold *device_hold_find(const struct catalog *catalog, const char *device);
/* Those of a group's devices that nothing holds, in order; returns how many (borrowed). */
size_t device_hold_choose(const struct catalog *catalog, const pb_group *group,
                          char *out_devices[DEVICES_MAX]);
/* FAILED_PRECONDITION, reason DEVICE_QUARANTINED, naming one, where holds leave fewer of the
 * group's devices than a replica of n_ranks takes. */
int device_hold_check(const struct catalog *catalog, const pb_group *group, uint32_t n_ranks,
                      struct error *err);

/* Something a device is told to have suffered. */
struct device_report {
    char device[24]; /* "cuda:0" */
    uint64_t xid;    /* 0: `fault` ended a worker */
    Sluice__Worker__V1__DeviceFault fault;
    char replica_id[24]; /* whose worker it ended, or empty */
    char message[256];   /* what that worker said, or empty */
};

int device_holds_create(struct context *context, struct device_holds **out_holds,
                        struct error *err);
void device_holds_destroy(struct device_holds *holds); /* NULL is accepted */

/* Records the report, and the holds that the policy asks for; tried again until it is durable (or
 * in memory, where the disk is full). Returns what is done. */
enum device_action device_holds_report(struct device_holds *holds,
                                       const struct device_report *report);

/* Ends the hold on a device, given by name or key, in a transaction: *out_hold (a copy, owned) is
 * what is over. NOT_FOUND, reason DEVICE_NOT_FOUND; FAILED_PRECONDITION, reason DEVICE_NOT_HELD. */
int device_hold_release(struct txn *txn, const char *device, pb_hold **out_hold, struct error *err);
