/* waiting.h: the list of requests that wait for a replica here: those whose replica was lost, that
 * came when none was up, or that this server's limit per replica keeps back. In the order of their
 * turns: by priority, callers in turns, then by age. The ticker goes through it and takes one after
 * the other off; who finds no place comes back to where it was. All functions take the replicas'
 * lock.
 */
#pragma once

#include <stdbool.h>

struct dispatch;
struct relay;

/* Into the list, for the first time or back. Retains the relay. */
void waiting_add(struct dispatch *dispatch, struct relay *relay);

/* The ticker begins to go through all that wait now. */
void waiting_begin(struct dispatch *dispatch);
/* The next one of those, with its reference; NULL: there is none. It is on no list then: within the
 * same hold of the admission lock it has to get where it is counted again. The ticker only. */
struct relay *waiting_next(struct dispatch *dispatch);

/* Of the same version of the same model. No lock. */
bool waiting_for_same(const struct relay *a, const struct relay *b);

/* All that wait, those first that the ticker has yet to look at. The caller holds the replicas'
 * lock. */
struct waiting_walk {
    const struct relay *next, *others;
};
struct waiting_walk waiting_walk(const struct dispatch *dispatch);
/* NULL: that was the last one. */
const struct relay *waiting_walk_on(struct waiting_walk *walk);
