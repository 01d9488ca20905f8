#include "manager/replicas/replica_view.h"

#include <string.h>

#include "manager/base/context.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/supervisor_private.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

bool replica_view_take(const struct fleet *fleet, const char *replica_id,
                       struct replica_view *out_view)
{
    struct slot *slot = slot_find(fleet, replica_id);
    if (!slot)
        return false;
    *out_view = (struct replica_view){
        .status = slot_runs(slot) ? slot->run.status : NULL,
        .status_ns = slot->run.health.heard_ns,
        .resident_bytes = slot_runs(slot) ? process_resident_bytes(slot->run.process.pid) : 0,
        .drained_bytes = slot->drained.bytes,
        .drained_shared_bytes = slot->drained.shared_bytes,
        .drained_shared_id = slot->drained.shared_id,
        .gpu = slot->served.gpus.n ? slot->served.gpus.gpus[0].name : "",
        .gpu_bytes = slot_gpu_held_bytes(slot),
        .drained_gpu_bytes = slot->drained.gpu_bytes,
        .lingering_bytes = slot_lingering_bytes(slot),
        .drained_pid = slot->drained.pid,
        .ended_unix_ns = slot->ended_unix_ns,
        .sleeps = park_copy_sleeps(slot),
        .drained_inodes = slot->drained.inodes,
        .n_drained_inodes = slot->drained.n_inodes,
        .n_finished = slot->drained.n_finished,
        .n_ended = slot->drained.n_ended,
        .last_error = slot->last_error.status ? &slot->last_error : NULL,
    };
    out_view->shared_bytes = slot_shared_bytes(slot, &out_view->shared_id);
    return true;
}

int64_t replica_idle_ns(struct fleet *fleet, const pb_deployment *deployment)
{
    const struct catalog *catalog = fleet->context->catalog;
    int64_t now_ns = fleet_now_ns(fleet), last_ns = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (!pb_replica_is_of(row, deployment) || (int)row->state == REPLICA_STOPPED)
            continue;
        bool parked = (int)row->state == REPLICA_PARKED;
        if (!slot || !slot->settled || slot->busy || slot->run.activity.has_requests ||
            ((int)row->state != REPLICA_READY && !parked))
            return -1;
        if (slot->run.activity.active_ns > last_ns)
            last_ns = slot->run.activity.active_ns;
    }
    return last_ns ? now_ns - last_ns : -1;
}

bool replica_makes_room(const struct fleet *fleet, const char *replica_id)
{
    const struct catalog *catalog = fleet->context->catalog;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *operation = catalog_operation_at(catalog, i);
        bool concerned = false;
        if (!operation->n_evicted_replica_ids || !pb_operation_is_open(operation))
            continue;
        for (size_t j = 0; j < operation->n_replica_ids; j++)
            concerned |= strcmp(operation->replica_ids[j], replica_id) == 0;
        for (size_t j = 0; concerned && j < operation->n_evicted_replica_ids; j++) {
            const struct slot *slot = slot_find(fleet, operation->evicted_replica_ids[j]);
            if (slot && slot_runs(slot))
                return true;
        }
    }
    return false;
}

void replica_forget_drain(const struct fleet *fleet, const char *replica_id)
{
    struct slot *slot = slot_find(fleet, replica_id);
    if (slot)
        slot_forget_drain(slot);
}

bool replica_may_wait_for_gpu(const struct fleet *fleet)
{
    if (!fleet->supervisor || fleet->supervisor->stopping)
        return false;
    const struct catalog *catalog = fleet->context->catalog;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if ((int)row->state == REPLICA_PENDING && slot && slot_is_on_gpus(slot) &&
            slot_is_to_park(slot))
            return true;
    }
    return false;
}
