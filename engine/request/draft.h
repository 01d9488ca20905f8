/* draft.h: drafts of one sequence: its likely next tokens, and the chance that they are right. The
 * model verifies every drafted token by drawing its own token at that position. So a draft costs
 * rows and never changes an answer.
 *
 * There are two drafters. Prompt lookup proposes the tokens that followed the last time the
 * sequence had its present last tokens. A draft model (draft_model.h) is a second model; this
 * struct holds its state for one sequence.
 *
 * Prompt lookup predicts every next token, even where the prediction is not drafted. So its hit
 * rate by length of match is known without spending rows. A draft model's token is trusted by the
 * probability that the draft model gave the token. A draft model that did not pay for a sequence is
 * tried again after a pause.
 *
 * Engine thread only, except for creation. The lookup's index belongs to the batch slot: a sequence
 * without a slot has none. A token costs O(1). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sequence;

enum {
    DRAFT_MAX_TOKENS = 16, /* most drafted tokens of one sequence in one step */
    DRAFT_LOOKUP = 3,      /* longest run of tokens that is looked up; shorter runs follow */
    DRAFT_MAX_MATCH = 8,   /* longest match that has a trust of its own */
    DRAFT_LARGEST_INDEX = 1 << 13, /* most entries per run length; positions share entries */
};

/* A draft model's state for one sequence. */
struct draft_by_model {
    /* leading tokens of the sequence whose K and V the draft model has written to the blocks */
    uint32_t n_written;
    /* with recurrent layers: the draft model's name for the sequence (draft_states.h) */
    uint64_t state_id;
    /* leading tokens, in whole blocks, that are marked for reuse by other sequences */
    uint32_t n_marked;
    uint32_t n_ahead;      /* K and V of ids[0 .. n_ahead) are written behind n_told tokens */
    uint32_t n_told;       /* tokens of the sequence when ids were drafted */
    uint32_t n_checked;    /* drafted ids that were verified: correct so far */
    float hope;            /* predicted chance that its next token is right */
    uint16_t n_rest, rest; /* steps left without drafting, and length of the next such pause */
    bool is_trial;         /* drafts once to find out if drafting pays */
    bool is_long;          /* the written K is rotated by the draft model's long rope table */
    bool is_deaf;          /* the sequence has a token outside the draft model's vocabulary */
    /* [n_ids] index in `trust` under which each id was drafted */
    uint8_t i_trust[DRAFT_MAX_TOKENS];
};

struct draft {
    bool by_model;
    struct draft_by_model model;
    /* [DRAFT_LOOKUP][index_mask + 1] position of the token that followed the run, or 0. NULL while
     * the sequence has no batch slot: no drafts */
    uint32_t *index;
    uint32_t index_mask;
    uint32_t n_learned; /* tokens of the sequence that `trust` has learned from */
    uint32_t next;      /* position of the predicted token; 0: no prediction */
    uint32_t n_match;   /* tokens before `next` that equal the sequence's last ones */
    /* Share of correct tokens, recent ones weigh more. Lookup: by n_match. Draft model: by its
     * probability of the token, in eighths. */
    float trust[DRAFT_MAX_MATCH + 1];
    /* tokens that each trust was learned from, up to a limit */
    uint8_t n_seen[DRAFT_MAX_MATCH + 1];
    uint32_t ids[DRAFT_MAX_TOKENS]; /* drafted tokens of the current step */
    uint32_t n_ids;
};

/* Creates a draft by prompt lookup. *out_draft is owned. Returns false without memory. */
bool draft_create(struct draft **out_draft);
/* Creates a draft by the draft model. `drawn`: temperature above 0. Less likely tokens are then
 * right more often than with greedy sampling. */
bool draft_create_by_model(bool drawn, struct draft **out_draft);
void draft_destroy(struct draft *draft);

/* Length of an index for sequences of at most n_tokens, in uint32_t. */
uint32_t draft_index_len(uint32_t n_tokens);
/* The sequence gets a batch slot: builds the index from its tokens. `index` has
 * draft_index_len(n_tokens) entries and is borrowed until draft_leave_place(). Does nothing for a
 * draft model. */
void draft_take_place(struct draft *draft, const struct sequence *seq, uint32_t *index,
                      uint32_t n_tokens);
/* The sequence loses its batch slot. */
void draft_leave_place(struct draft *draft);
/* Learns from the sequence's newest token. */
void draft_take_token(struct draft *draft, const struct sequence *seq);

/* The blocks behind the sequence's first n tokens were replaced: the draft model's K and V there
 * are lost. `draft` may be NULL. */
void draft_cut(struct draft *draft, uint32_t n);

/* Prompt lookup: fills draft->ids with at most n_most tokens. Stops where the chance that all
 * tokens so far are right falls below min_chance. Returns the number of tokens. */
uint32_t draft_propose(struct draft *draft, const struct sequence *seq, uint32_t n_most,
                       float min_chance);

/* --- draft model: a step's drafts --- */

/* A decoding sequence with blocks for n_most tokens behind its last. */
struct draft_job {
    struct sequence *seq;  /* draft_model_propose() fills seq->draft->ids and n_ids */
    const uint32_t *table; /* its block table */
    uint32_t n_most;

    /* scratch of the draft model */
    float chance;     /* chance that all of ids are right */
    uint32_t n_rows;  /* rows in this pass */
    bool is_drafting; /* false: only catches up */
};

/* The cost of a step without drafts, and limits for drafts. */
struct draft_bounds {
    float n_rows;     /* useful rows: of decoding sequences and of prompts */
    float base_rows;  /* fixed cost of a step, in rows (step_cost.h) */
    float row_ns;     /* time of one row; 0: unknown */
    float margin;     /* required worth of a correct token, relative to its cost */
    int64_t room_ns;  /* time for drafting and for the drafts' rows; INT64_MAX: no limit */
    int64_t catch_ns; /* time for rows that only catch up; INT64_MAX: no limit */
};
