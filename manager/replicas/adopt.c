#include "manager/replicas/adopt.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/host/run_folder.h"
#include "manager/replicas/record.h"
#include "manager/replicas/slot_process.h"
#include "manager/replicas/supervisor_private.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

/* True where the process is the one that the replica's row names. A row without a pid was
 * written before the spawn. Then the epoch decides, since no other process got that epoch. */
static bool is_recorded(const pb_replica *row, const struct process_found *found)
{
    if (!row || row->epoch != found->epoch)
        return false;
    switch ((int)row->state) {
    case REPLICA_LOADING:
    case REPLICA_WARMING:
    case REPLICA_READY:
    case REPLICA_PARKED:
    case REPLICA_DRAINING:
        break;
    default:
        return false;
    }
    return row->pid == 0 ||
           ((pid_t)row->pid == found->pid && row->start_ticks == found->start_ticks);
}

static void on_found(void *arg, const struct process_found *found)
{
    struct supervisor *supervisor = arg;
    struct fleet *fleet = supervisor->fleet;
    const pb_replica *row = catalog_replica(fleet->context->catalog, found->replica_id);
    struct process process;
    struct error err;
    if (process_open(found->pid, found->start_ticks, &process, &err) != 0)
        return;
    if (seeded_bug("I6_starts_a_second_worker")) {
        process_fini(&process);
        return;
    }
    enum slot_phase phase = row && (int)row->state == REPLICA_PARKED ? SLOT_PARKED : SLOT_SERVING;
    struct slot *slot = is_recorded(row, found) ? slot_ensure(supervisor->fleet, row->id) : NULL;
    if (!slot || slot_runs(slot) || slot_attach(slot, &process, phase, &err) != 0) {
        log_warn(LOG_EVENT("killing a stray worker"), LOG_STR("replica", found->replica_id),
                 LOG_I64("pid", found->pid), LOG_U64("epoch", found->epoch));
        slot_add_ghost(row ? slot_ensure(supervisor->fleet, row->id) : NULL, &process);
        return;
    }
    slot->run.adopted = true;
    if ((int)row->state == REPLICA_READY || phase == SLOT_PARKED)
        slot->run.ready_ns = fleet_now_ns(supervisor->fleet);
    supervisor->fleet->n_adopted++;
    log_info(LOG_EVENT("worker adopted"), LOG_STR("replica", slot->id), LOG_I64("pid", found->pid),
             LOG_U64("epoch", found->epoch));
    if (record_submit(slot, &(struct record){.kind = RECORD_ADOPT}, &err) != 0)
        log_warn(LOG_EVENT("adoption not recorded"), LOG_STR("why", err.message));
}

/* Rows hold wall time for people. After a restart of the manager the wait counts from now, at
 * most 60 s. */
static int64_t remaining_ns(const pb_replica *row)
{
    int64_t left = row->next_start_unix_ns - clock_wall_ns();
    return left <= 0 ? 0 : left < 60 * NS_PER_S ? left : 60 * NS_PER_S;
}

static void restore_slot(struct supervisor *supervisor, const pb_replica *row)
{
    struct slot *slot = slot_ensure(supervisor->fleet, row->id);
    if (!slot || slot_runs(slot))
        return;
    switch ((int)row->state) {
    case REPLICA_PENDING:
        slot->next_start_ns = fleet_now_ns(supervisor->fleet) + remaining_ns(row);
        break;
    case REPLICA_LOADING:
    case REPLICA_WARMING:
    case REPLICA_READY:
    case REPLICA_PARKED:
        if (slot_read_exit(slot, row->epoch) && slot->run.outlook == OUTLOOK_PERMANENT)
            slot_move(slot, SLOT_EXITED);
        break;
    case REPLICA_DRAINING: /* the row's drain is over; only a device fault in the report counts */
        (void)slot_read_exit(slot, row->epoch);
        slot->run.outlook = OUTLOOK_RETRY;
        break;
    default:
        break;
    }
}

static void on_folder(void *arg, const char *replica_id)
{
    struct fleet *fleet = arg;
    if (!catalog_replica(fleet->context->catalog, replica_id))
        run_folder_remove(fleet->context->settings->run_dir, replica_id);
}

void adopt_all(struct supervisor *supervisor)
{
    struct fleet *fleet = supervisor->fleet;
    process_scan(fleet->context->settings->run_dir, on_found, supervisor);
    for (size_t i = 0; catalog_replica_at(fleet->context->catalog, i); i++)
        restore_slot(supervisor, catalog_replica_at(fleet->context->catalog, i));
    run_folder_list(fleet->context->settings->run_dir, on_folder, fleet);
}
