/* weights.h: the memory in which the workers of a deployment share their packed weights: memfds,
 * one per rank. The manager creates them and hands them down by posix_spawn. The first worker fills
 * and seals them; other and restarted workers map them. While one worker fills them, the starts of
 * the others wait. The wait ends when that worker is done, dies or reaches the load timeout.
 * A worker that packed for itself would take as long. A worker that dies before sealing leaves
 * nothing; the next worker gets new memory. Workers check the content; the manager checks only the
 * seals.
 *
 * Weights on a GPU are not shared. Before a park, the worker copies them into a memfd of its own
 * (the park copy). The manager opens that memfd through /proc/PID/fd and closes it once the version
 * serves again.
 *
 * The manager closes the descriptors as soon as no replica can use them. The memory is free when
 * the last worker that maps it ends. A new manager opens the memory of adopted workers through
 * /proc/PID/fd. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

enum { WEIGHTS_MAX_RANKS = 32 };

struct error;
struct weights;

int weights_create(struct fleet *fleet, struct weights **out_weights, struct error *err);
void weights_destroy(struct weights *weights); /* NULL is accepted */

struct weights_fds {
    int fds[WEIGHTS_MAX_RANKS]; /* borrowed */
    size_t n_fds;               /* 0: nothing is shared */
};

/* Fills *out_fds with the memory for a replica that is about to start. The first caller's
 * replica becomes the one that fills it. False: another replica still fills it, so try again
 * later. */
bool weights_take(struct weights *weights, const char *replica_id, struct weights_fds *out_fds);
/* Must be called when the replica's process has ended. */
void weights_ended(struct weights *weights, const char *replica_id);
/* Must be called when the replica's status first reports packed memory, and when the memory is
 * sealed. True where waiting replicas may start now. */
bool weights_on_status(struct weights *weights, const char *replica_id, pid_t pid,
                       const pb_status *status);
/* Closes all memory that no replica can use any more. */
void weights_sweep(struct weights *weights);
/* The i-th park copy that is open: its bytes, and the id that slot_shared_bytes has for it.
 * False: there are no more. */
bool weights_park_copy_at(const struct weights *weights, size_t i, uint64_t *out_bytes,
                          uint64_t *out_id);
/* True where the replica would find its weights in memory, packed and sealed. */
bool weights_are_whole(struct weights *weights, const char *replica_id);
/* True where new replicas would find the weights in memory, on the CPU. */
bool weights_are_held(struct weights *weights, const char *model, const char *version,
                      const char *group, uint32_t tp, uint32_t pp, const char *kernels);
