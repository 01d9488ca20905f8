#include "manager/watch/routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

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
    struct watch *next;
    Sluice__Manager__V1__WatchRoutesRequest *request; /* owned */
    uint64_t sent_generation;
    int64_t connected_unix_ns;
};

struct routes {
    struct fleet *fleet;
    struct change_subscriber on_change, on_tick;
    struct hash_map served; /* "model version" → pb_info of its workers' last status; owned */
    pb_route_table *table;  /* owned; NULL before the first table */
    uint8_t *last;          /* packed, without generation and time */
    size_t n_last;
    uint32_t n_changes;
    struct watch *watches;
    size_t n_watches;
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

/* Adds a replica to the route. False where memory is exhausted: a table without the replica
 * would end its streams. */
static bool add_replica(struct routes *routes, pb_route *route, const pb_replica *row,
                        const pb_version *version, const char *key)
{
    struct fleet *fleet = routes->fleet;
    struct replica_view view = {0};
    char path[256];
    bool up = (int)row->state == REPLICA_READY || (int)row->state == REPLICA_DRAINING ||
              ((int)row->state == REPLICA_PARKED && seeded_bug("I7_routes_the_parked"));
    if ((int)row->state == REPLICA_STOPPED && !seeded_bug("I7_routes_the_unloaded"))
        return true;
    replica_view_take(fleet, row->id, &view);
    pb_route_replica *replica =
        MESSAGE_NEW(pb_route_replica, sluice__manager__v1__route_replica__descriptor);
    if (!replica)
        return false;
    if (view.status && view.status->info)
        remember_info(routes, key, view.status->info);
    snprintf(path, sizeof(path), "%s/%s", fleet->context->settings->run_dir, row->socket);
    replica->epoch = row->epoch;
    replica->state = row->state;
    if (view.sleeps) /* pending, but the next process will not serve */
        replica->state = SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED;
    replica->stalled = row->stalled;
    replica->max_concurrent_requests = concurrent_limit(view.status, version);
    /* Replicas on their way are listed too: a server lets requests wait for them. */
    if (message_set(&replica->id, row->id) &&
        message_set(&replica->socket_path, up ? path : NULL) &&
        message_set(&replica->numerics_id, row->numerics_id) &&
        message_set(&replica->device_group, row->device_group) &&
        message_append(&route->n_replicas, &route->replicas, replica))
        return true;
    message_free(&replica->base);
    return false;
}

static pb_route *build_route(struct routes *routes, const pb_version *version)
{
    const struct catalog *catalog = routes->fleet->context->catalog;
    pb_route *route = MESSAGE_NEW(pb_route, sluice__manager__v1__route__descriptor);
    char key[TABLE_KEY_BYTES];
    if (!route)
        return NULL;
    table_key(key, version->model, version->version, NULL);
    bool complete = message_set(&route->model, version->model) &&
                    message_set(&route->version, version->version);
    route->sequence = version->sequence;
    const pb_traffic *traffic = traffic_find(catalog, version->model);
    route->traffic_weight = traffic_weight(traffic, version->version);
    route->sticky = traffic && traffic->sticky;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (strcmp(deployment->model, version->model) != 0 ||
            strcmp(deployment->version, version->version) != 0)
            continue;
        route->loaded = 1;
        route->wakes |= lifecycle_wakes_on_demand(catalog, deployment);
    }
    for (size_t i = 0; complete && catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if (strcmp(row->model, version->model) == 0 && strcmp(row->version, version->version) == 0)
            complete = add_replica(routes, route, row, version, key);
    }
    const pb_info *info = hash_map_get_str(&routes->served, key);
    if (!info)
        info = version->info;
    complete = complete && message_set_copy(&route->info, info);
    /* `info` may be that of an earlier load with other settings */
    if (complete && (!route->info || build_default_sampling(catalog, version, route->info)))
        return route;
    message_free(&route->base);
    return NULL;
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

static pb_route_table *build_table(struct routes *routes)
{
    const struct catalog *catalog = routes->fleet->context->catalog;
    pb_route_table *table =
        MESSAGE_NEW(pb_route_table, sluice__manager__v1__route_table__descriptor);
    if (!table)
        return NULL;
    for (size_t i = 0; catalog_version_at(catalog, i); i++) {
        pb_route *route = build_route(routes, catalog_version_at(catalog, i));
        if (!route || !message_append(&table->n_routes, &table->routes, route)) {
            if (route)
                message_free(&route->base);
            message_free(&table->base);
            return NULL;
        }
    }
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
    pb_route_table *table = build_table(routes);
    size_t n_bytes = table ? protobuf_c_message_get_packed_size(&table->base) : 0;
    uint8_t *bytes = table ? malloc(n_bytes ? n_bytes : 1) : NULL;
    ev_timer_stop(routes->fleet->context->loop, &routes->again);
    if (!bytes) {
        if (table)
            message_free(&table->base);
        ev_timer_set(&routes->again, retry_s, 0.);
        ev_timer_start(routes->fleet->context->loop, &routes->again);
        return;
    }
    protobuf_c_message_pack(&table->base, bytes);
    if (routes->table && routes->n_last == n_bytes && memcmp(routes->last, bytes, n_bytes) == 0) {
        message_free(&table->base);
        free(bytes);
        return;
    }
    free(routes->last);
    if (routes->table)
        message_free(&routes->table->base);
    routes->last = bytes;
    routes->n_last = n_bytes;
    routes->table = table;
    table->generation = routes->fleet->context->catalog->first_revision + ++routes->n_changes;
    table->made_unix_ns = clock_wall_ns();
    for (struct watch *watch = routes->watches; watch; watch = watch->next)
        send_table(watch);
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
    watch->next = routes->watches;
    routes->watches = watch;
    if (++routes->n_watches > MAX_SERVERS) {
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
    struct watch **at = &watch->routes->watches;
    while (*at && *at != watch)
        at = &(*at)->next;
    if (*at) {
        *at = watch->next;
        watch->routes->n_watches--;
    }
    log_info(LOG_EVENT("server disconnected"), LOG_STR("server", watch->request->server_id));
    message_free(&watch->request->base);
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
    struct watch *watch = err.status == 0 ? calloc(1, sizeof(*watch)) : NULL;
    if (watch) {
        watch->request = (Sluice__Manager__V1__WatchRoutesRequest *)message_copy(&wanted->base);
        watch->routes = routes;
        watch->connected_unix_ns = clock_wall_ns();
    }
    if (watch && watch->request) {
        stream_watch_begin(&watch->stream, call, routes->fleet->context, &watch_ops);
        return;
    }
    free(watch);
    if (err.status == 0)
        error_no_memory(&err);
    rpc_call_finish(call, &err);
}

void routes_end_watches(struct routes *routes, const struct error *status)
{
    for (struct watch *watch = routes->watches; watch; watch = watch->next)
        stream_watch_finish(&watch->stream, status);
}

uint64_t routes_generation(const struct routes *routes)
{
    return routes->table ? routes->table->generation : 0;
}

bool routes_fill_status(const struct routes *routes,
                        Sluice__Manager__V1__GetStatusResponse *response)
{
    for (const struct watch *watch = routes->watches; watch; watch = watch->next) {
        Sluice__Manager__V1__ServerStatus *server = MESSAGE_NEW(
            Sluice__Manager__V1__ServerStatus, sluice__manager__v1__server_status__descriptor);
        if (!server)
            return false;
        bool complete = message_set(&server->server_id, watch->request->server_id) &&
                        message_set(&server->software_version, watch->request->software_version);
        server->pid = watch->request->pid;
        server->routes_generation = watch->sent_generation;
        server->connected_unix_ns = watch->connected_unix_ns;
        for (size_t i = 0; complete && i < watch->request->n_addresses; i++)
            complete = message_append_text(&server->n_addresses, &server->addresses,
                                           watch->request->addresses[i]);
        for (size_t i = 0; complete && i < watch->request->n_http_addresses; i++)
            complete = message_append_text(&server->n_http_addresses, &server->http_addresses,
                                           watch->request->http_addresses[i]);
        if (!complete || !message_append(&response->n_servers, &response->servers, server)) {
            message_free(&server->base);
            return false;
        }
    }
    return true;
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
    if (routes->table)
        message_free(&routes->table->base);
    free(routes->last);
    free(routes);
}
