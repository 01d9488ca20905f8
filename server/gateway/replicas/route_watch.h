/* route_watch.h: follows the manager's routes on its own thread for as long as the server lives.
 * Without a manager the server keeps the last routes. Each new table goes to the watch's owner,
 * and to the file from which a server starts without a manager. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/rpc/client/client.h"
#include "server/gateway/replicas/route_table.h"

struct counters;
struct error;
struct replicas;
struct route_watch;

/* Everything in the config outlives the watch. */
struct route_watch_config {
    const char *manager_socket;
    const char *routes_file; /* empty or NULL: no file */
    const char *server_id;
    const char *listen, *listen_unix; /* where clients reach this server; empty: nowhere */
    const _Atomic uint16_t *port;     /* the bound port of `listen`; set when it is bound */
    const char *http_listen;          /* addresses of HTTP between commas; empty or NULL: none */
    /* Returns the bound port of the first TCP address of HTTP; 0: not bound yet. Any thread. */
    uint16_t (*http_port)(void *arg);
    struct counters *counters;
    struct replicas *replicas;
    /* Makes a new table current. Takes the reference. Called on the watch's thread. */
    void (*apply)(void *arg, struct route_table *table);
    void *arg;
};

/* *out_watch is owned. */
int route_watch_create(const struct route_watch_config *config, struct route_watch **out_watch,
                       struct error *err);

/* Asks the manager to wake a parked version, at most once a second for each version. Counts
 * successful wakes. Returns at once. Any thread; `watch` is NULL without a manager. */
void route_watch_wake(struct route_watch *watch, const route *parked);
/* True if the manager is sending its routes; otherwise the routes may be old. Any thread. */
bool route_watch_connected(const struct route_watch *watch);
/* True if the manager was asked to wake the version and has not refused lately. False also if
 * too many versions are to be woken at once. Any thread; `watch` may be NULL. */
bool route_watch_hopes(struct route_watch *watch, const char *model, const char *version);
/* True if the manager said within the last minute that the version wakes. Any thread. */
bool route_watch_woke(struct route_watch *watch, const char *model, const char *version);
/* True if the manager refused the wake lately, or did not answer; *out_why has the reason (may
 * be NULL). The manager is asked again while requests wait. Any thread; `watch` may be NULL. */
bool route_watch_refused(struct route_watch *watch, const char *model, const char *version,
                         struct error *out_why);
/* Calls an RPC of the manager, where this server's user is an admin. on_reply is called once, on
 * the client's thread. The function may ask again. Returns UNAVAILABLE if there is no manager or
 * the server ends; on_reply is not called then. Any thread; `watch` may be NULL. */
int route_watch_ask(struct route_watch *watch, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request, uint32_t timeout_ms,
                    rpc_reply_fn *on_reply, void *arg, struct error *err);
/* Stops following and asking. NULL is accepted. */
void route_watch_stop(struct route_watch *watch);
/* Call it after route_watch_stop, when no thread can call route_watch_wake any more. */
void route_watch_destroy(struct route_watch *watch); /* NULL is accepted */
