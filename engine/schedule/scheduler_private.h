/* scheduler_private.h: the scheduler's state, shared by the files of this folder only. */
#pragma once

#include "engine/forward/step_time.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/scheduler_queue.h"

/* The step that is expected to come next. */
struct scheduler_ahead {
    /* batch that holds the expected step; NULL: none, or the actual step differs */
    struct step_batch *batch;
    uint32_t n_seqs;
    uint32_t *slots, *versions; /* [max_seqs] per row: slot and version of its block table, */
    uint32_t *window_versions;  /* [max_seqs] and of its table of window blocks */
};

/* Most moves of states in a plan; a state that would exceed them is computed again. */
enum { SCHEDULER_MOST_MOVES = 64 };

/* A slot that the current step writes: the state behind the sequence's first n_tokens tokens. */
struct state_write {
    uint32_t n_tokens, slot;
};

/* A step between its schedule and its commit. */
struct scheduler_flight {
    struct sequence **samples;        /* [max_seqs + n_score_rows + n_draft_rows] */
    uint32_t *scored;                 /* same length */
    struct sequence **scheduled;      /* [max_seqs] */
    struct state_write *state_writes; /* [max_rows] by sequence */
    uint32_t n_scheduled, n_state_writes;
    struct step_shape shape;
};

/* Blocks of layers with a window; see scheduler_windows.c. */
struct scheduler_windows {
    struct kv_cache *kv; /* NULL: all layers share one pool */
    /* [n_blocks] the window block of the same tokens as a recorded block; KV_BLOCK_NONE: gone */
    uint32_t *block_of;
    uint32_t *owner_of; /* [n_window_blocks] the reverse */
};

struct scheduler {
    struct scheduler_config cfg;
    struct kv_cache *kv;
    struct scheduler_windows windows;
    struct prefix_cache *prefix; /* NULL: no prefix cache */
    struct state_cache *states;  /* NULL: no recurrent layers */
    struct fair_share *share;
    struct scheduler_queue *queue;
    uint32_t *n_active_of; /* [max_requests] active requests of each caller */
    uint32_t last_caller;  /* caller of the prompt that was computed last, */
    uint64_t last_counter; /* and its share counter since */
    struct request *live;  /* list of all live requests */
    uint32_t n_live, n_active, n_paused;
    int64_t next_deadline_ns;
    bool deadlines_changed; /* next_deadline_ns must be computed again */
    uint64_t n_steps;
    uint32_t n_since_turn; /* steps with prompts since the last age turn */
    bool own_turn;         /* the next age turn serves the oldest request alone, not its priority */
    struct step_time time;

    struct sequence **running; /* [max_seqs] sequences with a slot; by priority, arrival, choice */
    uint32_t n_running;
    uint32_t *free_slots; /* stack of unused slots */
    uint32_t n_free_slots;

    /* Steps in flight: a ring of max_flights, the oldest first. A sequence has rows (n_rows) in at
     * most one of them. */
    struct scheduler_flight *flights;
    uint32_t first_flight, n_flights;
    struct step_shape done; /* work of the step that was committed last */

    /* the step that is being scheduled, or was scheduled last */
    struct scheduler_flight *flight;
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct step_shape shape;
    uint32_t n_others;        /* sequences that draw a token in other steps in flight */
    int64_t limit_ns;         /* limit of the step's time; 0: none */
    struct kv_copy *copies;   /* [2 · max_seqs] */
    struct sequence **order;  /* [max_seqs] scratch */
    struct request **started; /* [max_seqs] */
    struct sequence **begun;  /* [max_seqs] */
    uint32_t n_scored;
    struct request *passed; /* next request, if it has no room: every other start passes it over */
    bool holds;             /* no request may start: `passed` was passed over too often */
    uint32_t *block_tokens; /* [block_size] scratch */
    struct draft_job *jobs; /* [n_draft_seqs] jobs of the draft model */
    uint32_t *indexes; /* [max_seqs][draft_index_len] by slot; untouched pages take no memory */
    struct scheduler_ahead ahead;
    uint32_t n_states_promised; /* fresh slots that sequences of the step will take */
    uint64_t n_snapshot_hits;
    struct sequence **moved; /* [n_host_states] sequence of each place in host memory, or NULL */
    struct state_move moves[SCHEDULER_MOST_MOVES]; /* not made yet */
    uint32_t n_moves;
    int64_t move_ns; /* time to move a state out and in */
    uint64_t n_moved_out;
    float base_rows; /* fixed cost of a step, in rows */

    uint64_t n_preemptions, n_prefix_hit_tokens, n_prefix_query_tokens;
    uint64_t n_rope_crossings;
};

/* Tokens whose K and V are not computed. */
static inline uint32_t sequence_n_left(const struct sequence *seq)
{
    return sequence_n_tokens(seq) - seq->n_computed;
}

static inline bool sequence_decodes(const struct sequence *seq)
{
    return seq->n_ids && sequence_n_left(seq) == 1 && seq->n_computed;
}

/* True if the keys of a sequence of n tokens are rotated by longrope's long table. */
static inline bool scheduler_is_long(const struct scheduler_config *cfg, uint32_t n)
{
    return cfg->long_rope_after && n > cfg->long_rope_after;
}

/* Longest sequence, in tokens. */
static inline uint32_t scheduler_longest(const struct scheduler_config *cfg)
{
    return cfg->max_blocks_per_seq * cfg->block_size;
}

/* --- scheduler.c --- */

/* Sorts the running sequences by priority, arrival and choice. */
void scheduler_sort_running(struct scheduler *sched);
/* Puts an active request back into the queue and frees its slots and blocks. */
void scheduler_send_back(struct scheduler *sched, struct request *request);

/* --- scheduler_flights.c --- */

bool scheduler_flights_open(struct scheduler *sched);
void scheduler_flights_close(struct scheduler *sched);
/* Empties the next place of the ring for the step that is scheduled now. */
void scheduler_flights_begin(struct scheduler *sched);
/* Most decoding sequences of the step, if n could be in it: their share of all that decode. */
uint32_t scheduler_flights_share(const struct scheduler *sched, uint32_t n);

/* --- scheduler_batch.c --- */

/* Writes the sequence's next n rows, and those of its drafts, into the batch. */
void scheduler_batch_emit(struct scheduler *sched, struct sequence *seq, uint32_t n);
/* Adds the samples of drafted rows behind all other samples. */
void scheduler_batch_want_drafts(struct scheduler *sched);
/* Charges the caller's share for tokens [begin, end). Tokens that are computed again after a
 * preemption are not charged again. */
void scheduler_batch_charge(struct scheduler *sched, struct sequence *seq, uint32_t begin,
                            uint32_t end);
/* How many of the sequence's next n rows this step can score. */
uint32_t scheduler_batch_cut_to_scores(const struct scheduler *sched, const struct sequence *seq,
                                       uint32_t n);

/* --- scheduler_ahead.c --- */

/* True where the sequence's row and block table equal the expected ones at this place of the batch.
 * After the first difference the whole rest counts as different. */
bool scheduler_ahead_has_row(struct scheduler *sched, const struct sequence *seq);
/* Sets batch->is_ahead at the end of a step: the batch equals the expected one. */
void scheduler_ahead_close(struct scheduler *sched);

/* --- scheduler_prompts.c --- */

/* Schedules pieces of prompts and replays, and starts requests, while the step has room. */
void scheduler_prompts_schedule(struct scheduler *sched, int64_t now_ns);
/* Time limit of a step with `shape` besides its prompts, after draft_ns of drafting; 0: none. */
int64_t scheduler_prompts_limit_ns(const struct scheduler *sched, const struct step_shape *shape,
                                   int64_t draft_ns);
/* The lowest share counter among callers whose prompts are being computed, at this priority or
 * above. */
uint64_t scheduler_prompts_least(const struct scheduler *sched, int32_t priority);

/* --- scheduler_starts.c --- */

/* Sends running requests back to make room for a queued request, before the step has rows. A caller
 * without running requests takes slots of a caller with several. A higher priority takes slots of a
 * lower one. Serves the first request of the queue for which this makes room. Returns false if a
 * request to be sent back is in flight: the step must wait for its commit. */
bool scheduler_starts_make_place(struct scheduler *sched, int64_t now_ns);
/* Decides before the step's prompts if any request may start. None may start if the next request
 * has been passed over too often. The next request is `oldest`, or, if that is NULL, the first by
 * `turn`. */
void scheduler_starts_plan(struct scheduler *sched, struct request *oldest, const int32_t *turn);
/* The first request of the queue that finds slots and blocks, or NULL. */
struct request *scheduler_starts_next(struct scheduler *sched, const int32_t *turn);
/* The same when nothing else runs: returns the first request that finds slots; its blocks are taken
 * from others. */
struct request *scheduler_starts_alone(struct scheduler *sched);
/* True where some queued request finds slots and blocks. */
bool scheduler_starts_possible(struct scheduler *sched);
/* Takes a request out of the queue and gives slots to its sequences. */
void scheduler_starts_activate(struct scheduler *sched, struct request *request, int64_t now_ns);
/* Activates the request if it finds slots and blocks; else returns false. */
bool scheduler_starts_oldest(struct scheduler *sched, struct request *request, int64_t now_ns);
/* Blocks that a starting prompt leaves free for decoding sequences. */
uint32_t scheduler_starts_spare_blocks(const struct scheduler *sched);

/* --- scheduler_blocks.c --- */

/* Preempts sequences until each of the n decoding `seqs` (in serving order) has room for its next
 * token. The victim is the sequence with the least lost work; only seqs[0] is safe. Victims leave
 * the array; returns the number that stay. */
uint32_t scheduler_blocks_make_room(struct scheduler *sched, struct sequence **seqs, uint32_t n);
/* Reserves blocks for n_rows more tokens of the sequence and returns for how many tokens there is
 * room. `force`: preempts other sequences to get blocks. */
uint32_t scheduler_blocks_reserve(struct scheduler *sched, struct sequence *seq, uint32_t n_rows,
                                  bool force);
/* Frees the sequence's blocks behind the first n. */
void scheduler_blocks_trim(struct scheduler *sched, const struct sequence *seq, uint32_t n);
/* Blocks that are missing to start the sequence: the blocks of its tokens plus `spare`, less cached
 * and free blocks. */
uint32_t scheduler_blocks_missing(struct scheduler *sched, const struct sequence *seq,
                                  uint32_t spare);
/* Attaches the cached blocks of the sequence's first tokens. The sequence has no blocks yet. */
void scheduler_blocks_attach_prefix(struct scheduler *sched, struct sequence *seq);
/* Records the sequence's full blocks in the prefix cache. */
void scheduler_blocks_record(struct scheduler *sched, struct sequence *seq);
/* Gives the prompt's blocks to a choice that waits for them. */
void scheduler_blocks_fork(struct scheduler *sched, const struct sequence *leader,
                           struct sequence *seq);
/* Frees all the sequence's blocks. */
void scheduler_blocks_release(struct scheduler *sched, struct sequence *seq);
/* True if the sequence must be computed by longrope's long table. While the prompt still gives
 * log-probabilities, the prompt alone counts: they are those of the request before it generated. */
bool scheduler_blocks_want_long(const struct scheduler *sched, const struct sequence *seq);
/* Frees the blocks of running sequences whose keys are rotated by the wrong table of
 * longrope. These sequences have grown over the border, or share the prompt of a longer choice. */
void scheduler_blocks_cross(struct scheduler *sched);

/* --- scheduler_windows.c: each call does nothing without a pool for windows --- */

int scheduler_windows_open(struct scheduler *sched, struct error *err);
void scheduler_windows_close(struct scheduler *sched);
/* True if the window block of a recorded block is cached. */
bool scheduler_windows_have(const struct scheduler *sched, uint32_t block);
/* True if a prefix hit of n_blocks needs no window blocks but the last n_last of these blocks. */
bool scheduler_windows_suffice(const struct scheduler *sched, uint32_t n_blocks, uint32_t n_last);
/* Attaches the window blocks that the sequence sees behind its attached blocks. */
void scheduler_windows_attach(struct scheduler *sched, const struct sequence *seq);
/* Block i of the sequence has been recorded as block `known` of the prefix cache. */
void scheduler_windows_record(struct scheduler *sched, const struct sequence *seq, uint32_t i,
                              uint32_t known);
/* The block is no longer recorded. */
void scheduler_windows_forget(struct scheduler *sched, uint32_t block);
/* Drops the window blocks that no later token of the sequence sees. */
void scheduler_windows_pass(struct scheduler *sched, const struct sequence *seq);
/* Appends a block to the sequence's table. Returns false if no block is free. */
bool scheduler_windows_grow(struct scheduler *sched, const struct sequence *seq);
/* As kv_cache_make_writable(). */
bool scheduler_windows_make_writable(struct scheduler *sched, const struct sequence *seq,
                                     uint32_t i, struct kv_copy *out_copy);
void scheduler_windows_trim(struct scheduler *sched, const struct sequence *seq, uint32_t n);
void scheduler_windows_clear(struct scheduler *sched, uint32_t slot);
void scheduler_windows_move(struct scheduler *sched, uint32_t from, uint32_t to);
/* True if the leader has all window blocks that the token at position `at` sees. */
bool scheduler_windows_can_fork(const struct scheduler *sched, const struct sequence *leader,
                                uint32_t at);
/* The choice shares the first n entries of the leader's table. */
void scheduler_windows_fork(struct scheduler *sched, const struct sequence *leader,
                            const struct sequence *seq, uint32_t n);
/* Writes the table of sequence s of the batch. Entries without a block get one that the sequence
 * holds. Attention may load a block that no row sees; it gives such a block no weight. */
void scheduler_windows_emit(const struct scheduler *sched, const struct sequence *seq,
                            struct step_batch *b, uint32_t s);
/* The place of the token at position `at` in the pool. */
uint32_t scheduler_windows_slot(const struct scheduler *sched, const struct sequence *seq,
                                uint32_t at);

/* --- scheduler_states.c --- */

/* Slots that no sequence of this step needs: drafts and snapshots may take them. */
uint32_t scheduler_states_n_spare(const struct scheduler *sched);
/* Makes sure that the sequence finds a slot for its last row of the step. Returns false if no slot
 * is free: the sequence waits for a later step. Always true if no other sequence has a row. */
bool scheduler_states_promise(struct scheduler *sched, const struct sequence *seq);
/* Chooses the slots that the sequence's next n rows, and those of its drafts, write. Needs a
 * promise; drafts need spare slots. */
void scheduler_states_choose(struct scheduler *sched, struct sequence *seq, uint32_t n);
/* Writes the chosen slots into the batch; `row` is the sequence's first. */
void scheduler_states_emit(const struct scheduler *sched, const struct sequence *seq, uint32_t row);
/* The slot that the sequence's next step reads and writes, if the step has a single row.
 * STATE_SLOT_NONE: it writes another, or none is chosen. */
uint32_t scheduler_states_next(const struct scheduler *sched, const struct sequence *seq);
/* The step is done: keeps the slot behind the sequence's computed tokens, and snapshots. Its full
 * blocks are recorded already. */
void scheduler_states_commit(struct scheduler *sched, const struct scheduler_flight *flight,
                             struct sequence *seq);
/* True if a block with this node of the prefix cache has a snapshot. */
bool scheduler_states_has_snapshot(const struct scheduler *sched, uint64_t node);
/* The sequence continues from the snapshot, which exists. */
void scheduler_states_attach(struct scheduler *sched, struct sequence *seq, uint64_t node);
/* True if choices wait for the state behind the prompt that the sequence computes, or for the
 * window there. */
bool scheduler_states_wait_for(const struct scheduler *sched, const struct sequence *seq);
/* How many of the sequence's next n rows fit in a piece. A piece ends with the prompt if choices
 * wait for the state or the window there. */
uint32_t scheduler_states_cut(const struct scheduler *sched, const struct sequence *seq,
                              uint32_t n);
/* Gives the leader's state to a choice. Returns false if the states differ in length. */
bool scheduler_states_fork(struct scheduler *sched, const struct sequence *leader,
                           struct sequence *seq);
/* Drops the sequence's state. */
void scheduler_states_release(struct scheduler *sched, struct sequence *seq);

/* --- scheduler_moves.c --- */

/* Moves the running sequence's state and blocks out, if that pays and a place is free. */
bool scheduler_moves_out(struct scheduler *sched, struct sequence *seq);
/* Moves them in again, to the sequence's new slot. Returns false if there is nothing to move, or no
 * room: then the sequence starts over. */
bool scheduler_moves_in(struct scheduler *sched, struct sequence *seq);
/* True if the sequence's state is in host memory. */
bool scheduler_moves_has(const struct scheduler *sched, const struct sequence *seq);
/* Frees what the sequence has moved out, if anything. */
void scheduler_moves_forget(struct scheduler *sched, struct sequence *seq);
/* Frees the blocks of a sequence that was moved out; that sequence starts over. Returns false if
 * there is none. */
bool scheduler_moves_give_blocks(struct scheduler *sched);
/* Blocks that scheduler_moves_give_blocks() can free, without those of the sequence `but`. */
uint32_t scheduler_moves_n_blocks(const struct scheduler *sched, const struct sequence *but);
/* Blocks of a sequence that was moved out; 0 for others. */
uint32_t scheduler_moves_table_len(const struct scheduler *sched, const struct sequence *seq);

/* --- scheduler_draft.c --- */

/* Drafts for the n sequences that decode in this step. Each has room for its own row, and no row
 * yet. Fills seq->draft, seq->n_drafts and the plan's draft_ns. */
void scheduler_draft_choose(struct scheduler *sched, struct sequence **seqs, uint32_t n);
