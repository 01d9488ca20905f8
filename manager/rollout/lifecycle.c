#include "manager/rollout/lifecycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/devices/device_hold.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/store/catalog.h"
#include "manager/store/row_text.h"
#include "manager/store/txn.h"

static bool matches(const pb_deployment *deployment, const char *model, const char *version,
                    const char *group)
{
    return strcmp(deployment->model, model) == 0 &&
           (!*version || strcmp(deployment->version, version) == 0) &&
           (!*group || strcmp(deployment->device_group, group) == 0);
}

const pb_deployment *lifecycle_find(const struct catalog *catalog, const char *model,
                                    const char *version, const char *group, struct error *err)
{
    const pb_deployment *found = NULL;
    if (!catalog_resolve_version(catalog, model, version)) {
        lifecycle_no_version(model, version, err);
        return NULL;
    }
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (!matches(deployment, model, version, group))
            continue;
        if (found) {
            bool versions = strcmp(found->version, deployment->version) != 0;
            error_field(err, versions ? "version" : "device_group",
                        "%s is loaded as %s/%s on %s and as %s/%s on %s; name one of them", model,
                        found->model, found->version, found->device_group, deployment->model,
                        deployment->version, deployment->device_group);
            return NULL;
        }
        found = deployment;
    }
    if (found)
        return found;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "%s%s%s is not loaded%s%s; LoadModelVersion loads it", model, *version ? "/" : "",
              version, *group ? " on " : "", group);
    error_reason(err, REASON_NOT_LOADED);
    return NULL;
}

struct lifecycle_target lifecycle_target_of(const pb_deployment *deployment)
{
    return (struct lifecycle_target){deployment->model, deployment->version,
                                     deployment->device_group};
}

int lifecycle_check_same(const pb_deployment *deployment, const pb_deployment *asked,
                         struct error *err)
{
    struct strbuf differences;
    if (deployment->tp == asked->tp && deployment->pp == asked->pp &&
        config_equal(deployment->config, asked->config))
        return 0;
    strbuf_init(&differences, 0);
    if (deployment->tp != asked->tp)
        strbuf_printf(&differences, "; tp is %u, asked %u", deployment->tp, asked->tp);
    if (deployment->pp != asked->pp)
        strbuf_printf(&differences, "; pp is %u, asked %u", deployment->pp, asked->pp);
    row_message_differences(deployment->config ? &deployment->config->base : NULL,
                            asked->config ? &asked->config->base : NULL, "config.", &differences);
    const char *text = strbuf_str(&differences);
    error_set(err, STATUS_FAILED_PRECONDITION,
              "%s/%s is loaded on %s with another split or configuration; unload it first%s",
              deployment->model, deployment->version, deployment->device_group, text);
    strbuf_fini(&differences);
    error_version(err, deployment->version);
    return error_reason(err, REASON_ALREADY_LOADED);
}

int lifecycle_check_awake(const pb_deployment *deployment, struct error *err)
{
    if (!deployment->parked)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION, "%s/%s is parked on %s; WakeModelVersion wakes it",
              deployment->model, deployment->version, deployment->device_group);
    error_version(err, deployment->version);
    return error_reason(err, REASON_PARKED);
}

int lifecycle_check_room(const struct catalog *catalog, const struct lifecycle_limits *limits,
                         struct error *err)
{
    uint64_t n_open = 0;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        n_open += pb_operation_is_open(catalog_operation_at(catalog, i));
    if (n_open < limits->max_open_operations)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%llu operations are open: that is the limit; wait for one to end",
              (unsigned long long)n_open);
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_TOO_MANY_OPERATIONS);
}

int lifecycle_check_no_operation(const struct catalog *catalog,
                                 const struct lifecycle_target *target, struct error *err)
{
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *operation = catalog_operation_at(catalog, i);
        if (!pb_operation_is_open(operation) || strcmp(operation->model, target->model) != 0 ||
            /* An update changes two versions: no version of the model may change. */
            ((int)operation->kind != OPERATION_UPDATE && *operation->version && target->version &&
             strcmp(operation->version, target->version) != 0) ||
            (*operation->device_group && target->group &&
             strcmp(operation->device_group, target->group) != 0))
            continue;
        error_set(err, STATUS_FAILED_PRECONDITION, "operation %s on %s/%s has not ended",
                  operation->id, target->model,
                  target->version ? target->version : operation->version);
        return error_reason(err, REASON_OPERATION_IN_PROGRESS);
    }
    return 0;
}

int lifecycle_check_free(const struct catalog *catalog, const struct lifecycle_target *target,
                         const struct lifecycle_limits *limits, struct error *err)
{
    return lifecycle_check_no_operation(catalog, target, err) != 0
               ? err->status
               : lifecycle_check_room(catalog, limits, err);
}

static bool is_of(const pb_replica *replica, const struct lifecycle_target *target)
{
    return strcmp(replica->model, target->model) == 0 &&
           strcmp(replica->version, target->version) == 0 &&
           strcmp(replica->device_group, target->group) == 0;
}

bool lifecycle_is_live(const pb_replica *replica, const struct lifecycle_target *target)
{
    return (int)replica->state != REPLICA_FAILED && (int)replica->state != REPLICA_STOPPED &&
           !replica->retiring && is_of(replica, target);
}

uint32_t lifecycle_n_live(const struct catalog *catalog, const struct lifecycle_target *target)
{
    uint32_t n_live = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++)
        n_live += lifecycle_is_live(catalog_replica_at(catalog, i), target);
    return n_live;
}

pb_operation *lifecycle_operation(struct txn *txn, enum operation_kind kind, const char *request_id,
                                  const char *model, const char *version, const char *group,
                                  struct error *err)
{
    uint64_t number = 0;
    char id[24];
    if (txn_next(txn, "operation", &number, err) != 0)
        return NULL;
    pb_operation *operation = MESSAGE_NEW(pb_operation, sluice__manager__v1__operation__descriptor);
    snprintf(id, sizeof(id), "o%llu", (unsigned long long)number);
    if (!operation || !message_set(&operation->id, id) ||
        !message_set(&operation->request_id, request_id) ||
        !message_set(&operation->model, model) || !message_set(&operation->version, version) ||
        !message_set(&operation->device_group, group) ||
        !message_set(&operation->stage,
                     kind == OPERATION_LOAD || kind == OPERATION_WAKE ? "place" : "drain")) {
        if (operation)
            message_free(&operation->base);
        error_no_memory(err);
        return NULL;
    }
    operation->kind = (Sluice__Manager__V1__OperationKind)kind;
    operation->state = (Sluice__Manager__V1__OperationState)OPERATION_RUNNING;
    operation->created_unix_ns = operation->updated_unix_ns = txn_now_unix_ns(txn);
    return operation;
}

bool lifecycle_add_replica(pb_operation *operation, const char *replica_id)
{
    return message_append_text(&operation->n_replica_ids, &operation->replica_ids, replica_id);
}

/* Names of an operation's kind in events and failpoints. */
struct kind_names {
    const char *event, *before_commit;
};

static struct kind_names names_of(int kind)
{
    switch (kind) {
    case OPERATION_LOAD:
        return (struct kind_names){"operation.load", "load.before_commit"};
    case OPERATION_UNLOAD:
        return (struct kind_names){"operation.unload", "unload.before_commit"};
    case OPERATION_SCALE:
        return (struct kind_names){"operation.scale", "scale.before_commit"};
    case OPERATION_UPDATE:
        return (struct kind_names){"operation.update", "update.before_commit"};
    case OPERATION_PARK:
        return (struct kind_names){"operation.park", "park.before_commit"};
    case OPERATION_WAKE:
        return (struct kind_names){"operation.wake", "wake.before_commit"};
    case OPERATION_DRAIN:
        return (struct kind_names){"operation.drain", "replace.before_commit"};
    default:
        return (struct kind_names){"operation.restart", "replace.before_commit"};
    }
}

int lifecycle_put(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err)
{
    char id[24], model[80], version[48], group[80];
    struct kind_names names = names_of((int)operation->kind);
    const char *event_type = operation->cancelling ? "operation.cancelling" : names.event;
    snprintf(id, sizeof(id), "%s", operation->id);
    snprintf(model, sizeof(model), "%s", operation->model);
    snprintf(version, sizeof(version), "%s", operation->version);
    snprintf(group, sizeof(group), "%s", operation->device_group);
    if (txn_put_extra(txn, TABLE_OPERATION, &operation->base, grace_ms, err) != 0)
        return err->status;
    struct txn_event event = {
        .type = event_type,
        .model = model,
        .version = version,
        .device_group = group,
        .operation_id = id,
    };
    int rc = txn_event(txn, &event, err);
    failpoint(names.before_commit);
    return rc;
}

int lifecycle_put_replica(struct txn *txn, const struct lifecycle_target *target,
                          pb_operation *operation, struct error *err)
{
    uint64_t number = 0;
    char id[24];
    if (txn_next(txn, "replica", &number, err) != 0)
        return err->status;
    pb_replica *replica = MESSAGE_NEW(pb_replica, sluice__manager__v1__replica__descriptor);
    snprintf(id, sizeof(id), "r%llu", (unsigned long long)number);
    if (!replica || !lifecycle_add_replica(operation, id) ||
        !message_append_text(&operation->n_new_replica_ids, &operation->new_replica_ids, id) ||
        !message_set(&replica->id, id) || !message_set(&replica->model, target->model) ||
        !message_set(&replica->version, target->version) ||
        !message_set(&replica->device_group, target->group)) {
        if (replica)
            message_free(&replica->base);
        return error_no_memory(err);
    }
    replica->state = (Sluice__Manager__V1__ReplicaState)REPLICA_PENDING;
    replica->generation = 1;
    return txn_put(txn, TABLE_REPLICA, &replica->base, err);
}

int lifecycle_retire(struct txn *txn, const char *replica_id, struct error *err)
{
    pb_replica *replica = MESSAGE_COPY(pb_replica, catalog_replica(txn_catalog(txn), replica_id));
    if (!replica)
        return error_no_memory(err);
    /* A failed replica has nothing to drain. */
    if ((int)replica->state == REPLICA_FAILED)
        replica->state = (Sluice__Manager__V1__ReplicaState)REPLICA_STOPPED;
    replica->retiring = 1;
    replica->generation++;
    return txn_put(txn, TABLE_REPLICA, &replica->base, err);
}

int lifecycle_retire_failed(struct txn *txn, const struct lifecycle_target *target,
                            struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if ((int)replica->state == REPLICA_FAILED && is_of(replica, target) &&
            lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
    }
    return 0;
}

/* Refuses new replicas on quarantined devices. */
static int check_devices(const struct catalog *catalog, const struct lifecycle_target *target,
                         struct error *err)
{
    const pb_group *group = catalog_group(catalog, target->group);
    const pb_deployment *deployment =
        catalog_deployment(catalog, target->model, target->version, target->group);
    return group ? device_hold_check(catalog, group, catalog_n_ranks(deployment), err) : 0;
}

/* Failed replicas do not count, as new ones replace them. */
int lifecycle_answer(struct txn *txn, int rc, pb_operation *operation, uint32_t grace_ms,
                     struct arena *arena, pb_operation **out_answer, struct error *err)
{
    if (rc == 0 && !(*out_answer = message_copy_in(arena, operation)))
        rc = error_no_memory(err);
    if (rc == 0)
        return lifecycle_put(txn, operation, grace_ms, err);
    message_free(&operation->base);
    return rc;
}

int lifecycle_check_fill(const struct catalog *catalog, const struct lifecycle_target *target,
                         uint32_t n_replicas, const struct lifecycle_limits *limits,
                         struct error *err)
{
    uint64_t n_all = 0, n_live = lifecycle_n_live(catalog, target);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        n_all += (int)replica->state != REPLICA_STOPPED &&
                 ((int)replica->state != REPLICA_FAILED || !is_of(replica, target));
    }
    uint64_t n_new = n_replicas > n_live ? n_replicas - n_live : 0;
    if (!n_new || n_all + n_new <= limits->max_replicas)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "n_replicas: %llu replicas exist and %llu more are requested, but %llu is the "
              "limit",
              (unsigned long long)n_all, (unsigned long long)n_new,
              (unsigned long long)limits->max_replicas);
    return error_reason(err, REASON_TOO_MANY_REPLICAS);
}

/* Counts a replica that drains but is not retired as live: its worker got a signal, and the replica
 * will return. */
int lifecycle_fill(struct txn *txn, const struct lifecycle_target *target, uint32_t n_replicas,
                   const struct lifecycle_limits *limits, pb_operation *operation,
                   struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    uint32_t n_live = 0;
    if (lifecycle_retire_failed(txn, target, err) != 0)
        return err->status;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if (!lifecycle_is_live(replica, target))
            continue;
        n_live++;
        if (!lifecycle_add_replica(operation, replica->id))
            return error_no_memory(err);
    }
    operation->n_replicas_before = n_live;
    operation->n_replicas = n_replicas;
    if (n_live < n_replicas && check_devices(catalog, target, err) != 0)
        return err->status;
    if (lifecycle_check_fill(catalog, target, n_replicas, limits, err) != 0)
        return err->status;
    for (; n_live < n_replicas; n_live++)
        if (lifecycle_put_replica(txn, target, operation, err) != 0)
            return err->status;
    return 0;
}

int lifecycle_set_wanted(struct txn *txn, const struct lifecycle_target *target,
                         uint32_t n_replicas, struct error *err)
{
    const pb_deployment *row =
        catalog_deployment(txn_catalog(txn), target->model, target->version, target->group);
    char key[TABLE_KEY_BYTES];
    if (!row)
        return 0;
    table_key(key, target->model, target->version, target->group);
    if (!n_replicas)
        return txn_delete(txn, TABLE_DEPLOYMENT, key, err);
    pb_deployment *deployment = MESSAGE_COPY(pb_deployment, row);
    if (!deployment)
        return error_no_memory(err);
    deployment->n_replicas = n_replicas;
    deployment->generation++;
    return txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err);
}

int lifecycle_undo(struct txn *txn, const pb_operation *operation, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    struct lifecycle_target target = {operation->model, operation->version,
                                      operation->device_group};
    for (size_t i = 0; i < operation->n_new_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, operation->new_replica_ids[i]);
        if (replica && (int)replica->state != REPLICA_STOPPED &&
            lifecycle_retire(txn, replica->id, err) != 0)
            return err->status;
    }
    return lifecycle_set_wanted(txn, &target, operation->n_replicas_before, err);
}

int lifecycle_bump_model(struct txn *txn, const char *model, struct error *err)
{
    pb_model *row = MESSAGE_COPY(pb_model, catalog_model(txn_catalog(txn), model));
    if (!row)
        return error_no_memory(err);
    row->generation++;
    return txn_put(txn, TABLE_MODEL, &row->base, err);
}

int lifecycle_bump(struct txn *txn, const char *model, const char *version, struct error *err)
{
    pb_version *row = MESSAGE_COPY(pb_version, catalog_version(txn_catalog(txn), model, version));
    if (!row)
        return error_no_memory(err);
    row->generation++;
    if (txn_put(txn, TABLE_MODEL_VERSION, &row->base, err) != 0)
        return err->status;
    return lifecycle_bump_model(txn, model, err);
}

int lifecycle_no_version(const char *model, const char *version, struct error *err)
{
    if (*version)
        error_set(err, STATUS_NOT_FOUND, "version: no version \"%.64s/%.32s\"", model, version);
    else
        error_set(err, STATUS_NOT_FOUND, "model: no model \"%.64s\"", model);
    return error_reason(err, *version ? REASON_VERSION_NOT_FOUND : REASON_MODEL_NOT_FOUND);
}

const char *lifecycle_leaving_stage(const pb_replica *replica)
{
    switch ((int)replica->state) {
    case REPLICA_STOPPED:
        return "done";
    case REPLICA_PENDING:
    case REPLICA_FAILED:
        return "stop";
    default:
        return "drain";
    }
}

bool lifecycle_wakes_on_demand(const struct catalog *catalog, const pb_deployment *deployment)
{
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    if (deployment->config && deployment->config->has_wake_on_demand)
        return deployment->config->wake_on_demand;
    return version && version->config && version->config->wake_on_demand;
}

struct lifecycle_limits lifecycle_limits_of(const struct settings *settings)
{
    return (struct lifecycle_limits){settings->max_open_operations, settings->max_replicas};
}

int lifecycle_check_generation(const char *what, int has, uint64_t expected, uint64_t is,
                               struct error *err)
{
    if (!has || expected == is)
        return 0;
    error_set(err, STATUS_ABORTED, "expected_generation: %s has generation %llu, not %llu", what,
              (unsigned long long)is, (unsigned long long)expected);
    return error_reason(err, REASON_STALE_GENERATION);
}
