/* draft.h: what a sequence's next tokens may be, told by the sequence itself (prompt lookup: what
 * followed the last time its last tokens stood there), and how far to trust it. The model verifies
 * every drafted token by drawing its own at that position, so a draft costs rows and never changes
 * an answer.
 *
 * The foretelling runs along with the sequence whether it is used or not: each new token shows
 * whether it was right, so how often it is right after a match of a given length is known without
 * spending a row on it. Engine thread only, save for creation. Memory is fixed at create; a token
 * costs O(1). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sequence;

enum {
    DRAFT_MAX_TOKENS = 16,         /* drafted for one sequence in one step */
    DRAFT_DEFAULT_TOKENS = 4,      /* where a request asks for a drafter and names no number */
    DRAFT_LOOKUP = 3,              /* longest run of tokens that is looked up; then shorter ones */
    DRAFT_MAX_MATCH = 8,           /* lengths of a match that are told apart */
    DRAFT_LARGEST_INDEX = 1 << 13, /* places per length: later tokens take those of earlier ones */
};

struct draft {
    uint32_t *index; /* [DRAFT_LOOKUP][index_mask + 1] position of the token that followed, or 0 */
    uint32_t index_mask;
    uint32_t next;                       /* position of the token that is foretold; 0: none is */
    uint32_t n_match;                    /* tokens before it that equal the sequence's last ones */
    float trust[DRAFT_MAX_MATCH + 1];    /* by n_match: share of right ones, of late, */
    uint8_t n_seen[DRAFT_MAX_MATCH + 1]; /* and of how many; the first weigh more */
    uint32_t ids[DRAFT_MAX_TOKENS];      /* of the step under way */
    uint32_t n_ids;
};

/* For a sequence of about n_tokens. *out_draft is owned. False without memory. */
bool draft_create(uint32_t n_tokens, struct draft **out_draft);
void draft_destroy(struct draft *draft);

/* The sequence has its prompt: takes it in. */
void draft_take_prompt(struct draft *draft, const struct sequence *seq);
/* Its newest token, which may have been foretold. */
void draft_take_token(struct draft *draft, const struct sequence *seq);

/* Fills draft->ids with at most n_most tokens, as long as the chance that all up to one are right
 * is at least min_chance. Returns how many. */
uint32_t draft_propose(struct draft *draft, const struct sequence *seq, uint32_t n_most,
                       float min_chance);
