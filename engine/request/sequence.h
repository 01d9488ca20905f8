/* sequence.h: one choice of a request: its generated tokens, its state in the scheduler, its
 * drafts. Engine thread only once the request is queued. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/request/request.h"
#include "engine/request/request_counts.h"

struct draft;
struct request_output;
struct sample_bias;
struct sample_params;

enum sequence_state {
    SEQUENCE_WAITING, /* its request is queued */
    SEQUENCE_FORKING, /* waits until the leader has computed the prompt they share */
    SEQUENCE_RUNNING, /* takes steps; has no blocks after a preemption */
    SEQUENCE_ENDED,
};

#define SEQUENCE_NO_PLACE UINT32_MAX

struct sequence {
    struct request *request;
    uint32_t choice;
    enum sequence_state state;
    uint32_t *ids;  /* [max_ids] generated tokens */
    uint32_t n_ids; /* the first n_replayed came with the request (resume) */
    uint32_t n_replayed, max_ids;
    struct engine_logprob *logprobs; /* [max_ids] or NULL */
    uint32_t *text_bytes;            /* [max_ids] bytes of text of each released id */
    struct request_counts counts;    /* for penalties; empty where there are none */
    /* scratch: biases of the request and of bad words; NULL without bad words */
    struct sample_bias *step_biases;
    struct draft *draft; /* NULL: no drafts */

    /* fields of the scheduler */
    uint32_t slot;       /* batch slot, and its block table */
    uint32_t n_computed; /* tokens whose K and V are in its blocks */
    uint32_t n_rows;     /* rows in the current step */
    uint32_t n_drafts;   /* drafted tokens, whose rows follow the n_rows rows */
    uint32_t n_accepted; /* drafted tokens that turned out right so far */
    uint32_t i_draft;    /* sample of the plan for the first drafted row */
    uint32_t n_charged; /* leading tokens that are settled: charged to the caller's share, or cached
                           and so free */
    /* a token is drawn in the current step. While forking: from the leader's row of the prompt's
     * last token */
    bool samples;
    uint32_t n_hashed;   /* full blocks that are in the prefix cache, */
    uint64_t chain_node; /* and the prefix cache's node of the last of them */
    bool is_long;        /* its blocks hold keys rotated by longrope's long table */
    /* Recurrent states (scheduler_states.c): the slot of the state behind n_computed tokens.
     * STATE_SLOT_NONE: nothing is computed, or the model has no states. */
    uint32_t state_slot;
    uint32_t snapshot_block; /* the end of a shared prefix, in blocks: a snapshot is wanted; or 0 */
    uint32_t i_state_write, n_state_writes; /* slots that the current step writes */
    uint32_t place; /* where its state lies in host memory (scheduler_moves.c) */
    uint64_t last_step;
    bool begun;           /* a step has computed rows of the sequence since it got its slot */
    bool overdue;         /* its last step was long ago */
    uint64_t passed_step; /* step in which it got, or failed to get, a piece */

    struct request_output *output; /* the engine's; NULL in tests of the scheduler alone */
};

/* Prompt and generated tokens of a choice. */
static inline uint32_t sequence_n_tokens(const struct sequence *seq)
{
    return seq->request->n_prompt + seq->n_ids;
}

static inline uint32_t sequence_token(const struct sequence *seq, uint32_t i)
{
    uint32_t n_prompt = seq->request->n_prompt;
    return i < n_prompt ? seq->request->prompt[i] : seq->ids[i - n_prompt];
}

/* Appends a generated token and counts it. The caller makes sure that n_ids < max_ids. */
void sequence_append(struct sequence *seq, uint32_t id);

/* The sampler's parameters for the choice's next token. Borrowed from the request. */
void sequence_sample_params(const struct sequence *seq, struct sample_params *out_params);
/* The same for the log-probability of prompt token `i`. Its logits are those of row i - 1. */
void sequence_score_params(const struct sequence *seq, uint32_t i,
                           struct sample_params *out_params);
