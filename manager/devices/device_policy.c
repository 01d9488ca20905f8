#include "manager/devices/device_policy.h"

#include <stddef.h>

#define FAULT(name) SLUICE__WORKER__V1__DEVICE_FAULT__DEVICE_FAULT_##name

enum { EXIT_STATUS_BASE = 80, EXIT_STATUS_MEMORY = EXIT_STATUS_BASE + 2 };

/* By the buckets for data-centre GPUs from Ampere on. Xids that are not listed are only logged. */
static const struct {
    uint16_t xid;
    struct device_verdict verdict;
} xids[] = {
    {8, {DEVICE_RESTART, "RESTART_APP", "the GPU stopped processing for an application"}},
    {11, {DEVICE_RESTART, "RESTART_APP", "corrupted push buffer stream"}},
    {13, {DEVICE_RESTART, "RESTART_APP", "graphics engine exception in a kernel"}},
    {31, {DEVICE_RESTART, "RESTART_APP", "a kernel accessed an address that is not mapped"}},
    {32, {DEVICE_RESTART, "RESTART_APP", "corrupted push buffer stream"}},
    {43, {DEVICE_NOTE, "IGNORE", "the GPU stopped processing for an application that ended"}},
    {45, {DEVICE_NOTE, "WORKFLOW_XID_45", "cleanup after an earlier error"}},
    {46, {DEVICE_QUARANTINE, "RESET_GPU", "the GPU stopped processing: reset it"}},
    {48,
     {DEVICE_QUARANTINE, "WORKFLOW_XID_48",
      "uncorrectable memory error: reset the GPU, then check its row remapper"}},
    {62, {DEVICE_QUARANTINE, "RESET_GPU", "an internal microcontroller halted: reset the GPU"}},
    {63, {DEVICE_NOTE, "IGNORE", "a memory row was marked for remapping at the GPU's next reset"}},
    {64,
     {DEVICE_QUARANTINE, "RESET_GPU",
      "a memory row could not be remapped: reset the GPU; replace it if this happens again"}},
    {69, {DEVICE_RESTART, "RESTART_APP", "graphics engine class error"}},
    {74,
     {DEVICE_QUARANTINE, "WORKFLOW_NVLINK_ERR",
      "NVLink error: reset the GPUs of the link, then check it"}},
    {79,
     {DEVICE_DRAIN_NODE, "RESTART_BM",
      "the GPU has fallen off the bus: restart the machine, check power, cooling and seat"}},
    {92, {DEVICE_NOTE, "IGNORE", "many corrected memory errors"}},
    {94, {DEVICE_RESTART, "RESTART_APP", "uncorrectable memory error, contained"}},
    {95,
     {DEVICE_QUARANTINE, "RESET_GPU", "uncorrectable memory error, not contained: reset the GPU"}},
    {109, {DEVICE_QUARANTINE, "RESET_GPU", "a context switch timed out: reset the GPU"}},
    {119, {DEVICE_QUARANTINE, "RESET_GPU", "the GPU's system processor does not answer: reset it"}},
    {120, {DEVICE_QUARANTINE, "RESET_GPU", "error of the GPU's system processor: reset it"}},
    {140, {DEVICE_QUARANTINE, "RESET_GPU", "unrecovered memory error: reset the GPU"}},
};

static const struct {
    enum reason reason;
    struct device_verdict verdict;
} faults[] = {
    [FAULT(UNSPECIFIED)] = {REASON_DEVICE_LOST, {DEVICE_RESTART, "", "the engine failed"}},
    [FAULT(MEMORY)] = {REASON_DEVICE_MEMORY, {DEVICE_RESTART, "", "out of device memory"}},
    [FAULT(ILLEGAL_ACCESS)] = {REASON_DEVICE_ILLEGAL_ACCESS,
                               {DEVICE_RESTART, "", "a kernel made an illegal access"}},
    [FAULT(TIMEOUT)] = {REASON_DEVICE_TIMEOUT, {DEVICE_RESTART, "", "a kernel ran too long"}},
    [FAULT(CONTAINED)] = {REASON_DEVICE_CONTAINED,
                          {DEVICE_RESTART, "", "a hardware error in one process"}},
    [FAULT(ECC)] = {REASON_DEVICE_ECC,
                    {DEVICE_QUARANTINE, "",
                     "uncorrectable memory error: reset the GPU, then check its row remapper"}},
    [FAULT(NVLINK)] = {REASON_DEVICE_NVLINK,
                       {DEVICE_QUARANTINE, "",
                        "uncorrectable NVLink error: reset the GPUs of the link, then check it"}},
    [FAULT(DRIVER)] = {REASON_DEVICE_DRIVER,
                       {DEVICE_RESTART, "", "the driver no longer serves the process"}},
    [FAULT(UNKNOWN)] = {REASON_DEVICE_UNKNOWN,
                        {DEVICE_RESTART, "", "an error that the driver does not know"}},
};

enum { N_FAULTS = sizeof(faults) / sizeof(faults[0]) };

struct device_verdict device_policy_xid(uint64_t xid)
{
    for (size_t i = 0; i < sizeof(xids) / sizeof(xids[0]); i++)
        if (xids[i].xid == xid)
            return xids[i].verdict;
    return (struct device_verdict){DEVICE_NOTE, "", "see the catalogue of Xids"};
}

struct device_verdict device_policy_fault(Sluice__Worker__V1__DeviceFault fault)
{
    return faults[(size_t)fault < N_FAULTS ? (size_t)fault : 0].verdict;
}

const char *device_action_name(enum device_action action)
{
    static const char *const names[] = {"NOTE", "RESTART", "QUARANTINE", "DRAIN_NODE"};
    return names[action];
}

enum reason device_policy_reason(Sluice__Worker__V1__DeviceFault fault)
{
    return faults[(size_t)fault < N_FAULTS ? (size_t)fault : 0].reason;
}

bool device_fault_of_exit(int exit_status, Sluice__Worker__V1__DeviceFault *out_fault)
{
    int fault = exit_status - EXIT_STATUS_MEMORY + (int)FAULT(MEMORY);
    if (fault < (int)FAULT(MEMORY) || fault >= (int)N_FAULTS)
        return false;
    *out_fault = (Sluice__Worker__V1__DeviceFault)fault;
    return true;
}
