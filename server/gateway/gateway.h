/* gateway.h: sluice-server as an object: the root that makes the parts, connects them and takes
 * them down. The rooms below know only the parts that they need. Any thread.
 *
 * A request: front (handler) → dispatch/generation.c (checks, version) → dispatch/dispatch.c
 * (replica) → replicas/link.c (Serve stream) and back: link.c (step frame) → relay/relay.c (record,
 * release) → client. Locks, in the order they may be taken: admission, health, replicas, link,
 * relay, counters; a call's lock (its `next`), then that of a GenerateStream, come before the
 * relay's, so a sink is told that something is ready with none of them held. The locks of the
 * service, of the wake and of the registry are taken by themselves. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "proto/rpc/server/access.h"
#include "proto/rpc/server/server.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/base/wake.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/front/service.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"

struct error;
struct route_watch;

struct gateway_config {
    const char *listen;         /* "127.0.0.1:8001"; empty: no TCP */
    const char *listen_unix;    /* path or empty */
    const char *manager_socket; /* empty: routes come from routes_file alone */
    const char *routes_file;    /* last routes known, rewritten on each change; empty: none */
    struct access_config access;
    uint64_t threads;
    const char *metrics_listen;  /* "127.0.0.1:8002", "unix:PATH"; empty or NULL: nowhere */
    const char *metrics_aliases; /* "vllm"; empty or NULL: none */
    uint64_t keepalive_time_ms, keepalive_timeout_ms;
    uint64_t drain_grace_ms;
    uint64_t watchdog_ms; /* the service manager hears at least this often that all is well; 0: it
                             did not ask */
    /* Of the addresses: FIRST, or BESIDE a server that this one replaces; then nothing listens
     * before all is known that the routes speak of, for takeover_ms at most. */
    enum rpc_share share;
    uint64_t takeover_ms;
    struct gateway_limits limits;
};

struct gateway_metrics;

struct gateway {
    struct gateway_config config; /* strings borrowed from the caller of gateway_create */
    char server_id[UUID_BYTES];
    uint64_t server_epoch;
    struct access *access;
    struct rpc_server *server;
    struct rpc_service table; /* of handlers */
    _Atomic uint16_t port;    /* the watch of routes reads it, before a successor listens too */
    struct route_watch *watch;
    struct gateway_metrics *metrics;
    pthread_mutex_t health_lock; /* what is told is what was seen last; outermost */
    struct counters counters;
    struct awake_clock clock; /* advanced by the ticker */
    struct wake wake;         /* the ticker's */
    struct relay_shared relays;
    struct link_shared links;
    struct replicas replicas;
    struct dispatch dispatch;
    struct service service;
    pthread_t ticker;
    bool ticking;
};

/* Whether a server of that configuration could start, as far as can be told without listening.
 * Errors: as gateway_create. */
int gateway_check(const struct gateway_config *config, struct error *err);

/* Builds everything and starts serving. `config` strings are borrowed until destroy. *out_gateway
 * is owned. */
int gateway_create(const struct gateway_config *config, struct gateway **out_gateway,
                   struct error *err);
/* NOT_SERVING and refusing at once, also what a GenerateStream would start; accepted requests get
 * the grace, and what is left then ends UNAVAILABLE (DRAINING). Nothing is served afterwards. */
void gateway_drain(struct gateway *gateway, uint32_t grace_ms);
/* Of a successor: whether it stays in the other's place. If not, the unix sockets are that one's
 * again, at once. */
void gateway_settle(struct gateway *gateway, bool stays);
/* Whether unix sockets are out of reach, since a successor was killed before it had settled that,
 * and to have them back; no successor may be at it meanwhile. */
bool gateway_lost_socket(void);
void gateway_restore_sockets(void);
/* Before a drain: another server has the addresses. /metrics is that one's from now on. */
void gateway_hand_over(struct gateway *gateway);
/* The grace is over now. Any thread, before gateway_destroy. */
void gateway_hurry(struct gateway *gateway);
/* Drains with that grace if that has not happened, and frees everything. NULL is accepted. */
void gateway_destroy(struct gateway *gateway, uint32_t grace_ms);
/* Reads TLS files and API keys again; returns at once. */
void gateway_reload(struct gateway *gateway);
/* Address in use is answered while listening; the port that was bound when listen ended in ":0". */
uint16_t gateway_port(const struct gateway *gateway);

/* As counters_get and counters_n_refusals. */
void gateway_get_counters(struct gateway *gateway, struct gateway_counters *out_counters);
uint64_t gateway_n_refusals(struct gateway *gateway, enum gateway_limit limit);
