/* sim_call.c: clients and their calls, and the one-shot tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/device_hold.h"
#include "manager/lifecycle.h"
#include "manager/message.h"
#include "manager/operations.h"
#include "manager/routes.h"
#include "manager/tool.h"
#include "proto/rpc/rpc_call.h"
#include "proto/rpc/rpc_server.h"
#include "tests/sim/sim.h"

enum { MAX_REQUESTS = 96, ID_BYTES = 24 };

struct sim_request {
    enum sim_kind kind;
    ProtobufCMessage *message; /* owned */
    char request_id[ID_BYTES];
    char operation_id[ID_BYTES]; /* as answered */
    enum sim_request_state state;
    bool live; /* a call for it is open */
};

struct rpc_call {
    int n_refs;
    enum sim_kind kind;
    struct sim_request *request; /* NULL: nobody waits for an effect */
    ProtobufCMessage *message;   /* owned */
    const struct rpc_call_events *events;
    void *arg;
    bool finished, ended, blocked;
};

static struct sim_request requests[MAX_REQUESTS];
static size_t n_requests;
static const char *const models[] = {"a", "b"}, *const versions[] = {"1", "2"};

/* -- proto/rpc/rpc_call.h -------------------------------------------------------------------------
 */

void rpc_call_retain(struct rpc_call *call)
{
    call->n_refs++;
}

void rpc_call_release(struct rpc_call *call)
{
    if (!call || --call->n_refs)
        return;
    message_free(call->message);
    free(call);
}

void rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events, void *arg)
{
    call->events = events;
    call->arg = arg;
}

static void end(struct rpc_call *call, enum sim_request_state state)
{
    call->finished = true;
    if (sim.dead || !call->request)
        return;
    call->request->state = state;
    call->request->live = false;
    sim.stats.n_answered += state == REQUEST_ANSWERED;
    sim.stats.n_refused += state == REQUEST_REFUSED;
}

static void note_operation(struct rpc_call *call, const ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, "operation");
    const pb_operation *operation = NULL;
    if (field)
        memcpy(&operation, (const char *)message + field->offset, sizeof(operation));
    if (!operation || !call->request || sim.dead)
        return;
    char *known = call->request->operation_id;
    if (*known && strcmp(known, operation->id) != 0)
        sim_broken("I1: request %s is operation %s and %s", call->request->request_id, known,
                   operation->id);
    snprintf(known, ID_BYTES, "%s", operation->id);
    sim_trace("request %s answered: operation %s", call->request->request_id, operation->id);
}

int rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished)
        return STATUS_CANCELLED;
    note_operation(call, message);
    end(call, REQUEST_ANSWERED);
    return 0;
}

int rpc_call_finish(struct rpc_call *call, const struct error *status)
{
    if (call->finished)
        return STATUS_CANCELLED;
    if (status && status->status && call->request)
        sim_trace("request %s refused: %s", call->request->request_id, status->message);
    end(call, status && status->status ? REQUEST_REFUSED : REQUEST_ANSWERED);
    return 0;
}

int rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished)
        return STATUS_CANCELLED;
    if (sim_chance(3)) {
        call->blocked = true;
        return STATUS_RESOURCE_EXHAUSTED;
    }
    if (call->kind == KIND_ROUTES && !sim.dead)
        sim_check_routes((const pb_route_table *)message);
    return 0;
}

void rpc_call_abort(struct rpc_call *call, const struct error *status)
{
    (void)rpc_call_finish(call, status);
}

bool rpc_call_cancelled(struct rpc_call *call)
{
    (void)call;
    return false;
}

const char *rpc_call_method(const struct rpc_call *call)
{
    (void)call;
    return "/sim/Call";
}

const char *rpc_call_tenant(const struct rpc_call *call)
{
    (void)call;
    return "uid:1";
}

enum role rpc_call_role(const struct rpc_call *call)
{
    (void)call;
    return ROLE_ADMIN;
}

bool rpc_call_peer_uid(const struct rpc_call *call, uint32_t *out_uid)
{
    (void)call;
    *out_uid = 1;
    return true;
}

void rpc_unimplemented(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct error err;
    (void)context;
    (void)request;
    error_set(&err, STATUS_UNIMPLEMENTED, "not built");
    rpc_call_finish(call, &err);
}

static void drop_call(size_t i)
{
    struct rpc_call *call = sim.calls[i];
    sim.calls[i] = sim.calls[--sim.n_calls];
    rpc_call_release(call);
}

bool sim_call_step(void)
{
    for (size_t i = 0; i < sim.n_calls; i++) {
        struct rpc_call *call = sim.calls[i];
        if (call->blocked && !call->finished) {
            call->blocked = false;
            call->events->on_writable(call->arg, call);
            return true;
        }
        if (!call->finished)
            continue;
        if (call->events && !call->ended) {
            call->ended = true;
            call->events->on_done(call->arg, call);
        }
        drop_call(i);
        return true;
    }
    return false;
}

static struct rpc_call *new_call(enum sim_kind kind, struct sim_request *request,
                                 const ProtobufCMessage *message)
{
    struct rpc_call *call = calloc(1, sizeof(*call));
    if (!call || sim.n_calls == SIM_MAX_CALLS)
        abort();
    call->n_refs = 1;
    call->kind = kind;
    call->request = request;
    call->message = message_copy(message);
    sim.calls[sim.n_calls++] = call;
    return call;
}

/* -- requests -------------------------------------------------------------------------------------
 */

static void send(struct sim_request *request)
{
    static service_fn *const handlers[N_KINDS] = {
        [KIND_REGISTER] = service_register,       [KIND_LOAD] = service_load,
        [KIND_UNLOAD] = service_unload,           [KIND_SCALE] = service_scale,
        [KIND_DRAIN] = service_drain_replica,     [KIND_RESTART] = service_restart_replica,
        [KIND_CANCEL] = service_cancel_operation, [KIND_RELEASE] = service_release_device,
        [KIND_GROUP] = service_create_group,
    };
    if (request->live)
        return;
    request->live = true;
    request->state = REQUEST_SENT;
    sim.stats.n_requests++;
    struct rpc_call *call = new_call(request->kind, request, request->message);
    sim_trace("request %s: %s", request->request_id, request->message->descriptor->short_name);
    handlers[request->kind](sim.manager.service, call, call->message);
}

/* Sets what is there of the usual fields. */
static void set_text(ProtobufCMessage *message, const char *name, const char *text)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    if (!field || !message_set((char **)(void *)((char *)message + field->offset), text))
        abort();
}

static struct sim_request *add(enum sim_kind kind, const ProtobufCMessageDescriptor *descriptor)
{
    if (n_requests == MAX_REQUESTS)
        return NULL;
    struct sim_request *request = &requests[n_requests];
    *request = (struct sim_request){.kind = kind, .message = message_new(descriptor)};
    snprintf(request->request_id, ID_BYTES, "%c%zu", sim.history_seed ? 'q' : 'p', n_requests++);
    set_text(request->message, "request_id", request->request_id);
    return request;
}

/* With `loaded` mostly one that is. */
static void set_target(ProtobufCMessage *message, bool loaded)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_DEPLOYMENT);
    if (loaded && n && sim_chance(80)) {
        const pb_deployment *deployment = catalog_deployment_at(&sim.manager.catalog, sim_below(n));
        set_text(message, "model", deployment->model);
        set_text(message, "version", deployment->version);
        return;
    }
    set_text(message, "model", models[sim_below(2)]);
    if (sim_chance(90))
        set_text(message, "version", versions[sim_below(2)]);
}

void sim_client_register(const char *model, const char *version)
{
    struct sim_request *request =
        add(KIND_REGISTER, &sluice__manager__v1__register_model_version_request__descriptor);
    if (!request)
        return;
    set_text(request->message, "model", model);
    set_text(request->message, "version", version);
    set_text(request->message, "path", sim_path);
    send(request);
}

/* One of the GPU, and one with a single device of the CPU's. */
void sim_client_create_groups(void)
{
    static const struct {
        const char *name, *device;
    } groups[] = {{"gpu", "cuda:0"}, {"one", "cpu:1"}};
    for (size_t i = 0; i < 2; i++) {
        struct sim_request *request =
            add(KIND_GROUP, &sluice__manager__v1__create_device_group_request__descriptor);
        if (!request)
            return;
        Sluice__Manager__V1__CreateDeviceGroupRequest *create = (void *)request->message;
        set_text(request->message, "name", groups[i].name);
        if (!message_append_text(&create->n_devices, &create->devices, groups[i].device))
            abort();
        send(request);
    }
}

static const char *random_group(void)
{
    static const char *const groups[] = {"", "cpu", "gpu", "one"};
    return groups[sim_below(4)];
}

static void act_load(void)
{
    struct sim_request *request =
        add(KIND_LOAD, &sluice__manager__v1__load_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__LoadModelVersionRequest *load = (void *)request->message;
    set_target(request->message, false);
    set_text(request->message, "device_group", random_group());
    load->has_n_replicas = 1;
    load->n_replicas = 1 + (uint32_t)sim_below(3);
    load->validate_only = sim_chance(3);
    send(request);
}

static void act_unload(void)
{
    struct sim_request *request =
        add(KIND_UNLOAD, &sluice__manager__v1__unload_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__UnloadModelVersionRequest *unload = (void *)request->message;
    set_target(request->message, true);
    unload->has_grace_ms = sim_chance(50);
    unload->grace_ms = (uint32_t)sim_below(5000);
    unload->validate_only = sim_chance(3);
    send(request);
}

static void act_scale(void)
{
    struct sim_request *request =
        add(KIND_SCALE, &sluice__manager__v1__scale_model_version_request__descriptor);
    if (!request)
        return;
    Sluice__Manager__V1__ScaleModelVersionRequest *scale = (void *)request->message;
    set_target(request->message, true);
    scale->n_replicas = (uint32_t)sim_below(4);
    scale->validate_only = sim_chance(3);
    send(request);
}

static void act_replica(bool restart)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_REPLICA);
    if (n == 0)
        return;
    const char *id = catalog_replica_at(&sim.manager.catalog, sim_below(n))->id;
    struct sim_request *request =
        restart ? add(KIND_RESTART, &sluice__manager__v1__restart_replica_request__descriptor)
                : add(KIND_DRAIN, &sluice__manager__v1__drain_replica_request__descriptor);
    if (!request)
        return;
    set_text(request->message, "replica_id", id);
    send(request);
}

static void act_cancel(void)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_OPERATION);
    if (n == 0)
        return;
    const char *id =
        catalog_operation_at(&sim.manager.catalog, n - 1 - sim_below(n < 3 ? n : 3))->id;
    struct sim_request *request =
        add(KIND_CANCEL, &sluice__manager__v1__cancel_operation_request__descriptor);
    if (!request)
        return;
    set_text(request->message, "id", id);
    send(request);
}

static void act_release(void)
{
    static const char *const devices[] = {"cpu:0", "cpu:1", "cuda:0"};
    for (size_t i = 0; i < 3; i++) {
        if (!device_hold_find(&sim.manager.catalog, devices[i]))
            continue;
        struct sim_request *request =
            add(KIND_RELEASE, &sluice__manager__v1__release_device_request__descriptor);
        if (!request)
            return;
        set_text(request->message, "device", devices[i]);
        send(request);
    }
}

static void act_watch(bool once)
{
    size_t n = catalog_count(&sim.manager.catalog, TABLE_OPERATION);
    Sluice__Manager__V1__GetStatusRequest none = SLUICE__MANAGER__V1__GET_STATUS_REQUEST__INIT;
    if (n == 0)
        return;
    struct rpc_call *call = new_call(once ? KIND_WAIT : KIND_WATCH, NULL, &none.base);
    operations_watch(sim.manager.operations, call,
                     catalog_operation_at(&sim.manager.catalog, n - 1)->id, once,
                     once && sim_chance(50) ? 500 : 0);
}

static void act_status(void)
{
    Sluice__Manager__V1__ListReplicasRequest list =
        SLUICE__MANAGER__V1__LIST_REPLICAS_REQUEST__INIT;
    struct rpc_call *call = new_call(KIND_PLAN, NULL, &list.base);
    service_list_replicas(sim.manager.service, call, call->message);
}

void sim_client_watch_routes(void)
{
    Sluice__Manager__V1__WatchRoutesRequest request =
        SLUICE__MANAGER__V1__WATCH_ROUTES_REQUEST__INIT;
    struct rpc_call *call = new_call(KIND_ROUTES, NULL, &request.base);
    routes_watch(sim.manager.routes, call, call->message);
}

static void retry(struct sim_request *request)
{
    if (request->live)
        return;
    sim.stats.n_retried++;
    send(request);
}

void sim_client_act(void)
{
    static const unsigned char weights[] = {0, 0, 0, 0, 1, 1, 2, 2, 2, 3,
                                            4, 5, 5, 6, 7, 7, 8, 9, 10};
    switch (weights[sim_below(sizeof(weights))]) {
    case 0:
        act_load();
        break;
    case 1:
        act_unload();
        break;
    case 2:
        act_scale();
        break;
    case 3:
        act_replica(true);
        break;
    case 4:
        act_replica(false);
        break;
    case 5:
        act_cancel();
        break;
    case 6:
        sim_client_register(models[sim_below(2)], sim_chance(50) ? "1" : "3");
        break;
    case 7:
        if (n_requests)
            retry(&requests[sim_below(n_requests)]);
        break;
    case 8:
        act_watch(true);
        break;
    case 9:
        act_watch(false);
        break;
    default:
        act_status();
    }
}

void sim_client_retry_lost(void)
{
    for (size_t i = 0; i < n_requests; i++)
        if (requests[i].state == REQUEST_LOST)
            retry(&requests[i]);
    act_release();
}

bool sim_client_waits(void)
{
    for (size_t i = 0; i < n_requests; i++)
        if (requests[i].live)
            return true;
    return false;
}

void sim_client_reset(void)
{
    for (size_t i = 0; i < n_requests; i++)
        message_free(requests[i].message);
    n_requests = 0;
}

void sim_client_lose(void)
{
    for (size_t i = 0; i < sim.n_calls; i++) {
        struct rpc_call *call = sim.calls[i];
        call->request = NULL;
        call->finished = true;
        if (call->events && !call->ended) {
            call->ended = true;
            call->events->on_done(call->arg, call);
        }
    }
    for (size_t i = 0; i < n_requests; i++)
        if (requests[i].live) {
            requests[i].live = false;
            requests[i].state = REQUEST_LOST;
            sim.stats.n_lost++;
        }
    while (sim.n_calls)
        drop_call(sim.n_calls - 1);
}

/* What was answered is there, and every request had one effect. */
void sim_client_check(void)
{
    const struct catalog *catalog = &sim.manager.catalog;
    for (size_t i = 0; i < n_requests; i++) {
        const struct sim_request *request = &requests[i];
        if (*request->operation_id && !catalog_operation(catalog, request->operation_id))
            sim_broken("I1: operation %s was answered to request %s and is gone",
                       request->operation_id, request->request_id);
        size_t n = 0;
        for (size_t j = 0; catalog_operation_at(catalog, j); j++)
            n += strcmp(catalog_operation_at(catalog, j)->request_id, request->request_id) == 0;
        if (n > 1)
            sim_broken("I1: request %s had %zu effects", request->request_id, n);
    }
}

/* -- manager/tool.h -------------------------------------------------------------------------------
 */

struct tool_runner {
    int unused;
};

int tool_runner_create(const struct tool_config *config, struct tool_runner **out_runner,
                       struct error *err)
{
    (void)config;
    *out_runner = calloc(1, sizeof(**out_runner));
    return *out_runner ? 0 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

void tool_runner_destroy(struct tool_runner *runner)
{
    struct error err;
    error_set(&err, STATUS_CANCELLED, "the manager is stopping");
    for (size_t i = 0; i < sim.n_tools; i++)
        sim.tools[i].done(sim.tools[i].arg, NULL, &err);
    sim.n_tools = 0;
    free(runner);
}

int tool_run(struct tool_runner *runner, const char *const *arguments, tool_done_fn *done,
             void *arg, struct error *err)
{
    (void)runner;
    if (sim.n_tools == SIM_MAX_TOOLS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "too many tools");
    struct sim_tool *tool = &sim.tools[sim.n_tools++];
    *tool = (struct sim_tool){.used = true,
                              .done = done,
                              .arg = arg,
                              .at_ns = sim.now_ns + (int64_t)sim_below(400) * NS_PER_MS,
                              .fails = !sim.quiet_phase && sim_chance(10)};
    snprintf(tool->mode, sizeof(tool->mode), "%s", arguments[0]);
    return 0;
}

static void inspect(const struct sim_tool *tool, const struct error *ok)
{
    static char digest[65] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__InspectReport inspected = SLUICE__WORKER__V1__INSPECT_REPORT__INIT;
    pb_info info = SLUICE__V1__MODEL_INFO__INIT;
    info.weights_digest = digest;
    inspected.info = &info;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT;
    report.inspect = &inspected;
    tool->done(tool->arg, &report, ok);
}

static void probe(const struct sim_tool *tool, const struct error *ok)
{
    pb_tool report = SLUICE__WORKER__V1__TOOL_REPORT__INIT;
    Sluice__Worker__V1__ProbeReport probed = SLUICE__WORKER__V1__PROBE_REPORT__INIT;
    pb_device devices[3], *all[3];
    static char names[3][8] = {"cpu:0", "cpu:1", "cuda:0"};
    for (uint32_t i = 0; i < 3; i++) {
        sluice__v1__device__init(&devices[i]);
        devices[i].name = names[i];
        devices[i].kind = i < 2 ? SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CPU
                                : SLUICE__V1__DEVICE_KIND__DEVICE_KIND_CUDA;
        devices[i].index = i % 2;
        devices[i].memory_total_bytes = 1ULL << 34;
        all[i] = &devices[i];
    }
    probed.devices = all;
    probed.n_devices = 3;
    report.result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PROBE;
    report.probe = &probed;
    tool->done(tool->arg, &report, ok);
}

void sim_tool_step(size_t i)
{
    struct sim_tool tool = sim.tools[i];
    struct error status;
    sim.tools[i] = sim.tools[--sim.n_tools];
    error_clear(&status);
    if (tool.fails || strcmp(tool.mode, "plan") == 0) {
        error_set(&status, STATUS_INTERNAL, "the tool ended without a report");
        tool.done(tool.arg, NULL, &status);
    } else if (strcmp(tool.mode, "inspect") == 0) {
        inspect(&tool, &status);
    } else {
        probe(&tool, &status);
    }
}
