/* slot_memory.c: the memory of a replica's process, as its status reports it (slot.h). */
#include <stdio.h>
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
    const pb_group *group = slot_group(slot);
    return group && group->n_devices && device_name_is_gpu(group->devices[0]);
}

uint64_t slot_planned_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (!slot_runs(slot) || !slot->run.status)
        return 0;
    for (size_t i = 0; i < slot->run.status->n_memory; i++)
        if (!device_name_is_gpu(slot->run.status->memory[i]->device))
            n_bytes += slot->run.status->memory[i]->expected_bytes;
    return slot->phase == SLOT_WAKING && slot->run.woken_bytes > n_bytes ? slot->run.woken_bytes
                                                                         : n_bytes;
}

bool slot_waits_to_wake(const struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    const pb_deployment *deployment = slot_deployment(slot);
    return slot_is_parked_worker(slot) && slot_runs(slot) && deployment && !deployment->parked &&
           !row->retiring;
}

bool slot_comes_back(const struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    const pb_deployment *deployment = slot_deployment(slot);
    return slot->phase == SLOT_EMPTY && deployment && !deployment->parked && !row->retiring &&
           ((int)row->state == REPLICA_PENDING || (int)row->state == REPLICA_LOADING);
}

/* True where the worker has GPU memory. Its packed memory is then a park copy, beside its plan
 * (weights_park_copy_at). */
static bool has_gpu_memory(const struct slot *slot)
{
    for (size_t i = 0; i < slot->run.status->n_memory; i++)
        if (device_name_is_gpu(slot->run.status->memory[i]->device))
            return true;
    return false;
}

uint64_t slot_copy_bytes(const struct slot *slot, uint64_t *out_copied)
{
    uint64_t n_bytes = 0;
    *out_copied = 0;
    if (!slot->run.copy.asked || !slot_runs(slot) || !slot->run.status)
        return 0;
    for (size_t i = 0; i < slot->run.status->n_memory; i++)
        if (device_name_is_gpu(slot->run.status->memory[i]->device))
            n_bytes += slot->run.status->memory[i]->weight_bytes;
    uint64_t resident = process_resident_bytes(slot->run.process.pid);
    uint64_t grown =
        resident > slot->run.copy.base_bytes ? resident - slot->run.copy.base_bytes : 0;
    *out_copied = grown < n_bytes ? grown : n_bytes;
    return n_bytes;
}

uint64_t slot_parked_cpu_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (!slot_is_parked_worker(slot) || !slot_runs(slot) || !slot->run.status)
        return 0;
    for (size_t i = 0; i + 1 < slot->run.status->n_packed; i++) /* the last one is the park copy */
        n_bytes += slot->run.status->packed[i]->bytes;
    return n_bytes;
}

uint64_t slot_gpu_held_bytes(const struct slot *slot)
{
    struct slot_gpus gpus;
    slot_read_gpus(slot, true, &gpus);
    return slot_runs(slot) ? slot_gpus_bytes(&gpus, NULL) : 0;
}

void slot_read_gpus(const struct slot *slot, bool held, struct slot_gpus *out_gpus)
{
    *out_gpus = (struct slot_gpus){.n = 0};
    for (size_t i = 0; slot->run.status && i < slot->run.status->n_memory; i++) {
        const pb_memory *memory = slot->run.status->memory[i];
        uint64_t n_bytes = held ? memory->after_bytes : memory->expected_bytes;
        if (!n_bytes || !device_name_is_gpu(memory->device) || out_gpus->n == SLOT_MAX_GPUS)
            continue;
        snprintf(out_gpus->gpus[out_gpus->n].name, DEVICE_NAME_BYTES, "%s", memory->device);
        out_gpus->gpus[out_gpus->n++].n_bytes = n_bytes;
    }
}

uint64_t slot_gpus_bytes(const struct slot_gpus *gpus, const char *device)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < gpus->n; i++)
        if (!device || strcmp(gpus->gpus[i].name, device) == 0)
            n_bytes += gpus->gpus[i].n_bytes;
    return n_bytes;
}

bool slot_is_sized(const struct slot *slot)
{
    if (!slot_runs(slot) || !slot->run.status)
        return false;
    return slot->phase == SLOT_WAKING ? slot->run.woken_bytes > 0
                                      : slot_status_has_size(slot->run.status);
}

void slot_note_shared(struct slot *slot)
{
    uint64_t id, n_bytes = slot_shared_bytes(slot, &id);
    bool serves = slot->run.status && (int)slot->run.status->state == WORKER_READY;
    if (!id && !serves) /* its weights are on a GPU, or not shared */
        return;
    slot->served.shared_bytes = n_bytes;
    slot->served.shared_id = id;
}

uint64_t slot_shared_bytes(const struct slot *slot, uint64_t *out_id)
{
    uint64_t n_bytes = 0;
    *out_id = 0;
    if (!slot_runs(slot) || !slot->run.status || has_gpu_memory(slot))
        return 0;
    for (size_t i = 0; i < slot->run.status->n_packed; i++) {
        const Sluice__Worker__V1__PackedMemory *packed = slot->run.status->packed[i];
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
