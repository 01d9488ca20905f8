/* status.c: GetStatus, ListReplicas, GetOperation, ListOperations. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/host/process.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/lifecycle.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"
#include "proto/rpc/server/call.h"

/* --- GetStatus --- */

static void fill_counts(const struct catalog *catalog,
                        Sluice__Manager__V1__GetStatusResponse *response)
{
    response->n_models = (uint32_t)catalog_count(catalog, TABLE_MODEL);
    response->n_model_versions = (uint32_t)catalog_count(catalog, TABLE_MODEL_VERSION);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        response->n_replicas += (int)catalog_replica_at(catalog, i)->state != REPLICA_STOPPED;
        response->n_ready_replicas += (int)catalog_replica_at(catalog, i)->state == REPLICA_READY;
    }
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        response->n_open_operations += pb_operation_is_open(catalog_operation_at(catalog, i));
}

int service_get_status(struct service *service, const ProtobufCMessage *message,
                       ProtobufCMessage *message_out, struct error *err)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    Sluice__Manager__V1__GetStatusResponse *response =
        (Sluice__Manager__V1__GetStatusResponse *)message_out;
    struct store_stats stats;
    (void)message;
    store_stats(fleet->context->store, &stats);
    fill_counts(catalog, response);
    bool complete = message_set(&response->software_version, SLUICE_VERSION) &&
                    message_set(&response->store_reason, reason_name(stats.reason)) &&
                    routes_fill_status(service->config.routes, response);
    response->pid = (uint32_t)getpid();
    response->started_unix_ns = fleet->context->started_unix_ns;
    response->manager_epoch = catalog->manager_epoch;
    response->generation = catalog->generation;
    response->first_event_seq = catalog->first_event_seq;
    response->last_event_seq = catalog->last_event_seq;
    response->routes_generation = routes_generation(service->config.routes);
    response->store_schema_version = stats.schema_version;
    response->store_bytes = stats.n_bytes;
    response->n_adopted_workers = fleet->n_adopted;
    response->resident_bytes = process_resident_bytes(getpid());
    return complete ? 0 : error_no_memory(err);
}

/* --- ListReplicas --- */

/* Adds the observed state to a copy of the row. False where memory is exhausted. */
static bool overlay(pb_replica *replica, const struct replica_view *view)
{
    const pb_status *status = view->status;
    replica->resident_bytes = view->resident_bytes;
    replica->gpu_bytes = view->gpu_bytes;
    replica->shared_bytes = view->shared_bytes;
    replica->shared_id = view->shared_id;
    if (!replica->last_error && view->last_error &&
        !(replica->last_error = (pb_error *)message_from_error(view->last_error)))
        return false;
    if (!status)
        return true;
    if (status->load) {
        replica->n_running = status->load->n_running;
        replica->n_queued = status->load->n_queued;
        replica->free_kv_tokens = status->load->free_kv_tokens;
        replica->total_kv_tokens = status->load->total_kv_tokens;
        replica->n_state_slots = status->load->n_state_slots;
        replica->n_states_used = status->load->n_states_used;
        replica->n_snapshots = status->load->n_snapshots;
    }
    if (status->counters)
        replica->n_generated_tokens = status->counters->n_generated_tokens;
    replica->figures_ns = view->status_ns;
    bool complete = true;
    for (size_t i = 0; complete && i < status->n_ranks; i++)
        complete = message_append_copy(&replica->n_ranks, &replica->ranks, status->ranks[i]);
    for (size_t i = 0; complete && i < status->n_memory; i++)
        complete = message_append_copy(&replica->n_memory, &replica->memory, status->memory[i]);
    return complete;
}

static int check_filter(const Sluice__Manager__V1__ListReplicasRequest *request, struct error *err)
{
    if ((*request->model && name_check("model", request->model, err) != 0) ||
        (*request->version && name_check_version("version", request->version, err) != 0) ||
        (*request->device_group && name_check("device_group", request->device_group, err) != 0))
        return err->status;
    return 0;
}

int service_list_replicas(struct service *service, const ProtobufCMessage *message,
                          ProtobufCMessage *message_out, struct error *err)
{
    const Sluice__Manager__V1__ListReplicasRequest *request =
        (const Sluice__Manager__V1__ListReplicasRequest *)message;
    Sluice__Manager__V1__ListReplicasResponse *response =
        (Sluice__Manager__V1__ListReplicasResponse *)message_out;
    const struct catalog *catalog = service->fleet->context->catalog;
    bool complete = true;
    if (check_filter(request, err) != 0)
        return err->status;
    for (size_t i = 0; complete && catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        struct replica_view view;
        if ((*request->model && strcmp(request->model, row->model) != 0) ||
            (*request->version && strcmp(request->version, row->version) != 0) ||
            (*request->device_group && strcmp(request->device_group, row->device_group) != 0) ||
            (!request->include_stopped && (int)row->state == REPLICA_STOPPED))
            continue;
        pb_replica *replica = MESSAGE_COPY(pb_replica, row);
        complete = replica && message_append(&response->n_replicas, &response->replicas, replica);
        if (!complete && replica)
            message_free(&replica->base);
        else if (replica && replica_view_take(service->fleet, row->id, &view))
            complete = overlay(replica, &view);
    }
    return complete ? 0 : error_no_memory(err);
}

/* --- operations --- */

int service_get_operation(struct service *service, const ProtobufCMessage *message,
                          ProtobufCMessage *response, struct error *err)
{
    const char *id = ((const Sluice__Manager__V1__GetOperationRequest *)message)->id;
    pb_operation *operation = operations_build(service->config.operations, id);
    ((Sluice__Manager__V1__GetOperationResponse *)response)->operation = operation;
    if (operation)
        return 0;
    if (catalog_operation(service->fleet->context->catalog, id))
        return error_no_memory(err);
    error_set(err, STATUS_NOT_FOUND, "id: no operation \"%.40s\"", id);
    return error_reason(err, REASON_OPERATION_NOT_FOUND);
}

static bool is_listed(const Sluice__Manager__V1__ListOperationsRequest *request,
                      const pb_operation *operation)
{
    return (!request->open_only || pb_operation_is_open(operation)) &&
           (!*request->model || strcmp(request->model, operation->model) == 0);
}

/* Fills a page, newest first, from the operation before the page token (or from the last). False
 * where memory is exhausted. */
static bool fill_page(struct service *service,
                      const Sluice__Manager__V1__ListOperationsRequest *request, size_t n_page,
                      Sluice__Manager__V1__ListOperationsResponse *response)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    size_t i = *request->page_token ? catalog_find(catalog, TABLE_OPERATION, request->page_token)
                                    : catalog_count(catalog, TABLE_OPERATION);
    while (i-- > 0) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if (!is_listed(request, row))
            continue;
        if (response->n_operations == n_page)
            return message_set(&response->next_page_token, response->operations[n_page - 1]->id);
        pb_operation *operation = operations_build(service->config.operations, row->id);
        if (!operation ||
            !message_append(&response->n_operations, &response->operations, operation)) {
            if (operation)
                message_free(&operation->base);
            return false;
        }
    }
    return true;
}

int service_list_operations(struct service *service, const ProtobufCMessage *message,
                            ProtobufCMessage *response, struct error *err)
{
    enum { PAGE = 100, MAX_PAGE = 1000, MAX_TOKEN_BYTES = 24 };
    const Sluice__Manager__V1__ListOperationsRequest *request =
        (const Sluice__Manager__V1__ListOperationsRequest *)message;
    if (request->page_size > MAX_PAGE)
        return error_field(err, "page_size", "%u; %d is the limit", request->page_size, MAX_PAGE);
    if (strlen(request->page_token) > MAX_TOKEN_BYTES)
        return error_field(err, "page_token", "is not the next_page_token of an earlier answer");
    if (*request->model && name_check("model", request->model, err) != 0)
        return err->status;
    return fill_page(service, request, request->page_size ? request->page_size : PAGE,
                     (Sluice__Manager__V1__ListOperationsResponse *)response)
               ? 0
               : error_no_memory(err);
}
