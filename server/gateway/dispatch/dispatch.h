/* dispatch.h: which replica a request goes to. That holds for new requests (admit.h), waiting
 * requests (waiting.h) and requests that a replica gives back. The ends of requests are in
 * ending.h. In the request path, only this room talks to links. Any thread unless said otherwise.
 *
 * The replicas own the queues: they know priorities, fairness and the cost of a prompt.
 * Dispatch counts the queued requests over all replicas of a version and refuses what exceeds
 * the limit. Requests wait here only where this server's limit per replica is below the
 * replica's own. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/route_table.h"

struct error;
struct link;
struct replicas;
struct route_watch;
struct wake;

struct dispatch {
    struct relay_shared *relays; /* relays, replicas and wake outlive the dispatcher */
    struct replicas *replicas;
    struct wake *wake;
    /* NULL without a manager. Atomic: links and the watch's own thread read it before it is set. */
    struct route_watch *_Atomic watch;
    /* Lets the dispatcher admit a single request at a time. A new request holds the lock from its
     * check until it has a place or waits. The ticker holds the lock while it tries a waiting
     * request. Outermost lock. */
    pthread_mutex_t admission_lock;
    /* Requests that wait for a replica: lost, starting or full. Under the replicas' lock, so
     * that a reader sees the lists and the links in one state. Linked by next_waiting.
     * `retrying` holds those that the ticker has not tried in this pass. */
    struct relay *waiting, *last_waiting, *retrying;
    struct relay *last_kept; /* request of `waiting` that was put back last in this pass, or NULL */
    uint64_t last_round;     /* wait_round of the first waiting request when the last pass began */
    _Atomic bool has_waiting;
    _Atomic uint64_t n_freed; /* places that came free at replicas since the start */
};

void dispatch_init(struct dispatch *dispatch, struct relay_shared *relays,
                   struct replicas *replicas, struct wake *wake);
void dispatch_fini(struct dispatch *dispatch);

/* Picks the least busy usable link of a version, retained; NULL if there is none. A link with
 * `numerics_id` (empty: any) is preferred over a less busy one: a moved request should keep its
 * arithmetic. A session (empty: none) stays with its home replica, which may hold its prefix,
 * unless that is much busier. */
struct link *dispatch_pick_link(struct dispatch *dispatch, const char *model, const char *version,
                                const char *numerics_id, const char *session_key);

/* If a wake is refused within this time, the answer has trailers only, and gRPC clients retry
 * the request. */
enum { WAKE_HEADERS_MS = 1000 };

/* The chance that a replica will take requests of a version. */
enum dispatch_prospect {
    PROSPECT_NONE,   /* the version should not be served any more */
    PROSPECT_LOADED, /* the version should be served, but no replica is on its way */
    PROSPECT_COMING, /* a replica is ready or on its way: a link may come up soon */
    PROSPECT_WAKING, /* the version was parked and wakes for the waiting requests */
};
/* Asks the manager to wake the version if that is parked and may be woken by a request. If the
 * manager refuses, the result is COMING: memory may still come free. */
enum dispatch_prospect dispatch_prospect(struct dispatch *dispatch, const char *model,
                                         const char *version);
/* True if a request may wake the version, or has done so: a replica is parked, loading, warming
 * or draining. */
bool dispatch_may_wake(struct dispatch *dispatch, const route *r);
/* Fills the error of a request that waited too long: no replica is ready, or the parked version
 * cannot wake. */
void dispatch_no_replica(struct dispatch *dispatch, const char *model, const char *version,
                         struct error *err);

/* Sends a relay to a replica, or queues it until a replica is there or its time is over. */
void dispatch_place(struct dispatch *dispatch, struct relay *relay);
/* A replica gives a request back, or has finished it. `why` is not RELAY_GOES_ON. `item` is the
 * worker's last report; NULL where the replica is lost. The request moves to another replica,
 * waits, or ends. */
void dispatch_take_back(struct dispatch *dispatch, struct relay *relay, enum relay_progress why,
                        const Sluice__Worker__V1__StepItem *item);
/* A replica has a free place: wakes the ticker, which tries the waiting requests now. */
void dispatch_place_free(struct dispatch *dispatch);

/* Ticker thread: tries every waiting request again. */
void dispatch_retry_waiting(struct dispatch *dispatch);
/* Ticker thread: sends headers to the clients of requests that wait here. */
void dispatch_tell_waiting(struct dispatch *dispatch);
/* Ends every waiting request; called when the program ends. */
void dispatch_end_waiting(struct dispatch *dispatch);
