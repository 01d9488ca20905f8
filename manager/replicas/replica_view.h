/* replica_view.h: the observed state of replicas beyond their rows. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

/* Observed state of a replica beyond its row; valid until the loop function returns. False: the
 * replica has no slot. */
struct replica_view {
    const pb_status *status;        /* last status of the running process, or NULL */
    int64_t status_ns;              /* when that status came, by fleet_now_ns */
    uint64_t resident_bytes;        /* now */
    uint64_t drained_bytes;         /* resident when its drain began */
    uint32_t n_finished, n_ended;   /* requests that finished, or were ended, during its Shutdown */
    const struct error *last_error; /* error of the last process, or NULL */
    uint64_t shared_bytes, shared_id; /* part of resident_bytes that others may share; 0: none */
    uint64_t drained_shared_bytes, drained_shared_id; /* part of drained_bytes */
    const char *gpu;                                  /* GPU of the last process; empty: none */
    uint64_t gpu_bytes, drained_gpu_bytes; /* held on `gpu` now, and when the drain began */
    uint64_t lingering_bytes;              /* resident bytes of processes that should have ended */
    pid_t drained_pid;              /* pid of the process that drained last; 0: none drained */
    int64_t ended_unix_ns;          /* when the end of a process was last seen */
    bool sleeps;                    /* park_copy_sleeps() */
    const uint64_t *drained_inodes; /* inodes of the packed memory of the process that drained
                                     * last */
    size_t n_drained_inodes;
};
bool replica_view_take(const struct fleet *fleet, const char *replica_id,
                       struct replica_view *out_view);

/* How long a deployment has had no requests; -1: it has some, or not all of its replicas are
 * ready. */
int64_t replica_idle_ns(struct fleet *fleet, const pb_deployment *deployment);
/* True while a process that was evicted for the replica still runs. */
bool replica_makes_room(const struct fleet *fleet, const char *replica_id);
/* Must be called when the memory report of a drain (restart, park) is written. The next report then
 * leaves that drain out. */
void replica_forget_drain(const struct fleet *fleet, const char *replica_id);
/* True where a replica may be waiting to load on a GPU. Its state then follows the memory of a
 * device, without any change of a row. False once the supervisor ends all workers. */
bool replica_may_wait_for_gpu(const struct fleet *fleet);
