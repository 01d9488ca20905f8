/* link.h: the one Serve stream between this server and one worker process. It carries every request
 * of that replica: submits, cancels, pauses up; step frames down, handed item by item to the
 * relays. Reference counted; lock inside; any thread. A link that loses its stream hands its
 * requests back (link_events.on_return) and reconnects with backoff until it is retired.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/gateway/relay/relay.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct awake_clock;
struct counters;
struct error;
struct gateway_limits;
struct link;
struct meters;
struct rpc_client;
struct rpc_stream;

/* What links tell their owner. Any thread; no lock is held. */
struct link_events {
    /* A link came up, went down or drains. */
    void (*on_change)(void *arg);
    /* A replica carries one request less. */
    void (*on_place_free)(void *arg);
    /* The request is off the link, or has ended at the worker (dispatch_take_back). Borrowed. */
    void (*on_return)(void *arg, struct relay *relay, enum relay_progress why,
                      const Sluice__Worker__V1__StepItem *item);
};

/* What all links of a server share. Outlives them. */
struct link_shared {
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct awake_clock *clock;
    struct meters *meters;
    const char *server_id;
    uint64_t server_epoch;
    const struct link_events *events;
    void *arg; /* of the events */
};

/* Starts connecting. *out_link is owned (release). */
int link_create(const struct link_shared *shared, const Sluice__Manager__V1__Route *route,
                const Sluice__Manager__V1__RouteReplica *replica, struct link **out_link,
                struct error *err);
void link_retain(struct link *link);
void link_release(struct link *link); /* NULL is accepted */

/* No new requests; the stream closes when the last of its requests has ended. */
void link_retire(struct link *link);
/* Ends the stream at once and waits for its callbacks; for the end of the program. */
void link_shutdown(struct link *link);
/* Retired, its stream ended and held by nobody but the list of links. Under that list's lock. */
bool link_is_finished(struct link *link);
/* Tries to connect again where the backoff allows; called by the gateway's ticker. */
void link_tick(struct link *link, int64_t now_ns);

/* True where this link is the one for that replica process. */
bool link_matches(const struct link *link, const Sluice__Manager__V1__RouteReplica *replica);
bool link_serves(const struct link *link, const char *model, const char *version);
/* Whether it takes new requests now, and how many it carries. */
bool link_usable(struct link *link);
uint32_t link_n_live(struct link *link);

/* How full a replica is. */
struct link_queue {
    uint32_t n_live;    /* of this server */
    uint32_t n_places;  /* that run at once: what the replica says, at most the server's limit */
    uint32_t n_waiting; /* for a place, as the replica says or as the two above do */
    bool holds; /* more than n_places are kept back here: the replica itself would run them all */
    int64_t interval_ns; /* from one end of a request to the next, smoothed; 0: not known */
};
void link_get_queue(struct link *link, struct link_queue *out_queue);
/* Requests of a caller that are at the replica. Goes through all of them. */
uint32_t link_n_live_of(struct link *link, const char *caller);
/* The replica is in the routes (again), in this state: only READY ones take new requests. */
void link_set_listed(struct link *link, Sluice__Manager__V1__ReplicaState state);
bool link_has_numerics(struct link *link, const char *numerics_id);
/* Of all links, the one with the highest value is the home of a session: it stays the same while
 * others come and go, and every server finds the same one. */
uint64_t link_affinity(const struct link *link, const char *session_key);

/* Facts from the worker's hello; false while there was none. */
struct link_facts {
    char numerics_id[128];
    char device_group[64];
    char replica_id[64];
    uint32_t n_running, n_queued;
};
bool link_get_facts(struct link *link, struct link_facts *out_facts);

/* For metrics: who is behind the link, and what the worker told last (zeros: nothing yet). */
struct link_load {
    uint32_t n_running, n_queued, n_paused;
    uint64_t free_kv_tokens, cached_kv_tokens, total_kv_tokens; /* free ones include cached ones */
};
struct link_view {
    char model[65], version[65], replica_id[64];
    bool usable;
    struct link_load load;
};
void link_get_view(struct link *link, struct link_view *out_view);
/* Borrowed for the link's life. */
const char *link_replica_id(const struct link *link);

/* Submits a relay. The link keeps a reference until the request ends there. 0 also where the relay
 * has ended meanwhile; UNAVAILABLE where the link is not usable (any more); RESOURCE_EXHAUSTED
 * where the worker does not keep up with what is sent to it. */
int link_submit(struct link *link, struct relay *relay, struct error *err);
/* Takes a request off its link, if it is at one, and tells the worker if it still runs there;
 * nothing of it arrives afterwards. */
void link_leave(struct relay *relay);
/* Lets go of a seat that a relay has left. */
void link_release_seat(struct relay_seat *seat);
/* The worker refuses what it is sent: no new requests until it is linked again. */
void link_set_draining(struct link *link);
/* The channel, for the unary RPCs of the worker. Borrowed while the link is retained. */
struct rpc_client *link_client(struct link *link);
