/* device_policy.h: what is done about a device that has failed: one table by the error that ended a
 * worker, one by Xid, the driver's word for a critical error, after the resolution buckets of
 * NVIDIA's catalogue of Xids. Pure. A device is never reset by us: whoever resets it releases it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

enum device_action {
    DEVICE_NOTE,       /* told, counted, nothing done */
    DEVICE_RESTART,    /* the worker that it hit gets a new process */
    DEVICE_QUARANTINE, /* nothing runs on the device until an operator releases it */
    DEVICE_DRAIN_NODE, /* and nothing new starts on the machine's other devices of its kind */
};

struct device_verdict {
    enum device_action action;
    const char *resolution; /* "RESET_GPU"; a fault: "" */
    const char *text;       /* what happened and what the operator does, one sentence */
};

struct device_verdict device_policy_xid(uint64_t xid);
struct device_verdict device_policy_fault(Sluice__Worker__V1__DeviceFault fault);

/* "NOTE", "RESTART", "QUARANTINE", "DRAIN_NODE". */
const char *device_action_name(enum device_action action);
/* "DEVICE_ECC"; UNSPECIFIED: "DEVICE_LOST". */
const char *device_fault_name(Sluice__Worker__V1__DeviceFault fault);
/* By the exit status of a worker that left no report. False: it tells of no fault. */
bool device_fault_of_exit(int exit_status, Sluice__Worker__V1__DeviceFault *out_fault);
