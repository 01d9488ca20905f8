#include "server/gateway/route_watch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "proto/rpc/rpc_client.h"
#include "proto/rpc/rpc_message.h"
#include "proto/rpc/rpc_stream.h"
#include "server/gateway/gateway.h"

enum { RETRY_MS = 200 };

struct route_watch {
    struct gateway *gateway;
    struct rpc_client *client;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;
    struct rpc_reader *reader; /* the one open now, for cancelling */
    bool connected;            /* for logging changes only */
};

static void on_table(struct route_watch *watch, const Sluice__Manager__V1__RouteTable *message)
{
    struct error err;
    struct route_table *table;
    const char *path = watch->gateway->config.routes_file;
    if (route_table_from_message(message, &table, &err) != 0) {
        log_error(LOG_EVENT("routes refused"), LOG_STR("message", err.message));
        return;
    }
    if (path && path[0] && route_table_save(table, path, &err) != 0)
        log_warn(LOG_EVENT("routes not saved"), LOG_STR("message", err.message));
    log_info(LOG_EVENT("routes"), LOG_U64("generation", message->generation),
             LOG_U64("versions", message->n_routes));
    gateway_apply_routes(watch->gateway, table);
}

static bool set_reader(struct route_watch *watch, struct rpc_reader *reader)
{
    pthread_mutex_lock(&watch->lock);
    bool go = !watch->stopping;
    watch->reader = go ? reader : NULL;
    pthread_mutex_unlock(&watch->lock);
    return go;
}

static uint64_t known_generation(struct gateway *gateway)
{
    struct route_table *routes = gateway_routes(gateway);
    uint64_t generation = route_table_message(routes)->generation;
    route_table_release(routes);
    return generation;
}

/* Where clients reach this server: TCP with the port that was bound, the unix socket. */
static size_t address_list(const struct gateway *gateway, char *tcp, size_t tcp_bytes,
                           char *out_list[2])
{
    size_t n = 0;
    const char *listen = gateway->config.listen, *colon = strrchr(listen, ':');
    if (colon) {
        snprintf(tcp, tcp_bytes, "%.*s:%u", (int)(colon - listen), listen, (unsigned)gateway->port);
        out_list[n++] = tcp;
    }
    if (gateway->config.listen_unix[0])
        out_list[n++] = (char *)(uintptr_t)gateway->config.listen_unix;
    return n;
}

static void follow(struct route_watch *watch)
{
    Sluice__Manager__V1__WatchRoutesRequest request =
        SLUICE__MANAGER__V1__WATCH_ROUTES_REQUEST__INIT;
    char version[] = SLUICE_VERSION, tcp[128];
    char *addresses[2];
    struct rpc_reader *reader;
    struct error err;
    request.server_id = watch->gateway->server_id;
    request.pid = (uint32_t)getpid();
    request.software_version = version;
    request.known_generation = known_generation(watch->gateway);
    request.addresses = addresses;
    request.n_addresses = address_list(watch->gateway, tcp, sizeof(tcp), addresses);
    int rc = rpc_reader_open(watch->client, &sluice__manager__v1__routing__descriptor,
                             "WatchRoutes", &request.base, NULL, &reader, &err);
    if (rc)
        return;
    ProtobufCMessage *message = NULL;
    error_set(&err, STATUS_UNAVAILABLE, "the stream of routes ended");
    bool go = set_reader(watch, reader);
    while (go && rpc_reader_next(reader, &message, &err) == 0 && message) {
        if (!watch->connected)
            log_info(LOG_EVENT("manager connected"));
        watch->connected = true;
        on_table(watch, (const Sluice__Manager__V1__RouteTable *)message);
        rpc_message_free(message);
    }
    if (watch->connected && go)
        log_warn(LOG_EVENT("manager away"), LOG_STR("message", err.message));
    watch->connected = false;
    set_reader(watch, NULL);
    rpc_reader_close(reader);
}

static void *run(void *arg)
{
    struct route_watch *watch = arg;
    bool stopping = false;
    while (!stopping) {
        follow(watch);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += RETRY_MS * 1000000L;
        until.tv_sec += until.tv_nsec / NS_PER_S;
        until.tv_nsec %= NS_PER_S;
        pthread_mutex_lock(&watch->lock);
        if (!watch->stopping)
            pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
        stopping = watch->stopping;
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

int route_watch_create(struct gateway *gateway, struct route_watch **out_watch, struct error *err)
{
    struct rpc_client_config config;
    char target[160];
    struct route_watch *watch = calloc(1, sizeof(*watch));
    if (!watch)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: out of memory");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&watch->lock, NULL);
    watch->gateway = gateway;
    rpc_client_config_init(&config);
    snprintf(target, sizeof(target), "unix:%s", gateway->config.manager_socket);
    config.target = target;
    config.max_message_bytes = 16 << 20;
    config.reconnect_min_ms = RETRY_MS / 2;
    config.reconnect_max_ms = RETRY_MS;
    config.connect_timeout_ms = RETRY_MS;
    int rc = rpc_client_create(&config, &watch->client, err);
    if (!rc && pthread_create(&watch->thread, NULL, run, watch) != 0) {
        rpc_client_destroy(watch->client);
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: cannot start a thread");
    }
    if (rc) {
        pthread_cond_destroy(&watch->wake);
        pthread_mutex_destroy(&watch->lock);
        free(watch);
        return rc;
    }
    *out_watch = watch;
    return 0;
}

void route_watch_destroy(struct route_watch *watch)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->stopping = true;
    if (watch->reader)
        rpc_reader_cancel(watch->reader);
    pthread_cond_signal(&watch->wake);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    rpc_client_destroy(watch->client);
    pthread_cond_destroy(&watch->wake);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
