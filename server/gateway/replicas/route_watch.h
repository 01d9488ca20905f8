/* route_watch.h: follows the manager's routes on a thread of its own, for as long as the server
 * lives; a manager that is away costs nothing but fresh routes. Each new table goes to
 * its owner and to the file the server starts from without a manager. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/gateway/replicas/route_table.h"

struct counters;
struct error;
struct replicas;
struct route_watch;

/* All of it outlives the watch. */
struct route_watch_config {
    const char *manager_socket;
    const char *routes_file; /* empty or NULL: none */
    const char *server_id;
    const char *listen, *listen_unix; /* where clients reach this server; empty: nowhere */
    const _Atomic uint16_t *port;     /* that was bound for `listen`, or will be */
    struct counters *counters;
    struct replicas *replicas;
    /* Puts a new table in force. Takes the reference. On the watch's thread. */
    void (*apply)(void *arg, struct route_table *table);
    void *arg;
};

/* *out_watch is owned. */
int route_watch_create(const struct route_watch_config *config, struct route_watch **out_watch,
                       struct error *err);

/* Asks the manager to wake a version that is parked, no oftener than once a second for each; counts
 * where it did. Returns at once. Any thread; `watch` may be NULL: there is no manager to ask. */
void route_watch_wake(struct route_watch *watch, const route *parked);
/* Whether the manager sends its routes: else those there are may be old. Any thread. */
bool route_watch_connected(const struct route_watch *watch);
/* Whether the manager was asked to wake it and has not just refused: an answer is yet to come, or
 * it said that it is on its way. False also where more versions are wanted at once than it is asked
 * for. Any thread; `watch` may be NULL. */
bool route_watch_hopes(struct route_watch *watch, const char *model, const char *version);
/* Whether the manager said within the last minute that it wakes it, or that it is on its way. Any
 * thread. */
bool route_watch_woke(struct route_watch *watch, const char *model, const char *version);
/* Whether the manager has just refused to wake it (*out_why, its words; may be NULL): there is no
 * room, say; or it did not answer. It is asked again as long as anybody waits. Any thread; `watch`
 * may be NULL. */
bool route_watch_refused(struct route_watch *watch, const char *model, const char *version,
                         struct error *out_why);
/* Follows and asks no more. NULL is accepted. */
void route_watch_stop(struct route_watch *watch);
/* After route_watch_stop, when nobody can call route_watch_wake any more. */
void route_watch_destroy(struct route_watch *watch); /* NULL is accepted */
