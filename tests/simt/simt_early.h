/* simt_early.h: a block that begins before the op before its kernel has run, as any block may where
 * launches overlap: the worst that a GPU may do, every time. What it reads before cuda_op_begin()
 * is what the op before it found, and what it writes there that op reads. */
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

/* Of simt_block.cc, when no thread of the block can go on: returns when it is released. */
void simt_early_hold(struct simt_early *early);
