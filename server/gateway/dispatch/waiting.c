#include "server/gateway/dispatch/waiting.h"

#include <stdatomic.h>
#include <string.h>

#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/replicas.h"

struct waiting_walk waiting_walk(const struct dispatch *dispatch)
{
    return (struct waiting_walk){dispatch->retrying, dispatch->waiting};
}

const struct relay *waiting_walk_on(struct waiting_walk *walk)
{
    const struct relay *relay = walk->next;
    if (!relay) {
        relay = walk->others;
        walk->others = NULL;
    }
    walk->next = relay ? relay->next_waiting : NULL;
    return relay;
}

bool waiting_for_same(const struct relay *a, const struct relay *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->version, b->version) == 0;
}

static bool goes_before(const struct relay *a, const struct relay *b)
{
    int32_t of_a = atomic_load(&a->priority), of_b = atomic_load(&b->priority);
    if (of_a != of_b)
        return of_a > of_b;
    if (a->wait_round != b->wait_round)
        return a->wait_round < b->wait_round;
    return a->meter.arrived_ns < b->meter.arrived_ns;
}

/* Fair order between callers: the n-th waiting request of each caller belongs to the same round.
 * A caller's first request joins the round that is first now. Under the replicas' lock. */
static uint64_t next_round(const struct dispatch *dispatch, const struct relay *relay)
{
    uint64_t first = 0, own = 0;
    const struct relay *r;
    for (struct waiting_walk walk = waiting_walk(dispatch); (r = waiting_walk_on(&walk));) {
        if (!first || r->wait_round < first)
            first = r->wait_round;
        if (r->wait_round >= own && strcmp(r->caller, relay->caller) == 0)
            own = r->wait_round + 1;
    }
    first = first ? first : dispatch->last_round;
    first = first ? first : 1;
    return own > first ? own : first;
}

/* Where the search for a relay's place begins. A request that is put back stays behind those put
 * back before, even if new requests came in between. */
static struct relay **search_start(struct dispatch *dispatch, const struct relay *relay)
{
    if (dispatch->waiting && !goes_before(relay, dispatch->last_waiting))
        return &dispatch->last_waiting->next_waiting;
    if (dispatch->last_kept && !goes_before(relay, dispatch->last_kept))
        return &dispatch->last_kept->next_waiting;
    return &dispatch->waiting;
}

/* Order: priority, then round, then age. */
void waiting_add(struct dispatch *dispatch, struct relay *relay)
{
    relay_retain(relay);
    pthread_mutex_lock(&dispatch->replicas->lock);
    bool is_new = !relay->wait_round;
    if (is_new)
        relay->wait_round = next_round(dispatch, relay);
    struct relay **at = search_start(dispatch, relay);
    while (*at && !goes_before(relay, *at))
        at = &(*at)->next_waiting;
    relay->next_waiting = *at;
    *at = relay;
    if (!relay->next_waiting)
        dispatch->last_waiting = relay;
    if (!is_new)
        dispatch->last_kept = relay;
    atomic_store(&dispatch->has_waiting, true);
    pthread_mutex_unlock(&dispatch->replicas->lock);
}

void waiting_begin(struct dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->replicas->lock);
    if (dispatch->waiting)
        dispatch->last_round = dispatch->waiting->wait_round;
    dispatch->retrying = dispatch->waiting;
    dispatch->waiting = NULL;
    dispatch->last_waiting = dispatch->last_kept = NULL;
    pthread_mutex_unlock(&dispatch->replicas->lock);
}

struct relay *waiting_next(struct dispatch *dispatch)
{
    pthread_mutex_lock(&dispatch->replicas->lock);
    struct relay *relay = dispatch->retrying;
    if (relay)
        dispatch->retrying = relay->next_waiting;
    atomic_store(&dispatch->has_waiting, dispatch->retrying || dispatch->waiting);
    pthread_mutex_unlock(&dispatch->replicas->lock);
    return relay;
}
