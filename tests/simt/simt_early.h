/* simt_early.h: a block that begins before the op before its kernel has run, as any block may where
 * launches overlap. This is the worst case of a GPU, every time. Before cuda_op_begin() the block
 * reads old memory. Writes of the block before cuda_op_begin() are visible to the op before. */
#pragma once

#include "tests/simt/simt_core.h"

struct simt_early;

/* Has an OS thread of its own, for the block keeps its shared memory while others run. */
struct simt_early *simt_early_create(void);
void simt_early_destroy(struct simt_early *early); /* NULL: nothing */
/* Runs block `number` until each of its threads waits for the op before, or has ended. The grid is
 * borrowed until simt_early_join. */
void simt_early_begin(struct simt_early *early, const struct simt_grid *grid, uint64_t number);
/* The op before has ended. */
void simt_early_release(struct simt_early *early);
/* Returns when the block has ended; released before. */
void simt_early_join(struct simt_early *early);

/* Called by simt_block.cc when no thread of the block can continue; returns when the block is
 * released. */
void simt_early_hold(struct simt_early *early);
