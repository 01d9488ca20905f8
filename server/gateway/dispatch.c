#include "server/gateway/dispatch.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/gateway.h"
#include "server/gateway/identity.h"
#include "server/gateway/link.h"
#include "server/gateway/relay.h"
#include "server/gateway/service.h"
#include "server/gateway/ticker.h"

/* So many requests more than the least busy replica may the home of a session carry: a prefix found
 * again is worth a wait, a queue is not. */
enum { HOME_MAX_BUSIER = 8 };
enum { RESERVED_SHARE = 8 };
enum { RETRY_MIN_MS = 50, RETRY_MAX_MS = 30000, REFUSED_MS = 50 };

/* A link that keeps more than its places back has none to give once they are taken. */
static bool has_room(struct link *link)
{
    struct link_queue queue;
    link_get_queue(link, &queue);
    return !queue.holds || queue.n_live < queue.n_places;
}

/* What a link is wanted for. */
struct wish {
    const char *model, *version, *numerics_id, *session_key;
    bool with_room;
    const struct link *avoid; /* or NULL */
};

static struct link *pick(struct gateway *gateway, const struct wish *wish)
{
    const char *numerics_id = wish->numerics_id, *session_key = wish->session_key;
    struct link *best = NULL, *home = NULL;
    uint32_t best_live = 0, home_live = 0;
    uint64_t home_affinity = 0;
    bool best_same = false, home_same = false;
    pthread_mutex_lock(&gateway->lock);
    for (uint32_t i = 0; i < gateway->n_links; i++) {
        struct link *link = gateway->links[i];
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
    pthread_mutex_unlock(&gateway->lock);
    return best;
}

struct link *gateway_pick_link(struct gateway *gateway, const char *model, const char *version,
                               const char *numerics_id, const char *session_key)
{
    const struct wish wish = {model, version, numerics_id, session_key, false, NULL};
    return pick(gateway, &wish);
}

/* A replica that is ready (a link to it may yet be made) or on its way there. */
static bool replica_is_coming(Sluice__Manager__V1__ReplicaState state)
{
    return state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING ||
           state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING ||
           state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING ||
           state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY;
}

bool gateway_still_loaded(struct gateway *gateway, const char *model, const char *version,
                          bool *out_coming)
{
    struct error err;
    const route *found;
    struct route_table *routes = gateway_routes(gateway);
    int rc = route_table_pick(routes, model, version, "", 0, &found, &err);
    *out_coming = false;
    for (size_t i = 0; !rc && i < found->n_replicas; i++)
        *out_coming = *out_coming || replica_is_coming(found->replicas[i]->state);
    route_table_release(routes);
    return rc == 0;
}

/* --- admission --- */

/* How full a version is. */
struct fill {
    uint64_t n_waiting; /* for a replica or at one for a place, after those who wait have theirs */
    bool has_place;     /* some replica would run one more at once */
    bool is_behind;     /* somebody waits here whose turn is not after the relay's */
    bool has_room;      /* some replica would take one more, to run or to queue */
    double ends_per_ms;
};

struct dispatch_walk dispatch_walk(const struct gateway *gateway)
{
    return (struct dispatch_walk){gateway->retrying, gateway->waiting};
}

const struct relay *dispatch_walk_on(struct dispatch_walk *walk)
{
    const struct relay *relay = walk->next;
    if (!relay) {
        relay = walk->others;
        walk->others = NULL;
    }
    walk->next = relay ? relay->next_waiting : NULL;
    return relay;
}

static bool waits_for(const struct relay *waiting, const struct relay *relay)
{
    return strcmp(waiting->model, relay->model) == 0 &&
           strcmp(waiting->version, relay->version) == 0;
}

/* A place that is free while somebody waits here is his: the ticker is about to give it to him. */
static void measure(struct gateway *gateway, const struct relay *relay, struct fill *out)
{
    uint64_t n_free = 0, n_here = 0;
    const struct relay *r;
    *out = (struct fill){0};
    pthread_mutex_lock(&gateway->lock);
    for (uint32_t i = 0; i < gateway->n_links; i++) {
        struct link_queue queue;
        struct link *link = gateway->links[i];
        if (!link_serves(link, relay->model, relay->version) || !link_usable(link))
            continue;
        link_get_queue(link, &queue);
        out->n_waiting += queue.n_waiting;
        out->has_room |= !queue.holds || queue.n_live < queue.n_places;
        if (queue.n_live < queue.n_places && !queue.n_waiting)
            n_free += queue.n_places - queue.n_live;
        out->ends_per_ms += queue.interval_ns ? (double)NS_PER_MS / (double)queue.interval_ns : 0;
    }
    for (struct dispatch_walk walk = dispatch_walk(gateway); (r = dispatch_walk_on(&walk));) {
        if (!waits_for(r, relay))
            continue;
        n_here++;
        out->is_behind |= atomic_load(&r->priority) >= atomic_load(&relay->priority);
    }
    pthread_mutex_unlock(&gateway->lock);
    out->has_place = n_free > n_here;
    out->n_waiting += n_here > n_free ? n_here - n_free : 0;
}

/* What the relay's caller has of its version, running or waiting. */
static uint64_t n_live_of_caller(struct gateway *gateway, const struct relay *relay)
{
    uint64_t n = 0;
    const struct relay *r;
    pthread_mutex_lock(&gateway->lock);
    for (uint32_t i = 0; i < gateway->n_links; i++)
        if (link_serves(gateway->links[i], relay->model, relay->version))
            n += link_n_live_of(gateway->links[i], relay->caller);
    for (struct dispatch_walk walk = dispatch_walk(gateway); (r = dispatch_walk_on(&walk));)
        n += waits_for(r, relay) && strcmp(r->caller, relay->caller) == 0;
    pthread_mutex_unlock(&gateway->lock);
    return n;
}

/* Places in the queue that one caller cannot take while others have none: the last ones are for
 * callers who have fewer requests than that. Without API keys all are one caller's. */
static uint64_t n_reserved(const struct relay *relay, uint64_t limit)
{
    return strcmp(relay->caller, GATEWAY_ANONYMOUS) == 0 ? 0 : limit / RESERVED_SHARE;
}

static bool is_full(struct gateway *gateway, const struct relay *relay, const struct fill *fill,
                    uint64_t limit)
{
    uint64_t reserved = n_reserved(relay, limit);
    if (fill->has_place || fill->n_waiting + reserved < limit)
        return false;
    return fill->n_waiting >= limit || n_live_of_caller(gateway, relay) >= reserved;
}

/* Until half of those that wait now have had their turn: earlier there is hardly a place, and who
 * was refused should not come back all at once. */
static uint32_t retry_ms(const struct fill *fill)
{
    double ms = fill->ends_per_ms > 0 ? (double)fill->n_waiting / 2 / fill->ends_per_ms : 1000;
    return ms < RETRY_MIN_MS ? RETRY_MIN_MS : ms > RETRY_MAX_MS ? RETRY_MAX_MS : (uint32_t)ms;
}

static bool has_expired(const struct relay *relay, struct error *err)
{
    bool expired = clock_now_ns() >= relay->deadline_ns;
    if (expired)
        error_set(err, STATUS_DEADLINE_EXCEEDED, "the deadline passed while no replica had it");
    return expired;
}

/* Under the admission lock, which a new request holds until it is where it waits or runs. */
static int admit(struct gateway *gateway, struct relay *relay, struct fill *out_fill,
                 struct error *err)
{
    uint64_t limit = gateway->config.limits.max_queued;
    if (has_expired(relay, err))
        return err->status;
    measure(gateway, relay, out_fill);
    if (is_full(gateway, relay, out_fill, limit)) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "model: %llu requests of \"%s\" version \"%s\" wait, limit %llu%s",
                  (unsigned long long)out_fill->n_waiting, relay->model, relay->version,
                  (unsigned long long)limit,
                  out_fill->n_waiting < limit ? ", the last places are for other callers" : "");
        err->retry_after_ms = retry_ms(out_fill);
        return error_reason(err, "QUEUE_FULL");
    }
    if (!out_fill->has_place)
        gateway_count_refusal(gateway, LIMIT_CONCURRENT);
    relay->admitted = true;
    return 0;
}

void dispatch_count_refusal(struct gateway *gateway, const struct error *err)
{
    static const struct {
        const char *reason;
        enum gateway_limit limit;
    } rows[] = {{"QUEUE_FULL", LIMIT_QUEUED},           {"DEADLINE_UNREACHABLE", LIMIT_DEADLINE},
                {"INPUT_TOO_LONG", LIMIT_INPUT_TOKENS}, {"CONTEXT_TOO_LONG", LIMIT_INPUT_TOKENS},
                {"TOTAL_TOO_LONG", LIMIT_TOTAL_TOKENS}, {"TEMPLATE_LIMIT", LIMIT_TEMPLATE}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(err->reason, rows[i].reason) == 0)
            gateway_count_refusal(gateway, rows[i].limit);
}

void dispatch_settle_refusal(struct gateway *gateway, const struct relay *relay, struct error *err)
{
    dispatch_count_refusal(gateway, err);
    int64_t retry_ns = err->retry_after_ms * NS_PER_MS;
    if (strcmp(err->reason, "DEADLINE_UNREACHABLE") != 0 ||
        relay->deadline_ns - clock_now_ns() > retry_ns)
        return;
    err->status = STATUS_DEADLINE_EXCEEDED;
    err->retry_after_ms = 0;
}

/* --- waiting --- */

static int without_replica(struct gateway *gateway, struct relay *relay, bool was_lost,
                           struct error *err)
{
    gateway_count_refusal(gateway, was_lost ? LIMIT_RESUME : LIMIT_REPLICA_WAIT);
    if (was_lost) {
        error_set(err, STATUS_UNAVAILABLE,
                  "the replica was lost and no other came back in time; tokens sent: %llu",
                  (unsigned long long)relay_n_released(relay));
        error_reason(err, "REPLICA_LOST");
        error_tokens_sent(err, relay_n_released(relay));
    } else {
        error_set(err, STATUS_UNAVAILABLE, "model: no replica of \"%s\" version \"%s\" is ready",
                  relay->model, relay->version);
        error_reason(err, "NO_REPLICA_READY");
    }
    err->retry_after_ms = 1000;
    return err->status;
}

static bool goes_before(const struct relay *a, const struct relay *b)
{
    int32_t of_a = atomic_load(&a->priority), of_b = atomic_load(&b->priority);
    if (of_a != of_b)
        return of_a > of_b;
    if (a->wait_round != b->wait_round)
        return a->wait_round < b->wait_round;
    return a->arrived_ns < b->arrived_ns;
}

/* Callers take turns: the n-th of one that waits comes beside the n-th of another, from the round
 * on that is first now. Under the gateway's lock. */
static uint64_t next_round(const struct gateway *gateway, const struct relay *relay)
{
    uint64_t first = 0, own = 0;
    const struct relay *r;
    for (struct dispatch_walk walk = dispatch_walk(gateway); (r = dispatch_walk_on(&walk));) {
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
void dispatch_wait(struct gateway *gateway, struct relay *relay)
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

/* Begins to go through all that wait. By the ticker, as the next one. */
static void retry_all(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    if (gateway->waiting)
        gateway->last_round = gateway->waiting->wait_round;
    gateway->retrying = gateway->waiting;
    gateway->waiting = NULL;
    gateway->last_waiting = gateway->last_kept = NULL;
    pthread_mutex_unlock(&gateway->lock);
}

/* The next one to look at, with its reference; NULL: none. It is on no list then, so that under the
 * admission lock it has to get where it is counted again. */
static struct relay *next_to_retry(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct relay *relay = gateway->retrying;
    if (relay)
        gateway->retrying = relay->next_waiting;
    atomic_store(&gateway->has_waiting, gateway->retrying || gateway->waiting);
    pthread_mutex_unlock(&gateway->lock);
    return relay;
}

static void wake_ticker(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    gateway->tick_now = true;
    pthread_cond_signal(&gateway->tick);
    pthread_mutex_unlock(&gateway->lock);
}

void dispatch_place_free(struct gateway *gateway)
{
    atomic_fetch_add(&gateway->n_freed, 1);
    if (atomic_load(&gateway->has_waiting))
        wake_ticker(gateway);
}

/* --- dispatching --- */

/* No link took the request: another may come, for a new one and for one whose replica was lost. */
static bool may_wait(struct gateway *gateway, struct relay *relay, bool was_lost)
{
    bool coming;
    bool loaded = gateway_still_loaded(gateway, relay->model, relay->version, &coming);
    int64_t awake_ns = ticker_awake_ns(gateway);
    int64_t since_ns = was_lost ? relay_lost_since(relay, awake_ns) : relay->waits_ns;
    uint64_t limit_ms =
        was_lost ? gateway->config.limits.resume_ms : gateway->config.limits.replica_wait_ms;
    return loaded && (was_lost || coming) && awake_ns - since_ns <= (int64_t)limit_ms * NS_PER_MS;
}

void dispatch_wait_again(struct gateway *gateway, struct relay *relay)
{
    struct error err;
    if (may_wait(gateway, relay, true)) {
        dispatch_wait(gateway, relay);
        return;
    }
    without_replica(gateway, relay, true, &err);
    relay_end(relay, &err);
}

/* Every replica has all it may have at once: one of them will have a place. */
static bool all_full(struct gateway *gateway, const struct relay *relay)
{
    struct link *link = gateway_pick_link(gateway, relay->model, relay->version, "", "");
    link_release(link);
    return link != NULL;
}

/* To a replica or into the list. Negative: it ends with *err, which the caller tells it holding no
 * lock. */
static int place(struct gateway *gateway, struct relay *relay, struct error *err)
{
    char numerics_id[sizeof(relay->numerics_id)];
    uint64_t n_freed = atomic_load(&gateway->n_freed);
    pthread_mutex_lock(&relay->lock);
    bool ended = relay->ended;
    int64_t lost_ns = relay->lost_ns, refused_ns = relay->refused_ns;
    memcpy(numerics_id, relay->numerics_id, sizeof(numerics_id));
    pthread_mutex_unlock(&relay->lock);
    if (ended)
        return 0;
    if (has_expired(relay, err))
        return err->status;
    if (refused_ns && clock_now_ns() - refused_ns < REFUSED_MS * NS_PER_MS) {
        dispatch_wait(gateway, relay); /* whole prompts are not for asking again and again */
        return 0;
    }
    const struct wish wish = {
        relay->model, relay->version, numerics_id, relay->request->session_key, true, NULL};
    struct link *link = pick(gateway, &wish);
    int rc = link ? link_submit(link, relay, err) : STATUS_UNAVAILABLE;
    bool had_link = link != NULL;
    link_release(link);
    if (rc == 0)
        return 0;
    /* Lost: earlier, or now, between the choice and the submit. */
    bool was_lost = lost_ns || had_link;
    if (!lost_ns && rc == STATUS_RESOURCE_EXHAUSTED)
        return rc;
    if ((had_link || !all_full(gateway, relay)) && !may_wait(gateway, relay, was_lost))
        return without_replica(gateway, relay, was_lost, err);
    dispatch_wait(gateway, relay);
    if (atomic_load(&gateway->n_freed) != n_freed)
        wake_ticker(gateway); /* a place came free when it was on no list */
    return 0;
}

static void refuse(struct gateway *gateway, struct relay *relay, struct error *err)
{
    dispatch_settle_refusal(gateway, relay, err);
    relay_end(relay, err);
}

/* A new request, under the admission lock. If there is a place, and who waits has yet to get it,
 * the ticker gives it to whose turn it is. */
static int enter(struct gateway *gateway, struct relay *relay, struct error *err)
{
    struct fill fill = {0};
    int rc = admit(gateway, relay, &fill, err);
    if (rc || !fill.is_behind)
        return rc ? rc : place(gateway, relay, err);
    dispatch_wait(gateway, relay);
    if (fill.has_room)
        wake_ticker(gateway);
    return 0;
}

void gateway_dispatch(struct gateway *gateway, struct relay *relay)
{
    struct error err;
    int rc;
    if (relay->admitted) {
        rc = place(gateway, relay, &err);
    } else {
        pthread_mutex_lock(&gateway->admission_lock);
        rc = enter(gateway, relay, &err);
        pthread_mutex_unlock(&gateway->admission_lock);
    }
    if (rc)
        refuse(gateway, relay, &err);
}

void dispatch_elsewhere(struct gateway *gateway, struct relay *relay, const struct link *avoid,
                        struct error *err)
{
    struct error unused;
    char numerics_id[sizeof(relay->numerics_id)];
    pthread_mutex_lock(&relay->lock);
    memcpy(numerics_id, relay->numerics_id, sizeof(numerics_id));
    pthread_mutex_unlock(&relay->lock);
    const struct wish wish = {relay->model, relay->version, numerics_id, "", true, avoid};
    struct link *link = pick(gateway, &wish);
    int rc = link ? link_submit(link, relay, &unused) : STATUS_UNAVAILABLE;
    link_release(link);
    if (rc)
        refuse(gateway, relay, err);
}

/* True: there may be another. */
static bool retry_next(struct gateway *gateway)
{
    struct error err;
    int rc = 0;
    pthread_mutex_lock(&gateway->admission_lock);
    struct relay *relay = next_to_retry(gateway);
    if (relay)
        rc = place(gateway, relay, &err);
    pthread_mutex_unlock(&gateway->admission_lock);
    if (rc)
        refuse(gateway, relay, &err);
    relay_release(relay);
    return relay != NULL;
}

void dispatch_retry_waiting(struct gateway *gateway)
{
    if (atomic_load(&gateway->has_waiting))
        retry_all(gateway);
    while (atomic_load(&gateway->has_waiting) && retry_next(gateway))
        ;
    text_retry_waiting(gateway);
}

void dispatch_end_waiting(struct gateway *gateway)
{
    struct relay *relay;
    retry_all(gateway);
    while ((relay = next_to_retry(gateway))) {
        struct error err;
        without_replica(gateway, relay, true, &err);
        relay_end(relay, &err);
        relay_release(relay);
    }
    text_end_waiting(gateway);
}
