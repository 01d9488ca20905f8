#include "engine/schedule/scheduler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* before the first scheduler_set_row_cost(); the default of step_cost.c */
#define FIRST_BASE_ROWS 8.0f

static void on_evict(void *ctx, uint32_t block)
{
    struct scheduler *sched = ctx;
    if (sched->states && sched->prefix && prefix_cache_node(sched->prefix, block))
        state_cache_forget(sched->states, prefix_cache_node(sched->prefix, block));
    scheduler_windows_forget(sched, block);
    if (sched->prefix)
        prefix_cache_remove(sched->prefix, block);
    if (sched->cfg.forget_block)
        sched->cfg.forget_block(sched->cfg.draft_ctx, block);
}

static bool allocate_arrays(struct scheduler *sched)
{
    uint32_t n = sched->cfg.max_seqs;
    sched->running = calloc(n, sizeof(struct sequence *));
    sched->order = calloc(n, sizeof(struct sequence *));
    sched->started = calloc(n, sizeof(struct request *));
    sched->begun = calloc(n, sizeof(struct sequence *));
    sched->free_slots = calloc(n, sizeof(*sched->free_slots));
    sched->copies = calloc(n, 2 * sizeof(*sched->copies));
    sched->block_tokens = calloc(sched->cfg.block_size, sizeof(*sched->block_tokens));
    sched->jobs = calloc(sched->cfg.n_draft_seqs + 1, sizeof(*sched->jobs));
    sched->indexes =
        calloc(n, draft_index_len(scheduler_longest(&sched->cfg)) * sizeof(*sched->indexes));
    sched->moved = calloc(sched->cfg.n_host_states + 1, sizeof(struct sequence *));
    sched->ahead.slots = calloc(n, sizeof(*sched->ahead.slots));
    sched->ahead.versions = calloc(n, sizeof(*sched->ahead.versions));
    sched->ahead.window_versions = calloc(n, sizeof(*sched->ahead.window_versions));
    sched->n_active_of = calloc(sched->cfg.max_requests, sizeof(*sched->n_active_of));
    if (!sched->running || !sched->order || !sched->started || !sched->begun ||
        !sched->free_slots || !sched->copies || !sched->block_tokens || !sched->jobs ||
        !sched->ahead.slots || !sched->ahead.versions || !sched->ahead.window_versions ||
        !sched->n_active_of || !sched->indexes || !sched->moved || !scheduler_flights_open(sched))
        return false;
    for (uint32_t i = 0; i < n; i++)
        sched->free_slots[i] = n - 1 - i;
    sched->n_free_slots = n;
    return true;
}

int scheduler_create(const struct scheduler_config *cfg, struct scheduler **out_sched,
                     struct error *err)
{
    int rc = 0;
    struct scheduler *sched = calloc(1, sizeof(*sched));
    if (!sched)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the scheduler");
    sched->cfg = *cfg;
    sched->cfg.max_flights = cfg->max_flights ? cfg->max_flights : 1;
    sched->next_deadline_ns = INT64_MAX;
    sched->base_rows = FIRST_BASE_ROWS;
    if (!cfg->max_rows || !cfg->max_seqs || !cfg->block_size || !cfg->prefill_chunk_tokens ||
        !cfg->max_requests) {
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "scheduler: max_rows, max_seqs, block_size, prefill_chunk_tokens and "
                       "max_requests must not be 0");
        goto out;
    }
    if (cfg->n_state_slots &&
        (!cfg->n_running_states || cfg->n_running_states > cfg->n_state_slots)) {
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "scheduler: %u state slots for %u running sequences", cfg->n_state_slots,
                       cfg->n_running_states);
        goto out;
    }
    if (!cfg->n_state_slots)
        sched->cfg.n_host_states = 0;
    if (cfg->n_state_slots && cfg->n_running_states < cfg->max_seqs)
        sched->cfg.max_seqs = cfg->n_running_states;
    if (!allocate_arrays(sched)) {
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u sequences", cfg->max_seqs);
        goto out;
    }
    struct kv_cache_config kv = {
        .n_blocks = cfg->n_blocks,
        .n_slots = sched->cfg.max_seqs + sched->cfg.n_host_states,
        .max_blocks_per_seq = cfg->max_blocks_per_seq,
        .max_proven = cfg->n_blocks / 4, /* tests/bench/bench_prefix_cache.c */
        .on_evict = on_evict,
        .ctx = sched,
    };
    rc = kv_cache_create(&kv, &sched->kv, err);
    if (!rc && cfg->prefix_cache)
        rc = prefix_cache_create(cfg->n_blocks, cfg->block_size, &sched->prefix, err);
    if (!rc)
        rc = scheduler_windows_open(sched, err);
    if (!rc && cfg->n_state_slots)
        rc = state_cache_create(cfg->n_state_slots, &sched->states, err);
    if (!rc)
        rc = fair_share_create(cfg->max_requests, &sched->share, err);
    if (!rc)
        rc = scheduler_queue_create(cfg->max_requests, sched->share, &sched->queue, err);
    if (!rc)
        *out_sched = sched;
out:
    if (rc)
        scheduler_destroy(sched);
    return rc;
}

void scheduler_destroy(struct scheduler *sched)
{
    if (!sched)
        return;
    kv_cache_destroy(sched->kv);
    scheduler_windows_close(sched);
    prefix_cache_destroy(sched->prefix);
    state_cache_destroy(sched->states);
    scheduler_queue_destroy(sched->queue);
    fair_share_destroy(sched->share);
    free(sched->n_active_of);
    free(sched->running);
    scheduler_flights_close(sched);
    free(sched->order);
    free(sched->started);
    free(sched->begun);
    free(sched->free_slots);
    free(sched->copies);
    free(sched->block_tokens);
    free(sched->jobs);
    free(sched->indexes);
    free(sched->moved);
    free(sched->ahead.slots);
    free(sched->ahead.versions);
    free(sched->ahead.window_versions);
    free(sched);
}

/* --- requests: add, change, end --- */

/* A caller without queued work starts level with the callers that have work, or else with the last
 * one served. */
static void queue_request(struct scheduler *sched, struct request *r)
{
    if (!scheduler_queue_has_caller(sched->queue, r->i_caller)) {
        uint64_t waiting = scheduler_queue_least(sched->queue, r->priority);
        uint64_t computed = scheduler_prompts_least(sched, r->priority);
        uint64_t least = waiting < computed ? waiting : computed;
        fair_share_raise(sched->share, r->i_caller,
                         least < UINT64_MAX ? least : sched->last_counter);
    }
    scheduler_queue_add(sched->queue, r);
}

void scheduler_add(struct scheduler *sched, struct request *r)
{
    r->state = REQUEST_WAITING;
    r->n_live = 0;
    for (uint32_t i = r->n_choices; i-- > 0;)
        if (r->choices[i].state != SEQUENCE_ENDED) {
            r->leader = i;
            r->n_live++;
        }
    assert(r->n_live);
    for (uint32_t i = 0; i < r->n_choices; i++)
        r->choices[i].place = SEQUENCE_NO_PLACE;
    r->i_caller = fair_share_hold(sched->share, r->caller);
    r->prev = NULL;
    r->next = sched->live;
    if (r->next)
        r->next->prev = r;
    sched->live = r;
    sched->n_live++;
    if (r->deadline_ns && r->deadline_ns < sched->next_deadline_ns)
        sched->next_deadline_ns = r->deadline_ns;
    if (r->paused)
        sched->n_paused++;
    else
        queue_request(sched, r);
}

static void leave_active(struct scheduler *sched, const struct request *r)
{
    sched->n_active--;
    sched->n_active_of[r->i_caller]--;
}

static void forget_request(struct scheduler *sched, struct request *r)
{
    if (r->state == REQUEST_ACTIVE)
        leave_active(sched, r);
    else if (!r->paused)
        scheduler_queue_remove(sched->queue, r);
    fair_share_release(sched->share, r->i_caller);
    if (r->paused)
        sched->n_paused--;
    *(r->prev ? &r->prev->next : &sched->live) = r->next;
    if (r->next)
        r->next->prev = r->prev;
    r->prev = r->next = NULL;
    r->state = REQUEST_ENDED;
    sched->n_live--;
    sched->deadlines_changed |= r->deadline_ns == sched->next_deadline_ns;
}

/* Takes the sequence's slot and blocks away. `returns`: the sequence will run again. */
static void leave_running(struct scheduler *sched, struct sequence *seq, bool returns)
{
    uint32_t i = 0;
    assert(!seq->n_rows); /* not in flight */
    while (sched->running[i] != seq)
        i++;
    sched->n_running--;
    memmove(&sched->running[i], &sched->running[i + 1],
            (sched->n_running - i) * sizeof(struct sequence *));
    if (!returns || !scheduler_moves_out(sched, seq))
        scheduler_blocks_release(sched, seq);
    if (seq->draft)
        draft_leave_place(seq->draft);
    sched->free_slots[sched->n_free_slots++] = seq->slot;
}

void scheduler_end_sequence(struct scheduler *sched, struct sequence *seq)
{
    struct request *r = seq->request;
    if (seq->state == SEQUENCE_ENDED)
        return;
    if (seq->state != SEQUENCE_WAITING)
        leave_running(sched, seq, false);
    else
        scheduler_moves_forget(sched, seq);
    seq->state = SEQUENCE_ENDED;
    if (!--r->n_live) {
        forget_request(sched, r);
        return;
    }
    if (seq->choice != r->leader)
        return;
    /* The leader computes the prompt for all choices. If the prompt is not complete, the next live
     * choice computes the rest. */
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].state != SEQUENCE_ENDED) {
            r->leader = i;
            if (r->choices[i].state == SEQUENCE_FORKING)
                r->choices[i].state = SEQUENCE_RUNNING;
            return;
        }
}

void scheduler_end_request(struct scheduler *sched, struct request *r)
{
    /* Backwards: the leader ends last, so that no other choice takes over the prompt. */
    for (uint32_t i = r->n_choices; i-- > 0;)
        scheduler_end_sequence(sched, &r->choices[i]);
}

void scheduler_pause(struct scheduler *sched, struct request *r, bool paused)
{
    if (r->paused == paused || r->state == REQUEST_ENDED)
        return;
    r->paused = paused;
    sched->n_paused += paused ? 1 : UINT32_MAX;
    if (r->state == REQUEST_WAITING && paused)
        scheduler_queue_remove(sched->queue, r);
    else if (r->state == REQUEST_WAITING)
        queue_request(sched, r);
}

void scheduler_send_back(struct scheduler *sched, struct request *r)
{
    for (uint32_t i = r->n_choices; i-- > 0;) {
        struct sequence *seq = &r->choices[i];
        if (seq->state == SEQUENCE_ENDED)
            continue;
        leave_running(sched, seq, true);
        seq->state = SEQUENCE_WAITING;
        r->leader = i;
    }
    leave_active(sched, r);
    r->state = REQUEST_WAITING;
    r->sent_back = true;
    r->n_preemptions++;
    sched->n_preemptions++;
    if (!r->paused)
        scheduler_queue_add(sched->queue, r);
}

/* Running order: priority, arrival, choice. */
static bool runs_before(const struct sequence *a, const struct sequence *b)
{
    const struct request *ra = a->request, *rb = b->request;
    if (ra->priority != rb->priority)
        return ra->priority > rb->priority;
    return ra->arrival != rb->arrival ? ra->arrival < rb->arrival : a->choice < b->choice;
}

static void sort_sequences(struct sequence **seqs, uint32_t n,
                           bool (*before)(const struct sequence *, const struct sequence *))
{
    for (uint32_t i = 1; i < n; i++) {
        struct sequence *seq = seqs[i];
        uint32_t j = i;
        for (; j > 0 && before(seq, seqs[j - 1]); j--)
            seqs[j] = seqs[j - 1];
        seqs[j] = seq;
    }
}

void scheduler_sort_running(struct scheduler *sched)
{
    sort_sequences(sched->running, sched->n_running, runs_before);
}

void scheduler_set_priority(struct scheduler *sched, struct request *r, int32_t priority)
{
    bool waits = r->state == REQUEST_WAITING && !r->paused;
    if (waits)
        scheduler_queue_remove(sched->queue, r);
    r->priority = priority;
    if (waits)
        scheduler_queue_add(sched->queue, r);
    scheduler_sort_running(sched);
}

struct request *scheduler_any(const struct scheduler *sched)
{
    return sched->live;
}

struct request *scheduler_expired(struct scheduler *sched, int64_t now_ns)
{
    if (now_ns < sched->next_deadline_ns && !sched->deadlines_changed)
        return NULL;
    int64_t next = INT64_MAX;
    for (struct request *r = sched->live; r; r = r->next) {
        if (r->deadline_ns && r->deadline_ns <= now_ns)
            return r;
        if (r->deadline_ns && r->deadline_ns < next)
            next = r->deadline_ns;
    }
    sched->next_deadline_ns = next;
    sched->deadlines_changed = false;
    return NULL;
}

int64_t scheduler_next_deadline(const struct scheduler *sched)
{
    return sched->next_deadline_ns;
}

/* --- planning a step --- */

/* Rules for a step with too few rows for all. A sequence without a row for MOST_PASSED_OVER steps
 * goes first, whatever its priority. Waiting prompts get 1/PROMPTS_PART of the rows. */
enum { MOST_PASSED_OVER = 8, PROMPTS_PART = 4 };

/* Order of decoding sequences when rows are scarce. */
static bool waited_longer(const struct sequence *a, const struct sequence *b)
{
    if (a->overdue != b->overdue)
        return a->overdue;
    if (!a->overdue && a->request->priority != b->request->priority)
        return a->request->priority > b->request->priority;
    return a->last_step != b->last_step ? a->last_step < b->last_step : runs_before(a, b);
}

/* Rows reserved for prompts; 0 if max_rows is 1 (engines have 2 or more). */
static uint32_t rows_of_prompts(uint32_t max_rows)
{
    uint32_t part = (max_rows + PROMPTS_PART - 1) / PROMPTS_PART;
    part = part < SCHEDULER_LEAST_PREFILL_ROWS ? part : SCHEDULER_LEAST_PREFILL_ROWS;
    return part < max_rows ? part : 0;
}

static void schedule_decodes(struct scheduler *sched)
{
    uint32_t n = 0, most = sched->cfg.max_rows, part = rows_of_prompts(most);
    uint32_t most_passed = MOST_PASSED_OVER * sched->cfg.max_flights;
    bool prompts = false;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct sequence *seq = sched->running[i];
        if (seq->state != SEQUENCE_RUNNING || seq->request->paused || seq->n_rows)
            continue;
        seq->overdue = sched->n_steps > seq->last_step + most_passed;
        if (sequence_decodes(seq))
            sched->order[n++] = seq;
        else
            prompts = true;
        if (sequence_decodes(seq) || (seq->n_ids > seq->n_replayed && !seq->n_computed))
            sched->plan.n_decode_ready++;
    }
    if (n + part > most && (prompts || scheduler_starts_possible(sched)))
        most -= part;
    uint32_t share = scheduler_flights_share(sched, n);
    if (n > most) {
        sort_sequences(sched->order, n, waited_longer);
        n = most;
    }
    if (n > share) { /* the others are for the next step */
        sched->plan.n_decode_ready -= n - share;
        n = share;
    }
    n = scheduler_blocks_make_room(sched, sched->order, n);
    uint32_t n_roomy = 0;
    for (uint32_t i = 0; i < n; i++)
        if (scheduler_blocks_reserve(sched, sched->order[i], 1, false) &&
            scheduler_states_promise(sched, sched->order[i]))
            sched->order[n_roomy++] = sched->order[i];
    scheduler_draft_choose(sched, sched->order, n_roomy);
    for (uint32_t i = 0; i < n_roomy; i++)
        scheduler_batch_emit(sched, sched->order[i], 1);
    sched->plan.n_decode_rows = n_roomy;
}

/* Chooses the rows of the step. */
static void fill_step(struct scheduler *sched, int64_t now_ns)
{
    schedule_decodes(sched);
    sched->shape.n_decode = sched->batch->n_rows;
    scheduler_prompts_schedule(sched, now_ns);
    sched->shape.n_prefill = sched->plan.n_prefill_rows;
    scheduler_batch_want_drafts(sched);
}

bool scheduler_schedule(struct scheduler *sched, struct step_batch *batch, int64_t now_ns,
                        struct scheduler_plan *out_plan)
{
    step_batch_clear(batch);
    sched->batch = batch;
    sched->plan = (struct scheduler_plan){0};
    sched->n_scored = 0;
    sched->n_states_promised = 0;
    sched->n_moves = 0;
    sched->n_steps++;
    sched->shape = (struct step_shape){0};
    scheduler_flights_begin(sched);
    scheduler_blocks_cross(sched);
    if (scheduler_starts_make_place(sched, now_ns))
        fill_step(sched, now_ns);
    scheduler_ahead_close(sched);
    sched->flight->shape = sched->shape;
    sched->plan.copies = sched->copies;
    sched->plan.moves = sched->moves;
    sched->plan.n_moves = sched->n_moves;
    sched->plan.samples = sched->flight->samples;
    sched->plan.scored = sched->flight->scored;
    sched->plan.started = sched->started;
    sched->plan.begun = sched->begun;
    *out_plan = sched->plan;
    sched->n_flights += batch->n_rows > 0;
    return batch->n_rows > 0;
}

void scheduler_set_move_ns(struct scheduler *sched, int64_t ns)
{
    sched->move_ns = ns;
}

void scheduler_set_row_cost(struct scheduler *sched, float base_rows)
{
    sched->base_rows = base_rows;
}

/* Queued requests are not ready if only paused requests hold the slots: they wait for clients, not
 * for the engine. Blocks can be taken from paused requests; slots only for a higher priority or
 * another caller. */
static uint32_t count_ready(const struct scheduler *sched)
{
    uint32_t n_moving = 0, n_held = 0, n_queued = 0;
    for (const struct request *r = sched->live; r; r = r->next) {
        if (r->state == REQUEST_ACTIVE)
            *(r->paused ? &n_held : &n_moving) += 1;
        else
            n_queued += !r->paused;
    }
    bool room = sched->n_running + ENGINE_MAX_CHOICES <= sched->cfg.max_seqs;
    return n_moving || !n_held || room ? n_moving + n_queued : 0;
}

void scheduler_saw_step(struct scheduler *sched, int64_t step_ns)
{
    step_time_saw(&sched->time, &sched->done, step_ns);
}

/* Tokens of the request's prompts and replays that are still to be computed. */
static uint32_t queued_tokens(const struct request *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct sequence *seq = &r->choices[i];
        if (seq->state == SEQUENCE_RUNNING || (seq->state == SEQUENCE_WAITING && i == r->leader))
            n += sequence_n_left(seq) > 1 ? sequence_n_left(seq) : 0;
    }
    return n;
}

void scheduler_each(const struct scheduler *sched, scheduler_each_fn *fn, void *ctx)
{
    for (const struct request *r = sched->live; r; r = r->next)
        if (r->state == REQUEST_ACTIVE || !r->paused)
            fn(ctx, r, r->paused ? 0 : queued_tokens(r));
}

/* Running requests beyond the first of each caller: a caller with n requests adds n - 1. */
static uint32_t count_several(const struct scheduler *sched)
{
    double sum = 0;
    for (const struct request *r = sched->live; r; r = r->next) {
        uint32_t n = sched->n_active_of[r->i_caller];
        if (r->state == REQUEST_ACTIVE)
            sum += (double)(n - 1) / n;
    }
    return (uint32_t)(sum + 0.5);
}

/* Finds the lowest priority that may be sent back for a higher one, and its slots. */
static void find_lowest(const struct scheduler *sched, struct scheduler_stats *stats)
{
    stats->lowest_priority = INT32_MAX;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct request *r = sched->running[i]->request;
        if (r->sent_back || r->priority > stats->lowest_priority)
            continue;
        if (r->priority < stats->lowest_priority)
            stats->n_lowest = 0;
        stats->lowest_priority = r->priority;
        stats->n_lowest++;
    }
}

void scheduler_get_stats(const struct scheduler *sched, struct scheduler_stats *out_stats)
{
    uint64_t queued = 0;
    for (const struct request *r = sched->live; r; r = r->next)
        queued += queued_tokens(r);
    *out_stats = (struct scheduler_stats){
        .n_queued = sched->n_live - sched->n_active,
        .n_running = sched->n_active,
        .n_paused = sched->n_paused,
        .n_ready = count_ready(sched),
        .n_several = count_several(sched),
        .n_used_slots = sched->n_running,
        .n_blocks = kv_cache_n_blocks(sched->kv),
        .n_blocks_free = kv_cache_n_free(sched->kv),
        .n_blocks_cached = kv_cache_n_kept_free(sched->kv),
        .queued_tokens = queued,
        .n_preemptions = sched->n_preemptions,
        .n_prefix_hit_tokens = sched->n_prefix_hit_tokens,
        .n_prefix_query_tokens = sched->n_prefix_query_tokens,
        .n_rope_crossings = sched->n_rope_crossings,
    };
    if (sched->windows.kv) {
        out_stats->n_window_blocks = kv_cache_n_blocks(sched->windows.kv);
        out_stats->n_window_blocks_free = kv_cache_n_free(sched->windows.kv);
        out_stats->n_window_blocks_cached = kv_cache_n_kept_free(sched->windows.kv);
    }
    if (sched->states) {
        out_stats->n_state_slots = sched->cfg.n_state_slots;
        out_stats->n_states_used = sched->cfg.n_state_slots - state_cache_n_free(sched->states);
        out_stats->n_snapshots = state_cache_n_snapshots(sched->states);
        out_stats->n_moved_out = sched->n_moved_out;
        out_stats->n_snapshot_hits = sched->n_snapshot_hits;
        out_stats->n_snapshot_evictions = state_cache_n_evictions(sched->states);
    }
    find_lowest(sched, out_stats);
}
