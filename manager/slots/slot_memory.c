/* slot_memory.c: the memory of a replica's process, as its status reports it (slot.h). */
#include <string.h>

#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

bool slot_status_has_size(const pb_status *status)
{
    return status->n_memory > 0 && status->memory[0]->expected_bytes > 0;
}

bool slot_is_on_gpus(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_group *group = row ? catalog_group(catalog, row->device_group) : NULL;
    return group && group->n_devices && device_name_is_gpu(group->devices[0]);
}

/* True where Wake was sent and the last status is still that of the parked worker. */
static bool is_waking(const struct slot *slot)
{
    return slot->wake_sent && (!slot->status || (int)slot->status->state == WORKER_PARKED ||
                               !slot_status_has_size(slot->status));
}

uint64_t slot_planned_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (slot->process_state != PROCESS_RUNNING || !slot->status)
        return 0;
    for (size_t i = 0; i < slot->status->n_memory; i++)
        if (!device_name_is_gpu(slot->status->memory[i]->device))
            n_bytes += slot->status->memory[i]->expected_bytes;
    return is_waking(slot) && slot->woken_bytes > n_bytes ? slot->woken_bytes : n_bytes;
}

bool slot_waits_to_wake(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    return slot->is_parked_worker && slot->process_state == PROCESS_RUNNING && deployment &&
           !deployment->parked && !row->retiring;
}

bool slot_comes_back(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    return slot->process_state == PROCESS_NONE && deployment && !deployment->parked &&
           !row->retiring &&
           ((int)row->state == REPLICA_PENDING || (int)row->state == REPLICA_LOADING);
}

/* True where the worker has GPU memory. Its packed memory is then a park copy, beside its plan
 * (weights_park_copy_at). */
static bool has_gpu_memory(const struct slot *slot)
{
    for (size_t i = 0; i < slot->status->n_memory; i++)
        if (device_name_is_gpu(slot->status->memory[i]->device))
            return true;
    return false;
}

uint64_t slot_copy_bytes(const struct slot *slot, uint64_t *out_copied)
{
    uint64_t n_bytes = 0;
    *out_copied = 0;
    if (!slot->copy_sent || slot->process_state != PROCESS_RUNNING || !slot->status)
        return 0;
    for (size_t i = 0; i < slot->status->n_memory; i++)
        if (device_name_is_gpu(slot->status->memory[i]->device))
            n_bytes += slot->status->memory[i]->weight_bytes;
    uint64_t resident = process_resident_bytes(slot->process.pid);
    uint64_t grown = resident > slot->copy_base_bytes ? resident - slot->copy_base_bytes : 0;
    *out_copied = grown < n_bytes ? grown : n_bytes;
    return n_bytes;
}

uint64_t slot_parked_cpu_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (!slot->is_parked_worker || slot->process_state != PROCESS_RUNNING || !slot->status)
        return 0;
    for (size_t i = 0; i + 1 < slot->status->n_packed; i++) /* the last one is the park copy */
        n_bytes += slot->status->packed[i]->bytes;
    return n_bytes;
}

uint64_t slot_gpu_held_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (slot->process_state != PROCESS_RUNNING || !slot->status)
        return 0;
    for (size_t i = 0; i < slot->status->n_memory; i++)
        if (device_name_is_gpu(slot->status->memory[i]->device))
            n_bytes += slot->status->memory[i]->after_bytes;
    return n_bytes;
}

uint64_t slot_gpu_held_on(const struct slot *slot, const char *device)
{
    for (size_t i = 0;
         slot->process_state == PROCESS_RUNNING && slot->status && i < slot->status->n_memory; i++)
        if (device_name_is_gpu(device) && strcmp(slot->status->memory[i]->device, device) == 0)
            return slot->status->memory[i]->after_bytes;
    return 0;
}

bool slot_is_sized(const struct slot *slot)
{
    if (slot->process_state != PROCESS_RUNNING || !slot->status)
        return false;
    return is_waking(slot) ? slot->woken_bytes > 0 : slot_status_has_size(slot->status);
}

void slot_note_shared(struct slot *slot)
{
    uint64_t id, n_bytes = slot_shared_bytes(slot, &id);
    bool serves = slot->status && (int)slot->status->state == WORKER_READY;
    if (!id && !serves) /* its weights are on a GPU, or not shared */
        return;
    slot->shared_bytes = n_bytes;
    slot->shared_id = id;
}

uint64_t slot_shared_bytes(const struct slot *slot, uint64_t *out_id)
{
    uint64_t n_bytes = 0;
    *out_id = 0;
    if (slot->process_state != PROCESS_RUNNING || !slot->status || has_gpu_memory(slot))
        return 0;
    for (size_t i = 0; i < slot->status->n_packed; i++) {
        const Sluice__Worker__V1__PackedMemory *packed = slot->status->packed[i];
        if (!packed->sealed) {
            *out_id = 0;
            return 0;
        }
        if (i == 0)
            *out_id = packed->inode;
        n_bytes += packed->bytes;
    }
    return n_bytes;
}
