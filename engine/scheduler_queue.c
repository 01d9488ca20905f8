#include "engine/scheduler_queue.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/fair_share.h"
#include "engine/request.h"
#include "engine/scheduler.h"

/* A caller's requests, by priority, then arrival. */
struct line {
    struct request *first, *last;
    uint32_t i_busy; /* in `busy`, while there are any */
};

struct scheduler_queue {
    const struct fair_share *share;
    struct line *lines; /* [max_callers] */
    uint32_t *busy;     /* [max_callers] callers with requests, in no order */
    uint32_t n_busy, n_requests, n_lasting;
    struct request *oldest, *newest; /* all of them, by arrival */
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

/* The first of a line that is of the priority; else the first. */
static struct request *first_of(const struct line *line, const int32_t *turn)
{
    struct request *r = line->first;
    while (turn && r && r->priority != *turn)
        r = r->wait_next;
    return r ? r : line->first;
}

static bool is_higher(const struct request *a, const struct request *b, const int32_t *turn)
{
    if (turn && a->priority != b->priority && (a->priority == *turn || b->priority == *turn))
        return a->priority == *turn;
    return a->priority > b->priority;
}

struct request *scheduler_queue_peek(const struct scheduler_queue *q, const int32_t *turn)
{
    struct request *best = NULL;
    uint64_t best_counter = 0;
    for (uint32_t i = 0; i < q->n_busy; i++) {
        struct request *r = first_of(&q->lines[q->busy[i]], turn);
        uint64_t counter = fair_share_counter(q->share, q->busy[i]);
        if (best && r->priority == best->priority &&
            (counter > best_counter || (counter == best_counter && r->arrival > best->arrival)))
            continue;
        if (best && r->priority != best->priority && !is_higher(r, best, turn))
            continue;
        best = r;
        best_counter = counter;
    }
    return best;
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
