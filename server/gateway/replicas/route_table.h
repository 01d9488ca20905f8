/* route_table.h: an immutable snapshot of what is served, as the manager sent it or as the disk
 * kept it. Reference counted, any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sluice/manager/v1/routing.pb-c.h"

struct error;
struct route_table;

typedef Sluice__Manager__V1__Route route;

/* An empty table, generation 0. NULL where memory is exhausted. */
struct route_table *route_table_empty(void);
/* A deep copy of a message. */
int route_table_from_message(const Sluice__Manager__V1__RouteTable *message,
                             struct route_table **out_table, struct error *err);
/* Reads and writes the copy on disk; writing goes through a temporary file, fsync and rename. */
int route_table_load(const char *path, struct route_table **out_table, struct error *err);
int route_table_save(const struct route_table *table, const char *path, struct error *err);

struct route_table *route_table_retain(struct route_table *table);
void route_table_release(struct route_table *table); /* NULL is accepted */

const Sluice__Manager__V1__RouteTable *route_table_message(const struct route_table *table);

/* Loaded, with nothing served and nothing on its way, because it is parked (but for what failed).
 */
bool route_is_parked(const route *r);

/* What a request asks for, and what is known beyond the table. NULL texts are empty. */
struct route_wish {
    const char *model, *version, *session_key;
    uint64_t draw; /* random */
    /* Optional: whether a replica of the version takes requests now. Default: the table has one
     * that is ready and does not stand still. */
    bool (*usable)(void *arg, const route *r);
    void *arg;
};

/* The version a request goes to: the named one; else by traffic weights; else the default; else the
 * loaded version registered last.
 *
 * By weight: of the loaded versions that have one, those that are usable; where none is, those with
 * a replica on its way; else all of them. So a weight that can serve is never waited for one that
 * cannot, and a version without weight gets nothing while one with a weight is loaded. Among them
 * `draw` decides; where the model is sticky and there is a session key, its highest random weight
 * (weighted rendezvous hashing: score -ln(u)/weight, u from the key's and the version's hash), so
 * that of the sessions only those move that have to: to a version whose share grew, or away from
 * one that shrank, went or cannot serve.
 *
 * NOT_FOUND: no such model or version; FAILED_PRECONDITION: known but nothing is loaded, or parked
 * (reason MODEL_PARKED) where no request may wake it. *out_route is borrowed from the table. */
int route_table_pick(const struct route_table *table, const struct route_wish *wish,
                     const route **out_route, struct error *err);
