/* service.h: the RPCs of ModelManager and Routing. Handlers arrive on the server's threads, are
 * handed to the loop, read the loop's catalog there, and change things only through transactions on
 * the store thread (service_change). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/error.h"
#include "manager/base/pb.h"
#include "manager/rollout/lifecycle.h"
#include "manager/slots/fleet.h"
#include "proto/rpc/server/server.h"

struct access_gate;
struct events;
struct operations;
struct routes;
struct rpc_call;
struct service;
struct txn;

/* The parts that requests are handed to; borrowed. */
struct service_config {
    struct fleet *fleet;
    struct operations *operations;
    struct events *events;
    struct routes *routes;
    struct access_gate *gate;
};

int service_create(const struct service_config *config, struct service **out_service,
                   struct error *err);
void service_destroy(struct service *service); /* NULL is accepted */

/* The two services' tables, for rpc_server_config. */
enum { SERVICE_COUNT = 2 };
void service_tables(struct service *service, struct rpc_service out_services[SERVICE_COUNT]);

/* Looks at the devices now and makes the built-in group `cpu` at the first start; answers nobody.
 */
void service_probe_devices(struct service *service);
/* Until that look has ended, well or not. */
bool service_is_probing(const struct service *service);

/* groups.c. Whether the device is one of the group's. */
bool service_group_has(const pb_group *group, const char *device);
/* Adds it; false: memory is exhausted. */
bool service_group_add(pb_group *group, const char *device);

/* -- inside service/ ---------------------------------------------------------------------------
 */

struct service {
    struct fleet *fleet;
    struct service_config config;
    struct waking *waking;          /* wakes on their way to the store (park.c) */
    bool probing;                   /* the look at the start has not ended */
    char cuda_unusable_reason[256]; /* of the last probe */
};

/* A handler on the loop thread; it must answer or keep a reference and answer later. */
typedef void service_fn(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *request);

service_fn service_register, service_get_model, service_list_models, service_delete_version;
service_fn service_load, service_unload, service_scale, service_park, service_wake;
service_fn service_wake_on_demand;
service_fn service_set_policy, service_update, service_set_traffic, service_get_traffic;
service_fn service_drain_replica, service_restart_replica, service_cancel_operation;
service_fn service_list_replicas, service_get_status;
service_fn service_get_operation, service_list_operations;
service_fn service_list_devices, service_release_device;
service_fn service_create_key, service_list_keys, service_revoke_key;
service_fn service_create_group, service_list_groups, service_delete_group;

/* Answers with an error. */
void service_fail(struct rpc_call *call, const struct error *err);

/* Applies a change on the store thread, once per request id. On 0 *out_response is owned by the
 * caller. It must look at nothing but its arguments. */
typedef int service_change_fn(struct txn *txn, const ProtobufCMessage *request, void *arg,
                              ProtobufCMessage **out_response, struct error *err);

struct service_change {
    const char *method; /* its name is part of a request id's identity */
    const ProtobufCMessageDescriptor *response_type;
    service_change_fn *apply;
    void (*free_arg)(void *arg); /* optional; called exactly once in any case */
    /* It must not wait for the disk: where that takes no writes, `apply` is run again for memory
     * alone (txn_is_in_memory), and its rows are written later. It uses no counters. */
    bool urgent;
    /* Optional: on the loop thread, before the answer is sent. */
    void (*done)(const ProtobufCMessage *response);
    /* Optional: takes out of a copy of the answer what must not be kept for a repeated request. */
    void (*redact)(ProtobufCMessage *copy);
};

/* Submits the change and answers the call when it is durable or refused. `request` is kept alive
 * through the call. */
void service_change(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                    const char *request_id, const struct service_change *change, void *arg);

/* The same with a copy of `arg`, of n_bytes, which change->free_arg frees. Where there is no memory
 * for it the call is refused and nothing else freed: `arg` must not own anything yet. */
void service_change_copy(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, const char *request_id,
                         const struct service_change *change, const void *arg, size_t n_bytes);

/* Only looks whether the request was answered before: then answers the call again, else calls
 * `go_on` on the loop thread (also where the request id is empty). */
void service_once(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  const char *request_id, const struct service_change *change, void *arg,
                  void (*go_on)(struct service *service, struct rpc_call *call,
                                const ProtobufCMessage *request, void *arg));

/* A request's grace_ms, or the default. INVALID_ARGUMENT beyond a day. */
int service_grace(const struct fleet *fleet, int has, uint32_t grace_ms, uint32_t *out_grace_ms,
                  struct error *err);
