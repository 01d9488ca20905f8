/* slot_process.h: the process of a slot: starting, adopting and waking the process, and reading
 * its exit report. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/slots/slot.h"

/* Starts the process of a replica recorded as LOADING. */
int slot_spawn(struct slot *slot, struct error *err);
/* True where the parked worker can serve in place. The worker runs the program that a start
 * would run. Its weights are whole. The worker has not refused a wake. */
bool slot_can_wake(const struct slot *slot);
/* Sends Wake to the parked process of a replica that is recorded as LOADING, with the launch
 * record of a new process. False where Wake cannot be sent: the slot is then SLOT_STUCK, as after
 * a refusal. */
bool slot_wake(struct slot *slot);
/* Moves a parked or waking slot to SLOT_STUCK: another process replaces the parked worker. */
void slot_give_up_wake(struct slot *slot);
/* Saves the devices that the launch record gives to the process. */
void slot_note_devices(struct slot *slot, const pb_launch *launch);
/* Watches a process (takes *process), which serves or is parked by `phase`, and opens the link to
 * its worker. */
int slot_attach(struct slot *slot, struct process *process, enum slot_phase phase,
                struct error *err);

/* Reads the exit report of the process with this epoch into last_error, outlook and
 * asked_to_end. A device fault in the report goes to device_holds_report(). False: there is no
 * report. */
bool slot_read_exit(struct slot *slot, uint64_t epoch);
