/* Starts of queued requests: the first request that has room, and the requests that are sent back
 * for it. */
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* Most queued requests that a step checks when the first of the queue has no room. */
enum { MOST_TRIED = 16 };

uint32_t scheduler_starts_spare_blocks(const struct scheduler *sched)
{
    uint32_t n = sched->plan.n_decode_rows + sched->n_others;
    return sched->batch->n_rows || sched->n_flights ? 1 + n / 8 : 0;
}

/* True if slots and blocks suffice for the request, with `spare` blocks left free. */
static bool has_room_for(struct scheduler *sched, const struct request *r, uint32_t spare)
{
    return r->n_live <= sched->n_free_slots &&
           !scheduler_blocks_missing(sched, &r->choices[r->leader], spare);
}

struct fit {
    struct scheduler *sched;
    uint32_t spare;
    uint32_t n_tried;
};

static bool request_fits(void *ctx, struct request *r)
{
    struct fit *fit = ctx;
    return r->n_live <= fit->sched->n_free_slots && fit->n_tried++ < MOST_TRIED &&
           has_room_for(fit->sched, r, fit->spare);
}

/* The first of the queue if it has room (the usual case); else the first request that has room. */
static struct request *find_fitting(struct scheduler *sched, const int32_t *turn, uint32_t spare)
{
    struct fit fit = {.sched = sched, .spare = spare};
    struct request *first = sched->n_free_slots ? scheduler_queue_peek(sched->queue, turn) : NULL;
    if (!first || has_room_for(sched, first, spare))
        return first;
    return scheduler_queue_find(sched->queue, turn, request_fits, &fit);
}

static bool fits_alone(void *ctx, struct request *r)
{
    const struct scheduler *sched = ctx;
    return r->n_live <= sched->n_free_slots;
}

struct request *scheduler_starts_alone(struct scheduler *sched)
{
    return scheduler_queue_find(sched->queue, NULL, fits_alone, sched);
}

/* Slots that are free or will come free. A paused request frees its slots only when its reader
 * continues. */
static uint32_t moving_places(const struct scheduler *sched)
{
    uint32_t n = sched->n_free_slots;
    for (uint32_t i = 0; i < sched->n_running; i++)
        n += !sched->running[i]->request->paused;
    return n;
}

void scheduler_starts_plan(struct scheduler *sched, struct request *oldest, const int32_t *turn)
{
    struct request *r = oldest ? oldest : scheduler_queue_peek(sched->queue, turn);
    sched->holds = false;
    sched->passed = NULL;
    if (!r || r->state != REQUEST_WAITING ||
        has_room_for(sched, r, scheduler_starts_spare_blocks(sched)))
        return;
    sched->passed = r;
    if (r->n_passed < SCHEDULER_MOST_PASSED)
        return;
    sched->holds = r->n_held < SCHEDULER_HOLD_STEPS && moving_places(sched) >= r->n_live;
    if (sched->holds)
        r->n_held++;
    else
        r->n_passed = r->n_held = 0;
}

struct request *scheduler_starts_next(struct scheduler *sched, const int32_t *turn)
{
    return sched->holds ? NULL : find_fitting(sched, turn, scheduler_starts_spare_blocks(sched));
}

bool scheduler_starts_possible(struct scheduler *sched)
{
    return find_fitting(sched, NULL, 1 + sched->n_running / 8) != NULL;
}

void scheduler_starts_activate(struct scheduler *sched, struct request *r, int64_t now_ns)
{
    scheduler_queue_remove(sched->queue, r);
    r->state = REQUEST_ACTIVE;
    r->n_passed = r->n_held = 0;
    if (sched->passed && sched->passed != r)
        sched->passed->n_passed++;
    if (!r->active_ns)
        r->active_ns = now_ns;
    sched->n_active++;
    sched->n_active_of[r->i_caller]++;
    sched->started[sched->plan.n_started++] = r;
    uint32_t n_tokens = scheduler_longest(&sched->cfg), index_len = draft_index_len(n_tokens);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct sequence *seq = &r->choices[i];
        if (seq->state != SEQUENCE_WAITING)
            continue;
        seq->slot = sched->free_slots[--sched->n_free_slots];
        bool is_back = scheduler_moves_in(sched, seq);
        seq->state = i == r->leader || is_back ? SEQUENCE_RUNNING : SEQUENCE_FORKING;
        if (!is_back) {
            seq->n_computed = seq->n_hashed = seq->n_rows = 0;
            seq->begun = false;
            seq->chain_node = PREFIX_ROOT;
            seq->state_slot = STATE_SLOT_NONE;
            seq->snapshot_block = 0;
        }
        if (seq->draft)
            draft_take_place(seq->draft, seq, sched->indexes + (size_t)seq->slot * index_len,
                             n_tokens);
        sched->running[sched->n_running++] = seq;
    }
    scheduler_sort_running(sched);
}

bool scheduler_starts_oldest(struct scheduler *sched, struct request *r, int64_t now_ns)
{
    if (!has_room_for(sched, r, scheduler_starts_spare_blocks(sched)))
        return false;
    scheduler_starts_activate(sched, r, now_ns);
    return true;
}

/* --- running requests that give up their slots --- */

/* True if the running request `v` may be sent back for the waiting request `r`. A `v` of lower
 * priority may be sent back once. A `v` of the same priority may be sent back if the caller of `r`
 * has nothing running. The caller of `v` must then have several requests running, and no lower
 * share counter than the caller of `r`. */
static bool may_yield(const struct scheduler *sched, const struct request *v,
                      const struct request *r)
{
    if (v->yields || v->priority > r->priority)
        return false;
    if (v->priority < r->priority)
        return !v->sent_back;
    return !sched->n_active_of[r->i_caller] && sched->n_active_of[v->i_caller] > 1 &&
           fair_share_counter(sched->share, v->i_caller) >=
               fair_share_counter(sched->share, r->i_caller);
}

/* Computed tokens that are lost if `v` is sent back. */
static uint64_t lost_tokens(const struct scheduler *sched, const struct request *v)
{
    uint64_t lost = 0;
    for (uint32_t c = 0; c < v->n_choices; c++)
        if (v->choices[c].state == SEQUENCE_RUNNING)
            lost += scheduler_lost_tokens(sched, &v->choices[c]);
    return lost;
}

/* The next request to send back for `r`, or NULL. Order: lowest priority; within the priority of
 * `r`, the caller with most running requests; then the least lost work. */
static struct request *find_yielding(const struct scheduler *sched, const struct request *r)
{
    struct request *best = NULL;
    uint64_t best_lost = 0;
    uint32_t best_n = 0;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        struct request *v = sched->running[i]->request;
        uint32_t n = v->priority < r->priority ? 0 : sched->n_active_of[v->i_caller];
        if (!may_yield(sched, v, r) || (best && v->priority > best->priority))
            continue;
        uint64_t lost = lost_tokens(sched, v);
        if (best && v->priority == best->priority &&
            (n < best_n || (n == best_n && lost >= best_lost)))
            continue;
        best = v;
        best_n = n;
        best_lost = lost;
    }
    return best;
}

/* Blocks that come free if `v` is sent back, at least. */
static uint32_t blocks_of(const struct scheduler *sched, const struct request *v)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < v->n_choices; c++)
        if (v->choices[c].state == SEQUENCE_RUNNING)
            n += kv_cache_n_exclusive(sched->kv, v->choices[c].slot);
    return n;
}

/* Fills out[max_seqs] with the fewest requests whose slots and blocks make room for `r`. Returns
 * their number; 0 if `r` has room already, or would have none even then. */
static uint32_t find_all_yielding(struct scheduler *sched, const struct request *r,
                                  struct request **out)
{
    uint32_t n = 0, places = sched->n_free_slots, blocks = 0;
    uint32_t missing =
        scheduler_blocks_missing(sched, &r->choices[r->leader], 1 + sched->n_running / 8);
    struct request *v;
    while ((places < r->n_live || blocks < missing) && (v = find_yielding(sched, r))) {
        v->yields = true;
        sched->n_active_of[v->i_caller]--;
        places += v->n_live;
        blocks += blocks_of(sched, v);
        out[n++] = v;
    }
    for (uint32_t i = 0; i < n; i++) {
        sched->n_active_of[out[i]->i_caller]++;
        out[i]->yields = false;
    }
    return places >= r->n_live && blocks >= missing ? n : 0;
}

struct place_search {
    struct scheduler *sched;
    /* lowest priority among running requests that may be sent back for a higher one */
    int32_t lowest;
    bool several; /* some caller has several requests running */
    uint32_t n_tried;
};

static void survey_running(struct place_search *search)
{
    const struct scheduler *sched = search->sched;
    search->lowest = INT32_MAX;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct request *r = sched->running[i]->request;
        search->several |= sched->n_active_of[r->i_caller] > 1;
        if (!r->sent_back && r->priority < search->lowest)
            search->lowest = r->priority;
    }
}

/* True if running requests would be sent back for `r`. A prompt that needs over a quarter of all
 * blocks waits instead, because it would displace too many requests. */
static bool can_displace(void *ctx, struct request *r)
{
    struct place_search *search = ctx;
    struct scheduler *sched = search->sched;
    uint32_t most = sched->cfg.n_blocks / 4 * sched->cfg.block_size;
    bool by_share = search->several && !sched->n_active_of[r->i_caller];
    if ((r->priority <= search->lowest && !by_share) ||
        sequence_n_tokens(&r->choices[r->leader]) > most || search->n_tried++ >= MOST_TRIED)
        return false;
    return find_yielding(sched, r) && find_all_yielding(sched, r, sched->started);
}

/* The request takes the slots at once, even if others come before it in the queue. Otherwise a
 * request just sent back could take them again, endlessly. The request's caller pays for the lost
 * work. Otherwise a caller of many small requests could force large requests of others to be
 * recomputed again and again. */
bool scheduler_starts_make_place(struct scheduler *sched, int64_t now_ns)
{
    struct place_search search = {.sched = sched};
    struct request *r = scheduler_queue_peek(sched->queue, NULL);
    uint32_t spare = 1 + sched->n_running / 8;
    if (!r || has_room_for(sched, r, spare))
        return true;
    survey_running(&search);
    r = scheduler_queue_find(sched->queue, NULL, can_displace, &search);
    if (!r)
        return true;
    uint64_t lost = 0;
    /* `started` is unused so far in this step */
    uint32_t n = find_all_yielding(sched, r, sched->started);
    for (uint32_t i = 0; sched->n_flights && i < n; i++)
        if (scheduler_is_in_flight(sched->started[i]))
            return false;
    for (uint32_t i = 0; i < n; i++) {
        lost += lost_tokens(sched, sched->started[i]);
        scheduler_send_back(sched, sched->started[i]);
    }
    fair_share_charge(sched->share, r->i_caller, lost);
    sched->passed = NULL;
    scheduler_starts_activate(sched, r, now_ns);
    return true;
}
