/* fake_packed.h: the packed weights of fake_worker.c: memory that it was handed, fills and tells
 * of, or, of one on a GPU, an image of what lies there, which it makes when it is asked to
 * (KeepWeights) and finds where it was started or woken with one. What lies in it is its script. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "sluice/worker/v1/worker.pb-c.h"

enum { FAKE_MAX_RANKS = 8 };

struct rpc_call;

/* At the start, with as many descriptors as were handed down: these are empty, or full and of the
 * same script, or of no use. */
void fake_packed_init(size_t n_fds, bool on_gpu, const char *model_path);
/* Half way: some of it is there; at the end of packing all is, and sealed. */
void fake_packed_fill(bool whole);
/* Whether there is something to pack, and it is not yet. */
bool fake_packed_is_due(void);
/* It serves, so a GPU has them: what it was handed is let go of, and what it made is once nobody
 * came for it. */
void fake_packed_serves(void);

/* rows and list have FAKE_MAX_RANKS places and live as long as the status. */
void fake_packed_tell(Sluice__Worker__V1__WorkerStatus *status,
                      Sluice__Worker__V1__PackedMemory *rows,
                      Sluice__Worker__V1__PackedMemory **list);

/* KeepWeights of one that serves. Answers the call, later. */
void fake_packed_keep(struct rpc_call *call, const char *replica_id);
