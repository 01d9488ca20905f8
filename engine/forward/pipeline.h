/* pipeline.h: cuts a step into parts, and lets the stages of a pipeline work on them in turn. While
 * a stage computes a part, the stage before it computes the next. Knows no decoder.
 *
 *     stage 0   part 0   part 1   part 2
 *     stage 1            part 0   part 1   part 2
 *
 * Parts are adjacent rows. A later part of a sequence follows the earlier one on every stage, so it
 * finds the K and V of its earlier rows. Bits of a row depend on no other row of the step, so parts
 * change no token. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine_stats.h"
#include "engine/model/step.h"

enum {
    PIPELINE_MAX_PARTS = 16,
    PIPELINE_BASE_ROWS = 8, /* the cost of a part on a stage of the CPU besides its rows */
};

/* How steps are cut. Plain data. */
struct pipeline_cut {
    uint32_t n_stages;
    /* A part costs as much as base_rows rows besides its own rows, because each part reads the
     * weights. */
    float base_rows;
    bool whole_sequences; /* rows of a sequence stay together, for states of recurrent layers */
};

/* Writes the parts of a step, of which the stages are done soonest by these costs. Returns their
 * number, at least 1. */
uint32_t pipeline_cut_step(const struct pipeline_cut *cut, const struct step_batch *batch,
                           struct step_part parts[PIPELINE_MAX_PARTS]);

/* Counts the parts that each rank has finished, over all steps. Zeroed at first; counts wrap
 * around. Any thread. */
struct pipeline_gate {
    _Atomic uint32_t n_done[ENGINE_MAX_RANKS];
};

/* The rank has finished one more part; also called for parts that failed. */
void pipeline_gate_pass(struct pipeline_gate *gate, uint32_t rank);
/* Waits until the rank has finished n parts. Spins briefly, then sleeps. */
void pipeline_gate_wait(struct pipeline_gate *gate, uint32_t rank, uint32_t n);
