/* fit.h: which of several devices a replica takes. A pure function of the room on each device and
 * of the number of processes there. Any thread.
 *
 *   spread   among devices with room: the fewest processes, then the most room;
 *            replicas do not share cores needlessly.
 *   pack     among devices with room: the least room (best fit), then the most processes;
 *            a large replica finds an empty device.
 *
 * If no device has room, both take the one with the most. The replica's error then names the
 * missing bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/settings/fit_policy.h"

struct fit_device {
    bool is_there;        /* the machine has it */
    uint64_t room_bytes;  /* neither taken nor promised, within the budget */
    uint32_t n_processes; /* processes on the device */
};

/* Returns an index into `devices` (n_devices > 0); the lowest of equals. FIT_AUTO means
 * FIT_SPREAD here. */
size_t fit_choose(enum fit_policy policy, const struct fit_device *devices, size_t n_devices,
                  uint64_t wanted_bytes);
