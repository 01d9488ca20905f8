/* supervisor.h: the worker processes. Carries out what reconcile.h decides, records what it sees,
 * and takes over the workers that an earlier manager left running. Workers outlive the manager:
 * nothing here ends one because the manager ends, save supervisor_stop_workers. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "manager/base/pb.h"
#include "manager/manager.h"

struct supervisor;

/* Looks at every process and record, adopts, kills what nobody owns, and starts supervising. */
int supervisor_create(struct manager *manager, struct supervisor **out_supervisor,
                      struct error *err);
/* Lets go of every worker; they run on. NULL is accepted. */
void supervisor_destroy(struct supervisor *supervisor);

/* Something may have to be done: looks at everything once, soon. */
void supervisor_kick(struct supervisor *supervisor);

/* Ends all workers (SIGTERM, after the kill grace SIGKILL) and calls `done` when none is left. They
 * stay wanted: the next manager starts them again. */
void supervisor_stop_workers(struct supervisor *supervisor, void (*done)(void *arg), void *arg);

/* True once every adopted worker has said what it is, or had time to. */
bool supervisor_settled(const struct supervisor *supervisor);
uint32_t supervisor_n_adopted(const struct supervisor *supervisor);

/* The driver says that what ran on the device went wrong. The worker that it hit ends by itself in
 * a moment; where none does, those on the device are ended: theirs may be a context that hangs. */
void supervisor_device_failed(struct supervisor *supervisor, const char *device, uint64_t xid);

/* What the live replicas will take of the memory that is free now. */
struct supervisor_promises {
    uint64_t n_bytes;        /* planned and not resident */
    uint32_t n_unsized;      /* replicas to come that have not said what they plan */
    uint32_t n_unsized_same; /* of them those of the same deployment as `but_id` */
};
/* Over all replicas but `but_id` (NULL: all). `supervisor` may be NULL: nothing. */
struct supervisor_promises supervisor_promises(struct supervisor *supervisor, const char *but_id);
/* The bytes of one CPU device ("cpu:1") that the live replicas on it have planned and not yet
 * taken. A replica on several devices counts in equal parts on each. */
uint64_t supervisor_promised_on(struct supervisor *supervisor, const char *device);

/* Of the machine's memory what the processes of all replicas but `but_id` (NULL: all) plan to take
 * or hold, whichever is more; packed weights that several share count once. A keeper that waits for
 * its turn to be woken counts as one that serves for a plan (NULL), and with its weights for what
 * starts before it; one that died and is to come back with what it served with. */
uint64_t supervisor_taken_bytes(struct supervisor *supervisor, const char *but_id);
/* The same of one device alone ("cpu:1"): what is on several devices is in equal parts on each, and
 * weights that replicas on several share count on each. *out_n_processes: of those on it. */
uint64_t supervisor_taken_on(struct supervisor *supervisor, const char *device, const char *but_id,
                             uint32_t *out_n_processes);
/* What --memory-budget leaves for one more on these devices, or for `but_id` beside its weights
 * that are kept, at least 1; 0: there is no budget. */
uint64_t supervisor_budget_left(struct supervisor *supervisor, const char *but_id,
                                char *const *devices, size_t n_devices);
/* Whether the last of n parked deployments has room for its replicas to serve where those before it
 * do as well: on its GPUs that nothing holds, and in --memory-budget. RESOURCE_EXHAUSTED, reason
 * DEVICE_MEMORY. What is not known yet of their size is no reason. */
int supervisor_check_wake(struct supervisor *supervisor, const pb_deployment *const *deployments,
                          size_t n, struct error *err);
/* What is taken of one deployment alone, on all its devices, or of a GPU's memory ("cuda:0"). */
uint64_t supervisor_freed_by(struct supervisor *supervisor, const pb_deployment *deployment,
                             const char *device);
/* How long a deployment has served nobody; -1: it serves, or not all of its replicas are ready. */
int64_t supervisor_idle_ns(struct supervisor *supervisor, const pb_deployment *deployment);
/* False for a while after its weights could not be kept. */
bool supervisor_can_keep(struct supervisor *supervisor, const pb_deployment *deployment);
/* Whether what was evicted for the replica is still there. */
bool supervisor_makes_room(struct supervisor *supervisor, const char *replica_id);

/* Counts, for each CPU, the live worker processes whose own it is, but `but_id`'s:
 * n_users[CPUS_MAX] (base/system/cpus.h), zeroed by the caller. */
void supervisor_cpu_users(struct supervisor *supervisor, const char *but_id, uint16_t *n_users);

/* The memory report of what drained it (a restart, a park) has been written: the next one is not to
 * tell of that again. */
void supervisor_forget_drain(struct supervisor *supervisor, const char *replica_id);
/* Why the replicas of an operation that was to park them serve on. False: none has said. */
bool supervisor_why_not_kept(struct supervisor *supervisor, const pb_operation *operation,
                             struct error *out_why);

/* What is seen of a replica beyond its row; valid until the loop goes on. False: nothing is. */
struct replica_view {
    const pb_status *status;          /* last word of the process that runs, or NULL */
    int64_t status_ns;                /* when that came, by the supervisor's clock */
    uint64_t resident_bytes;          /* now */
    uint64_t drained_bytes;           /* resident when its drain began */
    uint32_t n_finished, n_ended;     /* requests, as told by its shutdown */
    const struct error *last_error;   /* of its last process, or NULL */
    uint64_t shared_bytes, shared_id; /* of resident_bytes what others may share; 0: none */
    uint64_t drained_shared_bytes, drained_shared_id; /* of drained_bytes */
    const char *gpu;                                  /* that it is or was on; empty: on none */
    uint64_t gpu_bytes, drained_gpu_bytes;            /* taken of it, now and at the drain */
    uint64_t lingering_bytes; /* resident of processes that should have ended */
    pid_t drained_pid;        /* of the process that drained last; 0: none did */
    int64_t ended_unix_ns;    /* when one was seen to end */
    bool sleeps; /* its version is parked, it has no process, and the next one is a keeper or waits
                    for room */
    const uint64_t *drained_inodes; /* of the packed memory of the process that drained last */
    size_t n_drained_inodes;
};
/* Counts memory that several replicas share once. Zeroed: empty. */
struct share_set {
    uint64_t ids[64];
    size_t n_ids;
};
/* `n_bytes` of a replica, of which `shared_bytes` (id 0: none) are to be left out where the set has
 * seen them. */
uint64_t share_set_add(struct share_set *set, uint64_t n_bytes, uint64_t shared_bytes, uint64_t id);

bool supervisor_view(struct supervisor *supervisor, const char *replica_id,
                     struct replica_view *out_view);
