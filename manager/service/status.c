/* status.c: GetStatus, ListReplicas, GetOperation, ListOperations. */
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/host/process.h"
#include "manager/replicas/replica_view.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/watch/operations.h"
#include "manager/watch/routes.h"

/* --- GetStatus --- */

static void fill_counts(const struct catalog *catalog,
                        Sluice__Manager__V1__GetStatusResponse *response)
{
    response->n_models = (uint32_t)catalog_count(catalog, TABLE_MODEL);
    response->n_model_versions = (uint32_t)catalog_count(catalog, TABLE_MODEL_VERSION);
    CATALOG_EACH(replica, row, catalog) {
        response->n_replicas += (int)row->state != REPLICA_STOPPED;
        response->n_ready_replicas += (int)row->state == REPLICA_READY;
    }
    CATALOG_EACH(operation, row, catalog)
        response->n_open_operations += pb_operation_is_open(row);
}

int service_get_status(struct service_call *call, struct error *err)
{
    const struct context *context = call->fleet->context;
    Sluice__Manager__V1__GetStatusResponse *response = call->response;
    struct store_stats stats;
    (void)err;
    store_stats(context->store, &stats);
    fill_counts(call->catalog, response);
    routes_fill_status(call->service->config.routes, &call->arena, response);
    response->software_version = message_text_in(&call->arena, SLUICE_VERSION);
    response->store_reason = message_text_in(&call->arena, reason_name(stats.reason));
    response->pid = (uint32_t)getpid();
    response->started_unix_ns = context->started_unix_ns;
    response->manager_epoch = call->catalog->manager_epoch;
    response->generation = call->catalog->generation;
    response->first_event_seq = call->catalog->first_event_seq;
    response->last_event_seq = call->catalog->last_event_seq;
    response->routes_generation = routes_generation(call->service->config.routes);
    response->store_schema_version = stats.schema_version;
    response->store_bytes = stats.n_bytes;
    response->n_adopted_workers = call->fleet->n_adopted;
    response->resident_bytes = process_resident_bytes(getpid());
    return 0;
}

/* --- ListReplicas --- */

/* Adds the observed state to a copy of the row. */
static void overlay(struct arena *arena, pb_replica *replica, const struct replica_view *view)
{
    const pb_status *status = view->status;
    replica->resident_bytes = view->resident_bytes;
    replica->gpu_bytes = view->gpu_bytes;
    replica->shared_bytes = view->shared_bytes;
    replica->shared_id = view->shared_id;
    if (!replica->last_error && view->last_error)
        replica->last_error = message_from_error_in(arena, view->last_error);
    if (!status)
        return;
    if (status->load) {
        replica->n_running = status->load->n_running;
        replica->n_queued = status->load->n_queued;
        replica->free_kv_tokens = status->load->free_kv_tokens;
        replica->total_kv_tokens = status->load->total_kv_tokens;
        replica->n_state_slots = status->load->n_state_slots;
        replica->n_states_used = status->load->n_states_used;
        replica->n_snapshots = status->load->n_snapshots;
        replica->n_snapshot_evictions = status->load->n_snapshot_evictions;
    }
    if (status->counters)
        replica->n_generated_tokens = status->counters->n_generated_tokens;
    replica->figures_ns = view->status_ns;
    /* The answer is sent before the next status comes. */
    replica->n_ranks = status->n_ranks;
    replica->ranks = status->ranks;
    replica->n_memory = status->n_memory;
    replica->memory = status->memory;
}

/* True where the filter is empty or equals the text. */
static bool passes(const char *filter, const char *text)
{
    return !*filter || strcmp(filter, text) == 0;
}

int service_list_replicas(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__ListReplicasRequest *request = call->request;
    Sluice__Manager__V1__ListReplicasResponse *response = call->response;
    (void)err;
    CATALOG_EACH(replica, row, call->catalog) {
        struct replica_view view;
        if (!passes(request->model, row->model) || !passes(request->version, row->version) ||
            !passes(request->device_group, row->device_group) ||
            (!request->include_stopped && (int)row->state == REPLICA_STOPPED))
            continue;
        pb_replica *replica = message_copy_in(&call->arena, row);
        message_append_in(&call->arena, &response->n_replicas, &response->replicas, replica);
        if (replica && replica_view_take(call->fleet, row->id, &view))
            overlay(&call->arena, replica, &view);
    }
    return 0;
}

/* --- operations --- */

int service_get_operation(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__GetOperationRequest *request = call->request;
    Sluice__Manager__V1__GetOperationResponse *response = call->response;
    if (!catalog_operation(call->catalog, request->id)) {
        error_set(err, STATUS_NOT_FOUND, "id: no operation \"%.40s\"", request->id);
        return error_reason(err, REASON_OPERATION_NOT_FOUND);
    }
    response->operation =
        operations_build(call->service->config.operations, &call->arena, request->id);
    return response->operation ? 0 : error_no_memory(err);
}

/* Fills a page, newest first, from the operation before the page token (or from the last). */
int service_list_operations(struct service_call *call, struct error *err)
{
    enum { PAGE = 100, MAX_PAGE = 1000, MAX_TOKEN_BYTES = 24 };
    const Sluice__Manager__V1__ListOperationsRequest *request = call->request;
    Sluice__Manager__V1__ListOperationsResponse *response = call->response;
    size_t n_page = request->page_size ? request->page_size : PAGE;
    if (n_page > MAX_PAGE)
        return error_field(err, "page_size", "%zu; %d is the limit", n_page, MAX_PAGE);
    if (strlen(request->page_token) > MAX_TOKEN_BYTES)
        return error_field(err, "page_token", "is not the next_page_token of an earlier answer");
    size_t i = *request->page_token
                   ? catalog_find(call->catalog, TABLE_OPERATION, request->page_token)
                   : catalog_count(call->catalog, TABLE_OPERATION);
    while (i-- > 0) {
        const pb_operation *row = catalog_operation_at(call->catalog, i);
        if ((request->open_only && !pb_operation_is_open(row)) ||
            !passes(request->model, row->model))
            continue;
        if (response->n_operations == n_page) {
            response->next_page_token = response->operations[n_page - 1]->id;
            break;
        }
        pb_operation *operation =
            operations_build(call->service->config.operations, &call->arena, row->id);
        if (!operation)
            return error_no_memory(err);
        message_append_in(&call->arena, &response->n_operations, &response->operations, operation);
    }
    return 0;
}
