#include "manager/watch/operation_end.h"

#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/lifecycle.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

enum { MAX_ENDED = 1000 };

static int prune_ended(struct txn *txn, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    size_t n_ended = 0, oldest = 0;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        if (!pb_operation_is_open(catalog_operation_at(catalog, i)) && n_ended++ == 0)
            oldest = i;
    if (n_ended <= MAX_ENDED)
        return 0;
    return txn_delete(txn, TABLE_OPERATION, row_key(catalog_at(catalog, TABLE_OPERATION, oldest)),
                      err);
}

/* Records on the version why its last load failed, or that it succeeded. */
static int record_on_version(struct txn *txn, const pb_operation *operation, struct error *err)
{
    const pb_version *row = catalog_version(txn_catalog(txn), operation->model, operation->version);
    if ((int)operation->kind == OPERATION_UNLOAD || (int)operation->state == OPERATION_CANCELLED ||
        (operation->error && reason_is(operation->error->reason, REASON_MEMORY_NOT_RELEASED)) ||
        (operation->error && reason_is(operation->error->reason, REASON_NOTHING_KEPT)) || !row ||
        (!operation->error && !row->last_error))
        return 0;
    pb_version *version = MESSAGE_COPY(pb_version, row);
    if (!version)
        return error_no_memory(err);
    if (!message_set_copy(&version->last_error, operation->error)) {
        message_free(&version->base);
        return error_no_memory(err);
    }
    return txn_put(txn, TABLE_MODEL_VERSION, &version->base, err);
}

/* Writes the event for memory that an otherwise successful operation left behind. */
static int put_unreleased_event(struct txn *txn, const pb_operation *done, struct error *err)
{
    const pb_error *why = done->result ? done->result->unreleased : NULL;
    struct txn_event event = {
        .type = "memory.not_released",
        .model = done->model,
        .version = done->version,
        .device_group = done->device_group,
        .operation_id = done->id,
        .message = why ? why->message : "",
        .reason = why ? why->reason : "",
    };
    return why ? txn_event(txn, &event, err) : 0;
}

/* Clears `parked` of the deployment of a park that kept no weights: the replicas serve on. */
static int unpark(struct txn *txn, const pb_operation *done, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_deployment *row =
        catalog_deployment(catalog, done->model, done->version, done->device_group);
    if (!row || !row->parked)
        return 0;
    for (size_t i = 0; i < done->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, done->replica_ids[i]);
        if (replica && !replica->retiring && (int)replica->state != REPLICA_READY &&
            (int)replica->state != REPLICA_FAILED)
            return 0; /* a replica with kept weights stays parked */
    }
    pb_deployment *deployment = MESSAGE_COPY(pb_deployment, row);
    if (!deployment)
        return error_no_memory(err);
    deployment->parked = 0;
    deployment->generation++;
    return txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err) != 0
               ? err->status
               : lifecycle_bump(txn, done->model, done->version, err);
}

int operation_end_record(struct txn *txn, const char *id, const pb_operation *done, bool not_kept,
                         struct error *err)
{
    const pb_operation *row = catalog_operation(txn_catalog(txn), id);
    if (!row || !pb_operation_is_open(row))
        return 0;
    pb_operation *operation = MESSAGE_COPY(pb_operation, done);
    if (!operation)
        return error_no_memory(err);
    operation->updated_unix_ns = operation->ended_unix_ns = txn_now_unix_ns(txn);
    if (not_kept ? unpark(txn, operation, err) != 0 : record_on_version(txn, operation, err) != 0) {
        message_free(&operation->base);
        return err->status;
    }
    if (txn_put_extra(txn, TABLE_OPERATION, &operation->base, 0, err) != 0)
        return err->status;
    struct txn_event event = {
        .type = (int)done->state == OPERATION_DONE     ? "operation.done"
                : (int)done->state == OPERATION_FAILED ? "operation.failed"
                                                       : "operation.cancelled",
        .model = done->model,
        .version = done->version,
        .device_group = done->device_group,
        .operation_id = done->id,
        .message = done->error ? done->error->message : "",
        .reason = done->error ? done->error->reason : "",
        .stage = done->stage,
    };
    if (put_unreleased_event(txn, done, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    failpoint("finish.before_commit");
    return prune_ended(txn, err);
}
