/* manager.h: the running manager, the root of its parts: only main.c, and tests in its place, see
 * all of them. Everything here belongs to the loop thread. */
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
    struct context context; /* of these two, the loop, its queue and the store */
    struct fleet fleet;
    uint64_t told_generation; /* the catalog's, as context.changes was notified of last */
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
    struct manager_metrics *metrics; /* NULL: not asked for */
};

/* Points context, fleet and gate at one another and at settings and catalog. First of all; loop,
 * environment and start time of the context are the caller's to set. */
void manager_init(struct manager *manager);

/* store_poll(), and a notice to context.changes where the catalog is another than at the last
 * notice: a commit whose end was not known comes with some later job, whose own caller need not
 * look. False as store_poll() is. */
bool manager_poll_store(struct manager *manager);
