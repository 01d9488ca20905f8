/* service.h: the RPCs of ModelManager and Routing. Handlers start on the server's threads and
 * move to the loop. There they read the loop's catalog. All changes are transactions on the
 * store thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/access/role.h"
#include "base/arena.h"
#include "base/error.h"
#include "manager/base/loop_queue.h"
#include "manager/base/pb.h"
#include "manager/rollout/lifecycle.h"
#include "manager/slots/fleet.h"
#include "proto/rpc/server/server.h"

struct access_gate;
struct events;
struct operations;
struct plan_wish;
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

/* --- inside service/ --- */

struct service {
    struct fleet *fleet;
    struct service_config config;
    struct waking *waking;          /* wakes on their way to the store (park.c) */
    bool probing;                   /* the probe at start has not ended */
    char cuda_unusable_reason[256]; /* from the last probe */
};

/* A call on its way through the frame in service.c. Its memory ends with the answer: no function
 * frees a message of a call, and the frame alone handles a failed allocation (message.h). A
 * single thread has the call at a time: the loop, or the store thread inside `apply`. */
struct service_call {
    struct service *service;
    struct fleet *fleet;
    const struct catalog *catalog; /* the loop's; `apply` uses that of the transaction */
    struct rpc_call *rpc;          /* a reference */
    const struct command *command;
    const ProtobufCMethodDescriptor *method; /* its name is part of a request id's identity */
    const void *request;                     /* lives as long as `rpc` */
    struct arena arena;                      /* argument, answer, and all that they are made of */
    void *response;                          /* new and empty, before it is filled */
    /* Changes alone: */
    void *arg; /* change->arg_bytes, zeroed before `check` */
    struct lifecycle_limits limits;
    uint32_t grace_ms;      /* the request's, or the default */
    const char *model_root; /* as the settings had it at the begin of the call */
    bool prepares;          /* `check` sets this where the change needs `prepare` */
    /* The frame's own: */
    ProtobufCMessage *recorded; /* the answer to this request id; owned, on the heap */
    struct loop_task to_loop;
};

/* A command is a row of the table in service.c: RPC, role, fields with names, and one
 * way to answer. The functions of a command return 0, the status of `err`, or SERVICE_LATER. The
 * last means that the function has taken the call. The function then ends the call with
 * service_reply(), service_fail() or service_submit(). */
enum { SERVICE_LATER = 1 };
typedef int service_fn(struct service_call *call, struct error *err);

/* A command that changes the state. The store thread applies the change once per request id, and
 * records an audit event. The answer follows when the change is durable. All members but `apply`
 * are optional; all functions but `apply` run on the loop thread. */
struct service_change {
    size_t arg_bytes;
    /* Checks the request and fills the argument. */
    service_fn *check;
    /* With validate_only, in place of the change: fills the response, or starts a process. */
    service_fn *plan;
    /* Runs once it is known that the request id was not answered before, and the change follows. */
    service_fn *prepare;
    /* Goes on after a service_plan() of `prepare`; the change follows. The plan is borrowed. */
    int (*planned)(struct service_call *call, const Sluice__V1__Plan *plan, struct error *err);
    /* Changes the rows and fills the response. The function may read only its arguments. */
    int (*apply)(struct txn *txn, struct service_call *call, struct error *err);
    /* The change must not wait for the disk. While the disk takes no writes, `apply` runs again
     * for memory alone (txn_is_in_memory). The rows are written later. The change uses no
     * counters. */
    bool urgent;
    /* Called before the answer is sent. */
    void (*done)(const void *response);
    /* Removes secrets from the shallow copy of the answer that is kept for repeated requests. */
    void (*redact)(void *copy);
    /* Called once at the end of the call, also after a failure of `check`. The argument may be
     * NULL. */
    void (*leave)(struct service_call *call);
};

service_fn service_get_model, service_list_models, service_get_traffic, service_list_groups;
service_fn service_list_replicas, service_get_status, service_list_keys, service_list_devices;
service_fn service_get_operation, service_list_operations, service_inspect;
extern const struct service_change service_register, service_delete_version;
extern const struct service_change service_load, service_unload, service_scale, service_update;
extern const struct service_change service_park, service_wake, service_wake_on_demand;
extern const struct service_change service_set_policy, service_set_traffic, service_release_device;
extern const struct service_change service_create_key, service_revoke_key;
extern const struct service_change service_create_group, service_delete_group;
extern const struct service_change service_drain_replica, service_restart_replica;
extern const struct service_change service_cancel_operation;

/* The role that "/package.Service/Method" needs; ROLE_NONE: there is no such command. Any
 * thread. */
enum role service_role_needed(const char *path);

/* Answers with the response, or with an error where memory is exhausted. Frees the call. */
void service_reply(struct service_call *call);
/* Answers with an error. Frees the call. */
void service_fail(struct service_call *call, const struct error *err);
/* Frees a call that was answered by others. */
void service_drop(struct service_call *call);
/* Submits the change, which answers and frees the call. */
void service_submit(struct service_call *call);

/* Starts a plan (rollout/plan.h), and returns SERVICE_LATER. With validate_only the plan becomes
 * the answer, else change->planned goes on. */
int service_plan(struct service_call *call, const struct plan_wish *wish, struct error *err);
/* The wish for a plan of more replicas of the deployment. */
struct plan_wish service_wish_of(const pb_deployment *deployment, uint32_t n_replicas);

/* Checks expected_generation of the request against the generation `is` of `what`. */
int service_check_generation(const struct service_call *call, const char *what, uint64_t is,
                             struct error *err);
