/* device_policy.h: the action for a failed device. Two tables: by the fault that ended a worker,
 * and by Xid (the driver's number of a critical error). The Xid table follows the resolution
 * buckets of NVIDIA's Xid catalogue. Pure. Sluice never resets a device; the operator resets and
 * releases it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "manager/base/pb.h"

enum device_action {
    DEVICE_NOTE,       /* logged and counted, no action */
    DEVICE_RESTART,    /* the affected worker gets a new process */
    DEVICE_QUARANTINE, /* nothing runs on the device until an operator releases it */
    DEVICE_DRAIN_NODE, /* as QUARANTINE, and nothing new starts on the machine's other devices of
                        * that kind */
};

struct device_verdict {
    enum device_action action;
    const char *resolution; /* "RESET_GPU"; "" for a fault */
    const char *text;       /* the cause and the operator's action, in one sentence */
};

struct device_verdict device_policy_xid(uint64_t xid);
struct device_verdict device_policy_fault(Sluice__Worker__V1__DeviceFault fault);

/* "NOTE", "RESTART", "QUARANTINE", "DRAIN_NODE". */
const char *device_action_name(enum device_action action);
/* REASON_DEVICE_ECC and the like; UNSPECIFIED: REASON_DEVICE_LOST. */
enum reason device_policy_reason(Sluice__Worker__V1__DeviceFault fault);
/* The fault by the exit status of a worker without a report. False: the status means no fault. */
bool device_fault_of_exit(int exit_status, Sluice__Worker__V1__DeviceFault *out_fault);
