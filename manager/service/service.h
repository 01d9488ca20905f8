/* service.h: the RPCs of ModelManager and Routing. Handlers start on the server's threads and
 * move to the loop. There they read the loop's catalog. All changes are transactions on the
 * store thread (service_change). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/access/role.h"
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

/* A command is a row of the table in service.c: an RPC, the role that it needs, and one way to
 * answer. The frame there finds the role and the response type, posts the call to the loop, and
 * answers. */

/* Answers from the loop's catalog: fills the new `response`. */
typedef int service_read_fn(struct service *service, const ProtobufCMessage *request,
                            ProtobufCMessage *response, struct error *err);

/* A command that changes the state. The loop thread checks the request. The store thread applies
 * the change once per request id, and records an audit event. The answer follows when the change is
 * durable. */
struct service_change {
    size_t arg_bytes; /* size of the argument; 0: none */
    /* Checks the request and fills the zeroed argument. Unused (NULL) by commands that begin with
     * a handler of their own. */
    int (*check)(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                 void *arg, struct error *err);
    /* Changes the rows and fills the new `response`. The function may read only its arguments. */
    int (*apply)(struct txn *txn, const ProtobufCMessage *request, void *arg,
                 ProtobufCMessage *response, struct error *err);
    void (*free_arg)(void *arg); /* optional; called exactly once in any case; takes NULL */
    /* The change must not wait for the disk. While the disk takes no writes, `apply` runs again
     * for memory alone (txn_is_in_memory). The rows are written later. The change uses no
     * counters. */
    bool urgent;
    /* Optional: called on the loop thread before the answer is sent. */
    void (*done)(const ProtobufCMessage *response);
    /* Optional: removes secrets from the copy of the answer that is kept for repeated requests. */
    void (*redact)(ProtobufCMessage *copy);
};

/* A handler of its own, on the loop thread. The handler answers, or keeps a reference to the call
 * and answers later. */
typedef void service_fn(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *request);

service_read_fn service_get_model, service_list_models, service_get_traffic, service_list_groups;
service_read_fn service_list_replicas, service_get_status, service_list_keys;
service_read_fn service_get_operation, service_list_operations;
extern const struct service_change service_set_policy, service_set_traffic, service_release_device;
extern const struct service_change service_create_key, service_revoke_key;
extern const struct service_change service_create_group, service_delete_group;
extern const struct service_change service_delete_version, service_drain_replica;
extern const struct service_change service_restart_replica, service_cancel_operation;
service_fn service_register, service_inspect, service_list_devices;
service_fn service_load, service_unload, service_scale, service_park, service_wake;
service_fn service_wake_on_demand, service_update;

/* The role that "/package.Service/Method" needs; ROLE_NONE: there is no such command. Any
 * thread. */
enum role service_role_needed(const char *path);

/* Answers the call with an error. */
void service_fail(struct rpc_call *call, const struct error *err);
/* Answers the call with `response` if the response is `complete`, else with an error: memory is
 * exhausted. Frees the response, which may be NULL. */
void service_reply(struct rpc_call *call, ProtobufCMessage *response, bool complete);

/* Submits the change (takes `arg`). The call keeps `request` alive. */
void service_change(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                    const struct service_change *change, void *arg);
/* Like service_change() with a copy of `arg`, which change->free_arg frees. Without memory for
 * the copy, the call is refused and nothing is freed: `arg` must not own anything yet. */
void service_change_copy(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, const struct service_change *change,
                         const void *arg);

typedef void service_go_on_fn(struct service *service, struct rpc_call *call,
                              const ProtobufCMessage *request, void *arg);
/* Answers a repeated request id again. Else calls `go_on` on the loop thread (also for an empty
 * request id), which takes `arg`. */
void service_once(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  const struct service_change *change, void *arg, service_go_on_fn *go_on);

/* Checks the names of a request. `request_id`, `version` and `group` may be empty. */
int service_check_names(const char *request_id, const char *model, const char *version,
                        const char *group, struct error *err);
/* Reads grace_ms of a request, or the default. INVALID_ARGUMENT beyond a day. */
int service_grace(const struct fleet *fleet, int has, uint32_t grace_ms, uint32_t *out_grace_ms,
                  struct error *err);
