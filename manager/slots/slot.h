/* slot.h: the manager's place for one replica: its process, the link to its worker, the worker's
 * last status, pending commands. The functions here read a slot; replicas/ starts and ends
 * processes. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <ev.h>

#include "base/error.h"
#include "base/system/cpus.h"
#include "manager/base/names.h"
#include "manager/base/pb.h"
#include "manager/host/process.h"
#include "manager/host/worker_link.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot_phase.h"
#include "manager/slots/weights.h"

enum { SLOT_ID_BYTES = 24, SLOT_MAX_GHOSTS = 4, SLOT_MAX_GPUS = WEIGHTS_MAX_RANKS };

/* Which worker answers on the socket. */
enum slot_peer {
    PEER_OWN,     /* the slot's process, or nobody yet */
    PEER_FOREIGN, /* another epoch, or another process */
    PEER_REFUSED, /* the worker shares no protocol version with the manager */
};

/* The prospect of another process, after a process ended or was not started. */
enum slot_outlook {
    OUTLOOK_RETRY,
    OUTLOOK_PERMANENT, /* a retry would meet the same error */
    OUTLOOK_HELD_BACK, /* not started, because its devices were just quarantined */
};

/* Times and counts by which the supervisor sees that a worker is healthy. */
struct slot_health {
    int64_t heard_ns; /* time of the last status; 0: none yet */
    int64_t moved_ns; /* last time that the worker made progress or had nothing to do */
    uint64_t progress;
    int64_t failed_ns;  /* since when the worker reports FAILED */
    int64_t leaving_ns; /* since when the worker reports DRAINING without a drain from this
                         * manager */
    int64_t fault_ns;   /* since when a fault of the device is reported; 0: no fault */
    uint64_t fault_xid; /* driver's error number, with fault_ns */
};

/* Requests of a worker, for idle versions. */
struct slot_activity {
    bool has_requests;
    int64_t active_ns;   /* last time that the worker had requests, or had finished some since its
                          * previous status */
    uint64_t n_accepted; /* requests accepted until then */
};

/* A park copy (replicas/park_copy.h). */
struct slot_copy {
    bool asked;          /* the worker was asked and has not answered */
    int64_t at_ns;       /* earliest time to ask again */
    uint64_t base_bytes; /* with `asked`: resident bytes at that time */
    uint32_t n_done;     /* complete copies reported */
    uint32_t n_waits;    /* "not yet" answers */
    uint32_t n_failures; /* failed copies in a row */
};

/* All that belongs to one process, from its start or adoption. slot_forget() clears the whole. */
struct slot_run {
    struct process process; /* pidfd -1: no process */
    struct process_end end; /* with SLOT_EXITED */
    struct worker_link *link;
    pb_status *status; /* last status of the worker; owned */
    struct cpus cpus;  /* CPUs that belong to the process alone; empty: none */
    char *devices;     /* devices given to the process, "cuda:0,cuda:1"; NULL: unknown; owned */
    bool adopted;
    enum slot_peer peer;
    enum slot_outlook outlook;
    bool asked_to_end;      /* exit report: the worker ended because Shutdown or a signal asked
                             * for it */
    enum reason killed_for; /* REASON_NONE: SIGKILL was not sent */
    int64_t started_ns, ready_ns;
    int64_t sizing_until_ns;   /* started, but the planned memory is not yet reported: limit of the
                                * wait */
    int64_t drain_deadline_ns; /* 0: Shutdown was not sent */
    uint64_t woken_bytes;      /* with SLOT_WAKING: estimate until the worker reports its size; 0:
                                * unknown */
    bool packed_reported, sealed_reported; /* weights_on_status() was called with the packed
                                            * memory, and with its seals */
    struct slot_health health;
    struct slot_activity activity;
    struct slot_copy copy;
};

/* GPUs of a process, with a size on each. */
struct slot_gpus {
    struct {
        char name[DEVICE_NAME_BYTES];
        uint64_t n_bytes;
    } gpus[SLOT_MAX_GPUS];
    size_t n;
};

/* Memory of the last process that reported any, also after its end. */
struct slot_served {
    uint64_t host_bytes; /* planned by the last process that served */
    bool by_earlier;     /* host_bytes comes from a process that an earlier manager saw */
    uint64_t shared_bytes, shared_id; /* packed weights, and the id of that memory */
    struct slot_gpus gpus;            /* planned on each GPU; none: no GPU was reported */
};

/* The process that drained last, for the memory report: what it had as its drain began. */
struct slot_drained {
    pid_t pid; /* with its start time; 0: none */
    uint64_t start_ticks;
    uint64_t bytes, shared_bytes, shared_id, gpu_bytes;
    uint64_t inodes[WEIGHTS_MAX_RANKS]; /* packed memory of that process */
    size_t n_inodes;
    uint32_t n_finished, n_ended; /* requests during its Shutdown */
    bool restarting; /* the drain belongs to a restart whose memory report is not yet written */
};

struct slot {
    struct fleet *fleet;
    char id[SLOT_ID_BYTES];
    enum slot_phase phase; /* slot_move() changes it */
    struct slot_run run;
    ev_io exit_watch;
    bool busy;             /* a record of the replica is on its way to the store */
    bool settled;          /* adopted, and the worker has sent its status */
    int64_t hold_until_ns; /* after a refused record: do nothing before this time */
    int64_t next_start_ns;
    uint32_t grace_ms; /* grace of the drain that is being recorded */
    struct reconcile_deaths deaths;
    struct error last_error; /* status 0: none */
    int64_t blamed_ns;       /* when a process last ended because of its device; 0: never */
    struct slot_served served;
    struct slot_drained drained;
    struct slot_gpus ended;           /* memory of the last process on its GPUs when it ended */
    int64_t ended_unix_ns;            /* when that end was seen */
    char wake_gpu[DEVICE_NAME_BYTES]; /* GPU that had room for the planned wake; empty: not
                                       * checked */
    uint64_t copy_failed;    /* generation of the deployment whose park copy failed; 0: none */
    struct error copy_error; /* with copy_failed */
    struct process
        ghosts[SLOT_MAX_GHOSTS]; /* killed processes that may still exist (slot_add_ghost) */
    size_t n_ghosts;
};

/* Moves to a phase. A transition that is not in the table (slot_phase.h) is a bug. The bug is
 * logged and refused, and fails an assertion where assertions are compiled. */
void slot_move(struct slot *slot, enum slot_phase to);
/* True while the process is alive. */
bool slot_runs(const struct slot *slot);
/* True where the process is, or was, a parked worker. */
bool slot_is_parked_worker(const struct slot *slot);

/* Returns the slot of a replica and creates it if needed. NULL where memory is exhausted. */
struct slot *slot_ensure(struct fleet *fleet, const char *id);
struct slot *slot_find(const struct fleet *fleet, const char *id);
void slot_destroy(struct slot *slot); /* detaches from the process, which runs on; NULL is
                                       * accepted */

/* The replica's row, its deployment and its device group; NULL where they are gone. Borrowed from
 * the catalog. */
const pb_replica *slot_row(const struct slot *slot);
const pb_deployment *slot_deployment(const struct slot *slot);
const pb_group *slot_group(const struct slot *slot);

/* Host memory that the running process plans to take; 0: no process, or not reported. For a
 * woken worker without a new report: the estimate run.woken_bytes. */
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
/* The GPU memory that the last status reports: what is planned on each GPU, or held there. GPUs
 * without any are left out. */
void slot_read_gpus(const struct slot *slot, bool held, struct slot_gpus *out_gpus);
/* Bytes on a GPU (NULL: on all); 0: the GPU is not among them. */
uint64_t slot_gpus_bytes(const struct slot_gpus *gpus, const char *device);
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
/* Saves the shared memory of the current process, to be read after its end. */
void slot_note_shared(struct slot *slot);
/* True where the replica has no process, as after a crash, and the next process will serve. */
bool slot_comes_back(const struct slot *slot);
/* True where the deployment is to be parked. */
bool slot_is_to_park(const struct slot *slot);
/* Writes the devices given to the process, else those of its status. Returns their number; 0: they
 * are unknown, or there is no process. */
size_t slot_list_devices(const struct slot *slot, struct device_names *out_devices);
/* True where the device is one of the process's, or of the devices recorded for the replica. */
bool slot_is_on(const struct slot *slot, const char *device);
/* True where the process runs on a quarantined device. */
bool slot_is_quarantined(const struct slot *slot);
/* Replaces the last status of the worker (takes `status`; NULL: none). */
void slot_set_status(struct slot *slot, pb_status *status);
/* Forgets the process that has ended and its status. */
void slot_forget(struct slot *slot);
