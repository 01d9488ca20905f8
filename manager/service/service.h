/* service.h: the RPCs of ModelManager and Routing. Handlers start on the server's threads and
 * move to the loop. There they read the loop's catalog. All changes are transactions on the
 * store thread (service_change). */
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

/* The parts that handlers use; borrowed. */
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

/* The method tables of both services, for rpc_server_config. */
enum { SERVICE_COUNT = 2 };
void service_tables(struct service *service, struct rpc_service out_services[SERVICE_COUNT]);

/* Probes the devices, and creates the built-in group `cpu` at the first start. No call waits for
 * this probe. */
void service_probe_devices(struct service *service);
/* True until that probe has ended, well or not. */
bool service_is_probing(const struct service *service);

/* groups.c: true where the device is in the group. */
bool service_group_has(const pb_group *group, const char *device);
/* Adds the device. False where memory is exhausted. */
bool service_group_add(pb_group *group, const char *device);

/* --- inside service/ --- */

struct service {
    struct fleet *fleet;
    struct service_config config;
    struct waking *waking;          /* wakes on their way to the store (park.c) */
    bool probing;                   /* the probe at start has not ended */
    char cuda_unusable_reason[256]; /* from the last probe */
};

/* A handler on the loop thread. A handler answers, or keeps a reference to the call and answers
 * later. */
typedef void service_fn(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *request);

service_fn service_register, service_get_model, service_list_models, service_delete_version;
service_fn service_inspect;
service_fn service_load, service_unload, service_scale, service_park, service_wake;
service_fn service_wake_on_demand;
service_fn service_set_policy, service_update, service_set_traffic, service_get_traffic;
service_fn service_drain_replica, service_restart_replica, service_cancel_operation;
service_fn service_list_replicas, service_get_status;
service_fn service_get_operation, service_list_operations;
service_fn service_list_devices, service_release_device;
service_fn service_create_key, service_list_keys, service_revoke_key;
service_fn service_create_group, service_list_groups, service_delete_group;

/* Answers the call with an error. */
void service_fail(struct rpc_call *call, const struct error *err);
/* Answers the call with `response` if the response is `complete`, else with an error: memory is
 * exhausted. Frees the response, which may be NULL. */
void service_reply(struct rpc_call *call, ProtobufCMessage *response, bool complete);

/* Applies a change on the store thread, once per request id. After 0 the caller owns
 * *out_response. The function may read only its arguments. */
typedef int service_change_fn(struct txn *txn, const ProtobufCMessage *request, void *arg,
                              ProtobufCMessage **out_response, struct error *err);

struct service_change {
    const char *method; /* the method's name; part of a request id's identity */
    const ProtobufCMessageDescriptor *response_type;
    service_change_fn *apply;
    void (*free_arg)(void *arg); /* optional; called exactly once in any case */
    /* The change must not wait for the disk. While the disk takes no writes, `apply` runs again
     * for memory alone (txn_is_in_memory). The rows are written later. The change uses no
     * counters. */
    bool urgent;
    /* Optional: called on the loop thread before the answer is sent. */
    void (*done)(const ProtobufCMessage *response);
    /* Optional: removes secrets from the copy of the answer that is kept for repeated requests. */
    void (*redact)(ProtobufCMessage *copy);
};

/* Submits the change and answers the call when the change is durable or refused. The call keeps
 * `request` alive. */
void service_change(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                    const char *request_id, const struct service_change *change, void *arg);

/* Like service_change() with a copy of the n_bytes of `arg`, which change->free_arg frees.
 * Without memory for the copy, the call is refused and nothing is freed: `arg` must not own
 * anything yet. */
void service_change_copy(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, const char *request_id,
                         const struct service_change *change, const void *arg, size_t n_bytes);

/* Answers a repeated request id again. Else calls `go_on` on the loop thread (also for an empty
 * request id). */
void service_once(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  const char *request_id, const struct service_change *change, void *arg,
                  void (*go_on)(struct service *service, struct rpc_call *call,
                                const ProtobufCMessage *request, void *arg));

/* Reads grace_ms of a request, or the default. INVALID_ARGUMENT beyond a day. */
int service_grace(const struct fleet *fleet, int has, uint32_t grace_ms, uint32_t *out_grace_ms,
                  struct error *err);
