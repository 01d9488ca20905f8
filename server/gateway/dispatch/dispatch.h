/* dispatch.h: which replica a request goes to, a new one that may enter (admit.h) and one that
 * waits (waiting.h); what becomes of one that its replica gives back, and how it ends (ending.h).
 * Of all that serves requests this room alone talks to links. Any thread unless said otherwise.
 *
 * The queue is the replicas' own: they know priorities, fairness and what a prompt costs. Here it
 * is counted, over all replicas of a version, so that what is too much is refused at once; and
 * requests are held back only where this server's limit per replica is lower than the replica's. */
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
    struct relay_shared *relays; /* this and the next two outlive it */
    struct replicas *replicas;
    struct wake *wake;
    struct route_watch *watch; /* NULL: there is no manager to ask */
    /* A new request, from its check to its place, and each that waits while it is looked at;
     * outermost. */
    pthread_mutex_t admission_lock;
    /* Under the replicas' lock, so that one look sees both: requests without a replica, lost, or
     * not up yet; linked by their next_waiting. Those that the ticker has yet to look at this time
     * are in retrying. */
    struct relay *waiting, *last_waiting, *retrying;
    struct relay *last_kept; /* in waiting: put back there last, this time; or NULL */
    uint64_t last_round;     /* of callers' turns in the list, when it was last gone through */
    _Atomic bool has_waiting;
    _Atomic uint64_t n_freed; /* places at replicas, ever */
};

void dispatch_init(struct dispatch *dispatch, struct relay_shared *relays,
                   struct replicas *replicas, struct wake *wake);
void dispatch_fini(struct dispatch *dispatch);

/* The least busy usable link of a version, retained; NULL where there is none. `numerics_id`
 * (empty: any) goes before load: a request that moves should find the same arithmetic. A session
 * (empty: none) stays with its home, which may hold its prefix, unless that is much busier. */
struct link *dispatch_pick_link(struct dispatch *dispatch, const char *model, const char *version,
                                const char *numerics_id, const char *session_key);

/* Whether a replica will take requests of a version. */
enum dispatch_prospect {
    PROSPECT_NONE,   /* it is not meant to be served any more */
    PROSPECT_LOADED, /* it is, and nothing is on its way */
    PROSPECT_COMING, /* one is ready or on its way there: a link to it may come up soon */
    PROSPECT_WAKING, /* it was parked, and is woken for who waits */
};
/* Of one that is parked and may be woken by a request the manager is asked to wake it; where it
 * refuses, that is COMING: it may yet have room. */
enum dispatch_prospect dispatch_prospect(struct dispatch *dispatch, const char *model,
                                         const char *version);
/* A request may wake the version, or has: it is parked, or on its way to or from its place. */
bool dispatch_may_wake(struct dispatch *dispatch, const route *r);
/* The error of a request that has waited long enough: no replica is ready, or why what is parked is
 * not woken. */
void dispatch_no_replica(struct dispatch *dispatch, const char *model, const char *version,
                         struct error *err);

/* Sends a relay to a replica, or queues it until one is there or its time is over. */
void dispatch_place(struct dispatch *dispatch, struct relay *relay);
/* A replica gives a request back, or is done with it: `why` is not RELAY_GOES_ON; `item` is what
 * the worker said, NULL where it is lost. The request goes where it can go on, waits, or ends. */
void dispatch_take_back(struct dispatch *dispatch, struct relay *relay, enum relay_progress why,
                        const Sluice__Worker__V1__StepItem *item);
/* A replica carries one request less: who waits is looked at now. */
void dispatch_place_free(struct dispatch *dispatch);

/* The ticker: tries again for everything that waits. */
void dispatch_retry_waiting(struct dispatch *dispatch);
/* The ticker: tells the clients of requests that queue here that they were accepted. */
void dispatch_tell_waiting(struct dispatch *dispatch);
/* Ends everything that waits, at the end of the program. */
void dispatch_end_waiting(struct dispatch *dispatch);
