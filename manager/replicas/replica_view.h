/* replica_view.h: what is seen of replicas beyond their rows. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

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
bool replica_view_take(const struct fleet *fleet, const char *replica_id,
                       struct replica_view *out_view);

/* How long a deployment has served nobody; -1: it serves, or not all of its replicas are ready. */
int64_t replica_idle_ns(struct fleet *fleet, const pb_deployment *deployment);
/* Whether what was evicted for the replica is still there. */
bool replica_makes_room(const struct fleet *fleet, const char *replica_id);
/* The memory report of what drained it (a restart, a park) has been written: the next one is not to
 * tell of that again. */
void replica_forget_drain(const struct fleet *fleet, const char *replica_id);
/* Whether a replica may wait to load on a GPU. Such a replica changes with the memory of a device,
 * and without any row. False once the supervisor ends all workers. */
bool replica_may_wait_for_gpu(const struct fleet *fleet);
