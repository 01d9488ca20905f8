#include "manager/watch/operation_view.h"

#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/devices/device_hold.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/reconcile.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/update.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

/* Stages in their order; an operation is as far as its slowest replica. */
enum stage {
    STAGE_PLACE,
    STAGE_START,
    STAGE_PACK,
    STAGE_WARM,
    STAGE_DRAIN,
    STAGE_STOP,
    STAGE_DONE
};
static const char *const stage_names[] = {
    [STAGE_PLACE] = "place", [STAGE_START] = "start", [STAGE_PACK] = "pack", [STAGE_WARM] = "warm",
    [STAGE_DRAIN] = "drain", [STAGE_STOP] = "stop",   [STAGE_DONE] = "done",
};

/* True where the replica or its process is to end. */
static bool is_leaving(int kind, const pb_replica *replica)
{
    return kind == OPERATION_UNLOAD || replica->retiring ||
           (replica->restart_epoch && replica->restart_epoch == replica->epoch);
}

static enum stage replica_stage(int kind, const pb_replica *replica, const pb_status *status)
{
    if (!replica)
        return STAGE_DONE;
    if (is_leaving(kind, replica))
        return (int)replica->state == REPLICA_STOPPED           ? STAGE_DONE
               : status && (int)status->state != WORKER_STOPPED ? STAGE_DRAIN
                                                                : STAGE_STOP;
    switch ((int)replica->state) {
    case REPLICA_READY:
        return kind == OPERATION_PARK ? STAGE_DRAIN : STAGE_DONE;
    case REPLICA_DRAINING: /* or a parked worker ends to make room */
        return kind == OPERATION_PARK   ? STAGE_DRAIN
               : kind == OPERATION_WAKE ? STAGE_PLACE
                                        : STAGE_DONE;
    case REPLICA_PARKED:
        return kind == OPERATION_WAKE ? STAGE_PLACE : STAGE_DONE;
    case REPLICA_PENDING:
        return kind == OPERATION_PARK ? STAGE_STOP : STAGE_PLACE;
    case REPLICA_LOADING:
        /* the parked worker replaces the serving process */
        return kind == OPERATION_PARK                                       ? STAGE_STOP
               : status && status->n_ranks && status->ranks[0]->bytes_total ? STAGE_PACK
                                                                            : STAGE_START;
    case REPLICA_WARMING:
        return kind == OPERATION_PARK ? STAGE_STOP : STAGE_WARM;
    default:
        return STAGE_DONE;
    }
}

static void add_ranks(struct arena *arena, pb_operation *operation, const char *replica_id,
                      const pb_status *status)
{
    for (size_t i = 0; i < status->n_ranks; i++) {
        pb_operation_rank *rank = message_add_in(arena, &operation->n_ranks, &operation->ranks,
                                                 &sluice__manager__v1__operation_rank__descriptor);
        if (!rank)
            return;
        rank->replica_id = message_text_in(arena, replica_id);
        rank->progress = message_copy_in(arena, status->ranks[i]);
        operation->bytes_done += status->ranks[i]->bytes_done;
        operation->bytes_total += status->ranks[i]->bytes_total;
    }
    if (status->eta_ms > operation->eta_ms)
        operation->eta_ms = status->eta_ms;
}

/* The first failed replica of the operation (in the catalog), or NULL. */
static const pb_replica *first_failed(const struct fleet *fleet, const pb_operation *operation)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica =
            catalog_replica(fleet->context->catalog, operation->replica_ids[i]);
        if (replica && (int)replica->state == REPLICA_FAILED)
            return replica;
    }
    return NULL;
}

/* The stage at which the replica failed; rows of earlier programs have none. */
static const char *failed_stage(const pb_replica *replica)
{
    return *replica->failed_stage ? replica->failed_stage : stage_names[STAGE_START];
}

void operation_view_overlay(struct fleet *fleet, struct updates *updates, struct arena *arena,
                            pb_operation *operation)
{
    enum stage stage = STAGE_DONE, leaving = STAGE_DONE;
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const char *id = operation->replica_ids[i];
        const pb_replica *replica = catalog_replica(fleet->context->catalog, id);
        struct replica_view view = {0};
        replica_view_take(fleet, id, &view);
        enum stage of_replica = replica_stage(operation->kind, replica, view.status);
        bool leaves = replica && is_leaving(operation->kind, replica);
        bool loads = !leaves && (int)operation->kind != OPERATION_PARK;
        if (loads && view.status)
            add_ranks(arena, operation, id, view.status);
        enum stage *of_kind = leaves ? &leaving : &stage;
        *of_kind = of_replica < *of_kind ? of_replica : *of_kind;
    }
    /* Replicas that start wait for those that end. A failed replica stays at its failed stage. */
    const char *name = stage_names[leaving != STAGE_DONE ? leaving : stage];
    const pb_replica *failed = first_failed(fleet, operation);
    if (leaving == STAGE_DONE && stage == STAGE_DONE && failed)
        name = failed_stage(failed);
    operation->stage = message_text_in(arena, name);
    if (operation->update)
        updates_overlay(updates, arena, operation);
}

const char *operation_view_final_stage(const struct fleet *fleet, const pb_operation *operation,
                                       enum operation_state state)
{
    const pb_replica *replica = first_failed(fleet, operation);
    if (state == OPERATION_FAILED && operation->update)
        return operation->update->failed_stage;
    return state == OPERATION_DONE                  ? stage_names[STAGE_DONE]
           : state == OPERATION_CANCELLED           ? stage_names[STAGE_STOP]
           : replica                                ? failed_stage(replica)
           : (int)operation->kind == OPERATION_PARK ? stage_names[STAGE_DRAIN]
                                                    : stage_names[STAGE_START];
}

/* State after a failure of the new process, and what to do. */
static const char *advice_after(const pb_operation *operation)
{
    switch ((int)operation->kind) {
    case OPERATION_PARK:
        return "; the serving process has ended without kept weights: unload the version and load "
               "it "
               "anew";
    case OPERATION_RESTART:
        return "; the earlier process has ended: restart the replica again once the cause is gone";
    case OPERATION_DRAIN:
        return "; the drained replica has ended: restart the failed one once the cause is gone";
    default:
        return "";
    }
}

pb_error *operation_view_error(const struct fleet *fleet, struct arena *arena,
                               const pb_operation *operation, enum reason reason)
{
    struct error err;
    if (operation->update && operation->update->error)
        return message_copy_in(arena, operation->update->error);
    const pb_replica *replica = operation->cancelling ? NULL : first_failed(fleet, operation);
    if (replica && replica->last_error && reason_is(replica->reason, REASON_LOAD_FAILED))
        return message_copy_in(arena, replica->last_error);
    if (replica) {
        error_set(&err, STATUS_UNAVAILABLE, "replica %s failed (%s)%s%s%s", replica->id,
                  replica->reason, replica->last_error ? ": " : "",
                  replica->last_error ? replica->last_error->message : "", advice_after(operation));
        error_reason_parse(&err, replica->reason);
        return message_from_error_in(arena, &err);
    }
    if (reason == REASON_WEIGHTS_NOT_KEPT && park_copy_why_not(fleet, operation, &err))
        return message_from_error_in(arena, &err);
    if (reason == REASON_NOTHING_KEPT) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                  "%s/%s stays parked without kept weights: its process ended before a park copy "
                  "was made. The GPUs of %s have no room to load the weights again; a wake "
                  "reads the file",
                  operation->model, operation->version, operation->device_group);
        error_reason(&err, reason);
        return message_from_error_in(arena, &err);
    }
    const pb_group *group = catalog_group(fleet->context->catalog, operation->device_group);
    if (reason && !operation->cancelling && group &&
        device_hold_check(fleet->context->catalog, group, UINT32_MAX, &err) != 0)
        return message_from_error_in(arena, &err); /* the replicas wait for held devices */
    error_set(&err, STATUS_CANCELLED, "%s",
              operation->cancelling ? "cancelled by a command; its changes were undone"
                                    : "the version was unloaded before it was ready");
    error_reason(&err, reason ? reason : REASON_CANCELLED);
    return message_from_error_in(arena, &err);
}
