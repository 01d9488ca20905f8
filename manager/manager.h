/* manager.h: the running manager, the root of its parts. Only main.c, and tests in its place,
 * see all parts. Everything here belongs to the loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/change_hub.h"
#include "manager/base/context.h"
#include "manager/service/access.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

struct events;
struct idle;
struct manager_metrics;
struct operations;
struct policy_runner;
struct routes;
struct rpc_server;
struct service;
struct supervisor;
struct updates;

struct manager {
    struct settings settings;
    struct catalog catalog;
    struct context context; /* refers to settings, catalog, the loop, its queue and the store */
    struct fleet fleet;
    uint64_t
        notified_generation; /* the catalog's generation at the last notice to context.changes */
    struct change_subscriber on_change;
    struct supervisor *supervisor;
    struct operations *operations;
    struct updates *updates;
    struct policy_runner *policies;
    struct events *events;
    struct idle *idle;
    struct routes *routes;
    struct service *service;
    struct access_gate gate;
    struct rpc_server *server;
    struct manager_metrics *metrics; /* NULL: --metrics is empty */
};

/* Connects context, fleet and gate with one another and with settings and catalog. Must be
 * called first. The caller then sets loop, environment and start time of the context. */
void manager_init(struct manager *manager);

/* Calls store_poll(), and notifies context.changes where the catalog has changed since the last
 * notice. A commit of unknown outcome may arrive with a later job whose caller does not notify.
 * False like store_poll(). */
bool manager_poll_store(struct manager *manager);
