/* unload.c: UnloadModelVersion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/unload_txn.h"
#include "manager/rollout/update.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

static int check_unload(const struct fleet *fleet, const unload_request *request,
                        struct unload_args *args, struct error *err)
{
    args->limits = lifecycle_limits_of(fleet->context->settings);
    if (service_check_names(request->request_id, request->model, request->version,
                            request->device_group, err) != 0)
        return err->status;
    return service_grace(fleet, request->has_grace_ms, request->grace_ms, &args->grace_ms, err);
}

/* --- the change --- */

static int apply_unload(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    return unload_apply(txn, (const unload_request *)message, arg,
                        &((unload_response *)response)->operation, err);
}

static const struct service_change unload_change = {
    .arg_bytes = sizeof(struct unload_args), .apply = apply_unload, .free_arg = free};

/* --- validate_only: the memory that would be freed --- */

/* True where the replica's shared packed weights are not freed with it. Either an earlier
 * replica of the plan counts them, or a replica that stays shares them. */
static bool weights_stay(const struct fleet *fleet, const unload_request *request, size_t i_replica,
                         uint64_t shared_id)
{
    const pb_replica *replica;
    for (size_t i = 0; shared_id && (replica = catalog_replica_at(fleet->context->catalog, i));
         i++) {
        struct replica_view view = {0};
        bool goes =
            unload_concerns(request, replica->model, replica->version, replica->device_group);
        if (i == i_replica || (int)replica->state == REPLICA_STOPPED || (goes && i > i_replica))
            continue;
        replica_view_take(fleet, replica->id, &view);
        if (view.shared_id == shared_id)
            return true;
    }
    return false;
}

static int plan(struct service *service, struct rpc_call *call, const unload_request *request,
                const struct unload_args *args, struct error *err)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    if (unload_check(catalog, request, args, err) != 0)
        return err->status;
    unload_response *response = MESSAGE_NEW(
        unload_response, sluice__manager__v1__unload_model_version_response__descriptor);
    if (response)
        response->plan = MESSAGE_NEW(Sluice__V1__Plan, sluice__v1__plan__descriptor);
    bool complete = response && response->plan &&
                    message_set(&response->plan->model, request->model) &&
                    message_set(&response->plan->version, request->version);
    for (size_t i = 0; complete && catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        struct replica_view view = {0};
        if ((int)replica->state == REPLICA_STOPPED ||
            !unload_concerns(request, replica->model, replica->version, replica->device_group))
            continue;
        response->plan->n_replicas++;
        replica_view_take(fleet, replica->id, &view);
        bool elsewhere = weights_stay(fleet, request, i, view.shared_id);
        for (size_t j = 0; complete && view.status && j < view.status->n_memory; j++) {
            complete = build_plan_memory(response->plan, view.status->memory[j]);
            if (complete && elsewhere)
                response->plan->devices[response->plan->n_devices - 1]->weight_bytes = 0;
        }
    }
    if (complete) {
        response->plan->fits = 1;
        rpc_call_reply(call, &response->base);
    } else {
        error_no_memory(err);
    }
    if (response)
        message_free(&response->base);
    return complete ? 0 : err->status;
}

void service_unload(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const unload_request *request = (const unload_request *)message;
    struct unload_args args;
    struct error err;
    int rc = check_unload(service->fleet, request, &args, &err);
    if (rc == 0 && request->validate_only)
        rc = plan(service, call, request, &args, &err);
    if (rc != 0) {
        service_fail(call, &err);
        return;
    }
    if (request->validate_only)
        return;
    service_change_copy(service, call, message, &unload_change, &args);
}
