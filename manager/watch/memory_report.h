/* memory_report.h: the recorded result of an operation, in bytes and requests. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

struct arena;
struct error;

/* Memory is allocated in pages: up to this much more than expected may remain. */
enum { MEMORY_REPORT_TOLERANCE_BYTES = 1 << 20 };

/* The parts of a memory report that are no bytes. */
struct memory_report_left {
    bool some;    /* replicas left, so their memory must be freed */
    pid_t holder; /* process that has the packed weights open; 0: none */
    bool pending; /* no NVML sample of a GPU since the process ended */
};

/* Builds the result of an operation. Load: the bytes per device that the workers reported.
 * Unload, park, failed restart and other operations that end replicas: the bytes per device
 * before the drain, now, and expected. Expected is the memory of replicas that stay. A parked
 * worker stays with its weights and with the header and vocabulary of the file. On a CPU the
 * bytes are pages of the workers alone (anonymous and shared memory), read from the kernel.
 * Three parts make the bytes "now" of a replica that left. The first are resident pages of its
 * processes that still exist. The second are its packed weights, if any process of this user has
 * them open. The third, on a GPU, is the memory of its processes by NVML. So other processes on
 * the device make no difference. In the arena. */
pb_operation_result *memory_report_build(struct fleet *fleet, struct arena *arena,
                                         const pb_operation *operation,
                                         struct memory_report_left *out_left);

/* INTERNAL, reason MEMORY_NOT_RELEASED, where the replicas have ended and the machine or a GPU
 * holds more than expected, beyond the tolerance. The text has the bytes and the holder. `then`
 * ends the text: what was done anyway. */
int memory_report_check_released(const pb_operation_result *result,
                                 const struct memory_report_left *left, const char *then,
                                 struct error *err);
