/* support_recurrent_runs.h: steps of the recurrent ops, for any set and device. Rows and states
 * must have the bits of the set "ref". */
#pragma once

#include "tests/unit/kernels/support/support_recurrent.h"

enum { RECURRENT_N_SHAPES = 20, RECURRENT_TOKENS = 211, RECURRENT_SLOTS = 12 };
extern const struct recurrent_shape recurrent_shapes[RECURRENT_N_SHAPES];

/* Runs the whole of sequence 0, at most RECURRENT_TOKENS, in pieces. Each piece is in place, or
 * goes into the next slot. */
void recurrent_run_pieces(struct recurrent_world *w, const struct rig *rig, uint32_t piece,
                          bool in_place, const char *what);
/* Runs steps of random pieces of several sequences, with padding rows and snapshots. */
void recurrent_check_batches(const struct recurrent_shape *shape, const struct rig *rig,
                             const struct recurrent_memory *memory, const char *what,
                             uint64_t seed);
/* Each row writes a slot, as rows of drafts do; then the sequence goes on from a middle slot. */
void recurrent_check_drafts(const struct recurrent_shape *shape, const struct rig *rig,
                            const struct recurrent_memory *memory, const char *what, uint64_t seed);
