#include "engine/scheduler_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "engine/request.h"

/* A caller with requests waiting. */
struct caller {
    uint64_t hash;
    struct request *first, *last; /* by priority, then arrival */
    uint64_t deficit;             /* tokens it may take */
    uint32_t prev, next;          /* ring of those with requests */
};

struct scheduler_queue {
    struct caller *callers; /* [max_requests] */
    uint32_t *unused;       /* stack of free entries */
    uint32_t n_unused, max_requests;
    uint32_t cursor; /* caller whose turn it is or was last; meaningless while the ring is empty */
    uint32_t n_callers, n_requests;
    struct request *candidate; /* what peek found */
};

int scheduler_queue_create(uint32_t max_requests, struct scheduler_queue **out_queue,
                           struct error *err)
{
    struct scheduler_queue *q = calloc(1, sizeof(*q));
    if (!q)
        goto no_memory;
    q->max_requests = q->n_unused = max_requests;
    q->callers = calloc(max_requests, sizeof(*q->callers));
    q->unused = calloc(max_requests, sizeof(*q->unused));
    if (!q->callers || !q->unused)
        goto no_memory;
    for (uint32_t i = 0; i < max_requests; i++)
        q->unused[i] = max_requests - 1 - i;
    *out_queue = q;
    return 0;
no_memory:
    scheduler_queue_destroy(q);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a queue of %u requests",
                     max_requests);
}

void scheduler_queue_destroy(struct scheduler_queue *q)
{
    if (!q)
        return;
    free(q->callers);
    free(q->unused);
    free(q);
}

/* Tokens a request is charged for: what it may take at most. */
static uint64_t cost_of(const struct request *r)
{
    return r->n_prompt + (uint64_t)r->max_tokens * r->n_choices;
}

static uint32_t find_caller(struct scheduler_queue *q, const char *name, uint64_t hash)
{
    uint32_t i = q->cursor;
    for (uint32_t n = 0; n < q->n_callers; n++, i = q->callers[i].next)
        if (q->callers[i].hash == hash && !strcmp(q->callers[i].first->caller, name))
            return i;
    return UINT32_MAX;
}

/* A new caller comes last in the round. */
static uint32_t add_caller(struct scheduler_queue *q, uint64_t hash)
{
    assert(q->n_unused);
    uint32_t i = q->unused[--q->n_unused];
    struct caller *c = &q->callers[i];
    *c = (struct caller){.hash = hash, .prev = i, .next = i};
    if (q->n_callers++) {
        struct caller *at = &q->callers[q->cursor];
        c->next = q->cursor;
        c->prev = at->prev;
        q->callers[at->prev].next = i;
        at->prev = i;
    } else {
        q->cursor = i;
    }
    return i;
}

static void remove_caller(struct scheduler_queue *q, uint32_t i)
{
    struct caller *c = &q->callers[i];
    q->callers[c->prev].next = c->next;
    q->callers[c->next].prev = c->prev;
    if (q->cursor == i)
        q->cursor = c->prev; /* so that the next one's turn comes next */
    q->n_callers--;
    q->unused[q->n_unused++] = i;
}

static bool comes_before(const struct request *a, const struct request *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->arrival < b->arrival);
}

void scheduler_queue_add(struct scheduler_queue *q, struct request *r)
{
    uint64_t hash = hash_bytes(r->caller, strlen(r->caller), 0);
    uint32_t i = find_caller(q, r->caller, hash);
    if (i == UINT32_MAX)
        i = add_caller(q, hash);
    struct caller *c = &q->callers[i];
    struct request *after = c->last;
    while (after && comes_before(r, after))
        after = after->wait_prev;
    r->i_caller = i;
    r->wait_prev = after;
    r->wait_next = after ? after->wait_next : c->first;
    *(r->wait_prev ? &r->wait_prev->wait_next : &c->first) = r;
    *(r->wait_next ? &r->wait_next->wait_prev : &c->last) = r;
    q->n_requests++;
    q->candidate = NULL;
}

void scheduler_queue_remove(struct scheduler_queue *q, struct request *r)
{
    struct caller *c = &q->callers[r->i_caller];
    *(r->wait_prev ? &r->wait_prev->wait_next : &c->first) = r->wait_next;
    *(r->wait_next ? &r->wait_next->wait_prev : &c->last) = r->wait_prev;
    r->wait_prev = r->wait_next = NULL;
    q->n_requests--;
    q->candidate = NULL;
    if (!c->first)
        remove_caller(q, r->i_caller);
}

static int32_t top_priority(const struct scheduler_queue *q)
{
    int32_t top = INT32_MIN;
    uint32_t i = q->cursor;
    for (uint32_t n = 0; n < q->n_callers; n++, i = q->callers[i].next)
        if (q->callers[i].first->priority > top)
            top = q->callers[i].first->priority;
    return top;
}

/* Rounds of a quantum each, at least one, until the caller can pay for its first request. */
static uint64_t rounds_needed(const struct caller *c)
{
    uint64_t cost = cost_of(c->first);
    if (cost <= c->deficit)
        return 1;
    return (cost - c->deficit + SCHEDULER_QUEUE_QUANTUM - 1) / SCHEDULER_QUEUE_QUANTUM;
}

/* Goes on round the callers after the one whose turn it was, a quantum to each, until one can pay:
 * in one go, as if the rounds had been walked. */
static uint32_t next_turn(struct scheduler_queue *q, int32_t top)
{
    uint32_t best = UINT32_MAX, first = q->callers[q->cursor].next, i = first;
    uint64_t fewest = UINT64_MAX, rounds;
    for (uint32_t n = 0; n < q->n_callers; n++, i = q->callers[i].next)
        if (q->callers[i].first->priority == top && rounds_needed(&q->callers[i]) < fewest) {
            fewest = rounds_needed(&q->callers[i]);
            best = i;
        }
    rounds = fewest;
    i = first;
    for (uint32_t n = 0; n < q->n_callers; n++, i = q->callers[i].next) {
        if (q->callers[i].first->priority == top)
            q->callers[i].deficit += rounds * SCHEDULER_QUEUE_QUANTUM;
        if (i == best)
            rounds--; /* those after it have not had the last one */
    }
    return best;
}

struct request *scheduler_queue_peek(struct scheduler_queue *q)
{
    if (q->candidate || !q->n_callers)
        return q->candidate;
    int32_t top = top_priority(q);
    const struct caller *at = &q->callers[q->cursor];
    if (at->first->priority != top || cost_of(at->first) > at->deficit)
        q->cursor = next_turn(q, top);
    q->candidate = q->callers[q->cursor].first;
    return q->candidate;
}

void scheduler_queue_take(struct scheduler_queue *q, struct request *r)
{
    struct caller *c = &q->callers[r->i_caller];
    uint64_t cost = cost_of(r);
    c->deficit -= cost < c->deficit ? cost : c->deficit;
    scheduler_queue_remove(q, r);
}

uint32_t scheduler_queue_len(const struct scheduler_queue *q)
{
    return q->n_requests;
}
