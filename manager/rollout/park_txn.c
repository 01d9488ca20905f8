#include "manager/rollout/park_txn.h"

#include <stdio.h>

#include "base/arena.h"
#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

const pb_deployment *park_find(const struct catalog *catalog, const wake_request *request,
                               const struct park_args *args, struct error *err)
{
    const pb_deployment *deployment =
        lifecycle_find(catalog, request->model, request->version, request->device_group, err);
    const pb_version *version =
        deployment ? catalog_version(catalog, deployment->model, deployment->version) : NULL;
    char key[TABLE_KEY_BYTES];
    if (!deployment)
        return NULL;
    table_key(key, deployment->model, deployment->version, NULL);
    if (lifecycle_check_generation(key, request->has_expected_generation,
                                   request->expected_generation, version ? version->generation : 0,
                                   err) != 0)
        return NULL;
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    if (lifecycle_check_free(catalog, &target, &args->limits, err) != 0 ||
        lifecycle_check_fill(catalog, &target, deployment->n_replicas, &args->limits, err) != 0)
        return NULL;
    return deployment;
}

static int set_parked(struct txn *txn, const struct lifecycle_target *target, bool parked,
                      struct error *err)
{
    pb_deployment *deployment =
        MESSAGE_COPY(pb_deployment, catalog_deployment(txn_catalog(txn), target->model,
                                                       target->version, target->group));
    if (!deployment)
        return error_no_memory(err);
    deployment->parked = parked;
    deployment->generation++;
    return txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err);
}

/* Live replicas become the operation's; new replicas replace failed ones. */
static int change_deployment(struct txn *txn, const pb_deployment *deployment, bool parked,
                             const struct park_args *args, pb_operation *operation,
                             struct error *err)
{
    struct lifecycle_target target = lifecycle_target_of(deployment);
    failpoint(parked ? "park.before_write" : "wake.before_write");
    if (set_parked(txn, &target, parked, err) != 0 ||
        lifecycle_fill(txn, &target, deployment->n_replicas, &args->limits, operation, err) != 0)
        return err->status;
    return lifecycle_bump(txn, target.model, target.version, err);
}

int park_apply(struct txn *txn, const wake_request *request, bool parked,
               const struct park_args *args, struct arena *arena, pb_operation **out_operation,
               struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_deployment *row = park_find(catalog, request, args, err);
    pb_deployment *deployment = row ? MESSAGE_COPY(pb_deployment, row) : NULL;
    if (!deployment)
        return row ? error_no_memory(err) : err->status;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    pb_operation *operation =
        lifecycle_operation(txn, parked ? OPERATION_PARK : OPERATION_WAKE, request->request_id,
                            target.model, target.version, target.group, err);
    int rc =
        operation ? change_deployment(txn, deployment, parked, args, operation, err) : err->status;
    if (operation)
        rc = lifecycle_answer(txn, rc, operation, args->grace_ms, arena, out_operation, err);
    message_free(&deployment->base);
    return rc;
}

void park_name(struct park_named *out, const struct lifecycle_target *target)
{
    snprintf(out->model, sizeof(out->model), "%s", target->model);
    snprintf(out->version, sizeof(out->version), "%s", target->version);
    snprintf(out->group, sizeof(out->group), "%s", target->group);
    sluice__manager__v1__wake_model_version_request__init(&out->request);
    out->request.model = out->model;
    out->request.version = out->version;
    out->request.device_group = out->group;
}

int park_version(struct txn *txn, const struct lifecycle_target *target,
                 const struct lifecycle_limits *limits, uint32_t grace_ms, struct error *err)
{
    const struct park_args args = {.limits = *limits, .grace_ms = grace_ms};
    pb_operation *operation = NULL;
    struct park_named named;
    struct arena arena;
    park_name(&named, target);
    arena_init(&arena, 0, 0);
    int rc = park_apply(txn, &named.request, true, &args, &arena, &operation, err);
    arena_fini(&arena);
    return rc;
}
