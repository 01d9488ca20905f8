/* waiting.h: the list of requests that wait for a replica here. Their replica was lost, none was
 * up, or this server's limit per replica is reached. Order: priority, then rounds over the
 * callers, then age. The ticker takes the requests off one by one; a request without a place
 * returns to its position. All functions take the replicas' lock. */
#pragma once

#include <stdbool.h>

struct dispatch;
struct relay;

/* Adds a request, or puts it back. Retains the relay. */
void waiting_add(struct dispatch *dispatch, struct relay *relay);

/* Begins a pass of the ticker over all requests that wait now. */
void waiting_begin(struct dispatch *dispatch);
/* Takes the next request of the pass off the list, with the list's reference; NULL at the end.
 * The request is on no list then. Before the caller releases the admission lock, the request
 * must be queued, placed or ended. Ticker thread only. */
struct relay *waiting_next(struct dispatch *dispatch);

/* True if both relays have the same model and version. Takes no lock. */
bool waiting_for_same(const struct relay *a, const struct relay *b);

/* Walks over all waiting requests, those not yet tried in this pass first. The caller holds the
 * replicas' lock. */
struct waiting_walk {
    const struct relay *next, *others;
};
struct waiting_walk waiting_walk(const struct dispatch *dispatch);
/* Returns the next request; NULL after the last. */
const struct relay *waiting_walk_on(struct waiting_walk *walk);
