/* simt_early.h: a block that begins before the previous op has run. A GPU may start any block early
 * where launches overlap; the emulator always does. Before cuda_op_begin() the block reads old
 * memory. Its own writes before cuda_op_begin() are visible to the previous op. */
#pragma once

#include "tests/simt/simt_core.h"

struct simt_early;

/* Creates an OS thread for early blocks. A block keeps its shared memory while other blocks run, so
 * it needs its own thread. */
struct simt_early *simt_early_create(void);
void simt_early_destroy(struct simt_early *early); /* NULL: nothing */
/* Runs block `number` until each of its threads waits for the previous op, or has ended. The grid
 * is borrowed until simt_early_join. */
void simt_early_begin(struct simt_early *early, const struct simt_grid *grid, uint64_t number);
/* Reports that the previous op has ended. */
void simt_early_release(struct simt_early *early);
/* Returns when the block has ended. Call simt_early_release() before. */
void simt_early_join(struct simt_early *early);

/* Called by simt_block.cc when no thread of the block can continue; returns when the block is
 * released. */
void simt_early_hold(struct simt_early *early);
