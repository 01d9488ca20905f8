/* sim_call.c: the calls of clients, and the outcomes of their requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "tests/sim/sim.h"

enum { MAX_REQUESTS = 96 };

struct rpc_call {
    int n_refs;
    enum sim_kind kind;
    struct sim_request *request; /* NULL: the call changes nothing */
    ProtobufCMessage *message;   /* owned */
    const struct rpc_call_events *events;
    void *arg;
    bool finished, ended, blocked, cancelled;
    int64_t blocked_until_ns;
    uint64_t last_seq; /* KIND_EVENTS: last event that was sent */
};

static struct sim_request requests[MAX_REQUESTS];
static size_t n_requests;

/* -- proto/rpc/server/call.h
 * -------------------------------------------------------------------------
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
    snprintf(known, SIM_ID_BYTES, "%s", operation->id);
    sim_trace("request %s answered: operation %s", call->request->request_id, operation->id);
}

int rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished)
        return STATUS_CANCELLED;
    note_operation(call, message);
    if (call->kind == KIND_REVOKE && !sim.dead) {
        const Sluice__Manager__V1__RevokeApiKeyResponse *revoked = (const void *)message;
        sim_check_revoked(revoked->key->id, revoked->in_memory_only);
    }
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

/* Checks that sequence numbers have no gaps, for every watcher and every first number. */
static void check_events(struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Manager__V1__WatchEventsResponse *response =
        (const Sluice__Manager__V1__WatchEventsResponse *)message;
    const Sluice__Manager__V1__WatchEventsRequest *request =
        (const Sluice__Manager__V1__WatchEventsRequest *)call->message;
    for (size_t i = 0; i < response->n_events; i++) {
        uint64_t seq = response->events[i]->seq;
        uint64_t wanted = call->last_seq ? call->last_seq + 1 : request->from_seq;
        if (wanted && seq != wanted)
            sim_broken("I8: event %llu is told to a watch that waits for %llu",
                       (unsigned long long)seq, (unsigned long long)wanted);
        call->last_seq = seq;
    }
}

int rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished)
        return STATUS_CANCELLED;
    if (sim_chance(3)) {
        call->blocked = true;
        call->blocked_until_ns = sim.now_ns + (sim_chance(10) ? 60 * NS_PER_S : 0);
        return STATUS_RESOURCE_EXHAUSTED;
    }
    if (call->kind == KIND_ROUTES && !sim.dead)
        sim_check_routes((const pb_route_table *)message);
    if (call->kind == KIND_EVENTS && !sim.dead)
        check_events(call, message);
    return 0;
}

void rpc_call_abort(struct rpc_call *call, const struct error *status)
{
    (void)rpc_call_finish(call, status);
}

bool rpc_call_cancelled(struct rpc_call *call)
{
    return call->cancelled;
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

/* -- manager/service/access.h: keys and sockets lie below the seams -------------------------------
 */

void access_take_keys(struct access_gate *gate)
{
    (void)gate;
}

void access_caller_of(const struct rpc_call *call, struct access_caller *out_caller)
{
    *out_caller =
        (struct access_caller){.name = rpc_call_tenant(call), .role = rpc_call_role(call)};
    out_caller->has_uid = rpc_call_peer_uid(call, &out_caller->uid);
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

/* Cancels a watcher's call at its client. A server then calls again at once. */
void sim_client_cancel(void)
{
    for (size_t n = sim.n_calls, i = n ? sim_below(n) : 0; n > 0; n--, i = (i + 1) % sim.n_calls) {
        struct rpc_call *call = sim.calls[i];
        if (call->finished || !call->events || !call->events->on_cancel)
            continue;
        bool server = call->kind == KIND_ROUTES;
        call->cancelled = call->finished = true;
        sim.in_manager = true;
        call->events->on_cancel(call->arg, call);
        sim.in_manager = false;
        if (server)
            sim_client_watch_routes(false);
        return;
    }
}

bool sim_call_step(void)
{
    for (size_t i = 0; i < sim.n_calls; i++) {
        struct rpc_call *call = sim.calls[i];
        if (call->blocked && !call->finished && sim.now_ns >= call->blocked_until_ns) {
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

struct rpc_call *sim_call_new(enum sim_kind kind, struct sim_request *request,
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

/* Calls the handler in the manager's service tables, as the server would. A handler that needs the
 * loop posts a task there. */
void sim_call_begin(struct rpc_call *call, const char *method)
{
    struct rpc_service services[SERVICE_COUNT];
    service_tables(sim.manager.service, services);
    for (size_t i = 0; i < SERVICE_COUNT; i++)
        for (size_t j = 0; j < services[i].n_methods; j++)
            if (strcmp(services[i].methods[j].name, method) == 0) {
                sim.in_manager = true;
                services[i].methods[j].handle(services[i].context, call, call->message);
                sim.in_manager = false;
                return;
            }
    abort();
}

void sim_request_send(struct sim_request *request)
{
    static const char *const methods[N_KINDS] = {
        [KIND_REGISTER] = "RegisterModelVersion",
        [KIND_LOAD] = "LoadModelVersion",
        [KIND_UNLOAD] = "UnloadModelVersion",
        [KIND_SCALE] = "ScaleModelVersion",
        [KIND_DRAIN] = "DrainReplica",
        [KIND_RESTART] = "RestartReplica",
        [KIND_CANCEL] = "CancelOperation",
        [KIND_RELEASE] = "ReleaseDevice",
        [KIND_GROUP] = "CreateDeviceGroup",
        [KIND_DELETE_GROUP] = "DeleteDeviceGroup",
        [KIND_DELETE] = "DeleteModelVersion",
        [KIND_PARK] = "ParkModelVersion",
        [KIND_WAKE] = "WakeModelVersion",
        [KIND_UPDATE] = "UpdateModelVersion",
        [KIND_TRAFFIC] = "SetTraffic",
        [KIND_POLICY] = "SetVersionPolicy",
        [KIND_KEY] = "CreateApiKey",
        [KIND_REVOKE] = "RevokeApiKey",
    };
    if (request->live)
        return;
    request->live = true;
    request->state = REQUEST_SENT;
    sim.stats.n_requests++;
    sim_fault_memory(NO_MEMORY_FOR_REQUEST);
    struct rpc_call *call = sim_call_new(request->kind, request, request->message);
    sim_trace("request %s: %s", request->request_id, request->message->descriptor->short_name);
    sim_call_begin(call, methods[request->kind]);
}

/* -- requests' messages */

void sim_set_text(ProtobufCMessage *message, const char *name, const char *text)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    if (!field || !message_set((char **)(void *)((char *)message + field->offset), text))
        abort();
}

struct sim_request *sim_request_add(enum sim_kind kind,
                                    const ProtobufCMessageDescriptor *descriptor)
{
    if (n_requests == MAX_REQUESTS)
        return NULL;
    struct sim_request *request = &requests[n_requests];
    *request = (struct sim_request){.kind = kind, .message = message_new(descriptor)};
    snprintf(request->request_id, SIM_ID_BYTES, "%c%zu", sim.history_seed ? 'q' : 'p',
             n_requests++);
    sim_set_text(request->message, "request_id", request->request_id);
    return request;
}

static void retry(struct sim_request *request)
{
    if (request->live)
        return;
    sim.stats.n_retried++;
    sim_request_send(request);
}

void sim_client_retry_any(void)
{
    if (n_requests)
        retry(&requests[sim_below(n_requests)]);
}

void sim_client_retry_lost(void)
{
    for (size_t i = 0; i < n_requests; i++)
        if (requests[i].state == REQUEST_LOST)
            retry(&requests[i]);
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

/* Checks that answered changes are in the store, and that every request had one effect. */
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
