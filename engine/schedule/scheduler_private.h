/* scheduler_private.h: the scheduler's state, shared by its files alone. */
#pragma once

#include "engine/forward/step_time.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"
#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/scheduler_queue.h"

/* The step that is expected to come next. */
struct scheduler_ahead {
    struct step_batch *batch; /* where it stands; NULL: none is expected, or another one came */
    uint32_t n_seqs;
    uint32_t *slots, *versions; /* [max_seqs] whose block table a row's is, and as of when */
};

struct scheduler {
    struct scheduler_config cfg;
    struct kv_cache *kv;
    struct prefix_cache *prefix; /* NULL: off */
    struct fair_share *share;
    struct scheduler_queue *queue;
    uint32_t *n_active_of; /* [max_requests] active requests of each caller */
    uint32_t last_caller;  /* whose prompt was worked on last, */
    uint64_t last_counter; /* and what it has had since, too */
    struct request *live;  /* list of all */
    uint32_t n_live, n_active, n_paused;
    int64_t next_deadline_ns;
    bool deadlines_changed; /* next_deadline_ns must be found again */
    uint64_t n_steps;
    uint32_t n_since_turn; /* steps with prompts since the oldest had its turn */
    bool own_turn;         /* the next one is its own, not its priority's */
    struct step_time time;

    struct sequence **running; /* [max_seqs] with a slot; by priority, arrival, choice */
    uint32_t n_running;
    uint32_t *free_slots; /* stack */
    uint32_t n_free_slots;

    /* the step under way */
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct step_shape shape;
    int64_t limit_ns;            /* of its time; 0: any */
    struct kv_copy *copies;      /* [max_seqs] */
    struct sequence **samples;   /* [max_seqs + n_score_rows + n_draft_rows] */
    uint32_t *scored;            /* as many */
    struct sequence **scheduled; /* [max_seqs] */
    struct sequence **order;     /* [max_seqs] scratch */
    struct request **started;    /* [max_seqs] */
    struct sequence **begun;     /* [max_seqs] */
    uint32_t n_scheduled, n_scored;
    struct request *passed; /* who is next and has no room: whoever starts passes it over */
    bool holds;             /* nobody starts: it has been passed over often */
    uint32_t *block_tokens; /* [block_size] scratch */
    struct draft_job *jobs; /* [n_draft_seqs] of the draft model */
    uint32_t *indexes;      /* [max_seqs][draft_index_len] by slot; pages that no lookup has used
                               take no memory */
    struct scheduler_ahead ahead;
    float base_rows; /* what a step costs besides its rows, in rows */

    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
};

/* Tokens whose K and V are still to be computed. */
static inline uint32_t sequence_n_left(const struct sequence *seq)
{
    return sequence_n_tokens(seq) - seq->n_computed;
}

static inline bool sequence_decodes(const struct sequence *seq)
{
    return seq->n_ids && sequence_n_left(seq) == 1 && seq->n_computed;
}

/* Tokens that a sequence has at most. */
static inline uint32_t scheduler_longest(const struct scheduler_config *cfg)
{
    return cfg->max_blocks_per_seq * cfg->block_size;
}

/* --- scheduler.c --- */

/* Puts what runs into the order of priority and arrival. */
void scheduler_sort_running(struct scheduler *sched);
/* An active request waits again: its places and blocks are free. */
void scheduler_send_back(struct scheduler *sched, struct request *request);

/* --- scheduler_batch.c --- */

/* Writes the sequence's next n rows, and those of its drafts, into the batch. */
void scheduler_batch_emit(struct scheduler *sched, struct sequence *seq, uint32_t n);
/* The drafts' samples, behind all others. */
void scheduler_batch_want_drafts(struct scheduler *sched);
/* Charges the caller for tokens [begin, end), less those it was charged for already: what is
 * computed again after a preemption costs nobody. */
void scheduler_batch_charge(struct scheduler *sched, struct sequence *seq, uint32_t begin,
                            uint32_t end);
/* Of the sequence's next n rows as many as may be scored in this step. */
uint32_t scheduler_batch_cut_to_scores(const struct scheduler *sched, const struct sequence *seq,
                                       uint32_t n);

/* --- scheduler_ahead.c --- */

/* Whether the sequence's one row is the batch's next as it was expected, its block table too. Where
 * it is not, nothing that comes behind it is. */
bool scheduler_ahead_has_row(struct scheduler *sched, const struct sequence *seq);
/* The step is made: says in the batch whether it is the one expected. */
void scheduler_ahead_close(struct scheduler *sched);

/* --- scheduler_prompts.c --- */

/* Pieces of prompts and replays, and new requests, while there is room in the step. */
void scheduler_prompts_schedule(struct scheduler *sched, int64_t now_ns);
/* How long the step may take in which so much is computed besides prompts, and draft_ns went
 * before; 0: any time. */
int64_t scheduler_prompts_limit_ns(const struct scheduler *sched, const struct step_shape *shape,
                                   int64_t draft_ns);
/* The lowest counter of callers whose prompts of this priority or a higher one are under way. */
uint64_t scheduler_prompts_least(const struct scheduler *sched, int32_t priority);

/* --- scheduler_starts.c --- */

/* Before anything is in the step: a caller that has nothing running gets a place, where another has
 * several; a higher priority one of a lower one. The first of the queue for whom that helps. */
void scheduler_starts_make_place(struct scheduler *sched, int64_t now_ns);
/* Before the step's prompts: whether who is next (`oldest`, whose own turn it is, or NULL: by
 * `turn`) has been passed over for so long that nobody starts in this step. */
void scheduler_starts_plan(struct scheduler *sched, struct request *oldest, const int32_t *turn);
/* Who starts next: the first of the queue that has places and blocks, or NULL. */
struct request *scheduler_starts_next(struct scheduler *sched, const int32_t *turn);
/* The same where nothing else runs: the first that has places, blocks are taken from others. */
struct request *scheduler_starts_alone(struct scheduler *sched);
/* Whether anybody of the queue has room. */
bool scheduler_starts_possible(struct scheduler *sched);
/* Takes a request that waits out of the queue: its sequences have places. */
void scheduler_starts_activate(struct scheduler *sched, struct request *request, int64_t now_ns);
/* The same of a certain one that waits; false where it has no room. */
bool scheduler_starts_oldest(struct scheduler *sched, struct request *request, int64_t now_ns);
/* Blocks that a prompt leaves free as it starts, for those that decode. */
uint32_t scheduler_starts_spare_blocks(const struct scheduler *sched);

/* --- scheduler_blocks.c --- */

/* Preempts until each of the sequences (that decode, in the order they are served) can take its
 * next token: the least lost work of all goes first, the asking ones not excepted, save the first
 * of them. Those preempted leave the array; returns how many are left. */
uint32_t scheduler_blocks_make_room(struct scheduler *sched, struct sequence **seqs, uint32_t n);
/* Makes room for n_rows more tokens of the sequence, where `force` at the cost of all others.
 * Returns how many have room; > 0 means the first row may be written. */
uint32_t scheduler_blocks_reserve(struct scheduler *sched, struct sequence *seq, uint32_t n_rows,
                                  bool force);
/* Lets go of blocks behind the sequence's computed tokens: those of drafts that were wrong. */
void scheduler_blocks_trim(struct scheduler *sched, struct sequence *seq);
/* How many blocks are not free that a sequence without blocks needs to start: those of all its
 * tokens that the cache does not have, and `spare` ones besides. */
uint32_t scheduler_blocks_missing(struct scheduler *sched, const struct sequence *seq,
                                  uint32_t spare);
/* Attaches the cached blocks that the tokens of a sequence without blocks begin with. */
void scheduler_blocks_attach_prefix(struct scheduler *sched, struct sequence *seq);
/* Records the sequence's full blocks. */
void scheduler_blocks_record(struct scheduler *sched, struct sequence *seq);
/* Gives the prompt's blocks to a choice that waits for them. */
void scheduler_blocks_fork(struct scheduler *sched, const struct sequence *leader,
                           struct sequence *seq);
/* Lets go of everything the sequence has. */
void scheduler_blocks_release(struct scheduler *sched, struct sequence *seq);

/* --- scheduler_draft.c --- */

/* Drafts for the n sequences that decode in this step, each of which has room for its own row and
 * no row yet: fills seq->draft and seq->n_drafts, and the plan's draft_ns. */
void scheduler_draft_choose(struct scheduler *sched, struct sequence **seqs, uint32_t n);
