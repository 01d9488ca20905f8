/* scale.c: ScaleModelVersion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/replicas/launch.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/plan.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__ScaleModelVersionRequest scale_request;
typedef Sluice__Manager__V1__ScaleModelVersionResponse scale_response;

enum { MAX_PER_DEPLOYMENT = 64, ID_BYTES = 24 };

/* A replica that a scale down may retire, with the figures for the choice. */
struct candidate {
    char id[ID_BYTES];
    bool ready;
    uint32_t n_requests;
    size_t age; /* place in the order of creation */
};

struct scale_args {
    struct lifecycle_limits limits;
    uint32_t grace_ms;
    size_t n_candidates; /* in the order in which they retire, chosen on the loop thread */
    struct candidate candidates[MAX_PER_DEPLOYMENT];
};

static int check_request(const struct fleet *fleet, const scale_request *request,
                         struct scale_args *args, struct error *err)
{
    if (service_check_names(request->request_id, request->model, request->version,
                            request->device_group, err) != 0)
        return err->status;
    if (request->n_replicas == 0)
        return error_field(err, "n_replicas",
                           "must be at least 1; UnloadModelVersion removes all replicas");
    if (request->n_replicas > MAX_PER_DEPLOYMENT)
        return error_field(err, "n_replicas", "%u is not between 1 and %d", request->n_replicas,
                           MAX_PER_DEPLOYMENT);
    args->limits = lifecycle_limits_of(fleet->context->settings);
    return service_grace(fleet, request->has_grace_ms, request->grace_ms, &args->grace_ms, err);
}

static const pb_deployment *find_deployment(const struct catalog *catalog,
                                            const scale_request *request, struct error *err)
{
    return lifecycle_find(catalog, request->model, request->version, request->device_group, err);
}

/* Finds the deployment to scale, and checks that it can be scaled now; borrowed. NULL with err
 * set. */
static const pb_deployment *check_rows(const struct catalog *catalog, const scale_request *request,
                                       const struct scale_args *args, struct error *err)
{
    const pb_deployment *deployment = find_deployment(catalog, request, err);
    char key[TABLE_KEY_BYTES];
    if (!deployment)
        return NULL;
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    table_key(key, deployment->model, deployment->version, NULL);
    if (lifecycle_check_generation(key, request->has_expected_generation,
                                   request->expected_generation, version ? version->generation : 0,
                                   err) != 0 ||
        lifecycle_check_awake(deployment, err) != 0 ||
        lifecycle_check_free(catalog, &target, &args->limits, err) != 0 ||
        lifecycle_check_fill(catalog, &target, request->n_replicas, &args->limits, err) != 0)
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

static void list_candidates(struct fleet *fleet, const pb_deployment *deployment,
                            struct scale_args *args)
{
    const struct catalog *catalog = fleet->context->catalog;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        struct replica_view view = {0};
        if (!lifecycle_is_live(replica, &target) || args->n_candidates == MAX_PER_DEPLOYMENT)
            continue;
        replica_view_take(fleet, replica->id, &view);
        struct candidate *candidate = &args->candidates[args->n_candidates++];
        snprintf(candidate->id, sizeof(candidate->id), "%s", replica->id);
        candidate->ready = (int)replica->state == REPLICA_READY;
        candidate->age = i;
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

static int scale(struct txn *txn, const struct lifecycle_target *target, uint32_t n_replicas,
                 const struct scale_args *args, pb_operation *operation, struct error *err)
{
    uint32_t n_live = lifecycle_n_live(txn_catalog(txn), target);
    operation->n_replicas_before = n_live;
    operation->n_replicas = n_replicas;
    failpoint("scale.before_write");
    if (lifecycle_set_wanted(txn, target, n_replicas, err) != 0 ||
        lifecycle_bump(txn, target->model, target->version, err) != 0)
        return err->status;
    if (n_replicas >= n_live)
        return lifecycle_fill(txn, target, n_replicas, &args->limits, operation, err);
    if (lifecycle_retire_failed(txn, target, err) != 0)
        return err->status;
    return retire_surplus(txn, target, n_replicas, args, operation, err);
}

static int apply_scale(struct txn *txn, const ProtobufCMessage *message, void *arg,
                       ProtobufCMessage *response, struct error *err)
{
    const scale_request *request = (const scale_request *)message;
    const struct scale_args *args = arg;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_deployment *row = check_rows(catalog, request, args, err);
    if (!row)
        return err->status;
    /* A copy, because rows of the catalog are borrowed until the next write. */
    pb_deployment *deployment = MESSAGE_COPY(pb_deployment, row);
    if (!deployment)
        return error_no_memory(err);
    struct lifecycle_target target = lifecycle_target_of(deployment);
    pb_operation *operation = lifecycle_operation(txn, OPERATION_SCALE, request->request_id,
                                                  target.model, target.version, target.group, err);
    int rc =
        operation ? scale(txn, &target, request->n_replicas, args, operation, err) : err->status;
    if (operation)
        rc = lifecycle_answer(txn, rc, operation, args->grace_ms,
                              &((scale_response *)response)->operation, err);
    message_free(&deployment->base);
    return rc;
}

static const struct service_change scale_change = {.apply = apply_scale, .free_arg = free};

/* --- validate_only --- */

static void answer_plan(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    (void)arg;
    if (!plan)
        return;
    scale_response response = SLUICE__MANAGER__V1__SCALE_MODEL_VERSION_RESPONSE__INIT;
    response.plan = plan;
    rpc_call_reply(call, &response.base);
}

/* Plans the memory that retired replicas free. Weights that other replicas share stay. */
static int plan_down(struct fleet *fleet, struct rpc_call *call, const pb_deployment *deployment,
                     const struct scale_args *args, size_t n_to_go, struct error *err)
{
    Sluice__V1__Plan *plan = MESSAGE_NEW(Sluice__V1__Plan, sluice__v1__plan__descriptor);
    bool complete = plan && message_set(&plan->model, deployment->model) &&
                    message_set(&plan->version, deployment->version);
    for (size_t i = 0; complete && i < n_to_go && i < args->n_candidates; i++) {
        struct replica_view view = {0};
        replica_view_take(fleet, args->candidates[i].id, &view);
        plan->n_replicas++;
        for (size_t j = 0; complete && view.status && j < view.status->n_memory; j++) {
            complete = build_plan_memory(plan, view.status->memory[j]);
            if (complete && view.shared_id)
                plan->devices[plan->n_devices - 1]->weight_bytes = 0;
        }
    }
    if (complete) {
        plan->fits = 1;
        answer_plan(call, plan, NULL);
    }
    if (plan)
        message_free(&plan->base);
    return complete ? 0 : error_no_memory(err);
}

static int plan_up(struct fleet *fleet, struct rpc_call *call, const scale_request *request,
                   const pb_deployment *deployment, plan_answer_fn *answer, void *arg,
                   struct error *err)
{
    struct lifecycle_target target = lifecycle_target_of(deployment);
    uint32_t n_live = lifecycle_n_live(fleet->context->catalog, &target);
    struct plan_wish wish = {.model = target.model,
                             .version = target.version,
                             .group = target.group,
                             .tp = deployment->tp,
                             .pp = deployment->pp,
                             .config = deployment->config,
                             .n_replicas = request->n_replicas - n_live};
    return plan_run(fleet, call, &wish, answer, arg, err);
}

static int plan_scale(struct service *service, struct rpc_call *call, const scale_request *request,
                      struct scale_args *args, struct error *err)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    const pb_deployment *deployment = check_rows(catalog, request, args, err);
    if (!deployment)
        return err->status;
    list_candidates(fleet, deployment, args);
    struct lifecycle_target target = lifecycle_target_of(deployment);
    uint32_t n_live = lifecycle_n_live(catalog, &target);
    return request->n_replicas <= n_live
               ? plan_down(fleet, call, deployment, args, n_live - request->n_replicas, err)
               : plan_up(fleet, call, request, deployment, answer_plan, NULL, err);
}

/* --- scaling up by several --- */

struct planned_scale {
    struct service *service;
    const ProtobufCMessage *request; /* lives as long as the call */
    struct scale_args *args;         /* owned */
};

/* Takes `arg`. */
static void scale_planned(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    struct planned_scale *planned_scale = arg;
    struct error err;
    if (plan && plan->fits) {
        service_change(planned_scale->service, call, planned_scale->request, &scale_change,
                       planned_scale->args);
        planned_scale->args = NULL;
    } else if (plan) {
        plan_does_not_fit(plan, "the scale is unchanged", &err);
        service_fail(call, &err);
    }
    free(planned_scale->args);
    free(planned_scale);
}

/* True where more than one replica is added: all are added or none, as in a load (load.c). */
static bool adds_several(const struct fleet *fleet, const pb_deployment *deployment,
                         const scale_request *request)
{
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    uint32_t n_live = lifecycle_n_live(fleet->context->catalog, &target);
    const struct plan_wish wish = {.model = deployment->model,
                                   .version = deployment->version,
                                   .group = deployment->device_group,
                                   .tp = deployment->tp,
                                   .pp = deployment->pp,
                                   .config = deployment->config};
    return request->n_replicas > n_live && request->n_replicas - n_live > 1 &&
           plan_is_of_all(fleet, &wish);
}

/* Takes `arg`: args. */
static void plan_scale_up(struct service *service, struct rpc_call *call,
                          const ProtobufCMessage *message, void *arg)
{
    const scale_request *request = (const scale_request *)message;
    struct error err;
    const pb_deployment *deployment =
        find_deployment(service->fleet->context->catalog, request, &err);
    if (!deployment || !adds_several(service->fleet, deployment, request)) {
        service_change(service, call, message, &scale_change, arg);
        return; /* another change came first */
    }
    struct planned_scale *planned_scale = calloc(1, sizeof(*planned_scale));
    if (!planned_scale) {
        free(arg);
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    *planned_scale = (struct planned_scale){.service = service, .request = message, .args = arg};
    deployment = check_rows(service->fleet->context->catalog, request, planned_scale->args, &err);
    if (deployment &&
        plan_up(service->fleet, call, request, deployment, scale_planned, planned_scale, &err) == 0)
        return;
    service_fail(call, &err);
    free(planned_scale->args);
    free(planned_scale);
}

void service_scale(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const scale_request *request = (const scale_request *)message;
    struct fleet *fleet = service->fleet;
    struct scale_args *args = calloc(1, sizeof(*args));
    struct error err, ignored;
    int rc = args ? check_request(fleet, request, args, &err) : error_no_memory(&err);
    if (rc == 0 && !request->validate_only) {
        const pb_deployment *deployment =
            find_deployment(fleet->context->catalog, request, &ignored);
        if (deployment)
            list_candidates(fleet, deployment, args);
        if (deployment && adds_several(fleet, deployment, request))
            service_once(service, call, message, &scale_change, args, plan_scale_up);
        else
            service_change(service, call, message, &scale_change, args);
        return;
    }
    if (rc == 0)
        rc = plan_scale(service, call, request, args, &err);
    if (rc != 0)
        service_fail(call, &err);
    free(args);
}
