/* fleet.h: the replicas of this machine: a slot for each, and what they run on. Every question
 * about replicas begins with the fleet. Loop thread only. */
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

/* The parts are borrowed, and NULL until they are there. */
struct fleet {
    struct context *context;
    struct hash_map slots; /* id to struct slot */
    struct weights *weights;
    struct device_holds *device_holds;
    struct device_watch *device_watch; /* NULL: nothing is known of GPUs */
    struct tool_runner *tools;         /* one-shot processes of the workers' program */
    struct supervisor *supervisor;     /* starts and ends the slots' processes (replicas/) */
    uint32_t n_adopted;                /* workers of an earlier manager that were taken over */
    bool settled_timeout;              /* adopted workers had their time to say what they are */
    int64_t looked_ns, paused_ns;      /* of fleet_now_ns */
};

void fleet_init(struct fleet *fleet, struct context *context);
/* Lets go of every slot and its process. The fleet is empty after. */
void fleet_fini(struct fleet *fleet);

/* The next slot, in no order; *cursor begins at 0. NULL: there are no more. */
struct slot *fleet_next(const struct fleet *fleet, size_t *cursor);

/* The clock of all times in a slot. This clock is monotonic and stands still while this process is
 * stopped: no worker is killed for a silence of the manager. */
int64_t fleet_now_ns(struct fleet *fleet);
/* How often the supervisor calls fleet_now_ns at least. A much longer gap does not count. */
int64_t fleet_tick_ns(void);

/* True once every adopted worker has said what it is, or had time to. */
bool fleet_is_settled(const struct fleet *fleet);

/* Counts, for each CPU, the live worker processes that own the CPU, without the process of
 * `but_id`. n_users[CPUS_MAX] (base/system/cpus.h) is zeroed by the caller. */
void fleet_count_cpu_users(const struct fleet *fleet, const char *but_id, uint16_t *n_users);
