/* scheduler.h: who takes part in the next step. Continuous batching under a token budget: first
 * every sequence that decodes, then pieces of prompts (chunked prefill) of requests under way and
 * new ones. When KV blocks run out, the sequence whose recompute costs least gives its blocks
 * back and starts over (its generated tokens are replayed, not drawn again).
 *
 * A sequence that decodes may take drafted tokens along (draft.h): rows behind its own, as many as
 * pay at what a row costs (scheduler_set_row_cost), as fit behind everybody else's and, with the
 * time it takes to draft them, within a target time that was given. Each of
 * these rows is drawn from only if the one before gave the very token drafted, so the tokens are
 * those that single rows would have given; blocks of the others are let go.
 *
 * While sequences decode, a step takes as many tokens of prompts as keep it within the target time
 * (step_time.h learns what they cost), and SCHEDULER_LEAST_PREFILL_ROWS in any case (fewer where
 * the step has fewer than four times as many).
 *
 * Prompts are served by priority; within one, the caller that has had least comes first
 * (fair_share.h), and a caller with nothing running takes the place of one of several requests
 * of another, a higher priority that of lower ones, of each once. But in every
 * SCHEDULER_AGE_TURN-th step with prompts it is the turn of the request that has waited longest:
 * once of its priority, once of itself, so that none waits for ever, neither for higher priorities
 * nor for callers that have had less. Who is next and finds no room (a request of several choices
 * needs as many places at once) is passed over by those that do, until SCHEDULER_MOST_PASSED have
 * started: then places that come free are kept for it, for SCHEDULER_HOLD_STEPS at most.
 *
 * It always gets on: where nothing else can run, the first that is not paused, by priority and
 * arrival, takes the blocks of all others, and a single sequence always fits (checked at submit).
 *
 * Pure: it touches no executor and no clock; it fills a step_batch, and is told the results and
 * times. A draft model is called through the config. Engine thread only. Allocates at create, never
 * after. Requests are borrowed between scheduler_add() and their end. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct draft_bounds;
struct draft_job;
struct error;
struct request;
struct sample_result;
struct scheduler;
struct sequence;
struct step_batch;

#define SCHEDULER_TARGET_AUTO (-1)

enum {
    SCHEDULER_AGE_TURN = 16,
    SCHEDULER_LEAST_PREFILL_ROWS = 8, /* of a step, where a prompt waits and there is room */
    SCHEDULER_MOST_PASSED = 64,       /* that start while one that is next has no room; then */
    SCHEDULER_HOLD_STEPS = 128,       /* nobody does for so many steps at most */
    SCHEDULER_LASTING_TOKENS = 32,    /* who generates fewer does not set the pace of others */
};

struct scheduler_config {
    uint32_t max_rows, max_seqs; /* per step, as in step_limits; max_seqs = slots */
    uint32_t max_blocks_per_seq;
    uint32_t n_score_rows; /* prompt rows per step whose log-probabilities are taken, */
    uint32_t n_draft_rows; /* and rows of drafted tokens: together as in step_limits */
    uint32_t n_blocks, block_size;
    uint32_t prefill_chunk_tokens; /* longest piece of a prompt per step */
    uint32_t max_requests;         /* that live */
    int64_t target_step_ns;        /* of a step in which sequences decode and prompts are computed;
                                      0: none; SCHEDULER_TARGET_AUTO: 7/4 of one without prompts in
                                      which all decode that run or wait */
    bool prefix_cache;
    bool share_generated; /* generated tokens' KV equals prompt tokens' to the bit (roles P ≡ D) */
    /* Who drafts for sequences whose drafts are a model's (draft_model.h), at most n_draft_seqs in
     * a step: called while a step is scheduled, tells how long it took. And what it is told of a
     * block whose content changes. NULL: nobody does. */
    int64_t (*propose)(void *draft_ctx, struct draft_job *jobs, uint32_t n_jobs,
                       const struct draft_bounds *bounds);
    void (*forget_block)(void *draft_ctx, uint32_t block);
    void *draft_ctx;
    uint32_t n_draft_seqs;
};

struct kv_copy {
    uint32_t from, to;
};

/* What a step is to do besides the batch. Arrays belong to the scheduler until the next schedule.
 */
struct scheduler_plan {
    const struct kv_copy *copies; /* to be made in this order before the step */
    uint32_t n_copies;
    struct sequence *const *samples; /* per sample row of the batch */
    const uint32_t *scored;          /* as many; 0: a token is drawn; else the row gives this
                                        prompt token's log-probability */
    uint32_t n_samples;
    uint32_t n_drafted;             /* the last so many samples are of drafted tokens' rows */
    struct request *const *started; /* that left the queue for this step */
    uint32_t n_started;
    struct sequence *const *begun; /* prompts and replays that begin */
    uint32_t n_begun;
    uint32_t n_decode_rows;  /* rows of sequences that went on decoding, */
    uint32_t n_decode_ready; /* sequences that could have: those, and the preempted ones */
    uint32_t n_prefill_rows;
    int64_t draft_ns; /* that the draft model took for it already */
};

struct scheduler_stats {
    uint32_t n_queued, n_running, n_paused; /* requests */
    uint32_t
        n_ready; /* requests a step should move: not paused, and not behind paused ones alone */
    int32_t lowest_priority; /* of those that run and may be sent back for a higher one; INT32_MAX:
                                none may */
    uint32_t n_lowest;       /* places of those of this priority */
    uint32_t n_several;      /* requests that callers with several running have beyond one */
    uint32_t n_used_slots;   /* sequences that run */
    uint32_t n_blocks, n_blocks_free, n_blocks_cached; /* free includes cached */
    uint64_t queued_tokens; /* prompt tokens that wait for prefill, queued or running */
    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
};

int scheduler_create(const struct scheduler_config *cfg, struct scheduler **out_sched,
                     struct error *err);
void scheduler_destroy(struct scheduler *sched);

/* Queues a request (fewer than max_requests are live). Choices that are SEQUENCE_ENDED already (a
 * resume that had finished) take no part. */
void scheduler_add(struct scheduler *sched, struct request *request);
/* Ends one choice, or all: blocks and slot are free at once. The request is REQUEST_ENDED and
 * forgotten after its last one. */
void scheduler_end_sequence(struct scheduler *sched, struct sequence *seq);
void scheduler_end_request(struct scheduler *sched, struct request *request);
void scheduler_pause(struct scheduler *sched, struct request *request, bool paused);
void scheduler_set_priority(struct scheduler *sched, struct request *request, int32_t priority);

/* A live request whose deadline has passed, or NULL. The caller ends it and asks again. */
struct request *scheduler_expired(struct scheduler *sched, int64_t now_ns);
/* Earliest deadline of all live requests, INT64_MAX without one. */
int64_t scheduler_next_deadline(const struct scheduler *sched);
/* Any live request, or NULL: to end them all. */
struct request *scheduler_any(const struct scheduler *sched);

/* Plans a step into `batch` (cleared first). False where nothing can run. A true plan must be
 * followed by scheduler_commit() before anything else is called. */
bool scheduler_schedule(struct scheduler *sched, struct step_batch *batch, int64_t now_ns,
                        struct scheduler_plan *out_plan);
/* The plan's sample i has been drawn: a token (status 0) is appended to its sequence. Where it is
 * the token that was drafted, returns the sample of that one's row, which is to be drawn and taken
 * next; else 0. All samples but those of drafted rows are drawn and taken; of these, those that are
 * named so. Between schedule and commit. */
uint32_t scheduler_take(struct scheduler *sched, uint32_t i, const struct sample_result *result);
/* The step is done. Ending sequences and taking scores is up to the caller. */
void scheduler_commit(struct scheduler *sched);

/* Between schedule and commit: writes the step that comes next into `batch`, all but the token ids
 * (0), as it is if every sequence of the step under way goes on by the token that is drawn for it,
 * but those that have all of theirs then, and if nothing else happens. It only looks ahead: the
 * scheduler stays as it is, and no block is taken. If the next scheduler_schedule() is given this
 * batch and comes to the same step, it sets batch->is_ahead and writes ids alone. False where
 * another kind of step is likely, `batch` then holds nothing. */
bool scheduler_schedule_ahead(struct scheduler *sched, struct step_batch *batch);

/* A step costs as much as base_rows rows would, and each row besides (step_cost.h). */
void scheduler_set_row_cost(struct scheduler *sched, float base_rows);

/* How long the step took that was committed last, all of it but draft_ns. */
void scheduler_saw_step(struct scheduler *sched, int64_t step_ns);

/* Each request that has a place, or waits for one and is not paused, and the tokens of its prompt
 * that are still to be computed (0 of paused ones). */
typedef void scheduler_each_fn(void *ctx, const struct request *request, uint32_t n_tokens);
void scheduler_each(const struct scheduler *sched, scheduler_each_fn *fn, void *ctx);

void scheduler_get_stats(const struct scheduler *sched, struct scheduler_stats *out_stats);
/* Tokens of work lost if the sequence were preempted now. */
uint32_t scheduler_lost_tokens(const struct scheduler *sched, const struct sequence *seq);
