#include "manager/slots/slot.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

struct slot *slot_find(const struct fleet *fleet, const char *id)
{
    return hash_map_get_str(&fleet->slots, id);
}

const pb_replica *slot_row(const struct slot *slot)
{
    return catalog_replica(slot->fleet->context->catalog, slot->id);
}

const pb_deployment *slot_deployment(const struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    return row ? catalog_deployment(slot->fleet->context->catalog, row->model, row->version,
                                    row->device_group)
               : NULL;
}

const pb_group *slot_group(const struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    return row ? catalog_group(slot->fleet->context->catalog, row->device_group) : NULL;
}

/* Restores the memory sizes that an earlier manager recorded. */
static void restore_served(struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    if (!row || !row->served)
        return;
    slot->served.host_bytes = row->served->host_bytes;
    slot->served.by_earlier = true;
    slot->served.gpus.n = *row->served->gpu != '\0';
    slot->served.gpus.gpus[0].n_bytes = row->served->gpu_bytes;
    snprintf(slot->served.gpus.gpus[0].name, DEVICE_NAME_BYTES, "%s", row->served->gpu);
}

struct slot *slot_ensure(struct fleet *fleet, const char *id)
{
    struct slot *slot = slot_find(fleet, id);
    if (slot)
        return slot;
    if (strlen(id) >= SLOT_ID_BYTES || !(slot = calloc(1, sizeof(*slot))))
        return NULL;
    slot->fleet = fleet;
    slot->run.process.pidfd = -1;
    memcpy(slot->id, id, strlen(id) + 1);
    if (!hash_map_put_str(&fleet->slots, id, slot)) {
        free(slot);
        return NULL;
    }
    restore_served(slot);
    return slot;
}

void slot_move(struct slot *slot, enum slot_phase to)
{
    if (slot_phase_may_follow(slot->phase, to)) {
        slot->phase = to;
        return;
    }
    log_error(LOG_EVENT("wrong phase of a replica's process"), LOG_STR("replica", slot->id),
              LOG_STR("from", slot_phase_name(slot->phase)), LOG_STR("to", slot_phase_name(to)));
    assert(!"a phase that may not follow");
}

bool slot_runs(const struct slot *slot)
{
    return slot_phase_runs(slot->phase);
}

bool slot_is_parked_worker(const struct slot *slot)
{
    return slot_phase_is_parked(slot->phase);
}

void slot_set_status(struct slot *slot, pb_status *status)
{
    if (slot->run.status)
        message_free(&slot->run.status->base);
    slot->run.status = status;
}

bool slot_is_to_park(const struct slot *slot)
{
    const pb_deployment *deployment = slot_deployment(slot);
    return deployment && deployment->parked;
}

void slot_forget(struct slot *slot)
{
    if (slot->run.process.pidfd >= 0)
        ev_io_stop(slot->fleet->context->loop, &slot->exit_watch);
    process_fini(&slot->run.process);
    worker_link_close(slot->run.link);
    slot_set_status(slot, NULL);
    free(slot->run.devices);
    slot->run = (struct slot_run){.process = {.pidfd = -1}};
    slot->phase = SLOT_EMPTY;
}

const char *slot_stage(const struct slot *slot)
{
    const pb_replica *row = slot_row(slot);
    const pb_status *status = slot->run.status;
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
    bool works = slot->run.status && ((int)slot->run.status->state == WORKER_READY ||
                                      (int)slot->run.status->state == WORKER_DRAINING);
    if (!slot_runs(slot) || !slot->run.health.heard_ns)
        return 0;
    return works && slot->run.health.moved_ns < slot->run.health.heard_ns
               ? slot->run.health.moved_ns
               : slot->run.health.heard_ns;
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
    struct slot_drained *drained = &slot->drained;
    drained->bytes = process_resident_bytes(slot->run.process.pid);
    drained->shared_bytes = slot_shared_bytes(slot, &drained->shared_id);
    drained->gpu_bytes = slot_gpu_held_bytes(slot);
    drained->pid = slot->run.process.pid;
    drained->start_ticks = slot->run.process.start_ticks;
    drained->n_inodes = 0;
    for (size_t i = 0; slot->run.status && i < slot->run.status->n_packed; i++)
        if (drained->n_inodes < WEIGHTS_MAX_RANKS)
            drained->inodes[drained->n_inodes++] = slot->run.status->packed[i]->inode;
}

void slot_forget_drain(struct slot *slot)
{
    slot->drained = (struct slot_drained){.pid = 0};
}

uint64_t slot_lingering_bytes(const struct slot *slot)
{
    uint64_t n_bytes = 0;
    if (slot_runs(slot))
        return 0;
    if (slot->drained.pid && process_start_ticks(slot->drained.pid) == slot->drained.start_ticks)
        n_bytes += process_resident_bytes(slot->drained.pid);
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
