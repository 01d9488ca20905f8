/* gateway.h: sluice-server as an object: routes, links to workers, the data plane's RPCs.
 * Everything here may be called from any thread.
 *
 * A request: service.c (handler) → validate.c → route_table.c (version) → gateway_dispatch
 * (replica) → link.c (Serve stream) and back: link.c (step frame) → relay.c (record, release) →
 * client. Locks, in the order they may be taken: admission, health, gateway, link, relay, counters;
 * a call's lock (its `next`), then that of a GenerateStream, come before the relay's, so a sink is
 * told that something is ready with none of them held. */
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
#include "server/gateway/relay/registry.h"
#include "server/gateway/replicas/route_table.h"

struct error;
struct generate_stream;
struct link;
struct relay;
struct route_watch;
struct text_forward;

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
    struct rpc_service service;
    _Atomic uint16_t port; /* the watch of routes reads it, before a successor listens too */
    struct route_watch *watch;
    struct registry registry;
    struct gateway_metrics *metrics;

    struct counters counters;

    /* A new request, from its check to its place, and each that waits while it is looked at;
     * outermost. */
    pthread_mutex_t admission_lock;
    pthread_mutex_t health_lock; /* what is told is what was seen last; outermost */
    pthread_mutex_t lock;
    struct route_table *routes; /* the snapshot in force; never NULL */
    struct link **links;
    uint32_t n_links;
    /* Requests without a replica: lost, or not up yet; linked by their next_waiting. Those that the
     * ticker has yet to look at this time are in retrying. */
    struct relay *waiting, *last_waiting, *retrying;
    struct relay *last_kept; /* in waiting: put back there last, this time; or NULL */
    uint64_t last_round;     /* of callers' turns in the list, when it was last gone through */
    _Atomic bool has_waiting;
    _Atomic uint64_t n_freed; /* places at replicas, ever */
    struct text_forward *waiting_texts;
    struct generate_stream *streams; /* that are open */
    _Atomic uint64_t n_detached;     /* requests that wait to be reattached */
    _Atomic bool leaving;            /* nothing new is begun, nothing waits to be reattached */

    struct awake_clock clock; /* advanced by the ticker */
    struct wake wake;         /* the ticker's */
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

/* The routes in force; release with route_table_release. */
struct route_table *gateway_routes(struct gateway *gateway);
/* Puts a new table in force: opens links to replicas that are new, closes those that are gone.
 * Takes the reference. */
void gateway_apply_routes(struct gateway *gateway, struct route_table *table);

/* The least busy usable link of a version, retained; NULL where there is none. `numerics_id`
 * (empty: any) goes before load: a request that moves should find the same arithmetic. A session
 * (empty: none) stays with its home, which may hold its prefix, unless that is much busier. */
struct link *gateway_pick_link(struct gateway *gateway, const char *model, const char *version,
                               const char *numerics_id, const char *session_key);

/* Whether a replica of the route's version takes requests now (route_wish.usable; arg: gateway). */
bool gateway_takes_requests(void *arg, const route *wanted);

/* Whether a replica will take requests of a version. */
enum gateway_prospect {
    PROSPECT_NONE,   /* it is not meant to be served any more */
    PROSPECT_LOADED, /* it is, and nothing is on its way */
    PROSPECT_COMING, /* one is ready or on its way there: a link to it may come up soon */
    PROSPECT_WAKING, /* it was parked, and is woken for who waits */
};
/* Of one that is parked and may be woken by a request the manager is asked to wake it; where it
 * refuses, that is COMING: it may yet have room. */
enum gateway_prospect gateway_prospect(struct gateway *gateway, const char *model,
                                       const char *version);
/* The error of a request that has waited long enough: no replica is ready, or why what is parked is
 * not woken. */
void gateway_no_replica(struct gateway *gateway, const char *model, const char *version,
                        struct error *err);

/* Sends a relay to a replica, or queues it until one is there or its time is over. */
void gateway_dispatch(struct gateway *gateway, struct relay *relay);

/* Counts a request's begin and its end in the counters and in the meter of its version. `relay`
 * NULL: it was refused before it became one. */
void gateway_count_begin(struct gateway *gateway, struct relay *relay);
void gateway_count_end(struct gateway *gateway, struct relay *relay, int status, uint64_t n_tokens);

/* As counters_get and counters_n_refusals. */
void gateway_get_counters(struct gateway *gateway, struct gateway_counters *out_counters);
uint64_t gateway_n_refusals(struct gateway *gateway, enum gateway_limit limit);

/* A link came up, went down or drains: health and waiting requests follow. */
void gateway_link_changed(struct gateway *gateway);
