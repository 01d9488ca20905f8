/* route_table.h: an immutable snapshot of the routes, from the manager or from the copy on disk.
 * Reference counted, any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"

struct error;
struct route_table;

typedef Sluice__Manager__V1__Route route;

/* Returns an empty table, generation 0, or NULL if memory is exhausted. */
struct route_table *route_table_empty(void);
/* Makes a deep copy of a message. */
int route_table_from_message(const Sluice__Manager__V1__RouteTable *message,
                             struct route_table **out_table, struct error *err);
/* Reads and writes the copy on disk. Each write goes through a temporary file of its own, fsync and
 * rename, so both servers of a takeover may write. A load also removes old temporary files. */
int route_table_load(const char *path, struct route_table **out_table, struct error *err);
int route_table_save(const struct route_table *table, const char *path, struct error *err);

struct route_table *route_table_retain(struct route_table *table);
void route_table_release(struct route_table *table); /* NULL is accepted */

const Sluice__Manager__V1__RouteTable *route_table_message(const struct route_table *table);

/* True if the version is loaded but parked: every replica is parked or failed. */
bool route_is_parked(const route *r);

/* The request's part in the choice of a route. NULL texts count as empty. */
struct route_wish {
    const char *model, *version, *session_key;
    uint64_t draw; /* random number */
    /* Optional: true if a replica of the version takes requests now. Default: the table has a
     * replica that is READY and not stalled. */
    bool (*usable)(void *arg, const route *r);
    void *arg;
};

/* Chooses the version of a request: the named version, else by traffic weights, else the default,
 * else the newest loaded version.
 *
 * By weight: only loaded versions with a weight count. Usable versions come first, then those with
 * a replica on its way, then all of them. So no request waits for a version that cannot serve while
 * another weighted version can. A version without weight gets nothing while a weighted one is
 * loaded.
 *
 * Among the chosen versions `draw` decides. If the model is sticky and there is a session key, the
 * highest random weight decides instead. This is weighted rendezvous hashing: score -ln(u)/weight,
 * u from the hash of key and version. Sessions move only to a version whose share grew, or away
 * from a version that shrank, went or cannot serve.
 *
 * NOT_FOUND: no such model or version. FAILED_PRECONDITION: nothing is loaded, or the version is
 * parked (reason MODEL_PARKED) and requests may not wake it. *out_route is borrowed from the
 * table. */
int route_table_pick(const struct route_table *table, const struct route_wish *wish,
                     const route **out_route, struct error *err);
