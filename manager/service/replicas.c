/* replicas.c: DrainReplica, RestartReplica, CancelOperation. */
#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/update.h"
#include "manager/service/audit.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/operations.h"

/* --- DrainReplica and RestartReplica --- */

/* Finds the request's replica, and checks that it is neither stopped nor draining. NULL with err
 * set. */
static const pb_replica *find_replica(const struct service_call *call,
                                      const struct catalog *catalog, const char *id,
                                      struct error *err)
{
    const pb_replica *replica = catalog_replica(catalog, id);
    if (!replica) {
        error_set(err, STATUS_NOT_FOUND, "replica_id: no replica \"%.40s\"", id);
        error_reason(err, REASON_REPLICA_NOT_FOUND);
        return NULL;
    }
    if (service_check_generation(call, id, replica->generation, err) != 0)
        return NULL;
    if ((int)replica->state != REPLICA_STOPPED && !replica->retiring)
        return replica;
    error_set(err, STATUS_FAILED_PRECONDITION, "replica_id: replica %s %s", id,
              (int)replica->state == REPLICA_STOPPED ? "has stopped" : "drains already");
    error_reason(err, REASON_REPLICA_STOPPED);
    return NULL;
}

static int drain(struct txn *txn, const pb_replica *replica, pb_operation *operation,
                 struct error *err)
{
    struct lifecycle_target target = {replica->model, replica->version, replica->device_group};
    return lifecycle_retire(txn, replica->id, err) == 0
               ? lifecycle_put_replica(txn, &target, operation, err)
               : err->status;
}

static int restart(struct txn *txn, const pb_replica *replica, struct error *err)
{
    pb_replica changed = *replica;
    changed.restart_epoch = replica->epoch;
    changed.generation++;
    return txn_put_copy(txn, TABLE_REPLICA, &changed, err);
}

/* Replaces the process of a replica. *out_operation is the answer. */
static int replace(struct txn *txn, struct service_call *call, enum operation_kind kind,
                   const char *replica_id, const char *request_id, pb_operation **out_operation,
                   struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_replica *replica = find_replica(call, catalog, replica_id, err);
    if (!replica)
        return err->status;
    struct lifecycle_target target = {replica->model, replica->version, replica->device_group};
    if (lifecycle_check_free(catalog, &target, &call->limits, err) != 0)
        return err->status;
    pb_operation *operation = lifecycle_operation(txn, kind, request_id, replica->model,
                                                  replica->version, replica->device_group, err);
    if (!operation)
        return err->status;
    failpoint("replace.before_write");
    operation->n_replicas = operation->n_replicas_before = lifecycle_n_live(catalog, &target);
    int rc = lifecycle_add_replica(operation, replica->id) ? 0 : error_no_memory(err);
    if (rc == 0)
        rc = kind == OPERATION_DRAIN ? drain(txn, replica, operation, err)
                                     : restart(txn, replica, err);
    return lifecycle_answer(txn, rc, operation, call->grace_ms, &call->arena, out_operation, err);
}

static int apply_drain(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__DrainReplicaRequest *request = call->request;
    Sluice__Manager__V1__DrainReplicaResponse *response = call->response;
    return replace(txn, call, OPERATION_DRAIN, request->replica_id, request->request_id,
                   &response->operation, err);
}

static int apply_restart(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__RestartReplicaRequest *request = call->request;
    Sluice__Manager__V1__RestartReplicaResponse *response = call->response;
    return replace(txn, call, OPERATION_RESTART, request->replica_id, request->request_id,
                   &response->operation, err);
}

const struct service_change service_drain_replica = {.apply = apply_drain};
const struct service_change service_restart_replica = {.apply = apply_restart};

/* --- CancelOperation --- */

/* Stage of an operation that removes replicas, for the error that refuses to cancel it. */
static const char *stage_of(const struct catalog *catalog, const pb_operation *operation)
{
    const char *stage = operation->stage;
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(catalog, operation->replica_ids[i]);
        if (!replica || (int)replica->state == REPLICA_STOPPED)
            continue;
        if ((int)operation->kind == OPERATION_UNLOAD || replica->retiring)
            return lifecycle_leaving_stage(replica);
        if ((int)replica->state == REPLICA_DRAINING)
            return "drain";
        stage = "start";
    }
    return stage;
}

static int check_can_cancel(const struct catalog *catalog, const pb_operation *operation,
                            struct error *err)
{
    if (!pb_operation_is_open(operation)) {
        error_set(err, STATUS_FAILED_PRECONDITION, "id: operation %s has ended %s", operation->id,
                  pb_operation_state_name((int)operation->state));
        return error_reason(err, REASON_OPERATION_ENDED);
    }
    if ((int)operation->kind == OPERATION_UPDATE) {
        int phase = operation->update ? (int)operation->update->phase : UPDATE_END;
        if (phase == UPDATE_LOAD || phase == UPDATE_SHIFT)
            return 0;
        error_set(err, STATUS_FAILED_PRECONDITION, "id: operation %s %s", operation->id,
                  phase == UPDATE_ROLL_BACK ? "is being rolled back already"
                                            : "is at stage \"drain\" and cannot be undone");
        return error_reason(err, REASON_CANNOT_CANCEL);
    }
    bool adds = (int)operation->kind == OPERATION_LOAD ||
                ((int)operation->kind == OPERATION_SCALE &&
                 operation->n_replicas >= operation->n_replicas_before);
    if (adds)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "id: operation %s is at stage \"%s\" and cannot be undone", operation->id,
              stage_of(catalog, operation));
    return error_reason(err, REASON_CANNOT_CANCEL);
}

/* Undoes the changes that a load, a scale up or an update began. */
static int roll_back(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err)
{
    int rc = (int)operation->kind == OPERATION_UPDATE ? update_begin_rollback(txn, operation, err)
                                                      : lifecycle_undo(txn, operation, err);
    if (rc == 0 && (int)operation->kind != OPERATION_UPDATE)
        rc = lifecycle_bump(txn, operation->model, operation->version, err);
    if (rc != 0)
        return rc;
    failpoint("cancel.before_commit");
    pb_operation *row = MESSAGE_COPY(pb_operation, operation);
    return row ? lifecycle_put(txn, row, grace_ms, err) : error_no_memory(err);
}

static int apply_cancel(struct txn *txn, struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__CancelOperationRequest *request = call->request;
    Sluice__Manager__V1__CancelOperationResponse *response = call->response;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_operation *old = catalog_operation(catalog, request->id);
    if (!old) {
        error_set(err, STATUS_NOT_FOUND, "id: no operation \"%.40s\"", request->id);
        return error_reason(err, REASON_OPERATION_NOT_FOUND);
    }
    bool again = old->cancelling || (int)old->state == OPERATION_CANCELLED;
    if (!again && check_can_cancel(catalog, old, err) != 0)
        return err->status;
    pb_operation *operation = response->operation = message_copy_in(&call->arena, old);
    if (again || !operation)
        return operation ? 0 : error_no_memory(err);
    operation->stage =
        message_text_in(&call->arena, (int)old->kind == OPERATION_UPDATE ? "rollback" : "stop");
    operation->cancelling = 1;
    operation->updated_unix_ns = txn_now_unix_ns(txn);
    audit_saw_stage(txn, call->arg);
    return roll_back(txn, operation, call->grace_ms, err);
}

/* Notes the stage at which the call came; empty: unknown. */
static int check_cancel(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__CancelOperationRequest *request = call->request;
    const pb_operation *now =
        operations_build(call->service->config.operations, &call->arena, request->id);
    (void)err;
    call->arg = now ? now->stage : message_text_in(&call->arena, "");
    return 0;
}

const struct service_change service_cancel_operation = {.check = check_cancel,
                                                        .apply = apply_cancel};
