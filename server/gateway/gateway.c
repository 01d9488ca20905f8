#include "server/gateway/gateway.h"

#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/listeners.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/base/meter.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/front/service.h"
#include "server/gateway/metrics.h"
#include "server/gateway/relay/reattach.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/route_watch.h"
#include "server/gateway/ticker.h"

enum { USER_TIMEOUT_MARGIN_MS = 10000 };

struct route_table *gateway_routes(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct route_table *table = route_table_retain(gateway->routes);
    pthread_mutex_unlock(&gateway->lock);
    return table;
}

static bool listed(const Sluice__Manager__V1__RouteTable *table, const struct link *link)
{
    for (size_t i = 0; i < table->n_routes; i++)
        for (size_t k = 0; k < table->routes[i]->n_replicas; k++)
            if (link_matches(link, table->routes[i]->replicas[k]))
                return true;
    return false;
}

/* Under the gateway's lock. */
static struct link *find_link(struct gateway *gateway,
                              const Sluice__Manager__V1__RouteReplica *replica)
{
    for (uint32_t i = 0; i < gateway->n_links; i++)
        if (link_matches(gateway->links[i], replica))
            return gateway->links[i];
    return NULL;
}

/* A replica can be linked to as soon as its worker may answer. */
static bool linkable(const Sluice__Manager__V1__RouteReplica *replica)
{
    return replica->socket_path[0] &&
           (replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY ||
            replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING);
}

static void add_link(struct gateway *gateway, struct link *link)
{
    pthread_mutex_lock(&gateway->lock);
    struct link **grown = realloc(gateway->links, (gateway->n_links + 1) * sizeof(*grown));
    if (grown) {
        gateway->links = grown;
        gateway->links[gateway->n_links++] = link;
    }
    pthread_mutex_unlock(&gateway->lock);
    if (!grown)
        link_shutdown(link);
}

static void sync_replica(struct gateway *gateway, const route *r,
                         const Sluice__Manager__V1__RouteReplica *replica)
{
    struct error err;
    struct link *link;
    pthread_mutex_lock(&gateway->lock);
    link = find_link(gateway, replica);
    if (link)
        link_set_listed(link, replica->state);
    pthread_mutex_unlock(&gateway->lock);
    if (link || !linkable(replica))
        return;
    if (link_create(gateway, r, replica, &link, &err) != 0)
        log_error(LOG_EVENT("replica not linked"), LOG_STR("replica", replica->id),
                  LOG_STR("message", err.message));
    else
        add_link(gateway, link);
}

static void retire_unlisted(struct gateway *gateway, const Sluice__Manager__V1__RouteTable *table)
{
    uint32_t n = 0;
    pthread_mutex_lock(&gateway->lock);
    struct link **gone = malloc((gateway->n_links + 1) * sizeof(struct link *));
    for (uint32_t i = 0; gone && i < gateway->n_links; i++) {
        if (listed(table, gateway->links[i]))
            continue;
        gone[n++] = gateway->links[i];
        link_retain(gateway->links[i]);
    }
    pthread_mutex_unlock(&gateway->lock);
    for (uint32_t i = 0; i < n; i++) {
        link_retire(gone[i]);
        link_release(gone[i]);
    }
    free(gone);
}

/* Versions that are no longer in the table have no health. */
static void forget_health(struct gateway *gateway, const Sluice__Manager__V1__RouteTable *before,
                          const Sluice__Manager__V1__RouteTable *now)
{
    for (size_t i = 0; i < before->n_routes; i++) {
        char name[160];
        const route *old = before->routes[i];
        bool kept = false;
        for (size_t k = 0; k < now->n_routes; k++)
            kept = kept || (strcmp(now->routes[k]->model, old->model) == 0 &&
                            strcmp(now->routes[k]->version, old->version) == 0);
        snprintf(name, sizeof(name), "model/%s/%s", old->model, old->version);
        if (!kept)
            rpc_health_forget(rpc_server_health(gateway->server), name);
    }
}

void gateway_apply_routes(struct gateway *gateway, struct route_table *table)
{
    const Sluice__Manager__V1__RouteTable *message = route_table_message(table);
    struct route_table *old;
    pthread_mutex_lock(&gateway->lock);
    old = gateway->routes;
    gateway->routes = route_table_retain(table);
    pthread_mutex_unlock(&gateway->lock);
    gateway_metrics_routes(gateway->metrics, message);
    retire_unlisted(gateway, message);
    for (size_t i = 0; i < message->n_routes; i++)
        for (size_t k = 0; k < message->routes[i]->n_replicas; k++)
            sync_replica(gateway, message->routes[i], message->routes[i]->replicas[k]);
    pthread_mutex_lock(&gateway->health_lock);
    forget_health(gateway, route_table_message(old), message);
    pthread_mutex_unlock(&gateway->health_lock);
    route_table_release(old);
    route_table_release(table);
    gateway_link_changed(gateway);
}

void gateway_link_changed(struct gateway *gateway)
{
    struct rpc_health *health = rpc_server_health(gateway->server);
    bool any = false;
    /* Held from looking to telling, or an older view could be told last. */
    pthread_mutex_lock(&gateway->health_lock);
    struct route_table *routes = gateway_routes(gateway);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    for (size_t i = 0; i < table->n_routes; i++) {
        char name[160];
        const route *r = table->routes[i];
        struct link *link = gateway_pick_link(gateway, r->model, r->version, "", "");
        snprintf(name, sizeof(name), "model/%s/%s", r->model, r->version);
        bool serves = link != NULL || seeded_bug("I7_always_serving");
        rpc_health_set(health, name, serves);
        any = any || serves;
        link_release(link);
    }
    rpc_health_set(health, "", any);
    rpc_health_set(health, "sluice.v1.Inference", any);
    route_table_release(routes);
    pthread_mutex_unlock(&gateway->health_lock);
    wake_now(&gateway->wake); /* waiting requests are retried at once */
}

static void on_wire_limit(void *context, enum rpc_limit limit)
{
    struct gateway *gateway = context;
    static const enum gateway_limit limits[N_RPC_LIMITS] = {
        [RPC_LIMIT_CONNECTIONS] = LIMIT_CONNECTIONS,
        [RPC_LIMIT_CALLS] = LIMIT_CALLS,
        [RPC_LIMIT_METADATA] = LIMIT_METADATA_BYTES,
        [RPC_LIMIT_MESSAGE] = LIMIT_MESSAGE_BYTES,
        [RPC_LIMIT_REQUEST_TIME] = LIMIT_REQUEST_TIMEOUT,
        [RPC_LIMIT_RESETS] = LIMIT_RESETS,
        [RPC_LIMIT_STREAMS] = LIMIT_STREAMS,
        [RPC_LIMIT_HANDSHAKE] = LIMIT_HANDSHAKE,
        [RPC_LIMIT_KEEPALIVE] = LIMIT_KEEPALIVE,
        [RPC_LIMIT_DRAIN] = LIMIT_DRAIN,
        [RPC_LIMIT_DRAINING] = LIMIT_DRAINING,
    };
    counters_refusal(&gateway->counters, limits[limit]);
}

/* Files and links to workers need descriptors too, however many clients come and go. */
static uint32_t connection_limit(uint64_t wanted)
{
    enum { OTHERS = 192 };
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return (uint32_t)wanted;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    uint64_t left = files.rlim_cur - rpc_server_lingering_files();
    uint64_t room = left > 2 * OTHERS ? left - OTHERS : left / 2;
    if (wanted <= room)
        return (uint32_t)wanted;
    log_warn(LOG_EVENT("connection limit lowered"), LOG_U64("wanted", wanted),
             LOG_U64("limit", room), LOG_U64("open_files", files.rlim_cur));
    return (uint32_t)room;
}

/* A reader that leaves the kernel no room is to be told that it is slow before the kernel drops it.
 */
static uint32_t user_timeout_ms(const struct gateway_config *c)
{
    uint64_t ms = c->limits.slow_reader_ms + USER_TIMEOUT_MARGIN_MS;
    ms = ms > c->keepalive_timeout_ms ? ms : c->keepalive_timeout_ms;
    uint64_t most = c->keepalive_time_ms + c->keepalive_timeout_ms; /* one that has vanished */
    ms = ms < most ? ms : most;
    return ms < INT32_MAX ? (uint32_t)ms : INT32_MAX;
}

static int make_server(struct gateway *gateway, struct error *err)
{
    const struct gateway_config *c = &gateway->config;
    struct rpc_server_config config;
    rpc_server_config_init(&config);
    inference_service(gateway, &gateway->service);
    config.services = &gateway->service;
    config.n_services = 1;
    config.n_threads = (uint32_t)c->threads;
    config.max_message_bytes = c->limits.max_message_bytes;
    config.max_metadata_bytes = c->limits.max_metadata_bytes;
    config.max_pending_bytes = c->limits.max_pending_bytes;
    config.max_streams = (uint32_t)c->limits.max_streams;
    config.max_connections = connection_limit(c->limits.max_connections);
    config.max_resets = (uint32_t)c->limits.max_resets;
    config.handshake_timeout_ms = (uint32_t)c->limits.handshake_timeout_ms;
    config.on_limit = on_wire_limit;
    config.limit_context = gateway;
    config.max_calls = (uint32_t)c->limits.max_calls;
    config.keepalive_time_ms = (uint32_t)c->keepalive_time_ms;
    config.keepalive_timeout_ms = (uint32_t)c->keepalive_timeout_ms;
    config.user_timeout_ms = user_timeout_ms(c);
    config.share = c->share;
    int rc = access_create(&c->access, c->listen, &gateway->access, err);
    if (rc)
        return rc;
    config.tls = access_tls(gateway->access);
    config.authorize = access_authorize;
    config.authorize_context = gateway->access;
    return rpc_server_create(&config, &gateway->server, err);
}

static int start_listening(struct gateway *gateway, struct error *err)
{
    const struct gateway_config *c = &gateway->config;
    int rc = 0;
    uint16_t port = atomic_load(&gateway->port);
    if (c->listen[0])
        rc = rpc_server_listen_tcp(gateway->server, c->listen, &port, err);
    atomic_store(&gateway->port, port);
    if (!rc)
        rc = gateway_metrics_listen(gateway->metrics, err);
    if (!rc && c->listen_unix[0])
        rc = rpc_server_listen_unix(gateway->server, c->listen_unix, err);
    return rc;
}

static void load_routes(struct gateway *gateway)
{
    struct error err;
    struct route_table *table;
    const char *path = gateway->config.routes_file;
    if (!path || !path[0])
        return;
    int rc = route_table_load(path, &table, &err);
    if (!rc)
        gateway_apply_routes(gateway, table);
    else if (rc != STATUS_NOT_FOUND)
        log_warn(LOG_EVENT("routes file not used"), LOG_STR("message", err.message));
}

static int start_threads(struct gateway *gateway, struct error *err)
{
    if (pthread_create(&gateway->ticker, NULL, ticker_run, gateway) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: cannot start a thread");
    gateway->ticking = true;
    load_routes(gateway);
    if (gateway->config.manager_socket[0])
        return route_watch_create(gateway, &gateway->watch, err);
    return 0;
}

/* Routes are known, and each replica that they call ready has its link. */
static bool is_ready(struct gateway *gateway)
{
    struct route_table *routes = gateway_routes(gateway);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    bool ready = table->generation > 0;
    for (size_t i = 0; ready && i < table->n_routes; i++)
        for (size_t k = 0; ready && k < table->routes[i]->n_replicas; k++) {
            const Sluice__Manager__V1__RouteReplica *replica = table->routes[i]->replicas[k];
            if (replica->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY)
                continue;
            ready = false;
            pthread_mutex_lock(&gateway->lock);
            for (uint32_t l = 0; l < gateway->n_links && !ready; l++)
                ready = link_matches(gateway->links[l], replica) && link_usable(gateway->links[l]);
            pthread_mutex_unlock(&gateway->lock);
        }
    route_table_release(routes);
    return ready;
}

static int wait_until_ready(struct gateway *gateway, struct error *err)
{
    enum { LOOK_MS = 10 };
    uint64_t limit_ms = gateway->config.takeover_ms;
    int64_t end_ns = clock_now_ns() + (int64_t)limit_ms * NS_PER_MS;
    while (!is_ready(gateway)) {
        if (clock_now_ns() >= end_ns)
            return error_set(err, STATUS_DEADLINE_EXCEEDED,
                             "not every ready replica was reached within %llu ms: the server that "
                             "runs goes on",
                             (unsigned long long)limit_ms);
        poll(NULL, 0, LOOK_MS);
    }
    return 0;
}

static int check_listeners(const struct gateway_config *config, struct error *err)
{
    char unix_address[PATH_MAX + 8];
    snprintf(unix_address, sizeof(unix_address), "unix:%s", config->listen_unix);
    const struct rpc_listener listeners[] = {
        {"--listen", config->listen},
        {"--listen-unix", config->listen_unix[0] ? unix_address : NULL},
        {"--metrics", config->metrics_listen},
    };
    return rpc_listeners_check(listeners, sizeof(listeners) / sizeof(listeners[0]), err);
}

int gateway_check(const struct gateway_config *config, struct error *err)
{
    struct access *access = NULL;
    int rc = check_listeners(config, err);
    if (rc)
        return rc;
    rc = access_create(&config->access, config->listen, &access, err);
    access_destroy(access);
    return rc;
}

int gateway_create(const struct gateway_config *config, struct gateway **out_gateway,
                   struct error *err)
{
    struct gateway *gateway = calloc(1, sizeof(*gateway));
    if (!gateway)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: out of memory");
    gateway->config = *config;
    const char *colon = strrchr(config->listen, ':');
    atomic_store(&gateway->port, (uint16_t)(colon ? strtoul(colon + 1, NULL, 10) : 0));
    awake_clock_init(&gateway->clock);
    counters_init(&gateway->counters);
    wake_init(&gateway->wake);
    rng_uuid(gateway->server_id);
    gateway->server_epoch = (uint64_t)clock_wall_ns();
    registry_init(&gateway->registry);
    pthread_mutex_init(&gateway->lock, NULL);
    pthread_mutex_init(&gateway->health_lock, NULL);
    pthread_mutex_init(&gateway->admission_lock, NULL);
    gateway->routes = route_table_empty();
    int rc =
        gateway->routes ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: out of memory");
    if (!rc)
        rc = check_listeners(config, err);
    if (!rc)
        rc = gateway_metrics_create(gateway, &gateway->metrics, err);
    if (!rc)
        rc = make_server(gateway, err);
    if (!rc && config->share != RPC_SHARE_BESIDE)
        rc = start_listening(gateway, err);
    if (!rc)
        rc = start_threads(gateway, err);
    if (!rc && config->share == RPC_SHARE_BESIDE)
        rc = wait_until_ready(gateway, err);
    if (!rc && config->share == RPC_SHARE_BESIDE)
        rc = start_listening(gateway, err);
    if (!rc)
        rc = rpc_server_start(gateway->server, err);
    if (rc) {
        gateway_destroy(gateway, 0);
        return rc;
    }
    *out_gateway = gateway;
    return 0;
}

/* Nothing new is begun on streams that are open, and those without requests end. */
static void leave(struct gateway *gateway)
{
    atomic_store(&gateway->leaving, true);
    generate_streams_drain(gateway);
}

void gateway_drain(struct gateway *gateway, uint32_t grace_ms)
{
    leave(gateway);
    rpc_server_shutdown(gateway->server, grace_ms);
}

void gateway_hand_over(struct gateway *gateway)
{
    gateway_metrics_close(gateway->metrics);
    rpc_server_hand_over(gateway->server);
}

void gateway_settle(struct gateway *gateway, bool stays)
{
    rpc_server_settle(gateway->server, stays);
}

bool gateway_lost_socket(void)
{
    return rpc_server_lost_socket();
}

void gateway_restore_sockets(void)
{
    rpc_server_restore_sockets();
}

void gateway_hurry(struct gateway *gateway)
{
    rpc_server_hurry(gateway->server);
}

void gateway_destroy(struct gateway *gateway, uint32_t grace_ms)
{
    if (!gateway)
        return;
    leave(gateway);
    if (gateway->server)
        rpc_server_shutdown(gateway->server, grace_ms);
    reattach_end(gateway);
    gateway_metrics_close(gateway->metrics);
    route_watch_stop(gateway->watch);
    if (gateway->ticking) {
        wake_stop(&gateway->wake);
        pthread_join(gateway->ticker, NULL);
    }
    dispatch_end_waiting(gateway);
    /* All are shut down before one is freed: the callbacks of each look through the list. */
    for (uint32_t i = 0; i < gateway->n_links; i++)
        link_shutdown(gateway->links[i]);
    dispatch_end_waiting(gateway);
    for (uint32_t i = 0; i < gateway->n_links; i++)
        link_release(gateway->links[i]);
    free(gateway->links);
    route_watch_destroy(gateway->watch);
    rpc_server_destroy(gateway->server);
    gateway_metrics_destroy(gateway->metrics);
    access_destroy(gateway->access);
    route_table_release(gateway->routes);
    registry_fini(&gateway->registry);
    wake_fini(&gateway->wake);
    counters_fini(&gateway->counters);
    pthread_mutex_destroy(&gateway->health_lock);
    pthread_mutex_destroy(&gateway->admission_lock);
    pthread_mutex_destroy(&gateway->lock);
    free(gateway);
}

void gateway_count_begin(struct gateway *gateway, struct relay *relay)
{
    if (relay)
        meter_begin(gateway_meters(gateway->metrics), &relay->meter, relay->model, relay->version);
    else
        meter_begin(gateway_meters(gateway->metrics), NULL, "", "");
    counters_begin(&gateway->counters);
}

void gateway_count_end(struct gateway *gateway, struct relay *relay, int status, uint64_t n_tokens)
{
    struct meter_end end = {.status = status};
    counters_end(&gateway->counters, status, n_tokens);
    if (relay)
        relay_fill_end(relay, &end);
    meter_end(gateway_meters(gateway->metrics), relay ? &relay->meter : NULL, &end);
}

void gateway_get_counters(struct gateway *gateway, struct gateway_counters *out_counters)
{
    counters_get(&gateway->counters, out_counters);
}

uint64_t gateway_n_refusals(struct gateway *gateway, enum gateway_limit limit)
{
    return counters_n_refusals(&gateway->counters, limit);
}

uint16_t gateway_port(const struct gateway *gateway)
{
    return gateway->port;
}

void gateway_reload(struct gateway *gateway)
{
    access_reload(gateway->access);
}
