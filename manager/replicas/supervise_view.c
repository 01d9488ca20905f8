/* supervise_view.c: what others see of the supervisor's slots (supervisor.h). */
#include <string.h>

#include "manager/replicas/slot.h"
#include "manager/replicas/supervisor.h"

bool supervisor_view(struct supervisor *supervisor, const char *replica_id,
                     struct replica_view *out_view)
{
    struct slot *slot = slot_find(supervisor, replica_id);
    if (!slot)
        return false;
    *out_view = (struct replica_view){
        .status = slot->process_state == PROCESS_RUNNING ? slot->status : NULL,
        .status_ns = slot->heard_ns,
        .resident_bytes =
            slot->process_state == PROCESS_RUNNING ? process_resident_bytes(slot->process.pid) : 0,
        .drained_bytes = slot->drained_bytes,
        .drained_shared_bytes = slot->drained_shared_bytes,
        .drained_shared_id = slot->drained_shared_id,
        .gpu = slot->gpu,
        .gpu_bytes = slot_gpu_held_bytes(slot),
        .drained_gpu_bytes = slot->drained_gpu_bytes,
        .lingering_bytes = slot_lingering_bytes(slot),
        .drained_pid = slot->drained_pid,
        .ended_unix_ns = slot->ended_unix_ns,
        .sleeps = slot_sleeps(slot),
        .drained_inodes = slot->drained_inodes,
        .n_drained_inodes = slot->n_drained_inodes,
        .n_finished = slot->n_finished,
        .n_ended = slot->n_ended,
        .last_error = slot->last_error.status ? &slot->last_error : NULL,
    };
    out_view->shared_bytes = slot_shared_bytes(slot, &out_view->shared_id);
    return true;
}

void supervisor_cpu_users(struct supervisor *supervisor, const char *but_id, uint16_t *n_users)
{
    size_t cursor = 0;
    const struct slot *slot;
    while (supervisor && (slot = hash_map_next(&supervisor->slots, &cursor, NULL, NULL)) != NULL) {
        if (slot->process_state == PROCESS_NONE || strcmp(slot->id, but_id) == 0)
            continue;
        for (uint32_t cpu = cpus_next(&slot->cpus, 0); cpu < CPUS_MAX;
             cpu = cpus_next(&slot->cpus, cpu + 1))
            n_users[cpu]++;
    }
}
