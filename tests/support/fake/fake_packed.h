/* fake_packed.h: the packed weights of fake_worker.c. The worker fills and reports memory that it
 * inherits. A worker on a GPU makes an image of its GPU memory on request (KeepWeights). A worker
 * that is started or woken with an image uses the image. The contents of the memory are the
 * worker's script. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "sluice/worker/v1/worker.pb-c.h"

enum { FAKE_MAX_RANKS = 8 };

struct rpc_call;

/* Called at the start with the number of inherited descriptors. The memory behind
 * them is empty, or filled by a worker with the same script, or unusable. */
void fake_packed_init(size_t n_fds, bool on_gpu, const char *model_path);
/* Fills a part of the memory half way, and with `whole` all of it. The whole memory is sealed. */
void fake_packed_fill(bool whole);
/* Returns true if there is something to pack that is not packed yet. */
bool fake_packed_is_due(void);
/* Called when the worker serves, so that a GPU has the weights. The worker frees inherited memory
 * at once, and its own image after a time without a taker. */
void fake_packed_serves(void);

/* rows and list have FAKE_MAX_RANKS places and live as long as the status. */
void fake_packed_tell(Sluice__Worker__V1__WorkerStatus *status,
                      Sluice__Worker__V1__PackedMemory *rows,
                      Sluice__Worker__V1__PackedMemory **list);

/* Handles KeepWeights of a serving worker. Answers the call later, from a thread. */
void fake_packed_keep(struct rpc_call *call, const char *replica_id);
