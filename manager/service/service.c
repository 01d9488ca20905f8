#include "manager/service/service.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/loop_queue.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/service/access.h"
#include "manager/service/audit.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"
#include "manager/watch/events.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"

enum { MAX_POSTED = 4096, MAX_GRACE_MS = 24 * 3600 * 1000 };

void service_fail(struct rpc_call *call, const struct error *err)
{
    rpc_call_finish(call, err);
}

void service_reply(struct rpc_call *call, ProtobufCMessage *response, bool complete)
{
    struct error err;
    if (complete) {
        rpc_call_reply(call, response);
    } else {
        error_no_memory(&err);
        service_fail(call, &err);
    }
    if (response)
        message_free(response);
}

/* --- from the server's threads to the loop --- */

struct posted_call {
    struct service *service;
    struct rpc_call *call;
    const ProtobufCMessage *request; /* lives as long as the call */
    service_fn *handle;
};

static void run_posted(void *arg)
{
    struct posted_call *posted_call = arg;
    if (!rpc_call_cancelled(posted_call->call))
        posted_call->handle(posted_call->service, posted_call->call, posted_call->request);
    else
        rpc_call_finish(posted_call->call,
                        &(struct error){.status = STATUS_CANCELLED, .message = "cancelled"});
    rpc_call_release(posted_call->call);
    free(posted_call);
}

static void post_to_loop(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, service_fn *handle)
{
    struct error err;
    struct posted_call *posted_call = NULL;
    if (loop_queue_depth(service->fleet->context->queue) < MAX_POSTED)
        posted_call = malloc(sizeof(*posted_call));
    if (posted_call) {
        rpc_call_retain(call);
        *posted_call = (struct posted_call){service, call, request, handle};
        if (loop_queue_post(service->fleet->context->queue, run_posted, posted_call) == 0)
            return;
        rpc_call_release(call);
        free(posted_call);
    }
    error_set(&err, STATUS_RESOURCE_EXHAUSTED,
              "%d requests are waiting: that is the limit; try again", MAX_POSTED);
    err.retry_after_ms = 100;
    error_reason(&err, REASON_TOO_MANY_REQUESTS);
    rpc_call_finish(call, &err);
}

#define ON_LOOP(name)                                                                              \
    static void name##_call(void *context, struct rpc_call *call, const ProtobufCMessage *request) \
    {                                                                                              \
        post_to_loop(context, call, request, service_##name);                                      \
    }

ON_LOOP(register)
ON_LOOP(get_model)
ON_LOOP(list_models)
ON_LOOP(inspect)
ON_LOOP(delete_version)
ON_LOOP(load)
ON_LOOP(unload)
ON_LOOP(scale)
ON_LOOP(set_policy)
ON_LOOP(update)
ON_LOOP(set_traffic)
ON_LOOP(get_traffic)
ON_LOOP(park)
ON_LOOP(wake)
ON_LOOP(wake_on_demand)
ON_LOOP(drain_replica)
ON_LOOP(restart_replica)
ON_LOOP(cancel_operation)
ON_LOOP(list_replicas)
ON_LOOP(get_status)
ON_LOOP(get_operation)
ON_LOOP(list_operations)
ON_LOOP(list_devices)
ON_LOOP(release_device)
ON_LOOP(create_key)
ON_LOOP(list_keys)
ON_LOOP(revoke_key)
ON_LOOP(create_group)
ON_LOOP(list_groups)
ON_LOOP(delete_group)

static void wait_operation_call(void *context, struct rpc_call *call,
                                const ProtobufCMessage *request)
{
    const Sluice__Manager__V1__WaitOperationRequest *wanted =
        (const Sluice__Manager__V1__WaitOperationRequest *)request;
    struct service *service = context;
    operations_watch(service->config.operations, call, wanted->id, true, wanted->timeout_ms);
}

static void watch_operation_call(void *context, struct rpc_call *call,
                                 const ProtobufCMessage *request)
{
    const Sluice__Manager__V1__WatchOperationRequest *wanted =
        (const Sluice__Manager__V1__WatchOperationRequest *)request;
    struct service *service = context;
    operations_watch(service->config.operations, call, wanted->id, false, 0);
}

static void watch_events_call(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct service *service = context;
    events_watch(service->config.events, call, request);
}

static void watch_routes_call(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct service *service = context;
    routes_watch(service->config.routes, call, request);
}

static const struct rpc_method manager_methods[] = {
    {"RegisterModelVersion", RPC_SHAPE_UNARY, register_call},
    {"GetModel", RPC_SHAPE_UNARY, get_model_call},
    {"ListModels", RPC_SHAPE_UNARY, list_models_call},
    {"InspectModelVersion", RPC_SHAPE_UNARY, inspect_call},
    {"DeleteModelVersion", RPC_SHAPE_UNARY, delete_version_call},
    {"SetVersionPolicy", RPC_SHAPE_UNARY, set_policy_call},
    {"LoadModelVersion", RPC_SHAPE_UNARY, load_call},
    {"UnloadModelVersion", RPC_SHAPE_UNARY, unload_call},
    {"ScaleModelVersion", RPC_SHAPE_UNARY, scale_call},
    {"ParkModelVersion", RPC_SHAPE_UNARY, park_call},
    {"WakeModelVersion", RPC_SHAPE_UNARY, wake_call},
    {"UpdateModelVersion", RPC_SHAPE_UNARY, update_call},
    {"SetTraffic", RPC_SHAPE_UNARY, set_traffic_call},
    {"GetTraffic", RPC_SHAPE_UNARY, get_traffic_call},
    {"ListDevices", RPC_SHAPE_UNARY, list_devices_call},
    {"ReleaseDevice", RPC_SHAPE_UNARY, release_device_call},
    {"CreateDeviceGroup", RPC_SHAPE_UNARY, create_group_call},
    {"ListDeviceGroups", RPC_SHAPE_UNARY, list_groups_call},
    {"DeleteDeviceGroup", RPC_SHAPE_UNARY, delete_group_call},
    {"CreateApiKey", RPC_SHAPE_UNARY, create_key_call},
    {"ListApiKeys", RPC_SHAPE_UNARY, list_keys_call},
    {"RevokeApiKey", RPC_SHAPE_UNARY, revoke_key_call},
    {"ListReplicas", RPC_SHAPE_UNARY, list_replicas_call},
    {"DrainReplica", RPC_SHAPE_UNARY, drain_replica_call},
    {"RestartReplica", RPC_SHAPE_UNARY, restart_replica_call},
    {"GetOperation", RPC_SHAPE_UNARY, get_operation_call},
    {"ListOperations", RPC_SHAPE_UNARY, list_operations_call},
    {"WaitOperation", RPC_SHAPE_UNARY, wait_operation_call},
    {"WatchOperation", RPC_SHAPE_SERVER_STREAM, watch_operation_call},
    {"CancelOperation", RPC_SHAPE_UNARY, cancel_operation_call},
    {"WatchEvents", RPC_SHAPE_SERVER_STREAM, watch_events_call},
    {"GetStatus", RPC_SHAPE_UNARY, get_status_call},
};

static const struct rpc_method routing_methods[] = {
    {"WatchRoutes", RPC_SHAPE_SERVER_STREAM, watch_routes_call},
    {"WakeVersion", RPC_SHAPE_UNARY, wake_on_demand_call},
};

void service_tables(struct service *service, struct rpc_service out_services[SERVICE_COUNT])
{
    out_services[0] = (struct rpc_service){
        .descriptor = &sluice__manager__v1__model_manager__descriptor,
        .methods = manager_methods,
        .n_methods = sizeof(manager_methods) / sizeof(manager_methods[0]),
        .context = service,
    };
    out_services[1] = (struct rpc_service){
        .descriptor = &sluice__manager__v1__routing__descriptor,
        .methods = routing_methods,
        .n_methods = sizeof(routing_methods) / sizeof(routing_methods[0]),
        .context = service,
    };
}

int service_create(const struct service_config *config, struct service **out_service,
                   struct error *err)
{
    struct service *service = calloc(1, sizeof(*service));
    if (!service)
        return error_no_memory(err);
    service->fleet = config->fleet;
    service->config = *config;
    *out_service = service;
    return 0;
}

void service_destroy(struct service *service)
{
    free(service);
}

/* --- changes --- */

struct pending_change {
    struct service *service;
    struct rpc_call *call;
    const ProtobufCMessage *request;
    const char *request_id;
    const struct service_change *change;
    void *arg;
    ProtobufCMessage *response; /* owned */
    void (*go_on)(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  void *arg);
};

/* Records the answer for repeated requests with the same id. */
static int record_answer(struct txn *txn, const struct pending_change *pending_change,
                         struct error *err)
{
    const struct service_change *change = pending_change->change;
    ProtobufCMessage *copy = NULL;
    if (change->redact && !(copy = message_copy(pending_change->response)))
        return error_no_memory(err);
    if (copy)
        change->redact(copy);
    int rc = txn_idempotency_record(txn, pending_change->request_id, change->method,
                                    pending_change->request, copy ? copy : pending_change->response,
                                    err);
    message_free(copy);
    return rc;
}

static int run_change(struct txn *txn, void *arg, struct error *err)
{
    struct pending_change *pending_change = arg;
    const struct service_change *change = pending_change->change;
    bool in_memory = txn_is_in_memory(txn); /* a second run: the changes of the first run are
                                             * undone */
    message_free(pending_change->response);
    pending_change->response = NULL;
    if (!in_memory && txn_idempotency_find(txn, pending_change->request_id, change->method,
                                           pending_change->request, change->response_type,
                                           &pending_change->response, err) != 0)
        return err->status;
    if (pending_change->response || pending_change->go_on)
        return 0;
    if (change->apply(txn, pending_change->request, pending_change->arg, &pending_change->response,
                      err) != 0)
        return err->status;
    struct access_caller caller;
    access_caller_of(pending_change->call, &caller);
    if (audit_add(txn, &caller, change->method, pending_change->request_id, err) != 0)
        return err->status;
    if (in_memory)
        return 0;
    if (!pending_change->response) /* a bug in the handler: unbuilt handlers answer UNIMPLEMENTED */
        return error_set(err, STATUS_INTERNAL, "%s returned no answer", change->method);
    return record_answer(txn, pending_change, err);
}

static void free_pending_change(struct pending_change *pending_change)
{
    if (pending_change->change->free_arg)
        pending_change->change->free_arg(pending_change->arg);
    message_free(pending_change->response);
    rpc_call_release(pending_change->call);
    free(pending_change);
}

static void end_change(void *arg, const struct error *status)
{
    struct pending_change *pending_change = arg;
    struct fleet *fleet = pending_change->service->fleet;
    if (status->status != 0) {
        service_fail(pending_change->call, status);
    } else if (pending_change->response) {
        failpoint("change.after_commit"); /* the change is durable, and the client has no answer
                                           * yet */
        access_take_keys(pending_change->service->config.gate);
        if (pending_change->change->done)
            pending_change->change->done(pending_change->response);
        rpc_call_reply(pending_change->call, pending_change->response);
        change_hub_notify(&fleet->context->changes, NULL);
    } else {
        pending_change->go_on(pending_change->service, pending_change->call,
                              pending_change->request, pending_change->arg);
        pending_change->arg = NULL; /* go_on takes the argument */
    }
    free_pending_change(pending_change);
}

static void submit(struct pending_change *from)
{
    struct error err;
    struct pending_change *pending_change = malloc(sizeof(*pending_change));
    if (!pending_change) {
        error_no_memory(&err);
        service_fail(from->call, &err);
        if (from->change->free_arg)
            from->change->free_arg(from->arg);
        return;
    }
    *pending_change = *from;
    rpc_call_retain(pending_change->call);
    struct store *store = pending_change->service->fleet->context->store;
    if (name_check_request_id(pending_change->request_id, &err) == 0 &&
        (pending_change->change->urgent
             ? store_submit_seen(store, run_change, end_change, pending_change, &err)
             : store_submit(store, run_change, end_change, pending_change, &err)) == 0)
        return;
    service_fail(pending_change->call, &err);
    free_pending_change(pending_change);
}

void service_change(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                    const char *request_id, const struct service_change *change, void *arg)
{
    submit(&(struct pending_change){.service = service,
                                    .call = call,
                                    .request = request,
                                    .request_id = request_id,
                                    .change = change,
                                    .arg = arg});
}

void service_change_copy(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, const char *request_id,
                         const struct service_change *change, const void *arg, size_t n_bytes)
{
    struct error err;
    assert(change->free_arg);
    void *copy = malloc(n_bytes);
    if (!copy) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    memcpy(copy, arg, n_bytes);
    service_change(service, call, request, request_id, change, copy);
}

void service_once(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  const char *request_id, const struct service_change *change, void *arg,
                  void (*go_on)(struct service *service, struct rpc_call *call,
                                const ProtobufCMessage *request, void *arg))
{
    submit(&(struct pending_change){.service = service,
                                    .call = call,
                                    .request = request,
                                    .request_id = request_id,
                                    .change = change,
                                    .arg = arg,
                                    .go_on = go_on});
}

int service_grace(const struct fleet *fleet, int has, uint32_t grace_ms, uint32_t *out_grace_ms,
                  struct error *err)
{
    if (has && grace_ms > MAX_GRACE_MS)
        return error_field(err, "grace_ms", "%u; %d is the limit", grace_ms, MAX_GRACE_MS);
    *out_grace_ms = has ? grace_ms : (uint32_t)fleet->context->settings->drain_grace_ms;
    return 0;
}
