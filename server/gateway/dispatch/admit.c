#include "server/gateway/dispatch/admit.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/waiting.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"

enum { RESERVED_SHARE = 8 };
enum { RETRY_MIN_MS = 50, RETRY_MAX_MS = 30000 };

/* A free place counts as taken while requests wait here: the ticker gives the place to the first
 * of them. */
static void measure_load(struct dispatch *dispatch, const struct relay *relay,
                         struct admit_fill *out)
{
    uint64_t n_free = 0, n_here = 0;
    const struct relay *r;
    *out = (struct admit_fill){0};
    pthread_mutex_lock(&dispatch->replicas->lock);
    for (uint32_t i = 0; i < dispatch->replicas->n_links; i++) {
        struct link_queue queue;
        struct link *link = dispatch->replicas->links[i];
        if (!link_serves(link, relay->model, relay->version) || !link_usable(link))
            continue;
        link_get_queue(link, &queue);
        out->n_waiting += queue.n_waiting;
        out->has_room |= !queue.holds || queue.n_live < queue.n_places;
        if (queue.n_live < queue.n_places && !queue.n_waiting)
            n_free += queue.n_places - queue.n_live;
        out->ends_per_ms += queue.interval_ns ? (double)NS_PER_MS / (double)queue.interval_ns : 0;
    }
    for (struct waiting_walk walk = waiting_walk(dispatch); (r = waiting_walk_on(&walk));) {
        if (!waiting_for_same(r, relay))
            continue;
        n_here++;
        out->is_behind |= atomic_load(&r->priority) >= atomic_load(&relay->priority);
    }
    pthread_mutex_unlock(&dispatch->replicas->lock);
    out->has_place = n_free > n_here;
    out->n_waiting += n_here > n_free ? n_here - n_free : 0;
}

/* Requests of the relay's caller for the relay's version, running or waiting. */
static uint64_t n_live_of_caller(struct dispatch *dispatch, const struct relay *relay)
{
    uint64_t n = 0;
    const struct relay *r;
    pthread_mutex_lock(&dispatch->replicas->lock);
    for (uint32_t i = 0; i < dispatch->replicas->n_links; i++)
        if (link_serves(dispatch->replicas->links[i], relay->model, relay->version))
            n += link_n_live_of(dispatch->replicas->links[i], relay->caller);
    for (struct waiting_walk walk = waiting_walk(dispatch); (r = waiting_walk_on(&walk));)
        n += waiting_for_same(r, relay) && strcmp(r->caller, relay->caller) == 0;
    pthread_mutex_unlock(&dispatch->replicas->lock);
    return n;
}

/* Returns n, the number of reserved places at the end of the queue. A caller with n or more live
 * requests gets none of these places. Without API keys all requests belong to one caller, so
 * nothing is reserved. */
static uint64_t n_reserved(const struct relay *relay, uint64_t limit)
{
    return strcmp(relay->caller, GATEWAY_ANONYMOUS) == 0 ? 0 : limit / RESERVED_SHARE;
}

static bool is_full(struct dispatch *dispatch, const struct relay *relay,
                    const struct admit_fill *fill, uint64_t limit)
{
    uint64_t reserved = n_reserved(relay, limit);
    if (fill->has_place || fill->n_waiting + reserved < limit)
        return false;
    return fill->n_waiting >= limit || n_live_of_caller(dispatch, relay) >= reserved;
}

/* Time in which half of the waiting requests will have got a place. Earlier there is hardly a
 * free place. Refused clients should not all return at once. */
static uint32_t retry_ms(const struct admit_fill *fill)
{
    double ms = fill->ends_per_ms > 0 ? (double)fill->n_waiting / 2 / fill->ends_per_ms : 1000;
    return ms < RETRY_MIN_MS ? RETRY_MIN_MS : ms > RETRY_MAX_MS ? RETRY_MAX_MS : (uint32_t)ms;
}

bool admit_has_expired(const struct relay *relay, struct error *err)
{
    bool expired = clock_now_ns() >= relay->deadline_ns;
    if (expired)
        error_set(err, STATUS_DEADLINE_EXCEEDED,
                  "the deadline passed before a replica took the request");
    return expired;
}

int admit_request(struct dispatch *dispatch, struct relay *relay, struct admit_fill *out_fill,
                  struct error *err)
{
    uint64_t limit = dispatch->relays->limits->max_queued;
    if (admit_has_expired(relay, err))
        return err->status;
    measure_load(dispatch, relay, out_fill);
    if (is_full(dispatch, relay, out_fill, limit)) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "model: %llu requests of \"%s\" version \"%s\" are queued, limit %llu%s",
                  (unsigned long long)out_fill->n_waiting, relay->model, relay->version,
                  (unsigned long long)limit,
                  out_fill->n_waiting < limit ? "; the last places are reserved for other callers"
                                              : "");
        err->retry_after_ms = retry_ms(out_fill);
        return error_reason(err, REASON_QUEUE_FULL);
    }
    if (!out_fill->has_place)
        counters_refusal(dispatch->relays->counters, LIMIT_CONCURRENT);
    relay->admitted = true;
    return 0;
}
