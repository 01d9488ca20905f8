/* reconcile.h: the next actions, as a pure function of desired state, recorded state, observed
 * state and time. The function has no side effect, allocates nothing and reads no clock: the same
 * input gives the same actions. The supervisor fills the input and carries out the actions. A new
 * call follows after every change and when `wake_ns` is reached.
 *
 * A replica has one slot and one id. Its process is started again and again, with a larger epoch
 * each time. At most one process per slot lives: START is never given while a process exists. A
 * deployment never has more processes than desired replicas, except processes that drain because
 * the number was lowered. A replacement starts when the process before it has ended.
 *
 * All times are of one monotonic clock that stops while the manager does not run (fleet_now_ns).
 *
 * A parked worker keeps the packed weights and does nothing else. Parking ends the serving process
 * and starts a parked worker. Waking sends Wake to the parked worker, which then serves with the
 * same pid and epoch. A wake in place is impossible after a change of the program file or a
 * refusal, or where CPUs must be assigned. Then the parked worker ends and a serving process
 * starts. slot_spawn() decides how a process starts. Without weights in memory, a replica that is
 * to be parked packs them first, serves, and is parked then.
 *
 *   PENDING ─START→ LOADING → WARMING → READY ─DRAIN→ DRAINING → STOPPED
 *      ▲               └───────┴─ exit ─┴──────────────┘ (not wanted: STOPPED)
 *      └─RETRY (backoff) ──────┘   └─FAIL→ FAILED (crash loop, load error, load timeout)
 *
 *   PARKED ─WAKE→ LOADING, of the same process */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/reason.h"
#include "manager/base/pb.h"
#include "manager/slots/deaths.h"

struct reconcile_config {
    int64_t backoff_initial_ns; /* wait after the first death; each further death doubles it */
    int64_t backoff_max_ns;     /* longest wait */
    int64_t crash_window_ns;    /* crash_limit deaths within this time: FAILED */
    uint32_t crash_limit;       /* 1 to DEATHS_MAX */
    int64_t stable_ns;     /* READY for this long: earlier deaths no longer count for the backoff */
    int64_t kill_grace_ns; /* from the drain's deadline to SIGKILL */
    int64_t connect_timeout_ns; /* from spawn or wake to the first status */
    int64_t load_timeout_ns;    /* from spawn, or a wake, to READY */
    int64_t stall_timeout_ns;   /* without progress for this long: marked stalled; for twice
                                 * this: SIGKILL */
    int64_t fault_grace_ns;     /* from the device's fault to SIGKILL */
};

/* Sets the defaults, in the order of the fields: 1 s, 60 s, 60 s, 5 deaths, 60 s, 5 s, 30 s,
 * 30 min, 10 s, 2 s. */
void reconcile_config_init(struct reconcile_config *config);

struct reconcile_replica {
    size_t deployment;        /* index, or SIZE_MAX: no deployment wants the replica */
    enum replica_state state; /* as recorded */
    enum process_state process;
    enum worker_state worker; /* state of this epoch in its last status; WORKER_UNKNOWN: no
                               * status */
    bool busy;                /* an action on the replica is under way: give no other */
    bool fenced;              /* another epoch answers on the socket */
    bool refused;             /* the worker shares no protocol version with the manager */
    bool permanent;           /* PROCESS_EXITED: the exit report says that a retry cannot help */
    bool held_back; /* PROCESS_EXITED: not started, because its devices were just quarantined */
    bool drain_sent, kill_sent;
    bool can_wake;         /* the parked worker can serve in place */
    bool wake_sent;        /* Wake was sent */
    bool must_copy;        /* to be parked, and the manager does not hold the weights
                            * (park_copy_is_needed) */
    bool copy_sent;        /* the worker was asked for a park copy and has not answered */
    bool copy_failed;      /* the park copy failed: the replica serves on */
    bool lacks_room;       /* to be parked without kept weights, and no GPU has room to load them */
    int64_t copy_at_ns;    /* earliest time to ask for a park copy */
    bool retiring;         /* recorded: the replica is to end, and does not count */
    bool restart;          /* recorded: a new process is to replace the current process */
    bool stalled;          /* recorded */
    bool parked;           /* the deployment is to be parked */
    bool is_parked_worker; /* the process is a parked worker */
    bool blocked;          /* devices that the replica would take are quarantined: do not
                            * start */
    bool blocked_recorded; /* the row has REASON_DEVICE_QUARANTINED */
    bool evacuate;         /* the process runs on a quarantined device */
    bool ghost;            /* a killed process of an earlier manager may still exist */
    int64_t started_ns;    /* start of the process */
    int64_t next_start_ns; /* PENDING: earliest time of the start */
    int64_t ready_ns;      /* since when READY; 0: not READY */
    int64_t failed_ns;     /* since when the worker reports FAILED; 0: no */
    int64_t leaving_ns;    /* since when the worker drains on the order of another program;
                            * 0: no */
    int64_t progress_ns;   /* time of the last progress, or of the last status
                            * (slot_progress_ns); 0: unknown */
    int64_t fault_ns;      /* since when a fault of the device is reported; 0: no fault */
    int64_t drain_deadline_ns; /* with drain_sent */
    int64_t grace_ns;          /* time that a drain gives to running requests */
    struct reconcile_deaths deaths;
};

struct reconcile_operation {
    enum operation_kind kind;
    const size_t *replicas; /* replica indices; SIZE_MAX: the row is gone */
    size_t n_replicas;
    bool busy;
    bool cancelling;
};

struct reconcile_input {
    const uint32_t *n_wanted; /* replicas per deployment */
    size_t n_deployments;
    const struct reconcile_replica *replicas; /* in order of creation */
    size_t n_replicas;
    const struct reconcile_operation *operations; /* those that have not ended */
    size_t n_operations;
};

enum action_type {
    ACTION_START,     /* record LOADING and the next epoch, then spawn */
    ACTION_WAKE,      /* record LOADING, then send Wake to the process */
    ACTION_PARK_COPY, /* ask the process for a park copy */
    ACTION_STATE,     /* record the `state` that the worker reports */
    ACTION_RETRY,     /* record PENDING with the next start at `at_ns`, and forget the process.
                       * REASON_RESTART, _PARK and _WAKE mean a command: the end is no death.
                       * REASON_DEVICE_QUARANTINED waits until the device is released: no death either.
                       */
    ACTION_FAIL,      /* record FAILED with `reason`, and forget the process */
    ACTION_DRAIN,     /* record DRAINING, then send Shutdown with the grace */
    ACTION_STALL,  /* record that the worker is stalled (`state` 1), or makes progress again (0) */
    ACTION_KILL,   /* SIGKILL; `reason` says why */
    ACTION_STOP,   /* record STOPPED, and forget the process */
    ACTION_FINISH, /* end operation `index` with operation_state `state` */
};

struct action {
    enum action_type type;
    size_t index; /* replica; FINISH: operation */
    int state;
    enum reason reason;
    int64_t at_ns;
};

/* Writes at most one action per replica and operation: `actions` holds n_replicas +
 * n_operations. Returns the number of actions. *out_wake_ns: when to call again without a
 * change; INT64_MAX: never. */
size_t reconcile(const struct reconcile_config *config, const struct reconcile_input *input,
                 int64_t now_ns, struct action *actions, int64_t *out_wake_ns);

/* Must be called once per death of a wanted replica, before ACTION_RETRY or ACTION_FAIL is
 * carried out (reconcile() works on a copy). `ready_ns`: since when the replica was READY; 0: it
 * never was. */
void reconcile_note_death(const struct reconcile_config *config, struct reconcile_deaths *deaths,
                          int64_t ready_ns, int64_t now_ns);
