/* device_end.h: the end of a worker whose device, or else whose engine, has failed. Of a device the
 * exit report says so, with class and device; of another failure of the engine (layers on the CPU)
 * it says ENGINE_FAILED and blames none. A device's context cannot be used again, and calls that
 * would take it down properly may hang: so the exit report is written, the streams are cut and the
 * process ends, in that order and at once. The server moves the requests to another replica, as
 * after any other death; memory of the device goes back with the process. */
#pragma once

#include <stdbool.h>

struct error;
struct worker;

/* True where `why` tells of a device that this process can use no more. */
bool device_is_at_its_end(const struct error *why);

/* Any thread; does not return. */
_Noreturn void device_end(struct worker *worker, const struct error *why);
