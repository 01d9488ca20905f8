/* unload.c: UnloadModelVersion. */
#include "manager/replicas/replica_view.h"
#include "manager/rollout/unload_txn.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

static struct unload_args args_of(const struct service_call *call)
{
    return (struct unload_args){.grace_ms = call->grace_ms, .limits = call->limits};
}

static int apply_unload(struct txn *txn, struct service_call *call, struct error *err)
{
    unload_response *response = call->response;
    const struct unload_args args = args_of(call);
    return unload_apply(txn, call->request, &args, &call->arena, &response->operation, err);
}

/* --- validate_only: the memory that would be freed --- */

static bool goes(const unload_request *request, const pb_replica *replica)
{
    return (int)replica->state != REPLICA_STOPPED &&
           unload_concerns(request, replica->model, replica->version, replica->device_group);
}

/* True where the replica's shared packed weights are not freed with it. Either an earlier
 * replica of the plan counts them, or a replica that stays shares them. */
static bool weights_stay(const struct service_call *call, const pb_replica *replica,
                         uint64_t shared_id)
{
    bool earlier = true;
    if (!shared_id)
        return false;
    CATALOG_EACH(replica, other, call->catalog) {
        struct replica_view view = {0};
        earlier &= other != replica;
        if (other == replica || (int)other->state == REPLICA_STOPPED ||
            (goes(call->request, other) && !earlier))
            continue;
        replica_view_take(call->fleet, other->id, &view);
        if (view.shared_id == shared_id)
            return true;
    }
    return false;
}

static int plan_unload(struct service_call *call, struct error *err)
{
    const unload_request *request = call->request;
    unload_response *response = call->response;
    const struct unload_args args = args_of(call);
    if (unload_check(call->catalog, request, &args, err) != 0)
        return err->status;
    response->plan = build_plan(&call->arena, request->model, request->version);
    CATALOG_EACH(replica, replica, call->catalog) {
        struct replica_view view = {0};
        if (!response->plan || !goes(request, replica))
            continue;
        replica_view_take(call->fleet, replica->id, &view);
        build_plan_replica(&call->arena, response->plan, view.status,
                           weights_stay(call, replica, view.shared_id));
    }
    return 0;
}

const struct service_change service_unload = {.plan = plan_unload, .apply = apply_unload};
