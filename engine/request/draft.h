/* draft.h: what a sequence's next tokens may be, and how far to trust it. The model verifies every
 * drafted token by drawing its own at that position, so a draft costs rows and never changes an
 * answer.
 *
 * Who tells is the sequence itself (prompt lookup: what followed the last time its last tokens
 * stood there), or a second model (draft_model.h; here is what is remembered of it for one
 * sequence).
 *
 * The lookup's foretelling runs along with the sequence whether it is used or not: each new token
 * shows whether it was right, so how often it is right after a match of a given length is known
 * without spending a row on it. A draft model's is trusted by the probability it gave the token
 * itself, and tried again now and then where it did not pay. Engine thread only, save for creation.
 * The lookup's index is its place's: who waits for one, or has given it back, has none. A token
 * costs O(1). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sequence;

enum {
    DRAFT_MAX_TOKENS = 16,         /* drafted for one sequence in one step */
    DRAFT_LOOKUP = 3,              /* longest run of tokens that is looked up; then shorter ones */
    DRAFT_MAX_MATCH = 8,           /* lengths of a match that are told apart */
    DRAFT_LARGEST_INDEX = 1 << 13, /* places per length: later tokens take those of earlier ones */
};

/* A draft model's side of a sequence. */
struct draft_by_model {
    uint32_t n_written; /* of the sequence's first tokens, whose K and V it has in their blocks */
    uint32_t n_marked;  /* of these, those in whole blocks that others may find (draft_model.c) */
    uint32_t n_ahead;   /* and behind n_told tokens those of ids[0 .. n_ahead) */
    uint32_t n_told;    /* tokens the sequence had when ids were drafted */
    uint32_t n_checked; /* of ids, that turned out right */
    float hope;         /* that its next token will be right, before it is drafted */
    uint16_t n_rest, rest; /* steps left in which it is not asked; and how many next time */
    bool is_trial;         /* it is asked although it may not pay */
    bool is_deaf;          /* the sequence has tokens the draft model does not know */
    uint8_t i_trust[DRAFT_MAX_TOKENS]; /* of ids: by which trust they were drafted */
};

struct draft {
    bool by_model;
    struct draft_by_model model;
    uint32_t *index; /* [DRAFT_LOOKUP][index_mask + 1] position of the token that followed, or 0;
                        NULL: it has no place, and foretells nothing */
    uint32_t index_mask;
    uint32_t n_learned;                  /* tokens of the sequence that trust has learned from */
    uint32_t next;                       /* position of the token that is foretold; 0: none is */
    uint32_t n_match;                    /* tokens before it that equal the sequence's last ones */
    float trust[DRAFT_MAX_MATCH + 1];    /* by n_match, or by the draft model's own probability in
                                            eighths: share of right ones, of late, */
    uint8_t n_seen[DRAFT_MAX_MATCH + 1]; /* and of how many; the first weigh more */
    uint32_t ids[DRAFT_MAX_TOKENS];      /* of the step under way */
    uint32_t n_ids;
};

/* By lookup. *out_draft is owned. False without memory. */
bool draft_create(struct draft **out_draft);
/* By the draft model; `drawn`: tokens are drawn by chance, so that the less likely ones may be
 * right as well. */
bool draft_create_by_model(bool drawn, struct draft **out_draft);
void draft_destroy(struct draft *draft);

/* Numbers of an index for sequences of at most n_tokens; larger ones share its places. */
uint32_t draft_index_len(uint32_t n_tokens);
/* The sequence has a place: takes in what it has so far. `index` has draft_index_len(n_tokens)
 * numbers, and is borrowed until the place is left. Nothing happens where a model drafts. */
void draft_take_place(struct draft *draft, const struct sequence *seq, uint32_t *index,
                      uint32_t n_tokens);
void draft_leave_place(struct draft *draft);
/* The sequence's newest token, which may have been foretold. */
void draft_take_token(struct draft *draft, const struct sequence *seq);

/* The sequence's blocks behind its first n tokens are others now: what a draft model wrote there is
 * gone. NULL is allowed. */
void draft_cut(struct draft *draft, uint32_t n);

/* Lookup: fills draft->ids with at most n_most tokens, as long as the chance that all up to one are
 * right is at least min_chance. Returns how many. */
uint32_t draft_propose(struct draft *draft, const struct sequence *seq, uint32_t n_most,
                       float min_chance);

/* --- by a model: what the scheduler asks for a step --- */

/* A sequence that decodes, with blocks for n_most tokens behind its last. */
struct draft_job {
    struct sequence *seq;  /* its draft->ids and n_ids are filled */
    const uint32_t *table; /* its blocks */
    uint32_t n_most;

    /* the drafter's own */
    float chance;     /* that all of ids are right */
    uint32_t n_rows;  /* in this pass */
    bool is_drafting; /* else it only catches up */
};

/* What a step is without drafts, and what they may add. */
struct draft_bounds {
    float n_rows;     /* that count: sequences that decode, prompts' rows */
    float base_rows;  /* a step costs as much as these besides (step_cost.h) */
    float row_ns;     /* of one; 0: unknown */
    float margin;     /* what a right token must be worth more than it costs */
    int64_t room_ns;  /* for drafting and the rows it brings; INT64_MAX: any */
    int64_t catch_ns; /* for rows that only catch up; INT64_MAX: any */
};
