#include "server/gateway/dispatch/waiting.h"

#include <stdatomic.h>
#include <string.h>

#include "server/gateway/gateway.h"
#include "server/gateway/relay/relay.h"

struct waiting_walk waiting_walk(const struct gateway *gateway)
{
    return (struct waiting_walk){gateway->retrying, gateway->waiting};
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

/* Callers take turns: the n-th of one that waits comes beside the n-th of another, from the round
 * on that is first now. Under the gateway's lock. */
static uint64_t next_round(const struct gateway *gateway, const struct relay *relay)
{
    uint64_t first = 0, own = 0;
    const struct relay *r;
    for (struct waiting_walk walk = waiting_walk(gateway); (r = waiting_walk_on(&walk));) {
        if (!first || r->wait_round < first)
            first = r->wait_round;
        if (r->wait_round >= own && strcmp(r->caller, relay->caller) == 0)
            own = r->wait_round + 1;
    }
    first = first ? first : gateway->last_round;
    first = first ? first : 1;
    return own > first ? own : first;
}

/* Where to begin to look for a relay's place. What is put back comes behind what was put back
 * before it, also where new ones have come after that. */
static struct relay **begin_at(struct gateway *gateway, const struct relay *relay)
{
    if (gateway->waiting && !goes_before(relay, gateway->last_waiting))
        return &gateway->last_waiting->next_waiting;
    if (gateway->last_kept && !goes_before(relay, gateway->last_kept))
        return &gateway->last_kept->next_waiting;
    return &gateway->waiting;
}

/* By priority, then in turns, then by age. */
void waiting_add(struct gateway *gateway, struct relay *relay)
{
    relay_retain(relay);
    pthread_mutex_lock(&gateway->lock);
    bool is_new = !relay->wait_round;
    if (is_new)
        relay->wait_round = next_round(gateway, relay);
    struct relay **at = begin_at(gateway, relay);
    while (*at && !goes_before(relay, *at))
        at = &(*at)->next_waiting;
    relay->next_waiting = *at;
    *at = relay;
    if (!relay->next_waiting)
        gateway->last_waiting = relay;
    if (!is_new)
        gateway->last_kept = relay;
    atomic_store(&gateway->has_waiting, true);
    pthread_mutex_unlock(&gateway->lock);
}

void waiting_begin(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    if (gateway->waiting)
        gateway->last_round = gateway->waiting->wait_round;
    gateway->retrying = gateway->waiting;
    gateway->waiting = NULL;
    gateway->last_waiting = gateway->last_kept = NULL;
    pthread_mutex_unlock(&gateway->lock);
}

struct relay *waiting_next(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct relay *relay = gateway->retrying;
    if (relay)
        gateway->retrying = relay->next_waiting;
    atomic_store(&gateway->has_waiting, gateway->retrying || gateway->waiting);
    pthread_mutex_unlock(&gateway->lock);
    return relay;
}
