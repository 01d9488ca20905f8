/* scale.c: ScaleModelVersion. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/plan.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

typedef Sluice__Manager__V1__ScaleModelVersionRequest scale_request;

enum { MAX_PER_DEPLOYMENT = 64, ID_BYTES = 24 };

/* A replica that a scale down may retire, with the figures for the choice. */
struct candidate {
    char id[ID_BYTES];
    bool ready;
    uint32_t n_requests;
    size_t age; /* place in the order of creation */
};

struct scale_args {
    size_t n_candidates; /* in the order in which they retire, chosen on the loop thread */
    struct candidate candidates[MAX_PER_DEPLOYMENT];
};

static const pb_deployment *find_deployment(const struct service_call *call,
                                            const struct catalog *catalog, struct error *err)
{
    const scale_request *request = call->request;
    return lifecycle_find(catalog, request->model, request->version, request->device_group, err);
}

/* Finds the deployment to scale, and checks that it can be scaled now; borrowed. NULL with err
 * set. */
static const pb_deployment *check_rows(const struct service_call *call,
                                       const struct catalog *catalog, struct error *err)
{
    const scale_request *request = call->request;
    const pb_deployment *deployment = find_deployment(call, catalog, err);
    char key[TABLE_KEY_BYTES];
    if (!deployment)
        return NULL;
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    table_key(key, deployment->model, deployment->version, NULL);
    if (service_check_generation(call, key, version ? version->generation : 0, err) != 0 ||
        lifecycle_check_awake(deployment, err) != 0 ||
        lifecycle_check_free(catalog, &target, &call->limits, err) != 0 ||
        lifecycle_check_fill(catalog, &target, request->n_replicas, &call->limits, err) != 0)
        return NULL;
    return deployment;
}

/* --- the choice of replicas --- */

/* Order in which replicas retire: not ready before ready, then by fewest requests, then the
 * newest first. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;
    if (left->ready != right->ready)
        return left->ready ? 1 : -1;
    if (left->n_requests != right->n_requests)
        return left->n_requests < right->n_requests ? -1 : 1;
    return left->age > right->age ? -1 : left->age < right->age;
}

static void list_candidates(struct service_call *call, const pb_deployment *deployment)
{
    struct scale_args *args = call->arg;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    size_t age = 0;
    CATALOG_EACH(replica, replica, call->catalog) {
        struct replica_view view = {0};
        age++;
        if (!lifecycle_is_live(replica, &target) || args->n_candidates == MAX_PER_DEPLOYMENT)
            continue;
        replica_view_take(call->fleet, replica->id, &view);
        struct candidate *candidate = &args->candidates[args->n_candidates++];
        snprintf(candidate->id, sizeof(candidate->id), "%s", replica->id);
        candidate->ready = (int)replica->state == REPLICA_READY;
        candidate->age = age;
        if (view.status && view.status->load)
            candidate->n_requests = view.status->load->n_running + view.status->load->n_queued;
    }
    qsort(args->candidates, args->n_candidates, sizeof(args->candidates[0]), compare_candidates);
}

/* Retires replicas until n_replicas live ones are left: the candidates in their order, then the
 * newest of any other replicas. */
static int retire_surplus(struct txn *txn, const struct lifecycle_target *target,
                          uint32_t n_replicas, const struct scale_args *args,
                          pb_operation *operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    uint32_t n_live = operation->n_replicas_before;
    for (size_t i = 0; n_live > n_replicas; i++) {
        const pb_replica *replica = NULL;
        if (i < args->n_candidates) {
            replica = catalog_replica(catalog, args->candidates[i].id);
            if (!replica || !lifecycle_is_live(replica, target))
                continue;
        }
        for (size_t j = catalog_count(catalog, TABLE_REPLICA); !replica && j-- > 0;)
            if (lifecycle_is_live(catalog_replica_at(catalog, j), target))
                replica = catalog_replica_at(catalog, j);
        if (!replica)
            break;
        if (!lifecycle_add_replica(operation, replica->id))
            return error_no_memory(err);
        if (lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
        n_live--;
    }
    return 0;
}

/* --- the change --- */

static int scale(struct txn *txn, const struct service_call *call,
                 const struct lifecycle_target *target, pb_operation *operation, struct error *err)
{
    uint32_t n_replicas = ((const scale_request *)call->request)->n_replicas;
    uint32_t n_live = lifecycle_n_live(txn_catalog(txn), target);
    operation->n_replicas_before = n_live;
    operation->n_replicas = n_replicas;
    failpoint("scale.before_write");
    if (lifecycle_set_wanted(txn, target, n_replicas, err) != 0 ||
        lifecycle_bump(txn, target->model, target->version, err) != 0)
        return err->status;
    if (n_replicas >= n_live)
        return lifecycle_fill(txn, target, n_replicas, &call->limits, operation, err);
    if (lifecycle_retire_failed(txn, target, err) != 0)
        return err->status;
    return retire_surplus(txn, target, n_replicas, call->arg, operation, err);
}

static int apply_scale(struct txn *txn, struct service_call *call, struct error *err)
{
    const scale_request *request = call->request;
    Sluice__Manager__V1__ScaleModelVersionResponse *response = call->response;
    const pb_deployment *deployment = check_rows(call, txn_catalog(txn), err);
    if (!deployment)
        return err->status;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    pb_operation *operation = lifecycle_operation(txn, OPERATION_SCALE, request->request_id,
                                                  target.model, target.version, target.group, err);
    if (!operation)
        return err->status;
    int rc = scale(txn, call, &target, operation, err);
    return lifecycle_answer(txn, rc, operation, call->grace_ms, &call->arena, &response->operation,
                            err);
}

/* --- plans --- */

/* Plans the memory that retired replicas free. Weights that other replicas share stay. */
static void plan_down(struct service_call *call, const pb_deployment *deployment, size_t n_to_go)
{
    Sluice__Manager__V1__ScaleModelVersionResponse *response = call->response;
    const struct scale_args *args = call->arg;
    response->plan = build_plan(&call->arena, deployment->model, deployment->version);
    for (size_t i = 0; response->plan && i < n_to_go && i < args->n_candidates; i++) {
        struct replica_view view = {0};
        replica_view_take(call->fleet, args->candidates[i].id, &view);
        build_plan_replica(&call->arena, response->plan, view.status, view.shared_id != 0);
    }
}

static int plan_scale(struct service_call *call, struct error *err)
{
    uint32_t n_replicas = ((const scale_request *)call->request)->n_replicas;
    const pb_deployment *deployment = check_rows(call, call->catalog, err);
    if (!deployment)
        return err->status;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    uint32_t n_live = lifecycle_n_live(call->catalog, &target);
    if (n_replicas > n_live) {
        const struct plan_wish wish = service_wish_of(deployment, n_replicas - n_live);
        return service_plan(call, &wish, err);
    }
    plan_down(call, deployment, n_live - n_replicas);
    return 0;
}

/* True where more than one replica is added: all are added or none, as in a load (load.c). */
static bool adds_several(const struct service_call *call, const pb_deployment *deployment)
{
    uint32_t n_replicas = ((const scale_request *)call->request)->n_replicas;
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    uint32_t n_live = lifecycle_n_live(call->catalog, &target);
    const struct plan_wish wish = service_wish_of(deployment, 0);
    return n_replicas > n_live && n_replicas - n_live > 1 && plan_is_of_all(call->fleet, &wish);
}

static int plan_several(struct service_call *call, struct error *err)
{
    const pb_deployment *deployment = find_deployment(call, call->catalog, err);
    if (!deployment || !adds_several(call, deployment))
        return 0; /* another change came first */
    return plan_scale(call, err);
}

static int scale_planned(struct service_call *call, const Sluice__V1__Plan *plan, struct error *err)
{
    (void)call;
    if (plan->fits)
        return 0;
    plan_does_not_fit(plan, "the scale is unchanged", err);
    return err->status;
}

static int check_scale(struct service_call *call, struct error *err)
{
    const scale_request *request = call->request;
    struct error ignored;
    if (request->n_replicas == 0)
        return error_field(err, "n_replicas",
                           "must be at least 1; UnloadModelVersion removes all replicas");
    if (request->n_replicas > MAX_PER_DEPLOYMENT)
        return error_field(err, "n_replicas", "%u is not between 1 and %d", request->n_replicas,
                           MAX_PER_DEPLOYMENT);
    const pb_deployment *deployment = find_deployment(call, call->catalog, &ignored);
    if (deployment) /* else the change answers with the error */
        list_candidates(call, deployment);
    call->prepares = deployment && adds_several(call, deployment);
    return 0;
}

const struct service_change service_scale = {
    .arg_bytes = sizeof(struct scale_args),
    .check = check_scale,
    .plan = plan_scale,
    .prepare = plan_several,
    .planned = scale_planned,
    .apply = apply_scale,
};
