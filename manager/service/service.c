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

/* --- the table of commands --- */

/* A viewer reads; an operator controls registered models. Inspecting starts a process. Registering
 * needs an admin, since the manager then reads the named files. So do creating keys and device
 * groups, and WatchRoutes, whose caller appears as a server. */
struct command {
    const char *method;
    enum role role;
    /* Exactly one of these: */
    service_read_fn *read;
    const struct service_change *change;
    service_fn *handle;
    service_fn *watch; /* on the server's thread */
};

static service_fn wait_operation, watch_operation, watch_events, watch_routes;

/* clang-format off */
#define MANAGER_COMMANDS(ROW) \
    ROW(GetModel, UNARY, VIEWER, .read = service_get_model) \
    ROW(ListModels, UNARY, VIEWER, .read = service_list_models) \
    ROW(GetTraffic, UNARY, VIEWER, .read = service_get_traffic) \
    ROW(ListDevices, UNARY, VIEWER, .handle = service_list_devices) \
    ROW(ListDeviceGroups, UNARY, VIEWER, .read = service_list_groups) \
    ROW(ListReplicas, UNARY, VIEWER, .read = service_list_replicas) \
    ROW(GetOperation, UNARY, VIEWER, .read = service_get_operation) \
    ROW(ListOperations, UNARY, VIEWER, .read = service_list_operations) \
    ROW(WaitOperation, UNARY, VIEWER, .watch = wait_operation) \
    ROW(WatchOperation, SERVER_STREAM, VIEWER, .watch = watch_operation) \
    ROW(WatchEvents, SERVER_STREAM, VIEWER, .watch = watch_events) \
    ROW(GetStatus, UNARY, VIEWER, .read = service_get_status) \
    ROW(InspectModelVersion, UNARY, OPERATOR, .handle = service_inspect) \
    ROW(LoadModelVersion, UNARY, OPERATOR, .handle = service_load) \
    ROW(UnloadModelVersion, UNARY, OPERATOR, .handle = service_unload) \
    ROW(ScaleModelVersion, UNARY, OPERATOR, .handle = service_scale) \
    ROW(ParkModelVersion, UNARY, OPERATOR, .handle = service_park) \
    ROW(WakeModelVersion, UNARY, OPERATOR, .handle = service_wake) \
    ROW(UpdateModelVersion, UNARY, OPERATOR, .handle = service_update) \
    ROW(SetTraffic, UNARY, OPERATOR, .change = &service_set_traffic) \
    ROW(SetVersionPolicy, UNARY, OPERATOR, .change = &service_set_policy) \
    ROW(DrainReplica, UNARY, OPERATOR, .change = &service_drain_replica) \
    ROW(RestartReplica, UNARY, OPERATOR, .change = &service_restart_replica) \
    ROW(CancelOperation, UNARY, OPERATOR, .change = &service_cancel_operation) \
    ROW(ReleaseDevice, UNARY, OPERATOR, .change = &service_release_device) \
    ROW(RegisterModelVersion, UNARY, ADMIN, .handle = service_register) \
    ROW(DeleteModelVersion, UNARY, ADMIN, .change = &service_delete_version) \
    ROW(CreateDeviceGroup, UNARY, ADMIN, .change = &service_create_group) \
    ROW(DeleteDeviceGroup, UNARY, ADMIN, .change = &service_delete_group) \
    ROW(CreateApiKey, UNARY, ADMIN, .change = &service_create_key) \
    ROW(ListApiKeys, UNARY, ADMIN, .read = service_list_keys) \
    ROW(RevokeApiKey, UNARY, ADMIN, .change = &service_revoke_key)
#define ROUTING_COMMANDS(ROW) \
    ROW(WatchRoutes, SERVER_STREAM, ADMIN, .watch = watch_routes) \
    ROW(WakeVersion, UNARY, ADMIN, .handle = service_wake_on_demand)
/* clang-format on */

static rpc_handler_fn on_call;

#define AS_METHOD(name, shape, role, ...)    {#name, RPC_SHAPE_##shape, on_call},
#define AS_COMMAND(name, shape, needed, ...) {.method = #name, .role = ROLE_##needed, __VA_ARGS__},

static const struct rpc_method manager_methods[] = {MANAGER_COMMANDS(AS_METHOD)};
static const struct rpc_method routing_methods[] = {ROUTING_COMMANDS(AS_METHOD)};
static const struct command commands[] = {MANAGER_COMMANDS(AS_COMMAND)
                                              ROUTING_COMMANDS(AS_COMMAND)};

enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const struct command *find_command(const char *method)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].method, method) == 0)
            return &commands[i];
    return NULL;
}

static const ProtobufCServiceDescriptor *const descriptors[SERVICE_COUNT] = {
    &sluice__manager__v1__model_manager__descriptor, &sluice__manager__v1__routing__descriptor};

/* Each method has a request type of its own. */
static const ProtobufCMethodDescriptor *find_method(const ProtobufCMessage *request)
{
    for (size_t i = 0; i < SERVICE_COUNT; i++)
        for (unsigned k = 0; k < descriptors[i]->n_methods; k++)
            if (descriptors[i]->methods[k].input == request->descriptor)
                return &descriptors[i]->methods[k];
    return NULL;
}

enum role service_role_needed(const char *path)
{
    for (size_t i = 0; i < SERVICE_COUNT; i++) {
        size_t n = strlen(descriptors[i]->name);
        if (*path != '/' || strncmp(path + 1, descriptors[i]->name, n) != 0 || path[n + 1] != '/' ||
            !protobuf_c_service_descriptor_get_method_by_name(descriptors[i], path + n + 2))
            continue;
        const struct command *command = find_command(path + n + 2);
        return command ? command->role : ROLE_NONE;
    }
    return ROLE_NONE;
}

void service_tables(struct service *service, struct rpc_service out_services[SERVICE_COUNT])
{
    out_services[0] = (struct rpc_service){
        .descriptor = descriptors[0],
        .methods = manager_methods,
        .n_methods = sizeof(manager_methods) / sizeof(manager_methods[0]),
        .context = service,
    };
    out_services[1] = (struct rpc_service){
        .descriptor = descriptors[1],
        .methods = routing_methods,
        .n_methods = sizeof(routing_methods) / sizeof(routing_methods[0]),
        .context = service,
    };
}

/* --- from the server's threads to the loop --- */

struct posted_call {
    struct service *service;
    struct rpc_call *call;
    const ProtobufCMessage *request; /* lives as long as the call */
    const struct command *command;
};

static void read_state(const struct posted_call *posted)
{
    struct error err;
    ProtobufCMessage *response = message_new(find_method(posted->request)->output);
    int rc = response ? posted->command->read(posted->service, posted->request, response, &err)
                      : error_no_memory(&err);
    if (rc == 0)
        rpc_call_reply(posted->call, response);
    else
        service_fail(posted->call, &err);
    message_free(response);
}

static void begin_change(const struct posted_call *posted)
{
    const struct service_change *change = posted->command->change;
    struct error err;
    void *arg = change->arg_bytes ? calloc(1, change->arg_bytes) : NULL;
    if (change->arg_bytes && !arg)
        error_no_memory(&err);
    else if (change->check(posted->service, posted->call, posted->request, arg, &err) == 0) {
        service_change(posted->service, posted->call, posted->request, change, arg);
        return;
    }
    service_fail(posted->call, &err);
    if (change->free_arg)
        change->free_arg(arg);
}

static void run_posted(void *arg)
{
    struct posted_call *posted = arg;
    if (rpc_call_cancelled(posted->call))
        rpc_call_finish(posted->call,
                        &(struct error){.status = STATUS_CANCELLED, .message = "cancelled"});
    else if (posted->command->read)
        read_state(posted);
    else if (posted->command->change)
        begin_change(posted);
    else
        posted->command->handle(posted->service, posted->call, posted->request);
    rpc_call_release(posted->call);
    free(posted);
}

static void on_call(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct service *service = context;
    const struct command *command = find_command(find_method(request)->name);
    struct error err;
    struct posted_call *posted = NULL;
    if (command->watch) {
        command->watch(service, call, request);
        return;
    }
    if (loop_queue_depth(service->fleet->context->queue) < MAX_POSTED)
        posted = malloc(sizeof(*posted));
    if (posted) {
        rpc_call_retain(call);
        *posted = (struct posted_call){service, call, request, command};
        if (loop_queue_post(service->fleet->context->queue, run_posted, posted) == 0)
            return;
        rpc_call_release(call);
        free(posted);
    }
    error_set(&err, STATUS_RESOURCE_EXHAUSTED,
              "%d requests are waiting: that is the limit; try again", MAX_POSTED);
    err.retry_after_ms = 100;
    error_reason(&err, REASON_TOO_MANY_REQUESTS);
    rpc_call_finish(call, &err);
}

static void wait_operation(struct service *service, struct rpc_call *call,
                           const ProtobufCMessage *request)
{
    const Sluice__Manager__V1__WaitOperationRequest *wanted =
        (const Sluice__Manager__V1__WaitOperationRequest *)request;
    operations_watch(service->config.operations, call, wanted->id, true, wanted->timeout_ms);
}

static void watch_operation(struct service *service, struct rpc_call *call,
                            const ProtobufCMessage *request)
{
    const Sluice__Manager__V1__WatchOperationRequest *wanted =
        (const Sluice__Manager__V1__WatchOperationRequest *)request;
    operations_watch(service->config.operations, call, wanted->id, false, 0);
}

static void watch_events(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request)
{
    events_watch(service->config.events, call, request);
}

static void watch_routes(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request)
{
    routes_watch(service->config.routes, call, request);
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
    const char *request_id;                  /* the request's id; empty: none */
    const ProtobufCMethodDescriptor *method; /* its name is part of a request id's identity */
    const struct service_change *change;
    void *arg;
    ProtobufCMessage *response; /* owned */
    service_go_on_fn *go_on;
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
    int rc = txn_idempotency_record(txn, pending_change->request_id, pending_change->method->name,
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
    if (!in_memory &&
        txn_idempotency_find(txn, pending_change->request_id, pending_change->method->name,
                             pending_change->request, pending_change->method->output,
                             &pending_change->response, err) != 0)
        return err->status;
    if (pending_change->response || pending_change->go_on)
        return 0;
    ProtobufCMessage *response = message_new(pending_change->method->output);
    if (!response)
        return error_no_memory(err);
    if (change->apply(txn, pending_change->request, pending_change->arg, response, err) != 0) {
        message_free(response);
        return err->status;
    }
    pending_change->response = response;
    struct access_caller caller;
    access_caller_of(pending_change->call, &caller);
    if (audit_add(txn, &caller, pending_change->method->name, pending_change->request_id, err) != 0)
        return err->status;
    return in_memory ? 0 : record_answer(txn, pending_change, err);
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

/* The field `request_id` of a request; empty: there is none. */
static const char *request_id_of(const ProtobufCMessage *request)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, "request_id");
    const char *id = "";
    if (field)
        memcpy(&id, (const char *)request + field->offset, sizeof(id));
    return id;
}

void service_once(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                  const struct service_change *change, void *arg, service_go_on_fn *go_on)
{
    struct error err;
    struct store *store = service->fleet->context->store;
    struct pending_change *pending_change = calloc(1, sizeof(*pending_change));
    if (!pending_change) {
        error_no_memory(&err);
        service_fail(call, &err);
        if (change->free_arg)
            change->free_arg(arg);
        return;
    }
    rpc_call_retain(call);
    *pending_change = (struct pending_change){.service = service,
                                              .call = call,
                                              .request = request,
                                              .request_id = request_id_of(request),
                                              .method = find_method(request),
                                              .change = change,
                                              .arg = arg,
                                              .go_on = go_on};
    if (name_check_request_id(pending_change->request_id, &err) == 0 &&
        (change->urgent ? store_submit_seen(store, run_change, end_change, pending_change, &err)
                        : store_submit(store, run_change, end_change, pending_change, &err)) == 0)
        return;
    service_fail(call, &err);
    free_pending_change(pending_change);
}

void service_change(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                    const struct service_change *change, void *arg)
{
    service_once(service, call, request, change, arg, NULL);
}

void service_change_copy(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *request, const struct service_change *change,
                         const void *arg)
{
    struct error err;
    assert(change->free_arg);
    void *copy = malloc(change->arg_bytes);
    if (!copy) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    memcpy(copy, arg, change->arg_bytes);
    service_change(service, call, request, change, copy);
}

int service_check_names(const char *request_id, const char *model, const char *version,
                        const char *group, struct error *err)
{
    if (name_check_request_id(request_id, err) != 0 || name_check("model", model, err) != 0 ||
        (*version && name_check_version("version", version, err) != 0) ||
        (*group && name_check("device_group", group, err) != 0))
        return err->status;
    return 0;
}

int service_grace(const struct fleet *fleet, int has, uint32_t grace_ms, uint32_t *out_grace_ms,
                  struct error *err)
{
    if (has && grace_ms > MAX_GRACE_MS)
        return error_field(err, "grace_ms", "%u; %d is the limit", grace_ms, MAX_GRACE_MS);
    *out_grace_ms = has ? grace_ms : (uint32_t)fleet->context->settings->drain_grace_ms;
    return 0;
}
