/* link.h: the one Serve stream between this server and one worker process. It carries every request
 * of that replica: submits, cancels, pauses up; step frames down, handed item by item to the
 * relays. Reference counted; lock inside; any thread. A link that loses its stream hands its
 * requests back to the gateway (gateway_dispatch) and reconnects with backoff until it is retired.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct gateway;
struct link;
struct relay;
struct rpc_client;
struct rpc_stream;

/* Starts connecting. `gateway` outlives the link. *out_link is owned (release). */
int link_create(struct gateway *gateway, const Sluice__Manager__V1__Route *route,
                const Sluice__Manager__V1__RouteReplica *replica, struct link **out_link,
                struct error *err);
void link_retain(struct link *link);
void link_release(struct link *link); /* NULL is accepted */

/* No new requests; the stream closes when the last of its requests has ended. */
void link_retire(struct link *link);
/* Ends the stream at once and waits for its callbacks; for the end of the program. */
void link_shutdown(struct link *link);
/* Retired, its stream ended and held by nobody but the gateway. Under the gateway's lock. */
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
/* Forgets a request and tells the worker; nothing of it arrives afterwards. Unknown ids are
 * ignored. */
void link_cancel(struct link *link, uint64_t id);
/* The worker refuses what it is sent: no new requests until it is linked again. */
void link_set_draining(struct link *link);
/* The worker refused or gave back what it was asked because it ends: it drains, or its engine
 * failed. Another one may be asked. */
bool link_is_ending(const struct error *refusal);
/* Whether the worker behind the stream does not keep up with what is sent to it: what a client asks
 * for must then be refused, RESOURCE_EXHAUSTED as said in *err. On the stream itself, as the
 * following. */
int link_check_backlog(struct rpc_stream *stream, struct error *err);
/* Takes the sequence out of the batch, or back in. On the stream itself, so that a relay can call
 * it under its lock. */
void link_send_pause(struct rpc_stream *stream, uint64_t id, bool paused);
void link_send_credit(struct rpc_stream *stream, uint64_t id, uint32_t n_tokens);
void link_send_update(struct rpc_stream *stream, uint64_t id,
                      const Sluice__V1__UpdateFrame *update);

/* The channel, for the unary RPCs of the worker. Borrowed while the link is retained. */
struct rpc_client *link_client(struct link *link);
