/* slot.h: one replica as the manager sees it: its process, the line to its worker, what the worker
 * says, and what is under way. Here a slot is only looked at; replicas/ starts and ends processes.
 * Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <ev.h>

#include "base/error.h"
#include "base/system/cpus.h"
#include "manager/base/pb.h"
#include "manager/host/process.h"
#include "manager/host/worker_link.h"
#include "manager/slots/deaths.h"
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"

enum { SLOT_ID_BYTES = 24, SLOT_MAX_GHOSTS = 4 };

struct slot {
    struct fleet *fleet;
    char id[SLOT_ID_BYTES];
    struct process process; /* pidfd -1: none */
    enum process_state process_state;
    struct process_end end;
    ev_io exit_watch;
    struct worker_link *link;
    pb_status *status;  /* owned */
    struct cpus cpus;   /* its process's own; empty: none */
    char *devices;      /* that its process was given, "cuda:0,cuda:1"; NULL: not known; owned */
    char gpu[24];       /* that its last process said it takes memory of; empty: none did */
    uint64_t gpu_bytes; /* with gpu: how much it planned to take */
    char wake_gpu[24];  /* where its wake was found to have room; empty: nobody looked */
    uint64_t drained_gpu_bytes; /* taken of it when its drain began */
    uint64_t served_bytes; /* of the machine's memory: planned by its last process that served */
    uint64_t shared_bytes,
        shared_id;        /* of packed weights, as its last process said that has some */
    uint64_t woken_bytes; /* which its keeper, told to serve, has yet to say; 0: not known */
    bool served_before;   /* served_bytes are of a process that a manager before this one saw */
    uint64_t keep_resident_bytes; /* with keep_sent: resident as it was asked */
    bool busy;                    /* a record of it is on its way to the store */
    bool keeps;                   /* its process keeps weights, and serves nothing */
    bool fenced, refused, permanent, held_back, drain_sent, kill_sent;
    bool wake_sent, wake_failed;    /* it was told to serve in place; it would not, or cannot */
    bool keep_sent;                 /* it was asked to copy its weights, and has not answered */
    int64_t keep_at_ns;             /* not to be asked again before */
    uint32_t n_keeps, n_keep_tries; /* copies that it said are whole; answers that it cannot yet */
    uint32_t n_keep_failures;       /* in a row */
    uint64_t keep_failed;           /* generation of the deployment whose parking failed; 0: none */
    struct error keep_error;        /* with keep_failed */
    bool asked;                     /* of the exit report: it ended because it was told to */
    bool packed_told, sealed_told;  /* weights_told has heard of its packed memory */
    bool settled;                   /* adopted, and has said what it is */
    bool adopted;
    int64_t hold_until_ns; /* after a refused record: not before */
    int64_t started_ns, next_start_ns, ready_ns, drain_deadline_ns;
    int64_t failed_ns;  /* since when the worker says FAILED */
    int64_t leaving_ns; /* since when it says DRAINING, and this manager did not tell it to */
    int64_t heard_ns;   /* its last word; 0: none yet */
    int64_t moved_ns;   /* last seen to make progress, or to have nothing to do */
    uint64_t progress;
    bool works;                             /* requests are on it */
    int64_t active_ns;                      /* it was last seen to have some, or to have had some */
    uint64_t n_accepted;                    /* requests, by then */
    struct process ghosts[SLOT_MAX_GHOSTS]; /* slot_haunt */
    size_t n_ghosts;
    uint32_t grace_ms;
    struct reconcile_deaths deaths;
    uint64_t drained_bytes, drained_shared_bytes, drained_shared_id; /* when its drain began */
    pid_t drained_pid; /* whose drain that was, with the time it started; 0: none */
    uint64_t drained_ticks;
    uint64_t drained_inodes[WEIGHTS_MAX_RANKS]; /* of the packed memory that it had */
    size_t n_drained_inodes;
    bool restarting; /* that drain was a restart's, whose memory report is still to tell of it */
    int64_t ended_unix_ns;    /* when a process of it was seen to end */
    char ended_gpu[24];       /* the GPU it was on */
    uint64_t ended_gpu_bytes; /* and what it had there by then */
    uint32_t n_finished, n_ended;
    int64_t sizing_until_ns; /* started, and has not said what memory it plans */
    struct error last_error; /* status 0: none */
    int64_t fault_ns;        /* since when its device is told to have failed; 0: it is not */
    uint64_t fault_xid;      /* with fault_ns */
    int64_t blamed_ns;       /* when its process last ended of its device; 0: never */
};

/* The slot of a replica, made where there is none. NULL where memory is exhausted. */
struct slot *slot_ensure(struct fleet *fleet, const char *id);
struct slot *slot_find(const struct fleet *fleet, const char *id);
void slot_destroy(struct slot *slot); /* lets go of its process; NULL is accepted */

/* What its running process will take of the machine's memory; 0: nothing, or it has not said. Of
 * one that is being woken, as long as it has said nothing since, what it will as far as is known.
 */
uint64_t slot_planned_bytes(const struct slot *slot);
/* Whether its group is of GPUs. */
bool slot_is_on_gpus(const struct slot *slot);
/* Whether it keeps weights, its deployment is to serve, and it was not told so yet. */
bool slot_waits_to_wake(const struct slot *slot);
/* What a copy of the weights that it has on a GPU takes of the machine's memory, while it makes
 * one, and how much of that its process has taken already, beside what it plans. */
uint64_t slot_copy_bytes(const struct slot *slot, uint64_t *out_copied);
/* Of the weights that it keeps for a GPU those that stay on the CPU, as layers that had no room on
 * the GPU: a wake maps them and takes no more for them. */
uint64_t slot_kept_cpu_bytes(const struct slot *slot);
/* What its running process has taken of GPUs' memory, as it says. */
uint64_t slot_gpu_held_bytes(const struct slot *slot);
uint64_t slot_gpu_held_on(const struct slot *slot, const char *device); /* of one's */
/* Whether it says what its process will take, of any device. */
bool slot_says_size(const pb_status *status);
/* Whether that is known of its running process. */
bool slot_is_sized(const struct slot *slot);
/* Since when its process stands still; 0: it does not, or that cannot be said. */
int64_t slot_still_ns(const struct slot *slot);
/* Kills a process that is not the slot's (NULL: no slot knows it). It may take long to end (its
 * memory is large, a disk hangs): nothing is started on the slot before it has. Takes it. */
void slot_haunt(struct slot *slot, struct process *process);
/* Whether one that was killed so may still be there. */
bool slot_has_ghost(struct slot *slot);
/* Notes what its process has as its drain begins, for the memory report of what comes back; and
 * forgets that when another one starts. */
void slot_note_drain(struct slot *slot);
void slot_forget_drain(struct slot *slot);
/* What is still resident of the process that drained last and of those that haunt the slot, though
 * it has none that runs. */
uint64_t slot_lingering_bytes(const struct slot *slot);
/* How far its process is or, once it has ended, was: "start", "pack", "warm", "serve". */
const char *slot_stage(const struct slot *slot);
/* Its packed weights, where others can share them; 0: not. The id is the same for all that do. */
uint64_t slot_shared_bytes(const struct slot *slot, uint64_t *out_id);
/* Keeps that of the process that is there now, for when it is gone. */
void slot_note_shared(struct slot *slot);
/* Whether it has no process, as after a crash, and is to have one again that serves. */
bool slot_comes_back(const struct slot *slot);
/* Whether its deployment is to be parked. */
bool slot_is_to_park(const struct slot *slot);
/* Whether its process, or what it is recorded on, has to do with the device. */
bool slot_is_on(const struct slot *slot, const char *device);
/* Whether its process runs on a device that is quarantined. */
bool slot_is_quarantined(const struct slot *slot);
/* Replaces what the worker said last (takes `status`; NULL: nothing). */
void slot_set_status(struct slot *slot, pb_status *status);
/* Forgets the process that has ended and what it said. */
void slot_forget(struct slot *slot);
