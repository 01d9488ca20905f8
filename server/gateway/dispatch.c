#include "server/gateway/dispatch.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/gateway/gateway.h"
#include "server/gateway/link.h"
#include "server/gateway/relay.h"
#include "server/gateway/service.h"

/* So many requests more than the least busy replica may the home of a session carry: a prefix found
 * again is worth a wait, a queue is not. */
enum { HOME_MAX_BUSIER = 8 };

struct link *gateway_pick_link(struct gateway *gateway, const char *model, const char *version,
                               const char *numerics_id, const char *session_key)
{
    struct link *best = NULL, *home = NULL;
    uint32_t best_live = 0, home_live = 0;
    uint64_t home_affinity = 0;
    bool best_same = false, home_same = false;
    pthread_mutex_lock(&gateway->lock);
    for (uint32_t i = 0; i < gateway->n_links; i++) {
        struct link *link = gateway->links[i];
        if (!link_serves(link, model, version) || !link_usable(link))
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

static void end_without_replica(struct relay *relay, bool was_lost)
{
    struct error err;
    if (was_lost) {
        error_set(&err, STATUS_UNAVAILABLE,
                  "the replica was lost and no other came back in time; tokens sent: %llu",
                  (unsigned long long)relay_n_released(relay));
        error_reason(&err, "REPLICA_LOST");
    } else {
        error_set(&err, STATUS_UNAVAILABLE, "model: no replica of \"%s\" version \"%s\" is ready",
                  relay->model, relay->version);
        error_reason(&err, "NO_REPLICA_READY");
    }
    err.retry_after_ms = 1000;
    relay_end(relay, &err);
}

static void wait_for_replica(struct gateway *gateway, struct relay *relay)
{
    relay_retain(relay);
    pthread_mutex_lock(&gateway->lock);
    relay->next_waiting = gateway->waiting;
    gateway->waiting = relay;
    pthread_mutex_unlock(&gateway->lock);
}

/* No link took the request: another may come, for a new one and for one whose replica was lost. */
static bool may_wait(struct gateway *gateway, struct relay *relay, bool was_lost)
{
    bool coming;
    bool loaded = gateway_still_loaded(gateway, relay->model, relay->version, &coming);
    int64_t now_ns = clock_now_ns();
    int64_t since_ns = was_lost ? relay_lost_since(relay, now_ns) : relay->arrived_ns;
    uint64_t limit_ms =
        was_lost ? gateway->config.limits.resume_ms : gateway->config.limits.replica_wait_ms;
    return loaded && (was_lost || coming) && now_ns - since_ns <= (int64_t)limit_ms * NS_PER_MS;
}

void gateway_dispatch(struct gateway *gateway, struct relay *relay)
{
    struct error err;
    char numerics_id[sizeof(relay->numerics_id)];
    pthread_mutex_lock(&relay->lock);
    bool ended = relay->ended;
    int64_t lost_ns = relay->lost_ns;
    memcpy(numerics_id, relay->numerics_id, sizeof(numerics_id));
    pthread_mutex_unlock(&relay->lock);
    if (ended)
        return;
    struct link *link = gateway_pick_link(gateway, relay->model, relay->version, numerics_id,
                                          relay->request->session_key);
    int rc = link ? link_submit(link, relay, &err) : STATUS_UNAVAILABLE;
    bool had_link = link != NULL;
    link_release(link);
    if (rc == 0)
        return;
    /* Lost: earlier, or now, between the choice and the submit. */
    bool was_lost = lost_ns || had_link;
    if (!lost_ns && rc == STATUS_RESOURCE_EXHAUSTED)
        relay_end(relay, &err);
    else if (may_wait(gateway, relay, was_lost))
        wait_for_replica(gateway, relay);
    else
        end_without_replica(relay, was_lost);
}

void dispatch_retry_waiting(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct relay *list = gateway->waiting;
    gateway->waiting = NULL;
    pthread_mutex_unlock(&gateway->lock);
    while (list) {
        struct relay *relay = list;
        list = relay->next_waiting;
        gateway_dispatch(gateway, relay);
        relay_release(relay);
    }
    text_retry_waiting(gateway);
}

void dispatch_end_waiting(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct relay *list = gateway->waiting;
    gateway->waiting = NULL;
    pthread_mutex_unlock(&gateway->lock);
    while (list) {
        struct relay *relay = list;
        list = relay->next_waiting;
        end_without_replica(relay, true);
        relay_release(relay);
    }
    text_end_waiting(gateway);
}
