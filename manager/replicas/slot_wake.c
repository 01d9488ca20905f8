/* slot_wake.c: sending Wake to a parked worker, which then serves in place (slot_process.h). */
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/capacity/estimate.h"
#include "manager/replicas/launch.h"
#include "manager/replicas/slot_process.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"

/* The program file may have changed since the worker started. A changed program needs a process
 * of its own. */
bool slot_can_wake(const struct slot *slot)
{
    const struct fleet *fleet = slot->fleet;
    return slot->phase == SLOT_PARKED && slot->run.link &&
           weights_are_whole(fleet->weights, slot->id) &&
           process_runs(&slot->run.process, fleet->context->settings->worker);
}

static int send_wake(struct slot *slot, struct error *err)
{
    struct fleet *fleet = slot->fleet;
    pb_launch *launch = NULL;
    struct weights_fds fds;
    struct cpus cpus = {{0}};
    if (!slot_can_wake(slot) || !weights_take(fleet->weights, slot->id, &fds))
        return error_set(err, STATUS_UNAVAILABLE,
                         "the parked worker is ending, or its weights are gone");
    int rc = launch_create(fleet, slot->id, fds.n_fds, false, &launch, &cpus, err);
    if (rc == 0)
        rc = worker_link_wake(slot->run.link, launch, err);
    if (rc == 0) {
        slot->run.cpus = cpus;
        slot_note_devices(slot, launch);
    }
    launch_destroy(launch);
    return rc;
}

void slot_give_up_wake(struct slot *slot)
{
    if (slot->phase == SLOT_PARKED || slot->phase == SLOT_WAKING)
        slot_move(slot, SLOT_STUCK);
}

bool slot_wake(struct slot *slot)
{
    struct error err;
    if (send_wake(slot, &err) != 0) {
        log_info(LOG_EVENT("wake in place not possible"), LOG_STR("replica", slot->id),
                 LOG_I64("pid", slot->run.process.pid), LOG_STR("why", err.message));
        slot_give_up_wake(slot);
        return false;
    }
    slot_move(slot, SLOT_WAKING);
    slot->run.woken_bytes = estimate_serving_bytes(slot);
    slot->run.started_ns = fleet_now_ns(slot->fleet);
    /* the time as a parked worker is not idle time */
    slot->run.ready_ns = slot->run.activity.active_ns = 0;
    slot_forget_drain(slot);
    return true;
}
