/* gateway.h: sluice-server as an object: the root that creates, connects and destroys the parts.
 * The rooms below know only the parts that they need. Any thread.
 *
 * A request: front (handler) → dispatch/generation.c (checks, version) → dispatch/dispatch.c
 * (replica) → replicas/link.c (Serve stream). The answer: link.c (step frame) → relay/relay.c
 * (record, release) → client.
 *
 * Locks, in the order of taking: admission, health, replicas, link, relay, counters. A call's
 * lock, under which its `next` callback runs, and a GenerateStream's lock come before the
 * relay's. So a relay holds no lock when it reports a ready frame to its sink. The locks of the
 * service, the wake and the registry are taken alone. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
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
#include "server/gateway/http_surfaces.h"
#include "server/gateway/kserve/kserve.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/vllm/vllm_engine.h"

struct error;
struct route_watch;

struct gateway_config {
    const char *listen;         /* "127.0.0.1:8001"; empty: no TCP */
    const char *listen_unix;    /* path or empty */
    const char *http_listen;    /* see http_front.h; empty or NULL: no HTTP */
    const char *http_origins;   /* NULL: none */
    bool http_strict;           /* unknown fields of a JSON body are refused */
    bool http_open_metrics;     /* /metrics over HTTP needs no key */
    const char *manager_socket; /* empty: routes come from routes_file only */
    const char *routes_file;    /* last known routes, rewritten on each change; empty: no file */
    struct access_config access;
    uint64_t threads;
    const char *metrics_listen;  /* "127.0.0.1:8002", "unix:PATH"; empty or NULL: not served */
    const char *metrics_aliases; /* "vllm"; empty or NULL: no aliases */
    uint64_t keepalive_time_ms, keepalive_timeout_ms;
    uint64_t drain_grace_ms;
    uint64_t watchdog_ms; /* interval in which the service manager expects a sign of life; 0:
                           * none expected */
    /* FIRST, or BESIDE a server that this one replaces. BESIDE: this server listens only after
     * every READY replica of the routes is linked, within takeover_ms. */
    enum rpc_share share;
    uint64_t takeover_ms;
    struct gateway_limits limits;
};

struct gateway_metrics;
struct http_front;

struct gateway {
    struct gateway_config config; /* strings borrowed from the caller of gateway_create */
    char server_id[UUID_BYTES];
    uint64_t server_epoch;
    struct access *access;
    struct rpc_server *server;
    struct rpc_service tables[3]; /* the tables of handlers, one for each service */
    _Atomic uint16_t port;        /* atomic: the route watch reads it before a successor listens */
    struct gateway_metrics *metrics;
    struct http_surfaces surfaces;     /* routes of http */
    _Atomic(struct http_front *) http; /* NULL: not served */
    uint32_t max_grpc_connections,
        max_http_connections;    /* HTTP: for each address of --http-listen */
    atomic_bool hurries;         /* the grace of a drain ends now */
    bool is_replaced;            /* another server has the addresses */
    pthread_mutex_t health_lock; /* keeps the order of health updates; outermost */
    struct counters counters;
    struct awake_clock clock; /* advanced by the ticker */
    struct wake wake;         /* wakes the ticker */
    struct relay_shared relays;
    struct link_shared links;
    struct replicas replicas;
    struct dispatch dispatch;
    struct service service;
    struct kserve kserve;
    struct vllm_engine vllm;
    pthread_t ticker;
    bool ticking;
};

/* Checks, without listening, that a server with this configuration could start. Errors: as
 * gateway_create. */
int gateway_check(const struct gateway_config *config, struct error *err);

/* Creates all parts and starts serving. The strings of `config` are borrowed until destroy.
 * *out_gateway is owned. */
int gateway_create(const struct gateway_config *config, struct gateway **out_gateway,
                   struct error *err);
/* Health becomes NOT_SERVING and new requests are refused, also on open GenerateStreams.
 * Accepted requests get the grace, then end with UNAVAILABLE (DRAINING). Nothing is served
 * afterwards. */
void gateway_drain(struct gateway *gateway, uint32_t grace_ms);
/* Called by a successor: `stays` is true if the successor replaces the other server. If false,
 * the unix sockets go back to the other server at once. */
void gateway_settle(struct gateway *gateway, bool stays);
/* A successor that was killed before gateway_settle leaves the unix sockets out of reach. The
 * first function detects that, the second restores the sockets. No successor may be starting
 * meanwhile. */
bool gateway_lost_socket(void);
void gateway_restore_sockets(void);
/* Called before a drain if another server has the addresses, /metrics included. */
void gateway_hand_over(struct gateway *gateway);
/* Ends the grace of a drain now. Any thread, before gateway_destroy. */
void gateway_hurry(struct gateway *gateway);
/* Drains with grace_ms if no drain has happened, and frees everything. NULL is accepted. */
void gateway_destroy(struct gateway *gateway, uint32_t grace_ms);
/* Returns TCP_USER_TIMEOUT for clients: a slow reader should get its error before the kernel drops
 * the connection. */
uint32_t gateway_user_timeout_ms(const struct gateway_config *config);
/* Reads TLS files and API keys again; returns at once. */
void gateway_reload(struct gateway *gateway);
/* Returns the bound port, also if the listen address ended in ":0". */
uint16_t gateway_port(const struct gateway *gateway);

/* Like counters_get and counters_n_refusals. */
void gateway_get_counters(struct gateway *gateway, struct gateway_counters *out_counters);
uint64_t gateway_n_refusals(struct gateway *gateway, enum gateway_limit limit);
