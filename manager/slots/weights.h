/* weights.h: the memory in which the workers of a deployment share their packed weights: memfds,
 * one per rank, made here and handed down by posix_spawn. The first worker fills and seals them;
 * the others, and one that is started again, map them. While one fills, the others' starts wait (at
 * most until it is done, has died or ran into the load timeout, as they would have packed no
 * sooner). One that dies half way leaves nothing: the next is given fresh memory. What a worker
 * finds is checked by the worker; here only the seals are looked at.
 *
 * Weights that lie on a GPU are not shared. One that is to be parked copies them into such memory
 * of its own making, which is taken over from it as from an adopted one, and let go of once the
 * version serves again.
 *
 * The descriptors are let go as soon as nobody is to come who could use them: with the last worker
 * that maps it the memory is free. A manager that adopts a worker takes the memory over through
 * /proc/PID/fd. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "manager/base/pb.h"
#include "manager/slots/fleet.h"

enum { WEIGHTS_MAX_RANKS = 8 };

struct error;
struct weights;

int weights_create(struct fleet *fleet, struct weights **out_weights, struct error *err);
void weights_destroy(struct weights *weights); /* NULL is accepted */

struct weights_fds {
    int fds[WEIGHTS_MAX_RANKS]; /* borrowed */
    size_t n_fds;               /* 0: nothing is shared */
};

/* What the replica that is about to start is handed; the first asked becomes the one that fills.
 * False: another one fills, so not yet. */
bool weights_take(struct weights *weights, const char *replica_id, struct weights_fds *out_fds);
/* The replica's process has ended. */
void weights_ended(struct weights *weights, const char *replica_id);
/* What the replica's process says of its packed memory, for the first time, or when it is sealed.
 * True where others that wait may start now. */
bool weights_told(struct weights *weights, const char *replica_id, pid_t pid,
                  const pb_status *status);
/* Lets go of what nobody can use any more. */
void weights_sweep(struct weights *weights);
/* Images of GPUs' weights that are held, 0 and on: bytes, and an id as that of replicas that have
 * them. False: there are no more. */
bool weights_image_at(const struct weights *weights, size_t i, uint64_t *out_bytes,
                      uint64_t *out_id);
/* Whether the replica would find its weights in memory, packed and sealed. */
bool weights_are_whole(struct weights *weights, const char *replica_id);
/* Whether new replicas would find the weights in memory. */
bool weights_are_held(struct weights *weights, const char *model, const char *version,
                      const char *group, uint32_t tp, const char *kernels);
