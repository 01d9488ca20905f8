/* slot.h: the manager's place for one replica: its process, the link to its worker, the worker's
 * last status, pending commands. The functions here read a slot; replicas/ starts and ends
 * processes. Loop thread only. */
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
    struct process process; /* pidfd -1: no process */
    enum process_state process_state;
    struct process_end end;
    ev_io exit_watch;
    struct worker_link *link;
    pb_status *status;  /* last status of the worker; owned */
    struct cpus cpus;   /* CPUs that belong to the process alone; empty: none */
    char *devices;      /* devices given to the process, "cuda:0,cuda:1"; NULL: unknown; owned */
    char gpu[24];       /* GPU whose memory the last process reported to use; empty: none */
    uint64_t gpu_bytes; /* planned by that process on `gpu` */
    char wake_gpu[24];  /* GPU that had room for the planned wake; empty: not checked */
    uint64_t drained_gpu_bytes;       /* taken on `gpu` when the drain began */
    uint64_t served_bytes;            /* host memory planned by the last process that served */
    uint64_t shared_bytes, shared_id; /* packed weights of the last process that reported any, and
                                       * the id of that memory */
    uint64_t woken_bytes;     /* estimate for a woken worker that has not reported its size; 0:
                               * unknown */
    bool served_before;       /* served_bytes comes from a process that an earlier manager saw */
    uint64_t copy_base_bytes; /* with copy_sent: resident bytes when the copy was requested */
    bool busy;                /* a record of the replica is on its way to the store */
    bool is_parked_worker;    /* the process is a parked worker: it keeps packed weights and
                               * serves nothing */
    bool fenced, refused, permanent, held_back, drain_sent, kill_sent; /* reconcile.h */
    bool wake_sent, wake_failed;     /* Wake was sent; Wake was refused or is impossible */
    bool copy_sent;                  /* the worker was asked for a park copy and has not answered */
    int64_t copy_at_ns;              /* earliest time to ask for a park copy again */
    uint32_t n_copies, n_copy_waits; /* complete copies reported; "not yet" answers */
    uint32_t n_copy_failures;        /* failed park copies in a row */
    uint64_t copy_failed;            /* generation of the deployment whose park copy failed; 0:
                                      * none */
    struct error copy_error;         /* with copy_failed */
    bool asked_to_end;               /* exit report: the worker ended because Shutdown or a signal
                                      * asked for it */
    bool packed_reported, sealed_reported; /* weights_on_status() was called with the packed memory,
                                            * and with its seals */
    bool settled;                          /* adopted, and the worker has sent its status */
    bool adopted;
    int64_t hold_until_ns; /* after a refused record: do nothing before this time */
    int64_t started_ns, next_start_ns, ready_ns, drain_deadline_ns;
    int64_t failed_ns;  /* since when the worker reports FAILED */
    int64_t leaving_ns; /* since when the worker reports DRAINING without a drain from this
                         * manager */
    int64_t heard_ns;   /* time of the last status; 0: none yet */
    int64_t moved_ns;   /* last time that the worker made progress or had nothing to do */
    uint64_t progress;
    bool has_requests;   /* the worker has requests */
    int64_t active_ns;   /* last time that the worker had requests, or had
                          * finished some since its previous status */
    uint64_t n_accepted; /* requests accepted until then */
    struct process
        ghosts[SLOT_MAX_GHOSTS]; /* killed processes that may still exist (slot_add_ghost) */
    size_t n_ghosts;
    uint32_t grace_ms;
    struct reconcile_deaths deaths;
    uint64_t drained_bytes, drained_shared_bytes, drained_shared_id; /* when the drain began */
    pid_t drained_pid; /* process of that drain, with its start time; 0: none */
    uint64_t drained_ticks;
    uint64_t drained_inodes[WEIGHTS_MAX_RANKS]; /* packed memory of that process */
    size_t n_drained_inodes;
    bool restarting; /* the drain belongs to a restart whose memory report is not yet written */
    int64_t ended_unix_ns;    /* when the end of the last process was seen */
    char ended_gpu[24];       /* GPU of that process */
    uint64_t ended_gpu_bytes; /* its memory on ended_gpu when it ended */
    uint32_t n_finished, n_ended;
    int64_t sizing_until_ns; /* started, but the planned memory is not yet reported: limit of the
                              * wait */
    struct error last_error; /* status 0: none */
    int64_t fault_ns;        /* since when a fault of the device is reported; 0: no fault */
    uint64_t fault_xid;      /* driver's error number, with fault_ns */
    int64_t blamed_ns;       /* when a process last ended because of its device; 0: never */
};

/* Returns the slot of a replica and creates it if needed. NULL where memory is exhausted. */
struct slot *slot_ensure(struct fleet *fleet, const char *id);
struct slot *slot_find(const struct fleet *fleet, const char *id);
void slot_destroy(struct slot *slot); /* detaches from the process, which runs on; NULL is
                                       * accepted */

/* Host memory that the running process plans to take; 0: no process, or not reported. For a
 * woken worker without a new report: the estimate woken_bytes. */
uint64_t slot_planned_bytes(const struct slot *slot);
/* True where the replica's device group has GPUs. */
bool slot_is_on_gpus(const struct slot *slot);
/* True for a parked worker whose deployment is to serve and that has not received Wake. */
bool slot_waits_to_wake(const struct slot *slot);
/* Host bytes of the park copy while the worker makes one; 0: no copy under way. *out_copied: the
 * part that the process has already taken, beyond its plan. */
uint64_t slot_copy_bytes(const struct slot *slot, uint64_t *out_copied);
/* Packed weights of a parked worker for a GPU that stay on the CPU, such as layers without room
 * on the GPU. A wake maps them and takes no more memory for them. */
uint64_t slot_parked_cpu_bytes(const struct slot *slot);
/* GPU memory that the running process reports, on all GPUs together. */
uint64_t slot_gpu_held_bytes(const struct slot *slot);
uint64_t slot_gpu_held_on(const struct slot *slot, const char *device); /* on this GPU */
/* True where the status holds the memory size of any device. */
bool slot_status_has_size(const pb_status *status);
/* True where the running process has reported that size. */
bool slot_is_sized(const struct slot *slot);
/* Time of the last progress of a serving process, or of the last status of another; 0: no
 * process or no status. */
int64_t slot_progress_ns(const struct slot *slot);
/* Kills a process that does not belong to the slot, and takes `process` (slot NULL: no slot).
 * The end may take long (large memory, a disk that hangs). Until then the process is a ghost,
 * and the slot starts nothing. */
void slot_add_ghost(struct slot *slot, struct process *process);
/* True while a ghost may still exist. */
bool slot_has_ghost(struct slot *slot);
/* Notes the memory of the process as its drain begins, for the memory report. slot_forget_drain
 * forgets that when another process starts. */
void slot_note_drain(struct slot *slot);
void slot_forget_drain(struct slot *slot);
/* Resident bytes of the last drained process and of killed processes that still exist, where no
 * process runs. */
uint64_t slot_lingering_bytes(const struct slot *slot);
/* How far the process is, or was before its end: "start", "pack", "warm", "serve". */
const char *slot_stage(const struct slot *slot);
/* Bytes of packed weights that others can share; 0: none. *out_id is equal for all replicas that
 * share them. */
uint64_t slot_shared_bytes(const struct slot *slot, uint64_t *out_id);
/* Saves shared_bytes and shared_id of the current process, to be read after its end. */
void slot_note_shared(struct slot *slot);
/* True where the replica has no process, as after a crash, and the next process will serve. */
bool slot_comes_back(const struct slot *slot);
/* True where the deployment is to be parked. */
bool slot_is_to_park(const struct slot *slot);
/* True where the device is one of the process's, or of the devices recorded for the replica. */
bool slot_is_on(const struct slot *slot, const char *device);
/* True where the process runs on a quarantined device. */
bool slot_is_quarantined(const struct slot *slot);
/* Replaces the last status of the worker (takes `status`; NULL: none). */
void slot_set_status(struct slot *slot, pb_status *status);
/* Forgets the process that has ended and its status. */
void slot_forget(struct slot *slot);
