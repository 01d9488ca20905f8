/* replicas.c: DrainReplica, RestartReplica, CancelOperation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/update.h"
#include "manager/service/audit.h"
#include "manager/service/service.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/operations.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__DrainReplicaRequest drain_request;
typedef Sluice__Manager__V1__DrainReplicaResponse drain_response;
typedef Sluice__Manager__V1__RestartReplicaRequest restart_request;
typedef Sluice__Manager__V1__RestartReplicaResponse restart_response;
typedef Sluice__Manager__V1__CancelOperationRequest cancel_request;
typedef Sluice__Manager__V1__CancelOperationResponse cancel_response;

enum { MAX_ID_BYTES = 23 };

struct replace_args {
    struct lifecycle_limits limits;
    uint32_t grace_ms;
};

/* Finds the request's replica, and checks that it is neither stopped nor draining. NULL with err
 * set. */
static const pb_replica *find_replica(const struct catalog *catalog, const char *id, int has,
                                      uint64_t expected_generation, struct error *err)
{
    const pb_replica *replica = catalog_replica(catalog, id);
    if (!replica) {
        error_set(err, STATUS_NOT_FOUND, "replica_id: no replica \"%.40s\"", id);
        error_reason(err, REASON_REPLICA_NOT_FOUND);
        return NULL;
    }
    if (lifecycle_check_generation(id, has, expected_generation, replica->generation, err) != 0)
        return NULL;
    if ((int)replica->state != REPLICA_STOPPED && !replica->retiring)
        return replica;
    error_set(err, STATUS_FAILED_PRECONDITION, "replica_id: replica %s %s", id,
              (int)replica->state == REPLICA_STOPPED ? "has stopped" : "drains already");
    error_reason(err, REASON_REPLICA_STOPPED);
    return NULL;
}

/* --- DrainReplica and RestartReplica --- */

/* The common part: the operation with its first replica, checked and not yet written. `replica`
 * is a copy. NULL with err set. */
static pb_operation *begin(struct txn *txn, enum operation_kind kind, const char *request_id,
                           const pb_replica *replica, const struct replace_args *args,
                           struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    struct lifecycle_target target = {replica->model, replica->version, replica->device_group};
    if (lifecycle_check_free(catalog, &target, &args->limits, err) != 0)
        return NULL;
    pb_operation *operation = lifecycle_operation(txn, kind, request_id, replica->model,
                                                  replica->version, replica->device_group, err);
    if (!operation)
        return NULL;
    failpoint("replace.before_write");
    operation->n_replicas = operation->n_replicas_before = lifecycle_n_live(catalog, &target);
    if (lifecycle_add_replica(operation, replica->id))
        return operation;
    message_free(&operation->base);
    error_no_memory(err);
    return NULL;
}

static int apply_drain(struct txn *txn, const ProtobufCMessage *message, void *arg,
                       ProtobufCMessage *response, struct error *err)
{
    const drain_request *request = (const drain_request *)message;
    const struct replace_args *args = arg;
    const pb_replica *row =
        find_replica(txn_catalog(txn), request->replica_id, request->has_expected_generation,
                     request->expected_generation, err);
    pb_replica *replica = row ? MESSAGE_COPY(pb_replica, row) : NULL;
    if (!replica)
        return row ? error_no_memory(err) : err->status;
    struct lifecycle_target target = {replica->model, replica->version, replica->device_group};
    pb_operation *operation = begin(txn, OPERATION_DRAIN, request->request_id, replica, args, err);
    int rc = operation ? lifecycle_retire(txn, replica->id, err) : err->status;
    if (rc == 0)
        rc = lifecycle_put_replica(txn, &target, operation, err);
    if (operation)
        rc = lifecycle_answer(txn, rc, operation, args->grace_ms,
                              &((drain_response *)response)->operation, err);
    message_free(&replica->base);
    return rc;
}

static int apply_restart(struct txn *txn, const ProtobufCMessage *message, void *arg,
                         ProtobufCMessage *response, struct error *err)
{
    const restart_request *request = (const restart_request *)message;
    const struct replace_args *args = arg;
    const pb_replica *row =
        find_replica(txn_catalog(txn), request->replica_id, request->has_expected_generation,
                     request->expected_generation, err);
    pb_replica *replica = row ? MESSAGE_COPY(pb_replica, row) : NULL;
    if (!replica)
        return row ? error_no_memory(err) : err->status;
    pb_operation *operation =
        begin(txn, OPERATION_RESTART, request->request_id, replica, args, err);
    if (!operation) {
        message_free(&replica->base);
        return err->status;
    }
    replica->restart_epoch = replica->epoch;
    replica->generation++;
    int rc = txn_put(txn, TABLE_REPLICA, &replica->base, err);
    return lifecycle_answer(txn, rc, operation, args->grace_ms,
                            &((restart_response *)response)->operation, err);
}

static int check_id(const char *field, const char *id, struct error *err)
{
    if (!*id)
        return error_field(err, field, "is required");
    if (strlen(id) > MAX_ID_BYTES)
        return error_field(err, field, "%zu bytes; %d is the limit", strlen(id), MAX_ID_BYTES);
    return 0;
}

static int check_drain(struct service *service, struct rpc_call *call,
                       const ProtobufCMessage *message, void *arg, struct error *err)
{
    const drain_request *request = (const drain_request *)message;
    struct replace_args *args = arg;
    (void)call;
    args->limits = lifecycle_limits_of(service->fleet->context->settings);
    if (name_check_request_id(request->request_id, err) != 0 ||
        check_id("replica_id", request->replica_id, err) != 0)
        return err->status;
    return service_grace(service->fleet, request->has_grace_ms, request->grace_ms, &args->grace_ms,
                         err);
}

static int check_restart(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *message, void *arg, struct error *err)
{
    const restart_request *from = (const restart_request *)message;
    drain_request request = SLUICE__MANAGER__V1__DRAIN_REPLICA_REQUEST__INIT;
    request.request_id = from->request_id;
    request.replica_id = from->replica_id;
    request.has_grace_ms = from->has_grace_ms;
    request.grace_ms = from->grace_ms;
    return check_drain(service, call, &request.base, arg, err);
}

const struct service_change service_drain_replica = {
    .arg_bytes = sizeof(struct replace_args),
    .check = check_drain,
    .apply = apply_drain,
    .free_arg = free,
};

const struct service_change service_restart_replica = {
    .arg_bytes = sizeof(struct replace_args),
    .check = check_restart,
    .apply = apply_restart,
    .free_arg = free,
};

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

/* Undoes the changes that a load or a scale up began. */
static int roll_back(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err)
{
    if ((int)operation->kind == OPERATION_UPDATE) {
        if (update_begin_rollback(txn, operation, err) != 0)
            return err->status;
        failpoint("cancel.before_commit");
        pb_operation *update = MESSAGE_COPY(pb_operation, operation);
        return update ? lifecycle_put(txn, update, grace_ms, err) : error_no_memory(err);
    }
    if (lifecycle_undo(txn, operation, err) != 0 ||
        lifecycle_bump(txn, operation->model, operation->version, err) != 0)
        return err->status;
    failpoint("cancel.before_commit");
    pb_operation *copy = MESSAGE_COPY(pb_operation, operation);
    return copy ? lifecycle_put(txn, copy, grace_ms, err) : error_no_memory(err);
}

struct cancelling {
    uint32_t grace_ms;
    char stage[16]; /* stage when the call came; empty: unknown */
};

static int apply_cancel(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *message_out, struct error *err)
{
    cancel_response *response = (cancel_response *)message_out;
    const cancel_request *request = (const cancel_request *)message;
    const struct cancelling *cancelling = arg;
    const struct catalog *catalog = txn_catalog(txn);
    struct row *row = catalog_get(catalog, TABLE_OPERATION, request->id);
    const pb_operation *old = row ? (const pb_operation *)row_message(row) : NULL;
    if (!old) {
        error_set(err, STATUS_NOT_FOUND, "id: no operation \"%.40s\"", request->id);
        return error_reason(err, REASON_OPERATION_NOT_FOUND);
    }
    bool again = old->cancelling || (int)old->state == OPERATION_CANCELLED;
    if (!again && check_can_cancel(catalog, old, err) != 0)
        return err->status;
    if (!message_set_copy(&response->operation, old) ||
        (!again && !message_set(&response->operation->stage,
                                (int)old->kind == OPERATION_UPDATE ? "rollback" : "stop")))
        return error_no_memory(err);
    if (again)
        return 0;
    response->operation->cancelling = 1;
    response->operation->updated_unix_ns = txn_now_unix_ns(txn);
    audit_saw_stage(txn, cancelling->stage);
    return roll_back(txn, response->operation, cancelling->grace_ms, err);
}

static int check_cancel(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, void *arg, struct error *err)
{
    const cancel_request *request = (const cancel_request *)message;
    struct cancelling *cancelling = arg;
    (void)call;
    cancelling->grace_ms = (uint32_t)service->fleet->context->settings->drain_grace_ms;
    if (name_check_request_id(request->request_id, err) != 0 ||
        check_id("id", request->id, err) != 0)
        return err->status;
    pb_operation *now = operations_build(service->config.operations, request->id);
    if (now) {
        snprintf(cancelling->stage, sizeof(cancelling->stage), "%s", now->stage);
        message_free(&now->base);
    }
    return 0;
}

const struct service_change service_cancel_operation = {
    .arg_bytes = sizeof(struct cancelling),
    .check = check_cancel,
    .apply = apply_cancel,
    .free_arg = free,
};
