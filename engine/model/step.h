/* step.h: all inputs of one engine step, in arrays of fixed address and capacity. So captured
 * graphs, rank broadcasts and speculative verification need no other interface. The scheduler fills
 * the batch, the executor and the decoder only read it. Engine thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;

struct step_limits {
    uint32_t max_rows;           /* tokens per step */
    uint32_t max_seqs;           /* sequences per step */
    uint32_t max_blocks_per_seq; /* = block table stride */
    /* most sample rows besides one per sequence: for prompt log-probabilities and drafts; may be
     * 0 */
    uint32_t n_score_rows;
};

/* The recurrent state of a sequence, for layers that have states in place of K and V. */
struct step_state {
    uint32_t slot;           /* place of the state, the sequence's own while it runs */
    uint32_t first_position; /* position of the sequence's first row */
    bool resets;             /* the state before that row is the empty sequence's */
};

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
    uint8_t
        *is_generated; /* [max_rows] 1: path D, 0: prompt token, path P (docs/house/numerics.md) */
    uint32_t *seq_start;       /* [max_seqs + 1] */
    uint32_t *block_tables;    /* [max_seqs][max_blocks_per_seq] */
    struct step_state *states; /* [max_seqs] */
    uint32_t *sample_rows;     /* [max_seqs + n_score_rows] rows whose logits are computed */
};

/* All arrays are in one allocation. *out_batch is owned. */
int step_batch_create(const struct step_limits *limits, struct step_batch **out_batch,
                      struct error *err);
void step_batch_destroy(struct step_batch *batch);
/* Sets the counts to 0; arrays keep their addresses. */
void step_batch_clear(struct step_batch *batch);
