/* simt_processor.h: a processor runs blocks on one OS thread, one at a time. */
#pragma once

#include "tests/simt/simt_core.h"

enum { SIMT_MAX_SHARED = 227 << 10 }; /* shared memory of a block, on the largest GPU */

/* Creates a processor for the calling OS thread. Only this thread may use it. */
struct simt_processor *simt_processor_create(void);
void simt_processor_destroy(struct simt_processor *p);
/* Run blocks of one grid, by number. A seed other than 0 gives turns in random order. */
void simt_processor_begin(struct simt_processor *p, const struct simt_grid *grid);
void simt_processor_run(struct simt_processor *p, uint64_t number, uint64_t seed);
void simt_processor_end(struct simt_processor *p);
/* Marks the next block as early (simt_early.h). */
void simt_processor_hold(struct simt_processor *p, struct simt_early *early);

/* Seed of the order of a block's threads; 0: in order (simt_grid.cc). */
uint64_t simt_block_seed(uint64_t number);
