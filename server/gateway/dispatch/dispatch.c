#include "server/gateway/dispatch/dispatch.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/base/wake.h"
#include "server/gateway/dispatch/admit.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/dispatch/waiting.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/replicas/route_watch.h"

/* A session stays with its home replica while that has at most this many requests more than the
 * least busy one. Finding the prefix in the cache is worth a short wait, not a queue. */
enum { HOME_MAX_BUSIER = 8 };
enum { REFUSED_MS = 50 };

void dispatch_init(struct dispatch *dispatch, struct relay_shared *relays,
                   struct replicas *replicas, struct wake *wake)
{
    *dispatch = (struct dispatch){.relays = relays, .replicas = replicas, .wake = wake};
    pthread_mutex_init(&dispatch->admission_lock, NULL);
}

void dispatch_fini(struct dispatch *dispatch)
{
    pthread_mutex_destroy(&dispatch->admission_lock);
}

/* False if the link limits its running requests and all its places are taken. */
static bool has_room(struct link *link)
{
    struct link_queue queue;
    link_get_queue(link, &queue);
    return !queue.holds || queue.n_live < queue.n_places;
}

/* The requirements that pick() has for a link. */
struct wish {
    const char *model, *version, *numerics_id, *session_key;
    bool with_room;
    const struct link *avoid; /* link that must not be picked, or NULL */
};

static struct link *pick(struct dispatch *dispatch, const struct wish *wish)
{
    const char *numerics_id = wish->numerics_id, *session_key = wish->session_key;
    struct link *best = NULL, *home = NULL;
    uint32_t best_live = 0, home_live = 0;
    uint64_t home_affinity = 0;
    bool best_same = false, home_same = false;
    pthread_mutex_lock(&dispatch->replicas->lock);
    for (uint32_t i = 0; i < dispatch->replicas->n_links; i++) {
        struct link *link = dispatch->replicas->links[i];
        if (!link_serves(link, wish->model, wish->version) || !link_usable(link) ||
            (wish->with_room && !has_room(link)) || link == wish->avoid)
            continue;
        uint32_t n_live = link_n_live(link);
        bool same = numerics_id[0] && link_has_numerics(link, numerics_id);
        if (!best || same > best_same || (same == best_same && n_live < best_live)) {
            best = link;
            best_live = n_live;
            best_same = same;
        }
        uint64_t affinity = session_key[0] ? link_affinity(link, session_key) : 0;
        if (session_key[0] && (!home || affinity > home_affinity)) {
            home = link;
            home_live = n_live;
            home_affinity = affinity;
            home_same = same;
        }
    }
    if (home && home_same == best_same && home_live <= best_live + HOME_MAX_BUSIER)
        best = home;
    if (best)
        link_retain(best);
    pthread_mutex_unlock(&dispatch->replicas->lock);
    return best;
}

struct link *dispatch_pick_link(struct dispatch *dispatch, const char *model, const char *version,
                                const char *numerics_id, const char *session_key)
{
    const struct wish wish = {model, version, numerics_id, session_key, false, NULL};
    return pick(dispatch, &wish);
}

static bool has_replica_in(const route *r, Sluice__Manager__V1__ReplicaState state)
{
    for (size_t i = 0; i < r->n_replicas; i++)
        if (r->replicas[i]->state == state)
            return true;
    return false;
}

/* True if a replica is ready and not stalled. A stalled replica takes no requests. */
static bool has_serving(const route *r)
{
    for (size_t i = 0; i < r->n_replicas; i++)
        if (r->replicas[i]->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY &&
            !r->replicas[i]->stalled)
            return true;
    return false;
}

/* True if a version that requests may wake is on its way: a replica loads, warms or drains.
 * Draining counts because the worker with the parked copy may drain first. A pending or parked
 * replica may stay so for ever. Pending counts only after a recent wake, parked only if a wake
 * was asked for now. */
static bool is_waking(struct dispatch *dispatch, const route *r, bool is_asked)
{
    struct route_watch *watch = dispatch->watch;
    return (is_asked && route_watch_hopes(watch, r->model, r->version)) ||
           (route_watch_connected(watch) &&
            (has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING) ||
             has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING) ||
             has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING) ||
             (has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING) &&
              route_watch_woke(watch, r->model, r->version))));
}

bool dispatch_may_wake(struct dispatch *dispatch, const route *r)
{
    return r->wakes &&
           (has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED) ||
            has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING) ||
            has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING) ||
            has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING) ||
            (has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING) &&
             route_watch_woke(dispatch->watch, r->model, r->version)));
}

/* True if a replica is ready (its link may not be up yet) or will become ready. */
static bool is_coming(const route *r)
{
    return has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY) ||
           has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING) ||
           has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING) ||
           has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING) ||
           (r->wakes && /* a draining replica parks afterwards, or another parked copy is there */
            (has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED) ||
             has_replica_in(r, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING)));
}

enum dispatch_prospect dispatch_prospect(struct dispatch *dispatch, const char *model,
                                         const char *version)
{
    struct error err;
    const route *found;
    enum dispatch_prospect prospect = PROSPECT_NONE;
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const struct route_wish wish = {.model = model, .version = version};
    if (route_table_pick(routes, &wish, &found, &err) == 0) {
        /* Nothing serves: ask for a wake of the parked replicas, even if other replicas are
         * starting. */
        bool is_asked =
            found->wakes &&
            has_replica_in(found, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED) &&
            !has_serving(found);
        if (is_asked)
            route_watch_wake(dispatch->watch, found);
        /* The manager may refuse the wake (no memory) or be unreachable. Then the request waits,
         * but no longer than for a replica that starts. */
        prospect = found->wakes && is_waking(dispatch, found, is_asked) ? PROSPECT_WAKING
                   : is_coming(found)                                   ? PROSPECT_COMING
                                                                        : PROSPECT_LOADED;
    }
    route_table_release(routes);
    return prospect;
}

/* --- waiting --- */

/* True if the version should be served. *out_parked: the version is parked, with or without wake
 * on demand. */
static bool is_routed(struct dispatch *dispatch, const char *model, const char *version,
                      bool *out_parked)
{
    struct error err;
    const route *found;
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const struct route_wish wish = {.model = model, .version = version};
    bool routed = route_table_pick(routes, &wish, &found, &err) == 0;
    *out_parked = routed ? route_is_parked(found) : err.reason == REASON_MODEL_PARKED;
    route_table_release(routes);
    return routed;
}

/* True if a replica of the version is parked, so that the refusal `why` of its wake still holds.
 * If requests may not wake the version (PARKED), no replica may be pending either. */
static bool has_parked(struct dispatch *dispatch, const char *model, const char *version,
                       const struct error *why)
{
    struct error err;
    const route *found;
    struct route_table *routes = replicas_routes(dispatch->replicas);
    const struct route_wish wish = {.model = model, .version = version};
    bool asleep =
        route_table_pick(routes, &wish, &found, &err) == 0 &&
        has_replica_in(found, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED) &&
        (why->reason != REASON_PARKED ||
         !has_replica_in(found, SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING));
    route_table_release(routes);
    return asleep;
}

void dispatch_no_replica(struct dispatch *dispatch, const char *model, const char *version,
                         struct error *err)
{
    struct error why;
    if (route_watch_refused(dispatch->watch, model, version, &why) &&
        has_parked(dispatch, model, version, &why)) {
        bool full = why.status == STATUS_RESOURCE_EXHAUSTED;
        error_set(err, full ? STATUS_RESOURCE_EXHAUSTED : STATUS_UNAVAILABLE,
                  "model: \"%s\" version \"%s\" is parked and cannot be woken: %s", model, version,
                  why.message);
        if (why.reason)
            error_reason_of(err, &why);
        else
            error_reason(err, REASON_PARKED);
    } else {
        error_set(err, STATUS_UNAVAILABLE, "model: no replica of \"%s\" version \"%s\" is ready",
                  model, version);
        error_reason(err, REASON_NO_REPLICA_READY);
    }
    err->retry_after_ms = 1000;
}

static int without_replica(struct dispatch *dispatch, struct relay *relay, bool was_lost,
                           struct error *err)
{
    counters_refusal(dispatch->relays->counters, was_lost ? LIMIT_RESUME : LIMIT_REPLICA_WAIT);
    bool parked, routed = is_routed(dispatch, relay->model, relay->version, &parked);
    if (was_lost && (parked || !routed)) {
        error_set(
            err, STATUS_UNAVAILABLE,
            "version \"%s\" of \"%s\" was %s before the answer was complete; tokens sent: %llu",
            relay->version, relay->model, parked ? "parked" : "unloaded",
            (unsigned long long)relay_n_released(relay));
        error_reason(err, parked ? REASON_MODEL_PARKED : REASON_VERSION_UNLOADED);
        error_tokens_sent(err, relay_n_released(relay));
        if (parked && routed) /* another request may wake it */
            err->retry_after_ms = 1000;
    } else if (was_lost) {
        error_set(err, STATUS_UNAVAILABLE,
                  "the replica was lost and no other came back in time; tokens sent: %llu",
                  (unsigned long long)relay_n_released(relay));
        error_reason(err, REASON_REPLICA_LOST);
        error_tokens_sent(err, relay_n_released(relay));
        err->retry_after_ms = 1000;
    } else {
        dispatch_no_replica(dispatch, relay->model, relay->version, err);
    }
    return err->status;
}

void dispatch_place_free(struct dispatch *dispatch)
{
    atomic_fetch_add(&dispatch->n_freed, 1);
    if (atomic_load(&dispatch->has_waiting))
        wake_now(dispatch->wake);
}

/* --- dispatching --- */

/* Sets the time at which the client receives its headers, unless it is set. The request must not
 * be on the waiting list yet. */
static void plan_headers(struct relay *relay, int64_t delay_ms)
{
    if (!relay->headers_due_ns)
        relay->headers_due_ns = clock_now_ns() + delay_ms * NS_PER_MS;
}

/* No link took the request. True if another link may come in time: for a new request, or for a
 * request whose replica was lost. */
static bool may_wait(struct dispatch *dispatch, struct relay *relay, bool was_lost)
{
    enum dispatch_prospect prospect = dispatch_prospect(dispatch, relay->model, relay->version);
    int64_t awake_ns = awake_clock_now_ns(dispatch->relays->clock);
    int64_t since_ns = was_lost ? relay_lost_since(relay, awake_ns) : relay->waits_ns;
    uint64_t limit_ms =
        was_lost ? dispatch->relays->limits->resume_ms : dispatch->relays->limits->replica_wait_ms;
    if (prospect == PROSPECT_WAKING && !was_lost) {
        relay->waits_ns =
            awake_ns; /* until its deadline; if the wake fails, the wait for a replica starts now */
        plan_headers(relay, WAKE_HEADERS_MS);
        return true;
    }
    return prospect >= (was_lost ? PROSPECT_LOADED : PROSPECT_COMING) &&
           awake_ns - since_ns <= (int64_t)limit_ms * NS_PER_MS;
}

/* A request whose replica was lost was refused by another replica. The request waits (waiting.h)
 * until its resume time is over, then it ends. No lock is held. */
static void wait_for_resume(struct dispatch *dispatch, struct relay *relay)
{
    struct error err;
    if (may_wait(dispatch, relay, true)) {
        waiting_add(dispatch, relay);
        return;
    }
    if (generation_choose_again(dispatch, relay)) {
        dispatch_place(dispatch, relay);
        return;
    }
    without_replica(dispatch, relay, true, &err);
    dispatch_end(relay, &err);
}

/* Versions for which a waiting request found no place in this pass, each named by that request.
 * Later requests of these versions are not tried in this pass: a place that comes free meanwhile
 * belongs to the first. */
struct full_versions {
    struct relay *relays[16]; /* retained; versions beyond 16 are tried for each request */
    uint32_t n;
};

static bool is_full_version(const struct full_versions *full, const struct relay *relay)
{
    for (uint32_t i = 0; full && i < full->n; i++)
        if (waiting_for_same(full->relays[i], relay))
            return true;
    return false;
}

static void add_full(struct full_versions *full, struct relay *relay)
{
    if (!full || full->n == sizeof(full->relays) / sizeof(full->relays[0]) ||
        is_full_version(full, relay))
        return;
    relay_retain(relay);
    full->relays[full->n++] = relay;
}

/* True if the version has replicas, all of them full: one of them will have a place. */
static bool all_full(struct dispatch *dispatch, const struct relay *relay)
{
    struct link *link = dispatch_pick_link(dispatch, relay->model, relay->version, "", "");
    link_release(link);
    return link != NULL;
}

/* Sends the request to a replica or puts it on the waiting list. Negative: the caller ends the
 * request with *err, without any lock. `full`: the versions that this pass over the list found
 * full, or NULL. */
static int place_or_wait(struct dispatch *dispatch, struct relay *relay, struct full_versions *full,
                         struct error *err)
{
    char numerics_id[sizeof(relay->numerics_id)];
    uint64_t n_freed = atomic_load(&dispatch->n_freed);
    pthread_mutex_lock(&relay->lock);
    bool ended = relay->ended;
    int64_t lost_ns = relay->lost_ns, refused_ns = relay->refused_ns;
    memcpy(numerics_id, relay->numerics_id, sizeof(numerics_id));
    pthread_mutex_unlock(&relay->lock);
    if (ended)
        return 0;
    if (admit_has_expired(relay, err))
        return err->status;
    if (refused_ns && clock_now_ns() - refused_ns < REFUSED_MS * NS_PER_MS) {
        waiting_add(dispatch, relay); /* avoids sending a whole prompt again and again to full
                                       * replicas */
        return 0;
    }
    const struct wish wish = {
        relay->model, relay->version, numerics_id, relay->request->session_key, true, NULL};
    bool is_full = is_full_version(full, relay);
    struct link *link = is_full ? NULL : pick(dispatch, &wish);
    int rc = link ? link_submit(link, relay, err) : STATUS_UNAVAILABLE;
    bool had_link = link != NULL;
    link_release(link);
    if (rc == 0)
        return 0;
    /* The replica was lost earlier, or just now between choice and submit. */
    bool was_lost = lost_ns || had_link;
    if (!lost_ns && rc == STATUS_RESOURCE_EXHAUSTED)
        return rc;
    is_full = is_full || (!had_link && all_full(dispatch, relay));
    if (is_full) {
        plan_headers(relay, 0);
        add_full(full, relay);
    } else if (!may_wait(dispatch, relay, was_lost)) {
        return generation_choose_again(dispatch, relay)
                   ? place_or_wait(dispatch, relay, full, err)
                   : without_replica(dispatch, relay, was_lost, err);
    }
    waiting_add(dispatch, relay);
    if (atomic_load(&dispatch->n_freed) != n_freed)
        wake_now(dispatch->wake); /* a place came free before the request was on the list */
    return 0;
}

static void refuse(struct relay *relay, struct error *err)
{
    relay_settle_refusal(relay, err);
    dispatch_end(relay, err);
}

/* Admits a new request; the admission lock is held. If other requests go before it, the request
 * joins the list and the ticker hands out the places in order. */
static int admit_and_place(struct dispatch *dispatch, struct relay *relay, struct error *err)
{
    struct admit_fill fill = {0};
    int rc = admit_request(dispatch, relay, &fill, err);
    if (rc || !fill.is_behind)
        return rc ? rc : place_or_wait(dispatch, relay, NULL, err);
    waiting_add(dispatch, relay);
    if (fill.has_room)
        wake_now(dispatch->wake);
    return 0;
}

void dispatch_place(struct dispatch *dispatch, struct relay *relay)
{
    struct error err;
    int rc;
    if (relay->admitted) {
        rc = place_or_wait(dispatch, relay, NULL, &err);
    } else {
        pthread_mutex_lock(&dispatch->admission_lock);
        rc = admit_and_place(dispatch, relay, &err);
        pthread_mutex_unlock(&dispatch->admission_lock);
    }
    if (rc)
        refuse(relay, &err);
}

/* A replica refused the request, which is on no link now. Another replica is tried. If none
 * takes the request, it ends with *err, the first replica's refusal. */
static void place_elsewhere(struct dispatch *dispatch, struct relay *relay,
                            const struct link *avoid, struct error *err)
{
    struct error unused;
    char numerics_id[sizeof(relay->numerics_id)];
    pthread_mutex_lock(&relay->lock);
    memcpy(numerics_id, relay->numerics_id, sizeof(numerics_id));
    pthread_mutex_unlock(&relay->lock);
    const struct wish wish = {relay->model, relay->version, numerics_id, "", true, avoid};
    struct link *link = pick(dispatch, &wish);
    int rc = link ? link_submit(link, relay, &unused) : STATUS_UNAVAILABLE;
    link_release(link);
    if (rc)
        refuse(relay, err);
}

void dispatch_take_back(struct dispatch *dispatch, struct relay *relay, enum relay_progress why,
                        const Sluice__Worker__V1__StepItem *item)
{
    struct relay_seat seat = {.link = NULL};
    struct error err;
    if (why == RELAY_LEAVES) {
        link_leave(relay);
        relay_tell(relay);
    }
    if (why == RELAY_LEAVES || why == RELAY_OVER) {
        dispatch_close_failed(relay);
        return;
    }
    if (why == RELAY_WAITS) {
        enum relay_next next = relay_on_refused(relay, &seat);
        link_release_seat(&seat);
        if (next == RELAY_NEXT_REPLICA)
            wait_for_resume(dispatch, relay);
    } else if (why == RELAY_ELSEWHERE) {
        if (relay_on_turned_away(relay, item, &seat, &err) == RELAY_NEXT_REPLICA)
            place_elsewhere(dispatch, relay, seat.link, &err);
        link_release_seat(&seat);
    } else {
        enum relay_next next = relay_on_lost(relay, why == RELAY_MOVES, &seat, &err);
        link_release_seat(&seat);
        if (next == RELAY_NEXT_END)
            dispatch_end(relay, &err);
        else if (next == RELAY_NEXT_REPLICA)
            dispatch_place(dispatch, relay);
    }
}

/* Tries the next waiting request. True if there may be a further one. */
static bool retry_next(struct dispatch *dispatch, struct full_versions *full)
{
    struct error err;
    int rc = 0;
    pthread_mutex_lock(&dispatch->admission_lock);
    struct relay *relay = waiting_next(dispatch);
    if (relay)
        rc = place_or_wait(dispatch, relay, full, &err);
    pthread_mutex_unlock(&dispatch->admission_lock);
    if (rc)
        refuse(relay, &err);
    relay_release(relay);
    return relay != NULL;
}

void dispatch_retry_waiting(struct dispatch *dispatch)
{
    struct full_versions full = {.n = 0};
    if (atomic_load(&dispatch->has_waiting))
        waiting_begin(dispatch);
    while (atomic_load(&dispatch->has_waiting) && retry_next(dispatch, &full))
        ;
    while (full.n > 0)
        relay_release(full.relays[--full.n]);
}

/* Waiting requests whose clients should receive headers now, at most n of them, retained. */
static uint32_t take_due(struct dispatch *dispatch, struct relay **out_relays, uint32_t n)
{
    uint32_t n_due = 0;
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&dispatch->replicas->lock);
    for (struct relay *r = dispatch->waiting; r && n_due < n; r = r->next_waiting) {
        if (!r->headers_due_ns || r->headers_due_ns > now_ns)
            continue;
        r->headers_due_ns = INT64_MAX;
        relay_retain(r);
        out_relays[n_due++] = r;
    }
    pthread_mutex_unlock(&dispatch->replicas->lock);
    return n_due;
}

void dispatch_tell_waiting(struct dispatch *dispatch)
{
    enum { AT_ONCE = 64 };
    struct relay *relays[AT_ONCE];
    uint32_t n = atomic_load(&dispatch->has_waiting) ? AT_ONCE : 0;
    while (n == AT_ONCE) {
        n = take_due(dispatch, relays, AT_ONCE);
        for (uint32_t i = 0; i < n; i++) {
            relay_tell_accepted(relays[i]);
            relay_release(relays[i]);
        }
    }
}

void dispatch_end_waiting(struct dispatch *dispatch)
{
    struct relay *relay;
    waiting_begin(dispatch);
    while ((relay = waiting_next(dispatch))) {
        struct error err;
        without_replica(dispatch, relay, true, &err);
        dispatch_end(relay, &err);
        relay_release(relay);
    }
}
