#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* True if the prompt of `a` is served before that of `b`. Requests of the priority *turn come
 * before all others. */
static bool comes_before(const struct scheduler *sched, const struct request *a,
                         const struct request *b, const int32_t *turn)
{
    if (a->priority != b->priority && turn && (a->priority == *turn || b->priority == *turn))
        return a->priority == *turn;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    uint64_t of_a = fair_share_counter(sched->share, a->i_caller);
    uint64_t of_b = fair_share_counter(sched->share, b->i_caller);
    return of_a != of_b ? of_a < of_b : a->arrival < b->arrival;
}

/* True if the sequence has prompt or replay rows to compute. */
static bool is_in_prompt(const struct sequence *seq)
{
    return seq->state == SEQUENCE_RUNNING && !seq->request->paused && !sequence_decodes(seq);
}

/* The same, and the sequence has no rows in this step or one in flight. */
static bool needs_piece(const struct sequence *seq)
{
    return is_in_prompt(seq) && !seq->n_rows;
}

uint64_t scheduler_prompts_least(const struct scheduler *sched, int32_t priority)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct request *r = sched->running[i]->request;
        uint64_t counter = fair_share_counter(sched->share, r->i_caller);
        if (is_in_prompt(sched->running[i]) && r->priority >= priority && counter < least)
            least = counter;
    }
    return least;
}

/* --- a piece --- */

/* Outcome for one piece. */
enum piece {
    PIECE_SCHEDULED,
    PIECE_NO_ROOM,   /* the step has no room left */
    PIECE_NO_SCORES, /* the step scores as many rows as it can */
    PIECE_NO_BLOCKS, /* no KV blocks are free */
};

/* How many of n rows behind `depth` computed positions fit into the step's time limit. */
static uint32_t cut_to_time(const struct scheduler *sched, uint32_t depth, uint32_t n)
{
    struct step_shape shape = sched->shape;
    uint32_t done = sched->plan.n_prefill_rows;
    if (!sched->limit_ns || !(shape.n_decode + sched->n_others))
        return n;
    shape.n_prefill = done;
    uint32_t fits = step_time_fit_rows(&sched->time, &shape, depth, sched->limit_ns, n);
    uint32_t least = done < SCHEDULER_LEAST_PREFILL_ROWS ? SCHEDULER_LEAST_PREFILL_ROWS - done : 0;
    fits = fits > least ? fits : least;
    return fits < n ? fits : n;
}

/* Attaches the cached blocks of the sequence's tokens. */
static void start_sequence(struct scheduler *sched, struct sequence *seq)
{
    struct request *r = seq->request;
    scheduler_blocks_attach_prefix(sched, seq);
    if (!r->n_cached_tokens && !r->n_preemptions && !seq->begun)
        r->n_cached_tokens = seq->n_computed < r->n_prompt ? seq->n_computed : r->n_prompt;
    if (seq->n_charged < seq->n_computed)
        seq->n_charged = seq->n_computed; /* cached tokens are not charged */
}

/* The sequence's first piece is in the step: counts its cached tokens once. */
static void count_begun(struct scheduler *sched, struct sequence *seq)
{
    seq->begun = true;
    if (sched->plan.n_begun < sched->cfg.max_seqs)
        sched->begun[sched->plan.n_begun++] = seq;
    if (!sched->prefix)
        return;
    sched->n_prefix_query_tokens += sequence_n_tokens(seq);
    sched->n_prefix_hit_tokens += seq->n_computed;
}

/* Schedules a piece of a prompt or replay. `force`: takes the blocks of other sequences. */
static enum piece schedule_piece(struct scheduler *sched, struct sequence *seq, bool force)
{
    if (!kv_cache_table_len(sched->kv, seq->slot)) {
        if (!force && scheduler_blocks_missing(sched, seq, scheduler_starts_spare_blocks(sched)))
            return PIECE_NO_BLOCKS;
        start_sequence(sched, seq);
    }
    uint32_t n = sequence_n_left(seq), room = sched->cfg.max_rows - sched->batch->n_rows;
    if (seq->is_long != scheduler_is_long(&sched->cfg, sequence_n_tokens(seq)))
        n = seq->request->n_prompt - seq->n_computed; /* after its scores the sequence crosses */
    n = scheduler_states_cut(sched, seq, n);
    n = n < sched->cfg.prefill_chunk_tokens ? n : sched->cfg.prefill_chunk_tokens;
    n = n < room ? n : room;
    n = cut_to_time(sched, seq->n_computed, n);
    if (!n)
        return PIECE_NO_ROOM;
    if (seq->request->prompt_logprobs)
        n = scheduler_batch_cut_to_scores(sched, seq, n);
    if (!n)
        return PIECE_NO_SCORES;
    n = scheduler_blocks_reserve(sched, seq, n, force);
    if (!n || !scheduler_states_promise(sched, seq))
        return PIECE_NO_BLOCKS;
    if (!seq->begun)
        count_begun(sched, seq);
    scheduler_batch_emit(sched, seq, n);
    sched->plan.n_prefill_rows += n;
    sched->last_caller = seq->request->i_caller;
    sched->last_counter = fair_share_counter(sched->share, sched->last_caller);
    return PIECE_SCHEDULED;
}

/* --- the step's prompts --- */

/* The next sequence to get a piece: none that got a piece, or failed to, in this step. */
static struct sequence *next_running(const struct scheduler *sched, const int32_t *turn)
{
    struct sequence *best = NULL;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct sequence *seq = sched->running[i];
        if (!needs_piece(seq) || seq->passed_step == sched->n_steps)
            continue;
        if (!best || comes_before(sched, seq->request, best->request, turn))
            best = seq;
    }
    return best;
}

static void end_age_turn(struct scheduler *sched)
{
    sched->n_since_turn = 0;
    sched->own_turn = !sched->own_turn;
}

/* Schedules one piece, or marks the sequence that can get none. Returns false if no sequence is
 * left or the step has no room. *floor: highest priority of a started sequence that waits for
 * blocks. Sequences without blocks and requests up to that priority may not begin. */
static bool schedule_next(struct scheduler *sched, const int32_t *turn, int32_t *floor,
                          int64_t now_ns)
{
    bool blocked = *floor > INT32_MIN;
    struct sequence *seq = next_running(sched, turn);
    struct request *r = scheduler_starts_next(sched, turn);
    if (r && (!seq || comes_before(sched, r, seq->request, turn)) && r->priority > *floor) {
        scheduler_starts_activate(sched, r, now_ns);
        seq = &r->choices[r->leader];
    }
    if (!seq)
        return false;
    seq->passed_step = sched->n_steps;
    if (blocked && !kv_cache_table_len(sched->kv, seq->slot))
        return true;
    enum piece piece = schedule_piece(sched, seq, false);
    if (piece == PIECE_SCHEDULED && turn && seq->request->priority == *turn && !sched->own_turn)
        end_age_turn(sched);
    if (piece == PIECE_NO_BLOCKS && !blocked)
        *floor = seq->request->priority;
    return piece != PIECE_NO_ROOM;
}

/* The request that this step's age turn favours, or NULL: the oldest request whose prompt waits.
 * The age turn lasts until it has been used. */
static struct request *age_turn_request(const struct scheduler *sched)
{
    struct request *oldest = scheduler_queue_oldest(sched->queue);
    if (sched->n_since_turn < SCHEDULER_AGE_TURN - 1)
        return NULL;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct request *r = sched->running[i]->request;
        if (needs_piece(sched->running[i]) && (!oldest || r->arrival < oldest->arrival))
            oldest = r;
    }
    return oldest;
}

/* Schedules a piece of the oldest request itself before all others. Within its priority, the
 * request could otherwise stay behind ever new callers. Returns false if it gets no piece. */
static bool schedule_oldest(struct scheduler *sched, struct request *r, int64_t now_ns)
{
    struct sequence *seq = NULL;
    if (r->state == REQUEST_WAITING && !scheduler_starts_oldest(sched, r, now_ns))
        return false;
    for (uint32_t i = 0; i < r->n_choices && !seq; i++)
        if (needs_piece(&r->choices[i]))
            seq = &r->choices[i];
    if (!seq)
        return false;
    seq->passed_step = sched->n_steps;
    return schedule_piece(sched, seq, false) == PIECE_SCHEDULED;
}

static bool can_decode(const struct scheduler *sched, const struct sequence *seq)
{
    return sched->states && seq->state == SEQUENCE_RUNNING && !seq->request->paused;
}

/* Nothing else runs: the first request in running order, or else of the queue, takes the blocks
 * that it needs. A request that was moved in again may decode already. */
static void schedule_alone(struct scheduler *sched, int64_t now_ns)
{
    for (uint32_t i = 0; i < sched->n_running; i++)
        if (needs_piece(sched->running[i]) || can_decode(sched, sched->running[i])) {
            schedule_piece(sched, sched->running[i], true);
            return;
        }
    struct request *r = scheduler_starts_alone(sched);
    if (!r)
        return;
    scheduler_starts_activate(sched, r, now_ns);
    schedule_piece(sched, &r->choices[r->leader], true);
}

/* True if the sequence will decode beside others for a while. */
static bool is_lasting(const struct sequence *seq)
{
    return sequence_decodes(seq) || seq->request->max_tokens >= SCHEDULER_LASTING_TOKENS;
}

/* Predicts the time of a step without prompts in which all running and waiting sequences decode.
 * Paused sequences do not count, nor do those without is_lasting(), which end soon. The sequences
 * that decode now would slow down to this pace anyway when the waiting ones join. And the sooner
 * these join, the fewer steps are needed in total.
 *
 * If all past steps had the same number of decode rows, the cost of one more decode row is unknown.
 * The cost of two prompt rows is then the upper bound; a prompt row does the same work as a decode
 * row. */
static int64_t decode_ns_of_all(const struct scheduler *sched, struct step_shape all)
{
    struct step_shape as_rows;
    uint32_t n = scheduler_queue_n_lasting(sched->queue);
    for (uint32_t i = 0; i < sched->n_running; i++)
        n += !sched->running[i]->request->paused && is_lasting(sched->running[i]);
    n = n < sched->cfg.max_seqs ? n : sched->cfg.max_seqs;
    n = (n + sched->n_flights) / (1 + sched->n_flights); /* the share of this step */
    if (!all.n_decode && sched->n_others)
        all.n_decode = n;
    if (!all.n_decode || n <= all.n_decode)
        return step_time_predict(&sched->time, &all);
    all.n_context = all.n_context / all.n_decode * n;
    as_rows = all;
    as_rows.n_prefill = 2 * (n - all.n_decode);
    all.n_decode = n;
    int64_t ns = step_time_predict(&sched->time, &all);
    int64_t ns_as_rows = step_time_predict(&sched->time, &as_rows);
    return ns < ns_as_rows ? ns : ns_as_rows;
}

int64_t scheduler_prompts_limit_ns(const struct scheduler *sched, const struct step_shape *shape,
                                   int64_t draft_ns)
{
    int64_t target = sched->cfg.target_step_ns;
    /* A token waits for the other steps in flight, too. */
    int64_t limit = target / (1 + sched->n_flights) - draft_ns;
    if (!target)
        return 0;
    if (target == SCHEDULER_TARGET_AUTO) { /* a step without prompts includes drafting, too */
        int64_t quarter_ns = decode_ns_of_all(sched, *shape) / 4;
        limit = quarter_ns < (INT64_MAX - draft_ns) / 7 ? 7 * quarter_ns + draft_ns : INT64_MAX;
    }
    return limit > 0 ? limit : 1;
}

static bool has_room(const struct scheduler *sched)
{
    return sched->batch->n_rows < sched->cfg.max_rows && cut_to_time(sched, 0, 1);
}

void scheduler_prompts_schedule(struct scheduler *sched, int64_t now_ns)
{
    int32_t floor = INT32_MIN;
    struct request *oldest = age_turn_request(sched);
    const int32_t *turn = oldest ? &oldest->priority : NULL;
    sched->limit_ns = scheduler_prompts_limit_ns(sched, &sched->shape, sched->plan.draft_ns);
    scheduler_starts_plan(sched, sched->own_turn ? oldest : NULL, turn);
    if (oldest && sched->own_turn) {
        turn = NULL;
        if (has_room(sched) && schedule_oldest(sched, oldest, now_ns))
            end_age_turn(sched);
        else if (sched->n_since_turn >= 2 * SCHEDULER_AGE_TURN)
            sched->own_turn = false; /* the request waits for room, which no age turn gives */
    }
    while (has_room(sched) && schedule_next(sched, turn, &floor, now_ns))
        ;
    if (!sched->batch->n_rows && !sched->n_flights)
        schedule_alone(sched, now_ns);
    sched->n_since_turn += sched->plan.n_prefill_rows > 0;
}
