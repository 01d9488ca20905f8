/* reconcile.h: what is to be done next, as a pure function of what is wanted, what is recorded,
 * what is seen and what time it is. It does nothing, allocates nothing, reads no clock: the same
 * input gives the same actions. supervisor.c fills the input, carries the actions out and calls
 * again after every change and when `wake_ns` is reached.
 *
 * A replica is a slot: its id stays while its process is started again and again, with a larger
 * epoch each time. At most one process per slot lives: START is never given while a process is
 * there. Nor has a deployment ever more processes than replicas wanted, save those that drain
 * because fewer are: what takes a place starts when the one before it has ended.
 *
 * All times are of one monotonic clock that stands still while nobody supervises (supervisor.c).
 *
 * A parked replica is a process that keeps the packed weights and does nothing else. Parking ends
 * the process that serves and starts one that keeps. Waking tells the one that keeps to serve, in
 * place: the same process, of the same epoch. Where that cannot be (another program lies there by
 * now, it is to have CPUs of its own, it refuses) it ends and one that serves starts; how a process
 * is started is decided by supervisor.c when it is (slot_spawn): one that is to keep weights which
 * are not in memory any more packs them first, serves, and is parked then.
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

#include "manager/base/pb.h"
#include "manager/base/reasons.h"
#include "manager/slots/deaths.h"

struct reconcile_config {
    int64_t backoff_initial_ns; /* doubled with each death ... */
    int64_t backoff_max_ns;     /* ... up to this */
    int64_t crash_window_ns;    /* crash_limit deaths within it end the trying */
    uint32_t crash_limit;       /* 1 to DEATHS_MAX */
    int64_t stable_ns;     /* READY for this long: earlier deaths count no more for the backoff */
    int64_t kill_grace_ns; /* after the drain's deadline, before SIGKILL */
    int64_t connect_timeout_ns; /* from spawn, or a wake, to the first word over the socket */
    int64_t load_timeout_ns;    /* from spawn, or a wake, to READY */
    int64_t stall_timeout_ns;   /* of standing still: marked; after twice this, SIGKILL */
    int64_t fault_grace_ns;     /* after its device's fault: ends by itself, or SIGKILL */
};

/* 1 s, 60 s, 60 s, 5 deaths, 60 s, 5 s, 30 s, 30 min, 10 s, 2 s. */
void reconcile_config_init(struct reconcile_config *config);

struct reconcile_replica {
    size_t deployment;        /* index, or SIZE_MAX: nobody wants it */
    enum replica_state state; /* as recorded */
    enum process_state process;
    enum worker_state worker; /* last word over the socket from this epoch; WORKER_UNKNOWN: none */
    bool busy;                /* an action on it is under way: leave it alone */
    bool fenced;              /* another epoch answers on its socket */
    bool refused;             /* what runs speaks no version of our protocol */
    bool permanent; /* PROCESS_EXITED: the exit report says that trying again cannot help */
    bool held_back; /* PROCESS_EXITED: it was not started, for its devices were just put aside */
    bool drain_sent, kill_sent;
    bool can_wake;    /* its process, which keeps weights, may be told to serve */
    bool wake_sent;   /* and was */
    bool must_keep;   /* to be parked, and its weights lie on a GPU alone */
    bool keep_sent;   /* it was asked to copy them, and has not answered */
    bool keep_failed; /* that did not go: it serves on */
    bool lacks_room; /* to be parked, nothing of it is kept, and no GPU has room to load it for that
                      */
    int64_t keep_at_ns;        /* not to be asked before */
    bool retiring;             /* recorded: it is to end, and does not count */
    bool restart;              /* recorded: its process is to give way to a new one */
    bool stalled;              /* recorded */
    bool parked;               /* its deployment is to be parked */
    bool keeps;                /* its process keeps weights, and serves nothing */
    bool blocked;              /* devices it would take are put aside: not to be started */
    bool blocked_told;         /* and that is recorded as its reason */
    bool evacuate;             /* its process runs on a quarantined device */
    bool ghost;                /* an earlier process of it, of a manager before, may still live */
    int64_t started_ns;        /* of the process */
    int64_t next_start_ns;     /* PENDING: not before */
    int64_t ready_ns;          /* since when READY; 0: not */
    int64_t failed_ns;         /* since when its worker says FAILED; 0: it does not */
    int64_t leaving_ns;        /* since when its worker drains, told by another; 0: it does not */
    int64_t still_ns;          /* since when it stands still (silent, or no layer finished with work
                                  queued); 0: it does not */
    int64_t fault_ns;          /* since when its device is told to have failed it; 0: it is not */
    int64_t drain_deadline_ns; /* with drain_sent */
    int64_t grace_ns;          /* a drain gives running requests this long */
    struct reconcile_deaths deaths;
};

struct reconcile_operation {
    enum operation_kind kind;
    const size_t *replicas; /* indices; SIZE_MAX: its row is gone */
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
    ACTION_START,  /* record LOADING and the next epoch, then spawn */
    ACTION_WAKE,   /* record LOADING, then tell its process to serve */
    ACTION_KEEP,   /* ask its process to copy the weights that are to be kept */
    ACTION_STATE,  /* record `state` as the worker reports it */
    ACTION_RETRY,  /* record PENDING, next start at `at_ns`, and forget the process; reason
                      REASON_RESTART, _PARK or _WAKE: it was asked for and is no death; nor is
                      REASON_QUARANTINED, which waits until the device is released */
    ACTION_FAIL,   /* record FAILED with `reason`, and forget the process */
    ACTION_DRAIN,  /* record DRAINING, then ask for Shutdown with its grace */
    ACTION_STALL,  /* record that it stands still (`state` 1), or moves again (0) */
    ACTION_KILL,   /* SIGKILL; `reason` says why */
    ACTION_STOP,   /* record STOPPED, and forget the process */
    ACTION_FINISH, /* end operation `index` with operation_state `state` */
};

struct action {
    enum action_type type;
    size_t index; /* replica; FINISH: operation */
    int state;
    const char *reason; /* UPPER_SNAKE, static */
    int64_t at_ns;
};

/* At most one action per replica and operation: `actions` must hold n_replicas + n_operations.
 * Returns how many there are; *out_wake_ns is when to call again though nothing changed (INT64_MAX:
 * never). */
size_t reconcile(const struct reconcile_config *config, const struct reconcile_input *input,
                 int64_t now_ns, struct action *actions, int64_t *out_wake_ns);

/* To be called once per death of a wanted replica, before ACTION_RETRY or ACTION_FAIL is carried
 * out (reconcile works on a copy). `ready_ns`: since when it had been READY, 0: it never was. */
void reconcile_note_death(const struct reconcile_config *config, struct reconcile_deaths *deaths,
                          int64_t ready_ns, int64_t now_ns);
