/* slot_process.h: a slot's process: starting and adopting it, waking it in place, and what it
 * leaves when it ends. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

/* Starts the process of a replica recorded as LOADING. */
int slot_spawn(struct slot *slot, struct error *err);
/* Whether its process, which keeps weights, can be told to serve: it runs the program that a start
 * would, its weights are whole, it is to have no CPUs of its own, and it has not refused. */
bool slot_can_wake(const struct slot *slot);
/* Tells it, with the flags that a process started now would get. Of a replica recorded as LOADING.
 * False where it cannot be told: then slot->wake_failed, as where it refuses later. */
bool slot_wake(struct slot *slot);
/* Keeps the devices that its process was given with these flags. */
void slot_note_devices(struct slot *slot, char *const *argv);
/* Watches a process (takes *process) and opens the line to it. */
int slot_attach(struct slot *slot, struct process *process, struct error *err);

/* The exit report of a process that was started with this epoch, turned into last_error, permanent
 * and asked; what it says of a device is reported (device_hold.h). False: there is none. */
bool slot_read_exit(struct slot *slot, uint64_t epoch);
