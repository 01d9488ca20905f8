/* fleet.h: the replicas of this machine: one slot for each, and the parts that all slots share.
 * Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash_map.h"

struct context;
struct device_holds;
struct device_watch;
struct slot;
struct supervisor;
struct tool_runner;
struct weights;

/* The parts are borrowed. A part is NULL until it is created. */
struct fleet {
    struct context *context;
    struct hash_map slots; /* id to struct slot */
    struct weights *weights;
    struct device_holds *device_holds;
    struct device_watch *device_watch; /* NULL: nothing is known about GPUs */
    struct tool_runner *tools;         /* one-shot processes of the workers' program */
    struct supervisor *supervisor;     /* starts and ends the slots' processes (replicas/) */
    uint32_t n_adopted;                /* workers of an earlier manager that were taken over */
    bool settled_timeout;              /* the wait for the first status of adopted workers is
                                        * over */
    int64_t looked_ns, paused_ns;      /* state of fleet_now_ns */
};

void fleet_init(struct fleet *fleet, struct context *context);
/* Destroys every slot; the processes run on. The fleet is empty afterwards. */
void fleet_fini(struct fleet *fleet);

/* The next slot, in no order; *cursor begins at 0. NULL: there are no more. */
struct slot *fleet_next(const struct fleet *fleet, size_t *cursor);

/* The clock of all times in a slot. The clock is monotonic and stops while this process is
 * stopped: no worker is killed for a pause of the manager. */
int64_t fleet_now_ns(struct fleet *fleet);
/* The supervisor calls fleet_now_ns at least this often. A much longer gap counts as a pause of
 * this process and is left out. */
int64_t fleet_tick_ns(void);

/* True once every adopted worker has sent a status, or the wait for it is over. */
bool fleet_is_settled(const struct fleet *fleet);

/* Adds 1 to n_users[cpu] for each live worker process that owns the CPU, except the process of
 * `but_id`. The caller zeroes n_users[CPUS_MAX] (base/system/cpus.h). */
void fleet_count_cpu_users(const struct fleet *fleet, const char *but_id, uint16_t *n_users);
