#include "server/gateway/dispatch/ending.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay_private.h"
#include "server/gateway/replicas/link.h"

void dispatch_count_begin(struct relay_shared *shared, struct relay *relay)
{
    if (relay)
        meter_begin(shared->meters, &relay->meter, relay->model, relay->version);
    else
        meter_begin(shared->meters, NULL, "", "");
    counters_begin(shared->counters);
}

void dispatch_count_end(struct relay_shared *shared, struct relay *relay, int status,
                        uint64_t n_tokens)
{
    struct meter_end end = {.status = status};
    counters_end(shared->counters, status, n_tokens);
    if (relay)
        relay_fill_end(relay, &end);
    meter_end(shared->meters, relay ? &relay->meter : NULL, &end);
}

/* --- the client is gone --- */

/* Under the relay's lock: true if the request should wait for its client to reattach. */
static bool may_wait(const struct relay *relay, int status)
{
    bool over = relay->closed || relay->forgotten || !relay->window_ms || relay_has_failed(relay) ||
                status == STATUS_DEADLINE_EXCEEDED || clock_now_ns() >= relay->deadline_ns;
    return !over && !atomic_load(&relay->shared->leaving);
}

/* At most as many requests wait for their clients as calls may be live. */
static bool reserve_place(struct relay_shared *shared)
{
    if (atomic_fetch_add(&shared->n_detached, 1) < shared->limits->max_calls)
        return true;
    atomic_fetch_sub(&shared->n_detached, 1);
    counters_refusal(shared->counters, LIMIT_REATTACH);
    return false;
}

/* Under the relay's lock: true on the first call only, so that an end is counted once. */
static bool count_once(struct relay *relay)
{
    bool first = !relay->counted;
    relay->counted = true;
    return first;
}

void dispatch_sink_gone(struct relay *relay, const struct relay_sink *sink, int status)
{
    struct relay_sink *old = NULL;
    bool count = false;
    pthread_mutex_lock(&relay->lock);
    bool mine = relay_take_off(relay, sink, &old);
    bool waits = mine && may_wait(relay, status) && reserve_place(relay->shared);
    uint64_t n_tokens = relay_n_sent(relay);
    if (waits) {
        relay->detached_ns = awake_clock_now_ns(relay->shared->clock);
        count = relay->end_sent && count_once(relay);
        status = relay->outcome.status;
        relay_check_pending(relay);
    }
    pthread_mutex_unlock(&relay->lock);
    if (count)
        dispatch_count_end(relay->shared, relay, status, n_tokens);
    if (mine && !waits)
        dispatch_close(relay, status);
    relay_sink_release(old);
}

/* --- closing --- */

void dispatch_close(struct relay *relay, int status)
{
    pthread_mutex_lock(&relay->lock);
    bool closed = relay->closed, count = !closed && count_once(relay);
    relay->closed = true;
    relay->ended = true; /* a retry that is under way must not submit the request */
    if (relay->detached_ns)
        atomic_fetch_sub(&relay->shared->n_detached, 1);
    relay->detached_ns = 0;
    uint64_t n_tokens = relay_n_sent(relay);
    pthread_mutex_unlock(&relay->lock);
    if (closed)
        return;
    link_leave(relay);
    registry_remove(&relay->shared->registry, relay->caller, relay->request_id, relay);
    if (count)
        dispatch_count_end(relay->shared, relay, status, n_tokens);
    relay_release(relay);
}

void dispatch_close_failed(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    int status = relay->outcome.status;
    bool over = relay->detached_ns && relay_has_failed(relay);
    if (over)
        relay->forgotten = true;
    pthread_mutex_unlock(&relay->lock);
    if (over)
        dispatch_close(relay, status);
}

static void close_detached(struct relay *relay, int status)
{
    pthread_mutex_lock(&relay->lock);
    bool detached = relay->detached_ns != 0;
    if (detached)
        relay->forgotten = true;
    pthread_mutex_unlock(&relay->lock);
    if (detached)
        dispatch_close(relay, status);
}

bool dispatch_forget(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
    bool idle = relay->detached_ns && relay->counted;
    if (idle)
        relay->forgotten = true;
    pthread_mutex_unlock(&relay->lock);
    if (idle)
        dispatch_close(relay, STATUS_OK);
    return idle;
}

/* --- ends --- */

void dispatch_end(struct relay *relay, const struct error *outcome)
{
    relay_end(relay, outcome);
    dispatch_close_failed(relay);
}

uint64_t dispatch_cancel(struct relay *relay, const struct error *why)
{
    dispatch_end(relay, why);
    pthread_mutex_lock(&relay->lock);
    uint64_t n_tokens = relay_count_released(relay); /* released tokens are sent before the end */
    /* The worker has finished, and the rest of the answer waits for credit. */
    bool waits =
        relay->ended && !relay->end_sent && !relay->outcome.status && relay_lacks_credit(relay);
    if (waits) {
        relay->outcome = *why;
        relay->forgotten = true;
    }
    pthread_mutex_unlock(&relay->lock);
    link_leave(relay);
    if (waits)
        relay_tell(relay);
    close_detached(relay, why->status);
    return n_tokens;
}

/* Requests that a walk found. The registry's lock is held during a walk, so they end later. */
struct found {
    struct relay *relays[64];
    uint32_t n;
};

enum { FOUND_AT_ONCE = sizeof(((struct found *)0)->relays) / sizeof(struct relay *) };

static void find_running(void *ctx, struct relay *relay)
{
    struct found *found = ctx;
    pthread_mutex_lock(&relay->lock);
    bool runs = !relay->ended && found->n < FOUND_AT_ONCE;
    pthread_mutex_unlock(&relay->lock);
    if (!runs)
        return;
    relay_retain(relay);
    found->relays[found->n++] = relay;
}

void dispatch_cancel_all(struct relay_shared *shared, const struct error *why)
{
    struct found found = {.n = FOUND_AT_ONCE};
    while (found.n == FOUND_AT_ONCE) {
        found.n = 0;
        registry_each(&shared->registry, find_running, &found);
        for (uint32_t i = 0; i < found.n; i++) {
            counters_refusal(shared->counters, LIMIT_DRAIN);
            dispatch_cancel(found.relays[i], why);
            relay_release(found.relays[i]);
        }
    }
}

void dispatch_abort(struct relay *relay, const struct error *why)
{
    pthread_mutex_lock(&relay->lock);
    relay_fix_outcome(relay, why);
    relay->forgotten = true;
    relay->put_ns = 0; /* slow_reader.c must not end the request again while its call closes */
    struct error status = relay->outcome.status ? relay->outcome : *why;
    struct relay_sink *sink = relay->sink;
    if (sink)
        relay_sink_retain(sink);
    pthread_mutex_unlock(&relay->lock);
    link_leave(relay);
    if (sink)
        sink->ops->cut_off(sink, &status);
    relay_sink_release(sink);
}
