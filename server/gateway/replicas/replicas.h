/* replicas.h: the current routes, and a link to each replica in them. Any thread unless said
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
    const struct link_shared *shared; /* outlives the replicas */
    pthread_mutex_t lock;             /* taken before a link's lock */
    struct route_table *routes;       /* current snapshot; never NULL */
    struct link **links;
    uint32_t n_links;
};

/* init, shutdown and fini: a single thread. fini may follow a failed init. */
int replicas_init(struct replicas *replicas, const struct link_shared *shared, struct error *err);
/* Shuts every link down. Call it before fini frees any link: the callbacks of each link read the
 * list. */
void replicas_shutdown(struct replicas *replicas);
void replicas_fini(struct replicas *replicas);

/* Returns the current routes; release with route_table_release. */
struct route_table *replicas_routes(struct replicas *replicas);
/* Makes a table the current routes. Takes the reference and returns that of the previous table. */
struct route_table *replicas_set_routes(struct replicas *replicas, struct route_table *table);
/* Opens links to new replicas of the table, and retires the links of replicas that are gone. */
void replicas_sync_links(struct replicas *replicas, const Sluice__Manager__V1__RouteTable *table);

/* True if a replica of the route's version takes requests now (route_wish.usable; arg:
 * replicas). */
bool replicas_take_requests(void *arg, const route *wanted);
/* The same, or a link to such a replica is new (link.h). For the choice of a version: the first
 * requests of a server that has just started wait for the link. They do not leave the version of
 * their session. */
bool replicas_will_take_requests(void *arg, const route *wanted);
/* True if routes are known and every READY replica in them has a link. */
bool replicas_are_linked(struct replicas *replicas);

/* Ticker thread: due links connect, finished links are closed. A channel must not be closed from
 * its own callbacks. */
void replicas_tick(struct replicas *replicas, int64_t now_ns);
