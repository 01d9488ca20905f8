/* memory_report.h: what an operation did, in bytes and requests: the result it is recorded with.
 * Loop thread only. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct error;

/* Memory comes and goes in pages: so much more than is expected may be there. */
enum { MEMORY_REPORT_TOLERANCE_BYTES = 1 << 20 };

/* What a memory report says but in bytes. */
struct memory_report_left {
    bool some;    /* replicas left, whose memory is to come back */
    pid_t holder; /* one that has packed weights open; 0: none */
    bool pending; /* NVML has not looked at a GPU since the process ended */
};

/* Load: what the workers say they took, per device. Unload, park, a restart after which nothing
 * runs and whatever else lets replicas go: per device of the group, the bytes that Sluice's workers
 * held before the drain, hold now, and should hold now: what replicas that stay hold, and what a
 * keeper of parked weights does, who has read the file's header and vocabulary beside them. On a
 * CPU these are pages only the workers have (anonymous and shared memory), read from the kernel.
 * What "now" counts of a replica that left is its own alone: what is resident of its processes,
 * should one still be there, its packed weights, should any process of this user still have them
 * open, and of a GPU what NVML tells of its processes; so what others on the device take or give
 * back meanwhile makes no difference. NULL where memory is exhausted. */
pb_operation_result *memory_report_build(struct fleet *fleet, const pb_operation *operation,
                                         struct memory_report_left *out_left);

/* INTERNAL, reason MEMORY_NOT_RELEASED, where after replicas have ended the machine or a GPU holds
 * more than is expected, beyond the tolerance: says how much, and who has it. `then` ends the text:
 * what was done all the same. */
int memory_report_check_released(const pb_operation_result *result,
                                 const struct memory_report_left *left, const char *then,
                                 struct error *err);
