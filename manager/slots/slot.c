#include "manager/slots/slot.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

struct slot *slot_find(const struct fleet *fleet, const char *id)
{
    return hash_map_get_str(&fleet->slots, id);
}

/* Restores the memory sizes that an earlier manager recorded. */
static void restore_served(struct slot *slot)
{
    const pb_replica *row = catalog_replica(slot->fleet->context->catalog, slot->id);
    if (!row || !row->served)
        return;
    slot->served_bytes = row->served->host_bytes;
    slot->served_before = true;
    slot->gpu_bytes = row->served->gpu_bytes;
    snprintf(slot->gpu, sizeof(slot->gpu), "%s", row->served->gpu);
}

struct slot *slot_ensure(struct fleet *fleet, const char *id)
{
    struct slot *slot = slot_find(fleet, id);
    if (slot)
        return slot;
    if (strlen(id) >= SLOT_ID_BYTES || !(slot = calloc(1, sizeof(*slot))))
        return NULL;
    slot->fleet = fleet;
    slot->process.pidfd = -1;
    memcpy(slot->id, id, strlen(id) + 1);
    if (!hash_map_put_str(&fleet->slots, id, slot)) {
        free(slot);
        return NULL;
    }
    restore_served(slot);
    return slot;
}

void slot_set_status(struct slot *slot, pb_status *status)
{
    if (slot->status)
        message_free(&slot->status->base);
    slot->status = status;
}

bool slot_is_to_park(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    return deployment && deployment->parked;
}

void slot_forget(struct slot *slot)
{
    if (slot->process.pidfd >= 0)
        ev_io_stop(slot->fleet->context->loop, &slot->exit_watch);
    process_fini(&slot->process);
    worker_link_close(slot->link);
    slot->link = NULL;
    slot_set_status(slot, NULL);
    slot->process_state = PROCESS_NONE;
    slot->fenced = slot->refused = slot->permanent = slot->held_back = slot->asked_to_end = false;
    slot->drain_sent = slot->kill_sent = slot->is_parked_worker = false;
    slot->wake_sent = slot->wake_failed = slot->copy_sent = false;
    slot->copy_at_ns = 0;
    slot->n_copies = slot->n_copy_waits = slot->n_copy_failures = 0;
    slot->woken_bytes = 0;
    slot->adopted = false;
    slot->ready_ns = slot->started_ns = slot->drain_deadline_ns = slot->sizing_until_ns = 0;
    slot->packed_reported = slot->sealed_reported = false;
    slot->failed_ns = slot->leaving_ns = slot->heard_ns = slot->moved_ns = slot->fault_ns = 0;
    slot->progress = slot->n_accepted = 0;
    slot->has_requests = false;
    slot->active_ns = 0;
    slot->cpus = (struct cpus){{0}};
    free(slot->devices);
    slot->devices = NULL;
}

const char *slot_stage(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_status *status = slot->status;
    int reported = status ? (int)status->state : WORKER_UNKNOWN;
    int recorded = row ? (int)row->state : REPLICA_PENDING;
    if (reported == WORKER_READY || reported == WORKER_DRAINING || recorded == REPLICA_READY ||
        recorded == REPLICA_DRAINING)
        return "serve";
    if (reported == WORKER_WARMING || recorded == REPLICA_WARMING)
        return "warm";
    return status && status->n_ranks && status->ranks[0]->bytes_total ? "pack" : "start";
}

int64_t slot_progress_ns(const struct slot *slot)
{
    bool works = slot->status && ((int)slot->status->state == WORKER_READY ||
                                  (int)slot->status->state == WORKER_DRAINING);
    if (slot->process_state != PROCESS_RUNNING || !slot->heard_ns)
        return 0;
    return works && slot->moved_ns < slot->heard_ns ? slot->moved_ns : slot->heard_ns;
}

bool slot_has_ghost(struct slot *slot)
{
    for (size_t i = 0; i < slot->n_ghosts;) {
        struct process_end end;
        if (!process_ended(&slot->ghosts[i], &end)) {
            i++;
            continue;
        }
        process_fini(&slot->ghosts[i]);
        slot->ghosts[i] = slot->ghosts[--slot->n_ghosts];
    }
    return slot->n_ghosts > 0;
}

void slot_note_drain(struct slot *slot)
{
    slot->drained_bytes = process_resident_bytes(slot->process.pid);
    slot->drained_shared_bytes = slot_shared_bytes(slot, &slot->drained_shared_id);
    slot->drained_gpu_bytes = slot_gpu_held_bytes(slot);
    slot->drained_pid = slot->process.pid;
    slot->drained_ticks = slot->process.start_ticks;
    slot->n_drained_inodes = 0;
    for (size_t i = 0; slot->status && i < slot->status->n_packed; i++)
        if (slot->n_drained_inodes < WEIGHTS_MAX_RANKS)
            slot->drained_inodes[slot->n_drained_inodes++] = slot->status->packed[i]->inode;
}

void slot_forget_drain(struct slot *slot)
{
    slot->drained_bytes = slot->drained_shared_bytes = slot->drained_shared_id = 0;
    slot->drained_gpu_bytes = 0;
    slot->drained_pid = 0;
    slot->n_drained_inodes = 0;
    slot->n_finished = slot->n_ended = 0;
    slot->restarting = false;
}

uint64_t slot_lingering_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (slot->process_state == PROCESS_RUNNING)
        return 0;
    if (slot->drained_pid && process_start_ticks(slot->drained_pid) == slot->drained_ticks)
        n_bytes += process_resident_bytes(slot->drained_pid);
    for (size_t i = 0; i < slot->n_ghosts; i++)
        if (process_start_ticks(slot->ghosts[i].pid) == slot->ghosts[i].start_ticks)
            n_bytes += process_resident_bytes(slot->ghosts[i].pid);
    return n_bytes;
}

void slot_add_ghost(struct slot *slot, struct process *process)
{
    process_signal(process, SIGKILL);
    if (slot && slot->n_ghosts < SLOT_MAX_GHOSTS)
        slot->ghosts[slot->n_ghosts++] = *process;
    else
        process_fini(process);
    *process = (struct process){.pidfd = -1};
}

void slot_destroy(struct slot *slot)
{
    if (!slot)
        return;
    slot_forget(slot);
    for (size_t i = 0; i < slot->n_ghosts; i++)
        process_fini(&slot->ghosts[i]);
    free(slot);
}
