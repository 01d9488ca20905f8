/* scheduler_private.h: the scheduler's state, shared by its files alone. */
#pragma once

#include "engine/kv_cache.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/scheduler_queue.h"
#include "engine/step.h"

struct scheduler {
    struct scheduler_config cfg;
    struct kv_cache *kv;
    struct prefix_cache *prefix; /* NULL: off */
    struct scheduler_queue *queue;
    struct request *live; /* list of all */
    uint32_t n_live, n_active, n_paused;
    int64_t next_deadline_ns;
    bool deadlines_changed; /* next_deadline_ns must be found again */
    uint64_t n_arrivals, n_steps;

    struct sequence **running; /* [max_seqs] with a slot; by priority, arrival, choice */
    uint32_t n_running;
    uint32_t *free_slots; /* stack */
    uint32_t n_free_slots;

    /* the step under way */
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct kv_copy *copies;      /* [max_seqs] */
    struct sequence **samples;   /* [max_seqs + n_score_rows + n_draft_rows] */
    uint32_t *scored;            /* as many */
    struct sequence **scheduled; /* [max_seqs] */
    struct sequence **order;     /* [max_seqs] scratch */
    struct request **started;    /* [max_seqs] */
    uint32_t n_scheduled, n_scored;
    uint32_t *block_tokens; /* [block_size] scratch */
    float base_rows;        /* what a step costs besides its rows, in rows */

    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
};

/* --- scheduler_blocks.c --- */

/* Preempts until each of the sequences (that decode, in the order they are served) can take its
 * next token: the least lost work of all goes first, the asking ones not excepted, save the first
 * of them. Those preempted leave the array; returns how many are left. */
uint32_t blocks_make_room(struct scheduler *sched, struct sequence **seqs, uint32_t n);
/* Makes room for n_rows more tokens of the sequence, where `force` at the cost of all others.
 * Returns how many have room; > 0 means the first row may be written. */
uint32_t blocks_reserve(struct scheduler *sched, struct sequence *seq, uint32_t n_rows, bool force);
/* Lets go of blocks behind the sequence's computed tokens: those of drafts that were wrong. */
void blocks_trim(struct scheduler *sched, struct sequence *seq);
/* Whether a sequence without blocks can start: all its tokens and `spare` blocks besides. */
bool blocks_can_start(struct scheduler *sched, const struct sequence *seq, uint32_t spare);
/* Attaches the cached blocks that the tokens of a sequence without blocks begin with. */
void blocks_attach_prefix(struct scheduler *sched, struct sequence *seq);
/* Records the sequence's full blocks. */
void blocks_record(struct scheduler *sched, struct sequence *seq);
/* Gives the prompt's blocks to a choice that waits for them. */
void blocks_fork(struct scheduler *sched, const struct sequence *leader, struct sequence *seq);
/* Lets go of everything the sequence has. */
void blocks_release(struct scheduler *sched, struct sequence *seq);

/* --- scheduler_draft.c --- */

/* Drafts for the n sequences that decode in this step, each of which has room for its own row and
 * no row yet: fills seq->draft and seq->n_drafts. */
void drafts_choose(struct scheduler *sched, struct sequence **seqs, uint32_t n);
