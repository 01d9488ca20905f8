/* device_end.h: the end of a worker whose device or engine has failed. The exit report of a
 * failed device names its fault class and the device. Any other failure (layers on the CPU) is
 * reported as ENGINE_FAILED without a device. A failed device's context is unusable, and calls
 * that release it may hang. So the exit report is written, the streams are cut and the process
 * ends at once, in that order. The server moves the requests to another replica, as after any
 * other death. The device's memory is freed with the process. */
#pragma once

#include <stdbool.h>

struct error;
struct worker;

/* True if `why` reports a device fault after which this process cannot use the device. */
bool device_is_at_its_end(const struct error *why);

/* Any thread; does not return. */
_Noreturn void device_end(struct worker *worker, const struct error *why);
