#include "engine/schedule/scheduler_queue.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/request/request.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler.h"

/* The queued requests of one caller, by priority, then arrival. */
struct line {
    struct request *first, *last;
    uint32_t i_busy; /* index in `busy`; valid while the line has requests */
};

struct scheduler_queue {
    const struct fair_share *share;
    struct line *lines; /* [max_callers] */
    uint32_t *busy;     /* [max_callers] callers with requests, unordered */
    uint32_t n_busy, n_requests, n_lasting;
    struct request *oldest, *newest; /* all requests, by arrival */
};

int scheduler_queue_create(uint32_t max_callers, const struct fair_share *share,
                           struct scheduler_queue **out_queue, struct error *err)
{
    struct scheduler_queue *q = calloc(1, sizeof(*q));
    if (!q)
        goto no_memory;
    q->share = share;
    q->lines = calloc(max_callers, sizeof(*q->lines));
    q->busy = calloc(max_callers, sizeof(*q->busy));
    if (!q->lines || !q->busy)
        goto no_memory;
    *out_queue = q;
    return 0;
no_memory:
    scheduler_queue_destroy(q);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a queue of %u callers",
                     max_callers);
}

void scheduler_queue_destroy(struct scheduler_queue *q)
{
    if (!q)
        return;
    free(q->lines);
    free(q->busy);
    free(q);
}

static bool comes_before(const struct request *a, const struct request *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->arrival < b->arrival);
}

static void add_by_age(struct scheduler_queue *q, struct request *r)
{
    struct request *after = q->newest;
    while (after && r->arrival < after->arrival)
        after = after->age_prev;
    r->age_prev = after;
    r->age_next = after ? after->age_next : q->oldest;
    *(r->age_prev ? &r->age_prev->age_next : &q->oldest) = r;
    *(r->age_next ? &r->age_next->age_prev : &q->newest) = r;
}

void scheduler_queue_add(struct scheduler_queue *q, struct request *r)
{
    struct line *line = &q->lines[r->i_caller];
    if (!line->first) {
        line->i_busy = q->n_busy;
        q->busy[q->n_busy++] = r->i_caller;
    }
    struct request *after = line->last;
    while (after && comes_before(r, after))
        after = after->wait_prev;
    r->wait_prev = after;
    r->wait_next = after ? after->wait_next : line->first;
    *(r->wait_prev ? &r->wait_prev->wait_next : &line->first) = r;
    *(r->wait_next ? &r->wait_next->wait_prev : &line->last) = r;
    add_by_age(q, r);
    q->n_requests++;
    r->waits_lasting = r->max_tokens >= SCHEDULER_LASTING_TOKENS;
    q->n_lasting += r->waits_lasting;
}

void scheduler_queue_remove(struct scheduler_queue *q, struct request *r)
{
    struct line *line = &q->lines[r->i_caller];
    *(r->wait_prev ? &r->wait_prev->wait_next : &line->first) = r->wait_next;
    *(r->wait_next ? &r->wait_next->wait_prev : &line->last) = r->wait_prev;
    *(r->age_prev ? &r->age_prev->age_next : &q->oldest) = r->age_next;
    *(r->age_next ? &r->age_next->age_prev : &q->newest) = r->age_prev;
    r->wait_prev = r->wait_next = r->age_prev = r->age_next = NULL;
    q->n_requests--;
    q->n_lasting -= r->waits_lasting;
    if (line->first)
        return;
    assert(q->busy[line->i_busy] == r->i_caller);
    uint32_t moved = q->busy[--q->n_busy];
    q->busy[line->i_busy] = moved;
    q->lines[moved].i_busy = line->i_busy;
}

/* Order by priority; requests of the priority *turn come first, if `turn` is given. */
static bool is_higher(const struct request *a, const struct request *b, const int32_t *turn)
{
    if (turn && a->priority != b->priority && (a->priority == *turn || b->priority == *turn))
        return a->priority == *turn;
    return a->priority > b->priority;
}

/* True if `a` is served before `b`. */
static bool is_next_before(const struct scheduler_queue *q, const struct request *a,
                           const struct request *b, const int32_t *turn)
{
    if (a->priority != b->priority)
        return is_higher(a, b, turn);
    uint64_t of_a = fair_share_counter(q->share, a->i_caller);
    uint64_t of_b = fair_share_counter(q->share, b->i_caller);
    return of_a != of_b ? of_a < of_b : a->arrival < b->arrival;
}

static bool fits_always(void *ctx, struct request *r)
{
    (void)ctx;
    (void)r;
    return true;
}

/* The first request of a line that fits and comes before `best`. With `turn`: only requests of that
 * priority. */
static struct request *first_of(const struct scheduler_queue *q, const struct line *line,
                                const int32_t *turn, const struct request *best,
                                scheduler_queue_fits_fn *fits, void *ctx)
{
    for (struct request *r = line->first; r; r = r->wait_next) {
        if (turn && r->priority != *turn)
            continue;
        if (best && !is_next_before(q, r, best, turn))
            return NULL; /* the requests behind it come after `best` as well */
        if (fits(ctx, r))
            return r;
    }
    return NULL;
}

struct request *scheduler_queue_find(const struct scheduler_queue *q, const int32_t *turn,
                                     scheduler_queue_fits_fn *fits, void *ctx)
{
    struct request *best = NULL, *r;
    for (uint32_t i = 0; i < q->n_busy && turn; i++)
        if ((r = first_of(q, &q->lines[q->busy[i]], turn, best, fits, ctx)))
            best = r;
    bool of_turn = best != NULL;
    for (uint32_t i = 0; i < q->n_busy && !of_turn; i++)
        if ((r = first_of(q, &q->lines[q->busy[i]], NULL, best, fits, ctx)))
            best = r;
    return best;
}

struct request *scheduler_queue_peek(const struct scheduler_queue *q, const int32_t *turn)
{
    return scheduler_queue_find(q, turn, fits_always, NULL);
}

struct request *scheduler_queue_oldest(const struct scheduler_queue *q)
{
    return q->oldest;
}

bool scheduler_queue_has_caller(const struct scheduler_queue *q, uint32_t i_caller)
{
    return q->lines[i_caller].first != NULL;
}

uint64_t scheduler_queue_least(const struct scheduler_queue *q, int32_t priority)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < q->n_busy; i++) {
        uint64_t counter = fair_share_counter(q->share, q->busy[i]);
        if (q->lines[q->busy[i]].first->priority >= priority && counter < least)
            least = counter;
    }
    return least;
}

uint32_t scheduler_queue_len(const struct scheduler_queue *q)
{
    return q->n_requests;
}

uint32_t scheduler_queue_n_lasting(const struct scheduler_queue *q)
{
    return q->n_lasting;
}
