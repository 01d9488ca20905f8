/* supervise_memory.c: what replicas take, and which of them are idle. */
#include <string.h>

#include "manager/lifecycle.h"
#include "manager/slot.h"

static uint64_t taken_by(const struct slot *slot, struct share_set *set)
{
    uint64_t id, shared = slot_shared_bytes(slot, &id);
    uint64_t planned = slot_planned_bytes(slot);
    uint64_t held =
        slot->process_state == PROCESS_RUNNING ? process_resident_bytes(slot->process.pid) : 0;
    return share_set_add(set, planned > held ? planned : held, shared, id);
}

uint64_t supervisor_taken_bytes(struct supervisor *supervisor, const char *but_id)
{
    struct share_set set = {0};
    uint64_t n_bytes = 0;
    size_t cursor = 0;
    const struct slot *slot;
    while (supervisor && (slot = hash_map_next(&supervisor->slots, &cursor, NULL, NULL)))
        if (!but_id || strcmp(slot->id, but_id) != 0)
            n_bytes += taken_by(slot, &set);
    return n_bytes;
}

uint64_t supervisor_budget_left(struct supervisor *supervisor, const char *but_id)
{
    uint64_t budget = supervisor ? supervisor->manager->settings.memory_budget : 0;
    uint64_t taken = budget ? supervisor_taken_bytes(supervisor, but_id) : 0;
    if (!budget)
        return 0;
    return budget > taken ? budget - taken : 1;
}

static bool is_of(const pb_replica *row, const pb_deployment *deployment)
{
    return strcmp(row->model, deployment->model) == 0 &&
           strcmp(row->version, deployment->version) == 0 &&
           strcmp(row->device_group, deployment->device_group) == 0;
}

uint64_t supervisor_freed_by(struct supervisor *supervisor, const pb_deployment *deployment,
                             const char *device)
{
    const struct catalog *catalog = &supervisor->manager->catalog;
    bool gpu = strncmp(device, "cuda", 4) == 0;
    struct share_set set = {0};
    uint64_t n_bytes = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(supervisor, row->id);
        if (!slot || !is_of(row, deployment))
            continue;
        if (!gpu)
            n_bytes += taken_by(slot, &set);
        else if (slot_is_on(slot, device))
            n_bytes += slot_gpu_held_bytes(slot);
    }
    return n_bytes;
}

int64_t supervisor_idle_ns(struct supervisor *supervisor, const pb_deployment *deployment)
{
    const struct catalog *catalog = &supervisor->manager->catalog;
    int64_t now_ns = supervisor_now_ns(supervisor), last_ns = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(supervisor, row->id);
        if (!is_of(row, deployment) || (int)row->state == REPLICA_STOPPED)
            continue;
        bool parked = (int)row->state == REPLICA_PARKED;
        if (!slot || !slot->settled || slot->busy || slot->works ||
            ((int)row->state != REPLICA_READY && !parked))
            return -1;
        if (slot->active_ns > last_ns)
            last_ns = slot->active_ns;
    }
    return last_ns ? now_ns - last_ns : -1;
}

bool supervisor_makes_room(struct supervisor *supervisor, const char *replica_id)
{
    const struct catalog *catalog = &supervisor->manager->catalog;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *operation = catalog_operation_at(catalog, i);
        bool concerned = false;
        if (!operation->n_evicted_replica_ids || !lifecycle_is_open(operation))
            continue;
        for (size_t j = 0; j < operation->n_replica_ids; j++)
            concerned |= strcmp(operation->replica_ids[j], replica_id) == 0;
        for (size_t j = 0; concerned && j < operation->n_evicted_replica_ids; j++) {
            const struct slot *slot = slot_find(supervisor, operation->evicted_replica_ids[j]);
            if (slot && slot->process_state == PROCESS_RUNNING)
                return true;
        }
    }
    return false;
}
