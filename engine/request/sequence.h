/* sequence.h: one choice of a request: its generated tokens, its state in the scheduler, and what
 * is drafted for it. The engine thread's alone once the request is queued. */
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

/* One choice. */
struct sequence {
    struct request *request;
    uint32_t choice;
    enum sequence_state state;
    uint32_t *ids;  /* [max_ids] generated */
    uint32_t n_ids; /* the first n_replayed of them came with the request (resume) */
    uint32_t n_replayed, max_ids;
    struct engine_logprob *logprobs; /* [max_ids] or NULL */
    uint32_t *text_bytes;            /* [max_ids] of each released id */
    struct request_counts counts;    /* for penalties; empty where there are none */
    struct sample_bias *step_biases; /* scratch: the request's and the bad words'; NULL without */
    struct draft *draft;             /* NULL: nothing is drafted for it */

    /* scheduler */
    uint32_t slot;       /* its block table */
    uint32_t n_computed; /* tokens whose K and V are in its blocks */
    uint32_t n_rows;     /* in the step under way */
    uint32_t n_drafts;   /* of them, the last ones: drafted tokens, */
    uint32_t n_accepted; /* of which so many turned out right so far; */
    uint32_t i_draft;    /* the plan's sample of the first of these rows */
    uint32_t n_charged;  /* tokens its caller's share was charged with, or that cost nothing */
    bool samples;        /* a token is drawn in the step under way; while forking: from the */
                         /* leader's row of the prompt's last token */
    uint32_t n_hashed;   /* full blocks known to the prefix cache, */
    uint64_t chain_node; /* and the node of the last of them */
    uint64_t last_step;
    bool begun;           /* since it runs, rows of it were in a step */
    bool overdue;         /* it was last in a step long ago */
    uint64_t passed_step; /* in which it had its turn for a piece */

    struct request_output *output; /* engine; NULL in tests of the scheduler alone */
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

/* Appends a generated token, counting it. There is room: n_ids < max_ids. */
void sequence_append(struct sequence *seq, uint32_t id);

/* The sampler's parameters for the choice's next token. Borrowed from the request. */
void sequence_sample_params(const struct sequence *seq, struct sample_params *out_params);
/* The same for the log-probability of prompt token `i`, by the row before it. */
void sequence_score_params(const struct sequence *seq, uint32_t i,
                           struct sample_params *out_params);
