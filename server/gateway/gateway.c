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
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/reattach.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/front/service.h"
#include "server/gateway/gateway_http.h"
#include "server/gateway/http/http_front.h"
#include "server/gateway/metrics.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/route_watch.h"
#include "server/gateway/ticker.h"

enum { USER_TIMEOUT_MARGIN_MS = 10000 };
enum { N_TABLES = sizeof(((struct gateway *)0)->tables) / sizeof(struct rpc_service) };

static void on_change(void *arg);

/* Removes the health entries of versions that left the table. */
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

/* Makes a new table current. Takes the reference. */
static void apply_routes(void *arg, struct route_table *table)
{
    struct gateway *gateway = arg;
    const Sluice__Manager__V1__RouteTable *message = route_table_message(table);
    struct route_table *old = replicas_set_routes(&gateway->replicas, route_table_retain(table));
    gateway_metrics_routes(gateway->metrics, message);
    replicas_sync_links(&gateway->replicas, message);
    pthread_mutex_lock(&gateway->health_lock);
    forget_health(gateway, route_table_message(old), message);
    pthread_mutex_unlock(&gateway->health_lock);
    route_table_release(old);
    route_table_release(table);
    on_change(gateway);
}

/* A link came up, went down or drains: updates the health, and retries waiting requests. */
static void on_change(void *arg)
{
    struct gateway *gateway = arg;
    struct rpc_health *health = rpc_server_health(gateway->server);
    bool any = false;
    /* Held from reading the state to setting the health. Otherwise an older state could be set
     * last. */
    pthread_mutex_lock(&gateway->health_lock);
    struct route_table *routes = replicas_routes(&gateway->replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    for (size_t i = 0; i < table->n_routes; i++) {
        char name[160];
        const route *r = table->routes[i];
        snprintf(name, sizeof(name), "model/%s/%s", r->model, r->version);
        bool serves = replicas_take_requests(&gateway->replicas, r) ||
                      dispatch_may_wake(&gateway->dispatch, r) || seeded_bug("I7_always_serving");
        rpc_health_set(health, name, serves);
        any = any || serves;
    }
    rpc_health_set(health, "", any);
    for (size_t i = 0; i < N_TABLES; i++)
        rpc_health_set(health, gateway->tables[i].descriptor->name, any);
    route_table_release(routes);
    pthread_mutex_unlock(&gateway->health_lock);
    wake_now(&gateway->wake); /* waiting requests are retried now */
}

static void on_place_free(void *arg)
{
    struct gateway *gateway = arg;
    dispatch_place_free(&gateway->dispatch);
}

static void on_return(void *arg, struct relay *relay, enum relay_progress why,
                      const Sluice__Worker__V1__StepItem *item)
{
    struct gateway *gateway = arg;
    dispatch_take_back(&gateway->dispatch, relay, why, item);
}

static const struct link_events link_events = {
    .on_change = on_change, .on_place_free = on_place_free, .on_return = on_return};

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

/* Returns how many connections the open-files limit allows: files and links to workers need
 * descriptors, too. */
static uint64_t connection_room(uint64_t *out_files)
{
    enum { OTHERS = 192 };
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return UINT32_MAX;
    if (files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    *out_files = files.rlim_cur;
    uint64_t left = files.rlim_cur - rpc_server_lingering_files();
    return left > 2 * OTHERS ? left - OTHERS : left / 2;
}

static uint32_t lower_limit(const char *port, uint64_t wanted, uint64_t room, uint64_t files)
{
    if (wanted <= room)
        return (uint32_t)wanted;
    log_warn(LOG_EVENT("connection limit lowered"), LOG_STR("port", port),
             LOG_U64("wanted", wanted), LOG_U64("limit", room), LOG_U64("open_files", files));
    return (uint32_t)room;
}

/* Sets the connection limits of the ports. */
static void set_connection_limits(struct gateway *gateway, uint32_t n_http)
{
    uint64_t wanted = gateway->config.limits.max_connections, files = 0;
    uint64_t room = connection_room(&files);
    uint64_t of_grpc = gateway_limits_grpc_room(wanted, room, n_http);
    gateway->max_grpc_connections = lower_limit("gRPC", wanted, of_grpc, files);
    if (n_http)
        gateway->max_http_connections =
            lower_limit("HTTP", wanted, (room - gateway->max_grpc_connections) / n_http, files);
}

uint32_t gateway_user_timeout_ms(const struct gateway_config *c)
{
    uint64_t ms = c->limits.slow_reader_ms + USER_TIMEOUT_MARGIN_MS;
    ms = ms > c->keepalive_timeout_ms ? ms : c->keepalive_timeout_ms;
    uint64_t most = c->keepalive_time_ms + c->keepalive_timeout_ms; /* keepalive detects a lost
                                                                     * client by then */
    ms = ms < most ? ms : most;
    return ms < INT32_MAX ? (uint32_t)ms : INT32_MAX;
}

static int make_server(struct gateway *gateway, struct error *err)
{
    const struct gateway_config *c = &gateway->config;
    struct rpc_server_config config;
    struct access_config access = c->access;
    struct rpc_addresses addresses;
    int rc = rpc_listeners_split("--http-listen", c->http_listen, &addresses, err);
    if (!rc)
        rc = gateway_http_check(c, err);
    if (rc)
        return rc;
    set_connection_limits(gateway, (uint32_t)addresses.n);
    rpc_server_config_init(&config);
    service_table(&gateway->service, &gateway->tables[0]);
    kserve_table(&gateway->kserve, &gateway->tables[1]);
    vllm_engine_table(&gateway->vllm, &gateway->tables[2]);
    config.services = gateway->tables;
    config.n_services = N_TABLES;
    config.n_threads = (uint32_t)c->threads;
    config.max_message_bytes = c->limits.max_message_bytes;
    config.max_metadata_bytes = c->limits.max_metadata_bytes;
    config.max_pending_bytes = c->limits.max_pending_bytes;
    config.max_streams = (uint32_t)c->limits.max_streams;
    config.max_connections = gateway->max_grpc_connections;
    config.max_resets = (uint32_t)c->limits.max_resets;
    config.handshake_timeout_ms = (uint32_t)c->limits.handshake_timeout_ms;
    config.on_limit = on_wire_limit;
    config.limit_context = gateway;
    config.max_calls = (uint32_t)c->limits.max_calls;
    config.keepalive_time_ms = (uint32_t)c->keepalive_time_ms;
    config.keepalive_timeout_ms = (uint32_t)c->keepalive_timeout_ms;
    config.user_timeout_ms = gateway_user_timeout_ms(c);
    config.share = c->share;
    access.control_prefix = KSERVE_CONTROL_PREFIX;
    rc = access_create(&access, c->listen, &gateway->access, err);
    if (rc)
        return rc;
    gateway->service.access = gateway->access;
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
        rc = gateway_http_start(gateway, err);
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
        apply_routes(gateway, table);
    else if (rc != STATUS_NOT_FOUND)
        log_warn(LOG_EVENT("routes file not used"), LOG_STR("message", err.message));
}

static uint16_t http_port(void *arg)
{
    struct gateway *gateway = arg;
    struct http_front *front = atomic_load(&gateway->http);
    return front ? http_front_port(front) : 0;
}

static int start_watch(struct gateway *gateway, struct error *err)
{
    const struct gateway_config *c = &gateway->config;
    const struct route_watch_config config = {
        .manager_socket = c->manager_socket,
        .routes_file = c->routes_file,
        .server_id = gateway->server_id,
        .listen = c->listen,
        .listen_unix = c->listen_unix,
        .port = &gateway->port,
        .http_listen = c->http_listen,
        .http_port = http_port,
        .counters = &gateway->counters,
        .replicas = &gateway->replicas,
        .apply = apply_routes,
        .arg = gateway,
    };
    struct route_watch *watch;
    int rc = route_watch_create(&config, &watch, err);
    if (!rc)
        atomic_store(&gateway->dispatch.watch, watch);
    return rc;
}

static int start_threads(struct gateway *gateway, struct error *err)
{
    if (pthread_create(&gateway->ticker, NULL, ticker_run, gateway) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: cannot start a thread");
    gateway->ticking = true;
    load_routes(gateway);
    return gateway->config.manager_socket[0] ? start_watch(gateway, err) : 0;
}

static int wait_until_ready(struct gateway *gateway, struct error *err)
{
    enum { LOOK_MS = 10 };
    uint64_t limit_ms = gateway->config.takeover_ms;
    int64_t end_ns = clock_now_ns() + (int64_t)limit_ms * NS_PER_MS;
    while (!replicas_are_linked(&gateway->replicas)) {
        if (clock_now_ns() >= end_ns)
            return error_set(
                err, STATUS_DEADLINE_EXCEEDED,
                "not every ready replica was linked within %llu ms; the running server "
                "continues",
                (unsigned long long)limit_ms);
        poll(NULL, 0, LOOK_MS);
    }
    return 0;
}

static int check_listeners(const struct gateway_config *config, struct error *err)
{
    char unix_address[PATH_MAX + 8];
    struct rpc_addresses http;
    snprintf(unix_address, sizeof(unix_address), "unix:%s", config->listen_unix);
    struct rpc_listener listeners[3 + RPC_MAX_ADDRESSES] = {
        {"--listen", config->listen},
        {"--listen-unix", config->listen_unix[0] ? unix_address : NULL},
        {"--metrics", config->metrics_listen},
    };
    int rc = rpc_listeners_split("--http-listen", config->http_listen, &http, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < http.n; i++)
        listeners[3 + i] = (struct rpc_listener){"--http-listen", http.list[i]};
    return rpc_listeners_check(listeners, 3 + http.n, err);
}

int gateway_check(const struct gateway_config *config, struct error *err)
{
    struct access *access = NULL;
    int rc = check_listeners(config, err);
    if (rc)
        return rc;
    rc = access_create(&config->access, config->listen, &access, err);
    access_destroy(access);
    return rc ? rc : gateway_http_check(config, err);
}

/* Initializes the parts of the gateway (relays, links, dispatch, services, replicas) and connects
 * each to the parts that it uses. */
static int make_parts(struct gateway *gateway, struct error *err)
{
    awake_clock_init(&gateway->clock);
    counters_init(&gateway->counters);
    wake_init(&gateway->wake);
    gateway->relays.limits = &gateway->config.limits;
    gateway->relays.counters = &gateway->counters;
    gateway->relays.clock = &gateway->clock;
    registry_init(&gateway->relays.registry);
    gateway->links = (struct link_shared){.limits = &gateway->config.limits,
                                          .counters = &gateway->counters,
                                          .clock = &gateway->clock,
                                          .server_id = gateway->server_id,
                                          .server_epoch = gateway->server_epoch,
                                          .events = &link_events,
                                          .arg = gateway};
    dispatch_init(&gateway->dispatch, &gateway->relays, &gateway->replicas, &gateway->wake);
    service_init(&gateway->service, &gateway->dispatch);
    kserve_init(&gateway->kserve, &gateway->service);
    vllm_engine_init(&gateway->vllm, &gateway->service);
    return replicas_init(&gateway->replicas, &gateway->links, err);
}

static int make_metrics(struct gateway *gateway, struct error *err)
{
    int rc = gateway_metrics_create(gateway, &gateway->metrics, err);
    if (!rc)
        gateway->relays.meters = gateway->links.meters = gateway_meters(gateway->metrics);
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
    rng_uuid(gateway->server_id);
    gateway->server_epoch = (uint64_t)clock_wall_ns();
    pthread_mutex_init(&gateway->health_lock, NULL);
    int rc = make_parts(gateway, err);
    if (!rc)
        rc = check_listeners(config, err);
    if (!rc)
        rc = make_metrics(gateway, err);
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

/* Streams start no new requests from now on, and streams without requests end. */
static void leave(struct gateway *gateway)
{
    atomic_store(&gateway->relays.leaving, true);
    generate_streams_drain(&gateway->service);
}

void gateway_drain(struct gateway *gateway, uint32_t grace_ms)
{
    int64_t end_ns = clock_now_ns() + (int64_t)grace_ms * NS_PER_MS;
    leave(gateway);
    gateway_http_drain(gateway);
    rpc_server_shutdown(gateway->server, grace_ms);
    gateway_http_end(gateway, end_ns);
}

void gateway_hand_over(struct gateway *gateway)
{
    gateway->is_replaced = true;
    rpc_server_hand_over(gateway->server); /* the queues of the sockets are accepted before */
    gateway_metrics_close(gateway->metrics);
    gateway_http_drain(gateway);
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
    atomic_store(&gateway->hurries, true);
    rpc_server_hurry(gateway->server);
}

static void end_waiting(struct gateway *gateway)
{
    dispatch_end_waiting(&gateway->dispatch);
    text_calls_end_waiting(&gateway->service.texts);
}

void gateway_destroy(struct gateway *gateway, uint32_t grace_ms)
{
    if (!gateway)
        return;
    leave(gateway);
    if (gateway->server)
        rpc_server_shutdown(gateway->server, grace_ms);
    gateway_http_end(gateway, 0);
    reattach_end(&gateway->relays);
    gateway_metrics_close(gateway->metrics);
    route_watch_stop(gateway->dispatch.watch);
    if (gateway->ticking) {
        wake_stop(&gateway->wake);
        pthread_join(gateway->ticker, NULL);
    }
    end_waiting(gateway);
    kserve_end(&gateway->kserve);
    replicas_shutdown(&gateway->replicas);
    end_waiting(gateway);
    replicas_fini(&gateway->replicas);
    route_watch_destroy(gateway->dispatch.watch);
    rpc_server_destroy(gateway->server);
    gateway_http_destroy(gateway);
    gateway_metrics_destroy(gateway->metrics);
    access_destroy(gateway->access);
    registry_fini(&gateway->relays.registry);
    kserve_fini(&gateway->kserve);
    service_fini(&gateway->service);
    dispatch_fini(&gateway->dispatch);
    wake_fini(&gateway->wake);
    counters_fini(&gateway->counters);
    pthread_mutex_destroy(&gateway->health_lock);
    free(gateway);
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
