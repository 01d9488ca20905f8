/* scheduler.h: chooses the rows of the next step. Continuous batching under a token budget: first
 * every decoding sequence, then pieces of prompts (chunked prefill) of running and new requests.
 * When KV blocks run out, the sequence that is cheapest to recompute is preempted. A preempted
 * sequence gives its blocks back and starts over. Its generated tokens are replayed, not drawn
 * again.
 *
 * A decoding sequence may add rows of drafted tokens (draft.h) behind its own row. Limits of their
 * number: the cost of a row (scheduler_set_row_cost), the rows of others, the target time. The time
 * for drafting counts towards the target time. A drafted row is sampled only if the row before it
 * drew exactly the drafted token. So the answer equals the answer of single rows. Blocks of
 * rejected drafts are freed.
 *
 * While sequences decode, the target time limits the prompt tokens of a step (step_time.h learns
 * their cost). At least SCHEDULER_LEAST_PREFILL_ROWS are taken, or a quarter of the step if that is
 * fewer.
 *
 * Prompts are served by priority; within a priority, the caller that has used least comes first
 * (fair_share.h). A caller with nothing running may take the slots of a caller with several running
 * requests. A higher priority may take the slots of a lower one. Each request is sent back for a
 * higher priority at most once.
 *
 * To prevent starvation, every SCHEDULER_AGE_TURN-th step with prompts favours the request that
 * waits longest (an age turn). Age turns alternate: one favours all requests of its priority, the
 * next the request alone. So no request waits for ever, neither behind higher priorities nor behind
 * callers that used less.
 *
 * A request of several choices needs as many slots at once. If the next request has no room,
 * requests that fit start before it. After SCHEDULER_MOST_PASSED of such starts, free slots are
 * kept for it, for SCHEDULER_HOLD_STEPS at most.
 *
 * A model with recurrent layers has a state for each sequence beside its blocks. A state serves
 * only after exactly the tokens that it was computed from. So a prefix hit ends at a block behind
 * which a snapshot of the state is kept. Snapshots are kept at ends of prompts, at ends of prefixes
 * that prompts share, and every snapshot_blocks blocks. Their tokens equal those of an undisturbed
 * run.
 *
 * Layers with a sliding window may have a pool of blocks of their own. A sequence holds there only
 * the blocks that its next token sees. A prefix hit needs just these blocks, so it ends where the
 * cache still has them.
 *
 * A model with longrope has two tables of rope frequencies. A sequence turns all its positions by
 * the table of its length, prompt and generated tokens together. When a sequence crosses the
 * border, its blocks are freed and it computes all its tokens again, as after a preemption. So its
 * tokens are those of a prompt that was as long from the start. Blocks of the two tables are never
 * shared.
 *
 * The scheduler always makes progress. If nothing else can run, the first unpaused request, by
 * priority and arrival, takes the blocks of all others. A single sequence always fits (checked at
 * submit).
 *
 * Pure: no executor and no clock. The scheduler fills a step_batch; the caller reports results and
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
    SCHEDULER_AGE_TURN = 16, /* steps with prompts between two age turns */
    /* prompt rows of a step where a prompt waits and there is room */
    SCHEDULER_LEAST_PREFILL_ROWS = 8,
    /* starts that may pass over a request without room; then slots are kept for it, */
    SCHEDULER_MOST_PASSED = 64,
    SCHEDULER_HOLD_STEPS = 128, /* for so many steps at most */
    /* requests that generate fewer do not count for the automatic target */
    SCHEDULER_LASTING_TOKENS = 32,
};

struct scheduler_config {
    /* per step, as in step_limits; max_seqs is also the number of slots */
    uint32_t max_rows, max_seqs;
    uint32_t max_blocks_per_seq;
    uint32_t n_score_rows; /* prompt rows per step that give log-probabilities */
    /* drafted rows per step; n_score_rows of step_limits is the sum of both */
    uint32_t n_draft_rows;
    uint32_t n_blocks, block_size;
    /* Blocks of layers that see at most window_reach positions, the row's own included. 0: these
     * layers share the blocks of all others. At most n_blocks. */
    uint32_t n_window_blocks, window_reach;
    bool windows_are_chunks; /* they see the row's own chunk of window_reach positions alone */
    uint32_t prefill_chunk_tokens; /* longest piece of a prompt per step */
    uint32_t max_requests;         /* most live requests */
    uint32_t max_flights;          /* most steps between schedule and commit; 0: 1 */
    /* Longest step with both decoding sequences and prompts. 0: no limit. SCHEDULER_TARGET_AUTO:
     * 7/4 of a step without prompts in which all running and waiting requests decode. */
    int64_t target_step_ns;
    uint32_t long_rope_after; /* longer sequences use the long table; 0: there is one table */
    bool prefix_cache;
    /* Slots of recurrent states; 0: the model has none. Then n_running_states, at least 1 and at
     * most n_state_slots, limits max_seqs, and each prefix hit ends at a snapshot. */
    uint32_t n_state_slots, n_running_states;
    /* Sequences whose states may lie in host memory while their requests wait; 0: none. */
    uint32_t n_host_states;
    uint32_t snapshot_blocks; /* blocks between two snapshots; 0: only ends of prompts have one */
    /* paths P and D give equal bits, so blocks of generated tokens may be reused, too */
    bool share_generated;
    /* Drafts for the sequences that use a draft model (draft_model.h), at most n_draft_seqs in a
     * step. Called while a step is scheduled; returns how long drafting took. NULL: no draft
     * model. */
    int64_t (*propose)(void *draft_ctx, struct draft_job *jobs, uint32_t n_jobs,
                       const struct draft_bounds *bounds);
    /* The content of the block changes: the draft model drops its own K and V there. May be
     * NULL. */
    void (*forget_block)(void *draft_ctx, uint32_t block);
    void *draft_ctx;
    uint32_t n_draft_seqs;
};

struct kv_copy {
    uint32_t from, to;
    bool is_window; /* blocks of layers with a window */
};

/* A state goes from a slot to a place in host memory, or back. */
struct state_move {
    bool to_host;
    uint32_t slot, place; /* place < n_host_states */
};

/* Work of a step besides the batch. Arrays belong to the scheduler until the next schedule; samples
 * and scored until the next schedule after the step's commit. */
struct scheduler_plan {
    /* To be made in this order behind all steps scheduled before, and before the step. A plan
     * without rows may have some, too. */
    const struct kv_copy *copies;
    uint32_t n_copies;
    const struct state_move *moves; /* likewise */
    uint32_t n_moves;
    struct sequence *const *samples; /* [n_samples] sequence of each sample row of the batch */
    /* [n_samples] 0: a token is drawn; else the index of the prompt token whose log-probability the
     * row gives */
    const uint32_t *scored;
    uint32_t n_samples;
    uint32_t n_drafted; /* the last n_drafted samples belong to rows of drafted tokens */
    struct request *const *started; /* requests that left the queue for this step */
    uint32_t n_started;
    struct sequence *const *begun; /* sequences whose prompt or replay begins with this step */
    uint32_t n_begun;
    uint32_t n_decode_rows; /* rows of sequences that decode, without drafts */
    /* sequences that could decode: those with rows, and the preempted ones */
    uint32_t n_decode_ready;
    uint32_t n_prefill_rows; /* rows of prompts and replays */
    int64_t draft_ns;        /* time that the draft model took for this step already */
};

struct scheduler_stats {
    uint32_t n_queued, n_running, n_paused; /* numbers of requests */
    /* requests that a step should advance: not paused, and not waiting for paused ones alone */
    uint32_t n_ready;
    /* lowest priority of the running requests that may be sent back for a higher one; INT32_MAX:
     * none */
    int32_t lowest_priority;
    uint32_t n_lowest;     /* slots of the requests of lowest_priority */
    uint32_t n_several;    /* running requests beyond the first of each caller */
    uint32_t n_used_slots; /* sequences with a slot */
    uint32_t n_blocks, n_blocks_free, n_blocks_cached; /* free includes cached */
    uint32_t n_window_blocks, n_window_blocks_free, n_window_blocks_cached; /* for windows */
    uint64_t queued_tokens; /* prompt tokens still to be computed, of queued and running requests */
    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
    uint32_t n_state_slots; /* slots of recurrent states, */
    uint32_t n_states_used; /* those that sequences hold, */
    uint32_t n_snapshots;   /* and those with a snapshot, held or not */
    uint64_t n_snapshot_hits, n_snapshot_evictions;
    uint64_t n_moved_out;      /* states that went to host memory in place of a recompute */
    uint64_t n_rope_crossings; /* sequences that outgrew longrope's original context */
};

int scheduler_create(const struct scheduler_config *cfg, struct scheduler **out_sched,
                     struct error *err);
void scheduler_destroy(struct scheduler *sched);

/* Queues a request (fewer than max_requests are live). Choices that are SEQUENCE_ENDED already (a
 * resume of a finished choice) are skipped. */
void scheduler_add(struct scheduler *sched, struct request *request);
/* Ends one choice, or all: blocks and slots are free at once. After its last choice the request is
 * REQUEST_ENDED and no longer the scheduler's. */
void scheduler_end_sequence(struct scheduler *sched, struct sequence *seq);
void scheduler_end_request(struct scheduler *sched, struct request *request);
void scheduler_pause(struct scheduler *sched, struct request *request, bool paused);
void scheduler_set_priority(struct scheduler *sched, struct request *request, int32_t priority);

/* A live request whose deadline has passed, or NULL. The caller ends the request and calls
 * again. */
struct request *scheduler_expired(struct scheduler *sched, int64_t now_ns);
/* Earliest deadline of all live requests, INT64_MAX without one. */
int64_t scheduler_next_deadline(const struct scheduler *sched);
/* Any live request, or NULL. Serves to end all requests. */
struct request *scheduler_any(const struct scheduler *sched);

/* Plans a step into `batch` (cleared first). Returns false if nothing can run. After true the step
 * is in flight until its scheduler_commit(). Fewer than max_flights steps are in flight. Steps are
 * committed in the order in which they were scheduled.
 *
 * While steps are in flight, requests of which scheduler_is_in_flight() is true must not end.
 * False may then mean that the request to run next waits for a commit. */
bool scheduler_schedule(struct scheduler *sched, struct step_batch *batch, int64_t now_ns,
                        struct scheduler_plan *out_plan);
/* True if a choice of the request has rows in a step in flight. */
bool scheduler_is_in_flight(const struct request *request);
/* Sample i of the oldest step in flight has been drawn: a token (status 0) is appended to its
 * sequence. If the token equals the drafted one, returns the sample of the draft's row. The caller
 * draws and takes that sample next. Else returns 0. The caller draws and takes all samples before
 * the last n_drafted; a drafted one only when returned here. Between schedule and commit. */
uint32_t scheduler_take(struct scheduler *sched, uint32_t i, const struct sample_result *result);
/* Ends the oldest step in flight. The caller ends sequences and stores the scores. */
void scheduler_commit(struct scheduler *sched);

/* Between schedule and commit, with max_flights 1: writes the expected next step into `batch`, with
 * token ids 0. The guess assumes that every sequence of the current step continues, unless the
 * token drawn now is its last. Nothing else is assumed to change. Nothing in the scheduler changes
 * and no block is taken.
 *
 * If the next scheduler_schedule() gets this batch and plans the same step, it sets batch->is_ahead
 * and writes only the ids. Returns false, with an empty `batch`, if another kind of step is
 * likely. */
bool scheduler_schedule_ahead(struct scheduler *sched, struct step_batch *batch);

/* Sets the cost model of rows: a step costs the same as base_rows rows, plus its own rows
 * (step_cost.h). */
void scheduler_set_row_cost(struct scheduler *sched, float base_rows);

/* Sets the time to move a state to host memory and back. */
void scheduler_set_move_ns(struct scheduler *sched, int64_t ns);

/* Records how long the last committed step took, without draft_ns. */
void scheduler_saw_step(struct scheduler *sched, int64_t step_ns);

/* Called for each request with a slot, and for each unpaused request that waits for a slot.
 * `n_tokens`: prompt tokens still to be computed; 0 for paused requests. */
typedef void scheduler_each_fn(void *ctx, const struct request *request, uint32_t n_tokens);
void scheduler_each(const struct scheduler *sched, scheduler_each_fn *fn, void *ctx);

void scheduler_get_stats(const struct scheduler *sched, struct scheduler_stats *out_stats);
/* Computed tokens that a preemption of the sequence would lose. */
uint32_t scheduler_lost_tokens(const struct scheduler *sched, const struct sequence *seq);
