/* link.h: the Serve stream between this server and one worker process. The stream carries all
 * requests of that replica: submits, cancels and pauses up, step frames down. Items of step
 * frames go to the relays. Reference counted; lock inside; any thread. A link that loses its
 * stream hands its requests back (link_events.on_return). The link reconnects with backoff until
 * it is retired. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/gateway/base/fingerprint.h"
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

/* Callbacks of links to their owner. Any thread; no lock is held. */
struct link_events {
    /* A link came up, went down or drains. */
    void (*on_change)(void *arg);
    /* A replica has a free place. */
    void (*on_place_free)(void *arg);
    /* The request is off the link, or has ended at the worker (dispatch_take_back). Borrowed. */
    void (*on_return)(void *arg, struct relay *relay, enum relay_progress why,
                      const Sluice__Worker__V1__StepItem *item);
};

/* State that all links of a server share. Outlives them. */
struct link_shared {
    const struct gateway_limits *limits;
    struct counters *counters;
    const struct awake_clock *clock;
    struct meters *meters;
    const char *server_id;
    uint64_t server_epoch;
    const struct link_events *events;
    void *arg; /* argument of the events */
};

/* Starts connecting. *out_link is owned (release). */
int link_create(const struct link_shared *shared, const Sluice__Manager__V1__Route *route,
                const Sluice__Manager__V1__RouteReplica *replica, struct link **out_link,
                struct error *err);
void link_retain(struct link *link);
void link_release(struct link *link); /* NULL is accepted */

/* The link takes no new requests. Its stream closes when the last request has ended. */
void link_retire(struct link *link);
/* Ends the stream now and waits for its callbacks. For the end of the program. */
void link_shutdown(struct link *link);
/* True if the link is retired, its stream has ended and only the list of links holds it. Under
 * that list's lock. */
bool link_is_finished(struct link *link);
/* Connects again when the backoff allows; called by the gateway's ticker. */
void link_tick(struct link *link, int64_t now_ns);

/* True if this link is the link of that replica process. */
bool link_matches(const struct link *link, const Sluice__Manager__V1__RouteReplica *replica);
bool link_serves(const struct link *link, const char *model, const char *version);
/* True if the link takes new requests now; and how many requests it carries. */
bool link_usable(struct link *link);
/* True while a link to a READY replica makes its first attempt, for two seconds at most. */
bool link_is_new(struct link *link);
uint32_t link_n_live(struct link *link);

/* Load of a replica. */
struct link_queue {
    uint32_t n_live;    /* live requests of this server */
    uint32_t n_places;  /* requests that run at once: the replica's own number, at most this
                         * server's limit */
    uint32_t n_waiting; /* requests that wait for a place: the replica's number, or n_live beyond
                         * n_places, if higher */
    bool holds; /* this server limits the requests to n_places: the replica itself would run more */
    int64_t interval_ns; /* smoothed time between two ends of requests; 0: not known */
};
void link_get_queue(struct link *link, struct link_queue *out_queue);
/* Counts a caller's requests at the replica. Walks over all requests of the link. */
uint32_t link_n_live_of(struct link *link, const char *caller);
/* Sets the state in which the routes list the replica. Only READY replicas take new requests. */
void link_set_listed(struct link *link, Sluice__Manager__V1__ReplicaState state);
bool link_has_numerics(struct link *link, const char *numerics_id);
/* Returns the link's value for a session. The link with the highest value is the session's home.
 * The home stays while other links come and go, and all servers find the same home. */
uint64_t link_affinity(const struct link *link, const char *session_key);

/* Facts from the worker's hello; false before the first hello. */
struct link_facts {
    char numerics_id[128];
    char fingerprint[FINGERPRINT_BYTES];
    char device_group[64];
    char replica_id[64];
    uint32_t n_running, n_queued;
};
bool link_get_facts(struct link *link, struct link_facts *out_facts);

/* For metrics: the replica behind the link, and the last load it reported (zeros before the
 * first). */
struct link_load {
    uint32_t n_running, n_queued, n_paused;
    uint64_t free_kv_tokens, cached_kv_tokens, total_kv_tokens; /* free tokens include cached
                                                                 * tokens */
    uint64_t free_window_tokens, cached_window_tokens, total_window_tokens; /* 0: no such cache */
    uint32_t n_state_slots, n_states_used, n_snapshots; /* 0: no recurrent layers */
    uint32_t kv_block_tokens;                           /* 0: not known */
};
struct link_view {
    char model[65], version[65], replica_id[64];
    bool usable;
    struct link_load load;
};
void link_get_view(struct link *link, struct link_view *out_view);
/* Borrowed for the link's life. */
const char *link_replica_id(const struct link *link);

/* Submits a relay. The link holds a reference until the request ends there. Returns 0 also if
 * the relay has ended meanwhile. UNAVAILABLE if the link is not usable, RESOURCE_EXHAUSTED if
 * the worker does not keep up. */
int link_submit(struct link *link, struct relay *relay, struct error *err);
/* Takes a request off its link, if it has one, and cancels it at the worker. No items arrive
 * afterwards. */
void link_leave(struct relay *relay);
/* Releases a seat that a relay has left. */
void link_release_seat(struct relay_seat *seat);
/* The channel, for the unary RPCs of the worker. Borrowed while the link is retained. */
struct rpc_client *link_client(struct link *link);
