/* replicas.h: the routes in force and a link to each replica that they name. Any thread unless said
 * otherwise. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/gateway/replicas/route_table.h"

struct error;
struct link;
struct link_shared;

struct replicas {
    const struct link_shared *shared; /* outlives it */
    pthread_mutex_t lock;             /* before a link's */
    struct route_table *routes;       /* the snapshot in force; never NULL */
    struct link **links;
    uint32_t n_links;
};

/* The next three: one thread. fini also after a failed init. */
int replicas_init(struct replicas *replicas, const struct link_shared *shared, struct error *err);
/* Shuts every link down. All are shut down before fini frees one: the callbacks of each look
 * through the list. */
void replicas_shutdown(struct replicas *replicas);
void replicas_fini(struct replicas *replicas);

/* The routes in force; release with route_table_release. */
struct route_table *replicas_routes(struct replicas *replicas);
/* Puts a table in force. Takes the reference, and returns that of the table before. */
struct route_table *replicas_set_routes(struct replicas *replicas, struct route_table *table);
/* Opens links to replicas that are new in the table, retires those of replicas that are gone. */
void replicas_sync_links(struct replicas *replicas, const Sluice__Manager__V1__RouteTable *table);

/* Whether a replica of the route's version takes requests now (route_wish.usable; arg: replicas).
 */
bool replicas_take_requests(void *arg, const route *wanted);
/* Whether routes are known, and each replica that they call ready has its link. */
bool replicas_are_linked(struct replicas *replicas);

/* The ticker: links that are due connect, those that are over are closed. A channel must not be
 * closed from its own callbacks. */
void replicas_tick(struct replicas *replicas, int64_t now_ns);
