/* fit.h: which one of several devices a replica takes. A pure function of what is known of them:
 * how much room each has for a replica, and how many processes are there. Any thread.
 *
 *   spread   of those that have room, the one with the fewest processes, of those the one with the
 *            most room: replicas do not compete for cores and memory while there are others;
 *   pack     of those that have room, the one with the least (best fit), of those the one with the
 *            most processes: what is large still finds a device that is empty.
 *
 * Where none has room, both take the one with the most: the replica says there what it lacks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "manager/settings/fit_policy.h"

struct fit_device {
    bool is_there;        /* the machine has it */
    uint64_t room_bytes;  /* neither taken nor promised, within its budget */
    uint32_t n_processes; /* that are on it */
};

/* An index into `devices` (n_devices > 0): the lowest of equal ones. FIT_AUTO is FIT_SPREAD here.
 */
size_t fit_choose(enum fit_policy policy, const struct fit_device *devices, size_t n_devices,
                  uint64_t wanted_bytes);
