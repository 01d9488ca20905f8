#include "manager/lifecycle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/failpoint.h"
#include "manager/message.h"
#include "manager/store.h"

bool lifecycle_is_open(const pb_operation *operation)
{
    return (int)operation->state == OPERATION_PENDING || (int)operation->state == OPERATION_RUNNING;
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
    if (!operation) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
        return NULL;
    }
    snprintf(id, sizeof(id), "o%llu", (unsigned long long)number);
    message_set(&operation->id, id);
    message_set(&operation->request_id, request_id);
    message_set(&operation->model, model);
    message_set(&operation->version, version);
    message_set(&operation->device_group, group);
    message_set(&operation->stage, kind == OPERATION_LOAD ? "place" : "drain");
    operation->kind = (Sluice__Manager__V1__OperationKind)kind;
    operation->state = (Sluice__Manager__V1__OperationState)OPERATION_RUNNING;
    operation->created_unix_ns = operation->updated_unix_ns = txn_now_unix_ns(txn);
    return operation;
}

bool lifecycle_add_replica(pb_operation *operation, const char *replica_id)
{
    char *id = strdup(replica_id);
    if (id && message_append(&operation->n_replica_ids, &operation->replica_ids, id))
        return true;
    free(id);
    return false;
}

int lifecycle_put(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err)
{
    char id[24], model[80], version[48], group[80];
    snprintf(id, sizeof(id), "%s", operation->id);
    snprintf(model, sizeof(model), "%s", operation->model);
    snprintf(version, sizeof(version), "%s", operation->version);
    snprintf(group, sizeof(group), "%s", operation->device_group);
    bool load = (int)operation->kind == OPERATION_LOAD;
    if (txn_put_extra(txn, TABLE_OPERATION, &operation->base, grace_ms, err) != 0)
        return err->status;
    struct txn_event event = {
        .type = load ? "operation.load" : "operation.unload",
        .model = model,
        .version = version,
        .device_group = group,
        .operation_id = id,
    };
    int status = txn_event(txn, &event, err);
    failpoint(load ? "load.before_commit" : "unload.before_commit");
    return status;
}

int lifecycle_bump(struct txn *txn, const char *model, const char *version, struct error *err)
{
    pb_version *new_version =
        MESSAGE_COPY(pb_version, catalog_version(txn_catalog(txn), model, version));
    pb_model *new_model = MESSAGE_COPY(pb_model, catalog_model(txn_catalog(txn), model));
    if (!new_version || !new_model) {
        if (new_version)
            message_free(&new_version->base);
        if (new_model)
            message_free(&new_model->base);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    }
    new_version->generation++;
    new_model->generation++;
    if (txn_put(txn, TABLE_MODEL_VERSION, &new_version->base, err) != 0) {
        message_free(&new_model->base);
        return err->status;
    }
    return txn_put(txn, TABLE_MODEL, &new_model->base, err);
}

int lifecycle_no_version(const char *model, const char *version, struct error *err)
{
    if (*version)
        error_set(err, STATUS_NOT_FOUND, "version: no version \"%.64s/%.32s\"", model, version);
    else
        error_set(err, STATUS_NOT_FOUND, "model: no model \"%.64s\"", model);
    return error_reason(err, *version ? "VERSION_NOT_FOUND" : "MODEL_NOT_FOUND");
}
