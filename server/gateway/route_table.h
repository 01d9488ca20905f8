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

/* The version a request goes to. `version` empty: by traffic weights (drawn by `draw`, or by the
 * session key's hash where the model is sticky and one is given), else the default, else the loaded
 * version registered last. NOT_FOUND: no such model or version; FAILED_PRECONDITION: known but
 * nothing is loaded. *out_route is borrowed from the table. */
int route_table_pick(const struct route_table *table, const char *model, const char *version,
                     const char *session_key, uint64_t draw, const route **out_route,
                     struct error *err);
