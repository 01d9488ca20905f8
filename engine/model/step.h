/* step.h: all inputs of one engine step, in arrays of fixed address and capacity. So captured
 * graphs, rank broadcasts and speculative verification need no other interface. The scheduler fills
 * the batch, the executor and the decoder only read it. Engine thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/recurrent.h"

struct error;

struct step_limits {
    uint32_t max_rows;           /* tokens per step */
    uint32_t max_seqs;           /* sequences per step */
    uint32_t max_blocks_per_seq; /* = block table stride */
    /* most sample rows besides one per sequence: for prompt log-probabilities and drafts; may be
     * 0 */
    uint32_t n_score_rows;
    bool has_windows; /* layers with a window have blocks of their own */
};

/* States of recurrent layers lie in slots. The first row of a sequence reads a slot or
 * STEP_STATE_NONE; later rows read STEP_STATE_PREVIOUS. The last row of a sequence always writes. A
 * row may write the slot that the sequence's first row reads. No slot is written twice in a step,
 * and no other sequence reads a slot that is written. Without recurrent layers nothing reads the
 * arrays. */
#define STEP_STATE_NONE     RECURRENT_NONE     /* reads: the empty sequence's state; writes: none */
#define STEP_STATE_PREVIOUS RECURRENT_PREVIOUS /* reads: the state after the row before */

/* Ragged: sequence s owns the adjacent rows [seq_start[s], seq_start[s + 1]), in ascending
 * position. */
struct step_batch {
    struct step_limits limits;
    uint32_t n_rows, n_seqs, n_sample_rows;
    bool is_ahead;         /* equals the batch of executor_step_ahead(), except for the token ids */
    uint32_t *token_ids;   /* [max_rows] */
    uint32_t *positions;   /* [max_rows] 0-based in the sequence */
    uint32_t *kv_slots;    /* [max_rows] block · block_size + offset */
    uint32_t *seq_of_row;  /* [max_rows] */
    uint32_t *rope_tables; /* [max_rows] the table (shape.h) of the row's sequence; 0 without
                              longrope */
    uint32_t *state_reads; /* [max_rows] slot of the state before the row */
    uint32_t *state_writes; /* [max_rows] slot that gets the state after the row */
    uint8_t
        *is_generated; /* [max_rows] 1: path D, 0: prompt token, path P (docs/house/numerics.md) */
    uint32_t *seq_start;    /* [max_seqs + 1] */
    uint32_t *block_tables; /* [max_seqs][max_blocks_per_seq] */
    /* The same for layers with a window; NULL: all layers have the same blocks. Entries of tables
     * that no row sees may have any block. */
    uint32_t *window_slots;  /* [max_rows] */
    uint32_t *window_tables; /* [max_seqs][max_blocks_per_seq] */
    uint32_t *sample_rows;   /* [max_seqs + n_score_rows] rows whose logits are computed */
};

/* Adjacent rows of a batch, at least one. */
struct step_part {
    uint32_t row_begin, n_rows;
};

/* All arrays are in one allocation. *out_batch is owned. */
int step_batch_create(const struct step_limits *limits, struct step_batch **out_batch,
                      struct error *err);
void step_batch_destroy(struct step_batch *batch);
/* Sets the counts to 0; arrays keep their addresses. */
void step_batch_clear(struct step_batch *batch);
/* Lets the rows of sequence s compute in place in a slot. The first row reads the slot, or nothing
 * if the sequence is new. The last row writes the slot. seq_start[s + 1] is set. */
void step_batch_use_slot(struct step_batch *batch, uint32_t s, uint32_t slot, bool is_new);
