#include "manager/watch/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/traffic.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/watch/build.h"
#include "manager/watch/stream_watch.h"
#include "proto/rpc/server/call.h"

enum { DEFAULT_CONCURRENT = 256, MAX_SERVERS = 64, MAX_ADDRESSES = 16 };
static const ev_tstamp retry_s = 0.1;

struct watch {
    struct stream_watch stream; /* first member */
    struct routes *routes;
    const Sluice__Manager__V1__WatchRoutesRequest *request; /* lives as long as the call */
    uint64_t sent_generation;
    int64_t connected_unix_ns;
};

struct routes {
    struct fleet *fleet;
    struct change_subscriber on_change, on_tick;
    struct hash_map served;    /* "model version" → pb_info of its workers' last status; owned */
    struct arena arena;        /* memory of the table */
    pb_route_table *table;     /* NULL before the first table */
    struct message_image last; /* the table without generation and time */
    uint32_t n_changes;
    struct stream_watches watches;
    ev_timer again; /* runs after a table could not be built */
};

/* --- the table --- */

static void remember_info(struct routes *routes, const char *key, const pb_info *info)
{
    pb_info *copy = MESSAGE_COPY(pb_info, info);
    pb_info *old = hash_map_get_str(&routes->served, key);
    if (!copy)
        return;
    if (!hash_map_put_str(&routes->served, key, copy))
        old = copy;
    if (old)
        message_free(&old->base);
}

static uint32_t concurrent_limit(const pb_status *status, const pb_version *version)
{
    if (status && status->info && status->info->limits &&
        status->info->limits->max_concurrent_requests)
        return status->info->limits->max_concurrent_requests;
    if (version->config && version->config->max_concurrent_requests)
        return version->config->max_concurrent_requests;
    return DEFAULT_CONCURRENT;
}

/* Adds a replica to the route. */
static void add_replica(struct routes *routes, struct arena *arena, pb_route *route,
                        const pb_replica *row, const pb_version *version, const char *key)
{
    struct fleet *fleet = routes->fleet;
    struct replica_view view = {0};
    bool up = (int)row->state == REPLICA_READY || (int)row->state == REPLICA_DRAINING ||
              ((int)row->state == REPLICA_PARKED && seeded_bug("I7_routes_the_parked"));
    if ((int)row->state == REPLICA_STOPPED && !seeded_bug("I7_routes_the_unloaded"))
        return;
    replica_view_take(fleet, row->id, &view);
    pb_route_replica *replica = message_add_in(arena, &route->n_replicas, &route->replicas,
                                               &sluice__manager__v1__route_replica__descriptor);
    if (!replica)
        return;
    if (view.status && view.status->info)
        remember_info(routes, key, view.status->info);
    replica->epoch = row->epoch;
    replica->state = row->state;
    if (view.sleeps) /* pending, but the next process will not serve */
        replica->state = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED;
    replica->stalled = row->stalled;
    replica->max_concurrent_requests = concurrent_limit(view.status, version);
    /* Replicas on their way are listed too: a server lets requests wait for them. */
    replica->id = message_text_in(arena, row->id);
    if (up)
        replica->socket_path =
            message_printf_in(arena, "%s/%s", fleet->context->settings->run_dir, row->socket);
    replica->numerics_id = message_text_in(arena, row->numerics_id);
    replica->device_group = message_text_in(arena, row->device_group);
}

static void add_route(struct routes *routes, struct arena *arena, pb_route_table *table,
                      const pb_version *version)
{
    const struct catalog *catalog = routes->fleet->context->catalog;
    pb_route *route = message_add_in(arena, &table->n_routes, &table->routes,
                                     &sluice__manager__v1__route__descriptor);
    char key[TABLE_KEY_BYTES];
    if (!route)
        return;
    table_key(key, version->model, version->version, NULL);
    route->model = message_text_in(arena, version->model);
    route->version = message_text_in(arena, version->version);
    route->sequence = version->sequence;
    const pb_traffic *traffic = traffic_find(catalog, version->model);
    route->traffic_weight = traffic_weight(traffic, version->version);
    route->sticky = traffic && traffic->sticky;
    CATALOG_EACH(deployment, deployment, catalog) {
        if (strcmp(deployment->model, version->model) != 0 ||
            strcmp(deployment->version, version->version) != 0)
            continue;
        route->loaded = 1;
        route->wakes |= lifecycle_wakes_on_demand(catalog, deployment);
    }
    CATALOG_EACH(replica, row, catalog) {
        if (strcmp(row->model, version->model) == 0 && strcmp(row->version, version->version) == 0)
            add_replica(routes, arena, route, row, version, key);
    }
    const pb_info *info = hash_map_get_str(&routes->served, key);
    route->info = message_copy_in(arena, info ? info : version->info);
    /* `info` may be that of an earlier load with other settings */
    if (route->info)
        build_default_sampling(arena, catalog, version, route->info);
}

static bool has_ready(const pb_route *route)
{
    for (size_t i = 0; i < route->n_replicas; i++)
        if ((int)route->replicas[i]->state == REPLICA_READY)
            return true;
    return false;
}

/* The rule of the servers (route_is_parked): failed replicas beside parked ones do not serve
 * either. */
static bool is_parked(const pb_route *route)
{
    bool parked = false;
    for (size_t i = 0; i < route->n_replicas; i++) {
        int state = (int)route->replicas[i]->state;
        parked |= state == REPLICA_PARKED;
        if (state != REPLICA_PARKED && state != REPLICA_FAILED)
            return false;
    }
    return parked;
}

/* Chooses the default version of each model: a ready, else a loaded, else a parked, else any
 * version. Among these the latest registered one. */
static void choose_defaults(pb_route_table *table)
{
    for (size_t i = 0; i < table->n_routes;) {
        size_t best = i, end = i;
        int best_rank = -1;
        for (; end < table->n_routes &&
               strcmp(table->routes[end]->model, table->routes[i]->model) == 0;
             end++) {
            const pb_route *route = table->routes[end];
            int rank = has_ready(route) ? 3 : !route->loaded ? 0 : is_parked(route) ? 1 : 2;
            if (rank > best_rank ||
                (rank == best_rank && route->sequence > table->routes[best]->sequence)) {
                best = end;
                best_rank = rank;
            }
        }
        table->routes[best]->is_default = 1;
        i = end;
    }
}

/* The table is incomplete where the arena is exhausted. Then the table must not be sent: the
 * streams of missing replicas would end. */
static pb_route_table *build_table(struct routes *routes, struct arena *arena)
{
    const struct catalog *catalog = routes->fleet->context->catalog;
    pb_route_table *table = message_new_in(arena, &sluice__manager__v1__route_table__descriptor);
    if (!table)
        return NULL;
    CATALOG_EACH(version, version, catalog)
        add_route(routes, arena, table, version);
    choose_defaults(table);
    table->manager_epoch = catalog->manager_epoch;
    return table;
}

static void drop_unregistered(struct routes *routes)
{
    size_t cursor = 0;
    pb_info *info;
    const void *key;
    size_t n_key;
    while ((info = hash_map_next(&routes->served, &cursor, &key, &n_key))) {
        char text[TABLE_KEY_BYTES];
        snprintf(text, sizeof(text), "%.*s", (int)n_key, (const char *)key);
        if (catalog_get(routes->fleet->context->catalog, TABLE_MODEL_VERSION, text))
            continue;
        hash_map_remove(&routes->served, key, n_key);
        message_free(&info->base);
    }
}

/* --- the watches --- */

static void send_table(struct watch *watch)
{
    const pb_route_table *table = watch->routes->table;
    if (!table || watch->sent_generation == table->generation || watch->stream.blocked)
        return;
    stream_watch_send(&watch->stream, &table->base);
    if (!watch->stream.blocked)
        watch->sent_generation = table->generation;
}

static void publish(struct routes *routes)
{
    /* Not before adopted workers have sent a status: servers would take them for lost. */
    if (!fleet_is_settled(routes->fleet))
        return;
    drop_unregistered(routes);
    struct arena arena;
    arena_init(&arena, 0, 0);
    pb_route_table *table = build_table(routes, &arena);
    enum message_change change =
        arena.exhausted ? MESSAGE_NO_MEMORY : message_image_update(&routes->last, &table->base);
    ev_timer_stop(routes->fleet->context->loop, &routes->again);
    if (change == MESSAGE_NO_MEMORY) {
        ev_timer_set(&routes->again, retry_s, 0.);
        ev_timer_start(routes->fleet->context->loop, &routes->again);
    }
    if (change != MESSAGE_CHANGED) {
        arena_fini(&arena);
        return;
    }
    arena_fini(&routes->arena);
    routes->arena = arena;
    routes->table = table;
    table->generation = routes->fleet->context->catalog->first_revision + ++routes->n_changes;
    table->made_unix_ns = clock_wall_ns();
    for (struct stream_watch *watch = routes->watches.first; watch; watch = watch->next)
        send_table((struct watch *)watch);
}

static void on_retry(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    publish(timer->data);
}

static void watch_start(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    struct routes *routes = watch->routes;
    struct error err;
    if (routes->watches.n > MAX_SERVERS) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "%d servers are connected: that is the limit",
                  MAX_SERVERS);
        error_reason(&err, REASON_TOO_MANY_SERVERS);
        stream_watch_finish(stream, &err);
        return;
    }
    log_info(LOG_EVENT("server connected"), LOG_STR("server", watch->request->server_id),
             LOG_U64("pid", watch->request->pid));
    send_table(watch);
}

static void watch_writable(struct stream_watch *stream)
{
    send_table((struct watch *)stream);
}

static void watch_done(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    log_info(LOG_EVENT("server disconnected"), LOG_STR("server", watch->request->server_id));
    free(watch);
}

static const struct stream_watch_ops watch_ops = {
    .start = watch_start,
    .writable = watch_writable,
    .done = watch_done,
};

void routes_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct routes *routes = context;
    const Sluice__Manager__V1__WatchRoutesRequest *wanted =
        (const Sluice__Manager__V1__WatchRoutesRequest *)request;
    struct error err;
    error_clear(&err);
    if (strlen(wanted->server_id) > 128)
        error_field(&err, "server_id", "%zu bytes; 128 is the limit", strlen(wanted->server_id));
    else if (wanted->n_http_addresses > MAX_ADDRESSES)
        error_field(&err, "http_addresses", "%zu of them; %d is the limit",
                    wanted->n_http_addresses, MAX_ADDRESSES);
    else if (wanted->n_addresses > MAX_ADDRESSES)
        error_field(&err, "addresses", "%zu of them; %d is the limit", wanted->n_addresses,
                    MAX_ADDRESSES);
    if (err.status != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    struct watch *watch = stream_watch_create(sizeof(*watch), call);
    if (!watch)
        return;
    watch->request = wanted;
    watch->routes = routes;
    watch->connected_unix_ns = clock_wall_ns();
    stream_watch_begin(&watch->stream, call, routes->fleet->context, &watch_ops, &routes->watches);
}

void routes_end_watches(struct routes *routes, const struct error *status)
{
    stream_watch_finish_all(&routes->watches, status);
}

uint64_t routes_generation(const struct routes *routes)
{
    return routes->table ? routes->table->generation : 0;
}

void routes_fill_status(const struct routes *routes, struct arena *arena,
                        Sluice__Manager__V1__GetStatusResponse *response)
{
    for (struct stream_watch *at = routes->watches.first; at; at = at->next) {
        const struct watch *watch = (const struct watch *)at;
        const Sluice__Manager__V1__WatchRoutesRequest *request = watch->request;
        Sluice__Manager__V1__ServerStatus *server =
            message_add_in(arena, &response->n_servers, &response->servers,
                           &sluice__manager__v1__server_status__descriptor);
        if (!server)
            return;
        /* The answer is sent at once, so the server's own texts serve. */
        server->server_id = request->server_id;
        server->software_version = request->software_version;
        server->pid = request->pid;
        server->routes_generation = watch->sent_generation;
        server->connected_unix_ns = watch->connected_unix_ns;
        server->n_addresses = request->n_addresses;
        server->addresses = request->addresses;
        server->n_http_addresses = request->n_http_addresses;
        server->http_addresses = request->http_addresses;
    }
}

static void on_change(void *arg, const char *replica_id)
{
    (void)replica_id;
    publish(arg);
}

static void on_tick(void *arg, const char *replica_id)
{
    struct routes *routes = arg;
    (void)replica_id;
    if (replica_may_wait_for_gpu(routes->fleet))
        publish(routes);
}

int routes_create(struct fleet *fleet, struct routes **out_routes, struct error *err)
{
    struct routes *routes = calloc(1, sizeof(*routes));
    if (!routes)
        return error_no_memory(err);
    routes->fleet = fleet;
    change_hub_subscribe(&fleet->context->changes, &routes->on_change, on_change, routes);
    change_hub_subscribe(&fleet->context->ticks, &routes->on_tick, on_tick, routes);
    ev_timer_init(&routes->again, on_retry, retry_s, 0.);
    routes->again.data = routes;
    *out_routes = routes;
    return 0;
}

void routes_destroy(struct routes *routes)
{
    size_t cursor = 0;
    pb_info *info;
    if (!routes)
        return;
    ev_timer_stop(routes->fleet->context->loop, &routes->again);
    while ((info = hash_map_next(&routes->served, &cursor, NULL, NULL)))
        message_free(&info->base);
    hash_map_fini(&routes->served);
    arena_fini(&routes->arena);
    message_image_fini(&routes->last);
    free(routes);
}
