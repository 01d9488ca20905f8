#include "manager/service/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/rollout/plan.h"
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

enum { MAX_POSTED = 4096, MAX_GRACE_MS = 24 * 3600 * 1000, MAX_ID_BYTES = 23 };
enum { ARENA_BYTES = 4096 };

/* --- the table of commands --- */

/* A viewer reads; an operator controls registered models. Inspecting starts a process. Registering
 * needs an admin, since the manager then reads the named files. So do creating keys and device
 * groups, and WatchRoutes, whose caller appears as a server. */
struct command {
    const char *method;
    enum role role;
    /* Fields with names, which the frame checks: "model version?". A field with a question mark
     * may be empty. Changes have request_id and grace_ms checked too. */
    const char *fields;
    /* Exactly one of these: */
    service_fn *read; /* fills the response */
    const struct service_change *change;
    void (*watch)(struct service *service, struct rpc_call *call,
                  const ProtobufCMessage *request); /* on the server's thread */
};

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

/* clang-format off */
#define TARGET "model version? device_group?"
#define MANAGER_COMMANDS(ROW) \
    ROW(GetModel, UNARY, VIEWER, "model", .read = service_get_model) \
    ROW(ListModels, UNARY, VIEWER, "page_token?", .read = service_list_models) \
    ROW(GetTraffic, UNARY, VIEWER, "model", .read = service_get_traffic) \
    ROW(ListDevices, UNARY, VIEWER, "", .read = service_list_devices) \
    ROW(ListDeviceGroups, UNARY, VIEWER, "", .read = service_list_groups) \
    ROW(ListReplicas, UNARY, VIEWER, "model? version? device_group?", .read = service_list_replicas) \
    ROW(GetOperation, UNARY, VIEWER, "", .read = service_get_operation) \
    ROW(ListOperations, UNARY, VIEWER, "model?", .read = service_list_operations) \
    ROW(WaitOperation, UNARY, VIEWER, "", .watch = wait_operation) \
    ROW(WatchOperation, SERVER_STREAM, VIEWER, "", .watch = watch_operation) \
    ROW(WatchEvents, SERVER_STREAM, VIEWER, "", .watch = watch_events) \
    ROW(GetStatus, UNARY, VIEWER, "", .read = service_get_status) \
    ROW(InspectModelVersion, UNARY, OPERATOR, TARGET, .read = service_inspect) \
    ROW(LoadModelVersion, UNARY, OPERATOR, TARGET, .change = &service_load) \
    ROW(UnloadModelVersion, UNARY, OPERATOR, TARGET, .change = &service_unload) \
    ROW(ScaleModelVersion, UNARY, OPERATOR, TARGET, .change = &service_scale) \
    ROW(ParkModelVersion, UNARY, OPERATOR, TARGET, .change = &service_park) \
    ROW(WakeModelVersion, UNARY, OPERATOR, TARGET, .change = &service_wake) \
    ROW(UpdateModelVersion, UNARY, OPERATOR, "model version from_version? device_group?", \
        .change = &service_update) \
    ROW(SetTraffic, UNARY, OPERATOR, "model", .change = &service_set_traffic) \
    ROW(SetVersionPolicy, UNARY, OPERATOR, "model", .change = &service_set_policy) \
    ROW(DrainReplica, UNARY, OPERATOR, "replica_id", .change = &service_drain_replica) \
    ROW(RestartReplica, UNARY, OPERATOR, "replica_id", .change = &service_restart_replica) \
    ROW(CancelOperation, UNARY, OPERATOR, "id", .change = &service_cancel_operation) \
    ROW(ReleaseDevice, UNARY, OPERATOR, "", .change = &service_release_device) \
    ROW(RegisterModelVersion, UNARY, ADMIN, "model version?", .change = &service_register) \
    ROW(DeleteModelVersion, UNARY, ADMIN, "model version", .change = &service_delete_version) \
    ROW(CreateDeviceGroup, UNARY, ADMIN, "name", .change = &service_create_group) \
    ROW(DeleteDeviceGroup, UNARY, ADMIN, "name", .change = &service_delete_group) \
    ROW(CreateApiKey, UNARY, ADMIN, "", .change = &service_create_key) \
    ROW(ListApiKeys, UNARY, ADMIN, "", .read = service_list_keys) \
    ROW(RevokeApiKey, UNARY, ADMIN, "", .change = &service_revoke_key)
#define ROUTING_COMMANDS(ROW) \
    ROW(WatchRoutes, SERVER_STREAM, ADMIN, "", .watch = watch_routes) \
    ROW(WakeVersion, UNARY, ADMIN, "model version", .change = &service_wake_on_demand)
/* clang-format on */

static rpc_handler_fn on_call;

#define AS_METHOD(name, shape, role, ...) {#name, RPC_SHAPE_##shape, on_call},
#define AS_COMMAND(name, shape, needed, names, ...)                                                \
    {.method = #name, .role = ROLE_##needed, .fields = (names), __VA_ARGS__},

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

/* --- the end of a call --- */

void service_drop(struct service_call *call)
{
    const struct service_change *change = call->command->change;
    if (change && change->leave)
        change->leave(call);
    arena_fini(&call->arena);
    message_free(call->recorded);
    rpc_call_release(call->rpc);
    free(call);
}

void service_fail(struct service_call *call, const struct error *err)
{
    rpc_call_finish(call->rpc, err);
    service_drop(call);
}

void service_reply(struct service_call *call)
{
    struct error err;
    if (call->arena.exhausted) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    rpc_call_reply(call->rpc, call->response);
    service_drop(call);
}

/* --- checks that all commands share --- */

/* The field of the request; NULL: the request has no such field, or it is absent. */
static const void *find_field(const struct service_call *call, const char *name)
{
    const ProtobufCMessage *request = call->request;
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, name);
    protobuf_c_boolean has = 1;
    if (field && field->label == PROTOBUF_C_LABEL_OPTIONAL && field->quantifier_offset)
        memcpy(&has, (const char *)request + field->quantifier_offset, sizeof(has));
    return field && has ? (const char *)request + field->offset : NULL;
}

static const char *text_field(const struct service_call *call, const char *name)
{
    const char *text = "";
    const void *field = find_field(call, name);
    if (field)
        memcpy(&text, field, sizeof(text));
    return text;
}

static bool flag_field(const struct service_call *call, const char *name)
{
    protobuf_c_boolean flag = 0;
    const void *field = find_field(call, name);
    if (field)
        memcpy(&flag, field, sizeof(flag));
    return flag;
}

static int check_field(const char *field, const char *text, struct error *err)
{
    if (strcmp(field, "version") == 0 || strcmp(field, "from_version") == 0)
        return name_check_version(field, text, err);
    if (strcmp(field, "id") != 0 && strcmp(field, "replica_id") != 0)
        return name_check(field, text, err);
    if (!*text)
        return error_field(err, field, "is required");
    if (strlen(text) > MAX_ID_BYTES)
        return error_field(err, field, "%zu bytes; %d is the limit", strlen(text), MAX_ID_BYTES);
    return 0;
}

/* Checks the fields that the command's row names. */
static int check_fields(const struct service_call *call, struct error *err)
{
    char field[32];
    for (const char *at = call->command->fields; *at; at += strspn(at, "? ")) {
        size_t n = strcspn(at, "? ");
        snprintf(field, sizeof(field), "%.*s", (int)n, at);
        at += n;
        const char *text = text_field(call, field);
        if ((*text || *at != '?') && check_field(field, text, err) != 0)
            return err->status;
    }
    return 0;
}

/* Reads grace_ms of the request, or the default. INVALID_ARGUMENT beyond a day. */
static int read_grace(struct service_call *call, struct error *err)
{
    const void *field = find_field(call, "grace_ms");
    call->grace_ms = (uint32_t)call->fleet->context->settings->drain_grace_ms;
    if (field)
        memcpy(&call->grace_ms, field, sizeof(call->grace_ms));
    if (field && call->grace_ms > MAX_GRACE_MS)
        return error_field(err, "grace_ms", "%u; %d is the limit", call->grace_ms, MAX_GRACE_MS);
    return 0;
}

int service_check_generation(const struct service_call *call, const char *what, uint64_t is,
                             struct error *err)
{
    uint64_t expected = 0;
    const void *field = find_field(call, "expected_generation");
    if (field)
        memcpy(&expected, field, sizeof(expected));
    return lifecycle_check_generation(what, field != NULL, expected, is, err);
}

/* --- changes --- */

static int new_response(struct service_call *call, struct error *err)
{
    call->response = message_new_in(&call->arena, call->method->output);
    return call->response ? 0 : error_no_memory(err);
}

/* Records the answer for repeated requests with the same id. */
static int record_answer(struct txn *txn, struct service_call *call, struct error *err)
{
    void (*redact)(void *) = call->command->change->redact;
    size_t n_bytes = call->method->output->sizeof_message;
    void *answer = redact ? arena_alloc(&call->arena, n_bytes) : call->response;
    if (!answer)
        return error_no_memory(err);
    if (redact) {
        memcpy(answer, call->response, n_bytes);
        redact(answer);
    }
    return txn_idempotency_record(txn, text_field(call, "request_id"), call->method->name,
                                  call->request, answer, err);
}

static int run_change(struct txn *txn, void *arg, struct error *err)
{
    struct service_call *call = arg;
    const char *request_id = text_field(call, "request_id");
    bool in_memory = txn_is_in_memory(txn); /* a second run: the changes of the first run are
                                             * undone */
    message_free(call->recorded);
    call->recorded = NULL;
    if (!in_memory && txn_idempotency_find(txn, request_id, call->method->name, call->request,
                                           call->method->output, &call->recorded, err) != 0)
        return err->status;
    if (call->recorded || call->prepares)
        return 0;
    if (new_response(call, err) != 0 || call->command->change->apply(txn, call, err) != 0)
        return err->status;
    if (call->arena.exhausted)
        return error_no_memory(err);
    struct access_caller caller;
    access_caller_of(call->rpc, &caller);
    if (audit_add(txn, &caller, call->method->name, request_id, err) != 0)
        return err->status;
    return in_memory ? 0 : record_answer(txn, call, err);
}

/* Calls `prepare` of the change, after which the change follows. */
static void prepare_change(struct service_call *call)
{
    struct error err;
    call->prepares = false;
    int rc = call->command->change->prepare(call, &err);
    if (rc == 0)
        service_submit(call);
    else if (rc != SERVICE_LATER)
        service_fail(call, &err);
}

static void end_change(void *arg, const struct error *status)
{
    struct service_call *call = arg;
    struct context *context = call->fleet->context;
    if (status->status != 0) {
        service_fail(call, status);
        return;
    }
    if (!call->recorded && call->prepares) {
        prepare_change(call);
        return;
    }
    if (call->recorded)
        call->response = call->recorded;
    failpoint("change.after_commit"); /* the change is durable, and the client has no answer yet */
    access_take_keys(call->service->config.gate);
    if (call->command->change->done)
        call->command->change->done(call->response);
    service_reply(call);
    change_hub_notify(&context->changes, NULL);
}

void service_submit(struct service_call *call)
{
    struct store *store = call->fleet->context->store;
    struct error err;
    int rc = call->command->change->urgent
                 ? store_submit_seen(store, run_change, end_change, call, &err)
                 : store_submit(store, run_change, end_change, call, &err);
    if (rc != 0)
        service_fail(call, &err);
}

/* Checks the request. Returns 0 where the change is to be submitted. */
static int begin_change(struct service_call *call, struct error *err)
{
    const struct service_change *change = call->command->change;
    call->limits = lifecycle_limits_of(call->fleet->context->settings);
    if (change->arg_bytes && !(call->arg = arena_alloc(&call->arena, change->arg_bytes)))
        return error_no_memory(err);
    if (name_check_request_id(text_field(call, "request_id"), err) != 0 ||
        check_fields(call, err) != 0 || new_response(call, err) != 0)
        return err->status;
    int rc = change->check ? change->check(call, err) : 0;
    if (rc == 0)
        rc = read_grace(call, err);
    if (rc == 0 && call->arena.exhausted)
        rc = error_no_memory(err);
    if (rc != 0 || !change->plan || !flag_field(call, "validate_only"))
        return rc;
    rc = change->plan(call, err);
    if (rc == 0)
        service_reply(call);
    return rc == 0 ? SERVICE_LATER : rc;
}

/* --- plans --- */

struct plan_wish service_wish_of(const pb_deployment *deployment, uint32_t n_replicas)
{
    return (struct plan_wish){.model = deployment->model,
                              .version = deployment->version,
                              .group = deployment->device_group,
                              .tp = deployment->tp,
                              .pp = deployment->pp,
                              .config = deployment->config,
                              .n_replicas = n_replicas};
}

static void on_planned(struct rpc_call *rpc, Sluice__V1__Plan *plan, void *arg)
{
    struct service_call *call = arg;
    struct error err;
    (void)rpc;
    if (!plan) { /* the call has failed */
        service_drop(call);
    } else if (flag_field(call, "validate_only")) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(call->method->output, "plan");
        memcpy((char *)call->response + field->offset, &plan, sizeof(plan));
        service_reply(call);
    } else if (call->command->change->planned(call, plan, &err) == 0) {
        service_submit(call);
    } else {
        service_fail(call, &err);
    }
}

int service_plan(struct service_call *call, const struct plan_wish *wish, struct error *err)
{
    int rc = plan_run(call->fleet, call->rpc, wish, on_planned, call, err);
    return rc == 0 ? SERVICE_LATER : rc;
}

/* --- from the server's threads to the loop --- */

/* Answers from the loop's catalog. */
static int read_state(struct service_call *call, struct error *err)
{
    if (check_fields(call, err) != 0 || new_response(call, err) != 0)
        return err->status;
    int rc = call->command->read(call, err);
    if (rc == 0)
        service_reply(call);
    return rc == 0 ? SERVICE_LATER : rc;
}

static void run_call(void *arg)
{
    struct service_call *call = arg;
    struct error err;
    int rc;
    call->model_root = call->fleet->context->settings->model_root;
    if (rpc_call_cancelled(call->rpc))
        rc = error_set(&err, STATUS_CANCELLED, "cancelled");
    else
        rc = call->command->read ? read_state(call, &err) : begin_change(call, &err);
    if (rc == SERVICE_LATER)
        return;
    if (rc != 0)
        service_fail(call, &err);
    else
        service_submit(call);
}

static void on_call(void *context, struct rpc_call *rpc, const ProtobufCMessage *request)
{
    struct service *service = context;
    const ProtobufCMethodDescriptor *method = find_method(request);
    const struct command *command = find_command(method->name);
    struct error err;
    struct service_call *call = NULL;
    if (command->watch) {
        command->watch(service, rpc, request);
        return;
    }
    if (loop_queue_depth(service->fleet->context->queue) < MAX_POSTED)
        call = calloc(1, sizeof(*call));
    if (!call) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                  "%d requests are waiting: that is the limit; try again", MAX_POSTED);
        err.retry_after_ms = 100;
        error_reason(&err, REASON_TOO_MANY_REQUESTS);
        rpc_call_finish(rpc, &err);
        return;
    }
    rpc_call_retain(rpc);
    *call = (struct service_call){.service = service,
                                  .fleet = service->fleet,
                                  .catalog = service->fleet->context->catalog,
                                  .rpc = rpc,
                                  .command = command,
                                  .method = method,
                                  .request = request};
    arena_init(&call->arena, ARENA_BYTES, 0);
    loop_queue_post_own(service->fleet->context->queue, &call->to_loop, run_call, call);
}

/* --- life --- */

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
