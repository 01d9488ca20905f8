#include "manager/rollout/unload_txn.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/update.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

bool unload_concerns(const unload_request *request, const char *model, const char *version,
                     const char *group)
{
    return strcmp(model, request->model) == 0 &&
           (!*request->version || strcmp(version, request->version) == 0) &&
           (!*request->device_group || strcmp(group, request->device_group) == 0);
}

static int check_loaded(const struct catalog *catalog, const unload_request *request,
                        struct error *err)
{
    if (!catalog_resolve_version(catalog, request->model, request->version))
        return lifecycle_no_version(request->model, request->version, err);
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (unload_concerns(request, deployment->model, deployment->version,
                            deployment->device_group))
            return 0;
    }
    error_set(err, STATUS_FAILED_PRECONDITION, "%s%s%s is not loaded%s%s", request->model,
              *request->version ? "/" : "", request->version, *request->device_group ? " on " : "",
              request->device_group);
    return error_reason(err, REASON_NOT_LOADED);
}

/* Deletes the deployments and raises the generation of every version concerned. */
static int delete_deployments(struct txn *txn, const unload_request *request, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    for (size_t i = 0; catalog_deployment_at(catalog, i);) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        char key[TABLE_KEY_BYTES], version[48];
        if (!unload_concerns(request, deployment->model, deployment->version,
                             deployment->device_group)) {
            i++;
            continue;
        }
        table_key(key, deployment->model, deployment->version, deployment->device_group);
        snprintf(version, sizeof(version), "%s", deployment->version);
        if (txn_delete(txn, TABLE_DEPLOYMENT, key, err) != 0 ||
            lifecycle_bump(txn, request->model, version, err) != 0)
            return err->status;
    }
    return 0;
}

static int check_generations(const struct catalog *catalog, const unload_request *request,
                             struct error *err)
{
    char key[TABLE_KEY_BYTES];
    const pb_version *version = catalog_resolve_version(catalog, request->model, request->version);
    if (!request->has_expected_generation)
        return 0;
    if (!*request->version)
        return error_field(err, "expected_generation",
                           "needs the version that it belongs to; give version");
    table_key(key, request->model, request->version, NULL);
    return lifecycle_check_generation(key, 1, request->expected_generation, version->generation,
                                      err);
}

int unload_check(const struct catalog *catalog, const unload_request *request,
                 const struct unload_args *args, struct error *err)
{
    if (check_loaded(catalog, request, err) != 0 || check_generations(catalog, request, err) != 0 ||
        update_check_none(catalog, request->model, err) != 0 ||
        (*request->version &&
         policy_check_unload(catalog, request->model, request->version, err) != 0))
        return err->status;
    return lifecycle_check_room(catalog, &args->limits, err);
}

static int collect(const struct catalog *catalog, const unload_request *request,
                   pb_operation *operation, struct error *err)
{
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if ((int)replica->state != REPLICA_STOPPED &&
            unload_concerns(request, replica->model, replica->version, replica->device_group) &&
            !lifecycle_add_replica(operation, replica->id))
            return error_no_memory(err);
    }
    return 0;
}

int unload_apply(struct txn *txn, const unload_request *request, const struct unload_args *args,
                 struct arena *arena, pb_operation **out_operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    if (unload_check(catalog, request, args, err) != 0)
        return err->status;
    pb_operation *operation =
        lifecycle_operation(txn, OPERATION_UNLOAD, request->request_id, request->model,
                            request->version, request->device_group, err);
    if (!operation)
        return err->status;
    failpoint("unload.before_write");
    int rc = collect(catalog, request, operation, err);
    if (rc == 0)
        rc = delete_deployments(txn, request, err);
    return lifecycle_answer(txn, rc, operation, args->grace_ms, arena, out_operation, err);
}

int unload_version(struct txn *txn, const struct lifecycle_target *target,
                   const struct lifecycle_limits *limits, uint32_t grace_ms,
                   pb_operation *evicts_for, struct error *err)
{
    const struct unload_args args = {.limits = *limits, .grace_ms = grace_ms};
    unload_request request = SLUICE__MANAGER__V1__UNLOAD_MODEL_VERSION_REQUEST__INIT;
    pb_operation *operation = NULL;
    struct arena arena;
    char model[80], version[48], group[80]; /* copies: rows move when others are written */
    snprintf(model, sizeof(model), "%s", target->model);
    snprintf(version, sizeof(version), "%s", target->version);
    snprintf(group, sizeof(group), "%s", target->group);
    request.model = model;
    request.version = version;
    request.device_group = group;
    arena_init(&arena, 0, 0);
    int rc = unload_apply(txn, &request, &args, &arena, &operation, err);
    for (size_t i = 0; rc == 0 && operation && evicts_for && i < operation->n_replica_ids; i++)
        if (!message_append_text(&evicts_for->n_evicted_replica_ids,
                                 &evicts_for->evicted_replica_ids, operation->replica_ids[i]))
            rc = error_no_memory(err);
    arena_fini(&arena);
    return rc;
}
