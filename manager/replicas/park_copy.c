/* park_copy.c: before a replica is parked, the manager must hold its weights in host memory
 * (slot.h, weights.h). A worker on a GPU makes a copy for that. */
#include "manager/replicas/park_copy.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/capacity/device_room.h"
#include "manager/capacity/estimate.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/replicas/supervisor.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

/* Wait between two requests for a copy. The worker's answer and its status arrive separately. */
static const int64_t ask_interval_ns = NS_PER_S;
/* Wait after a failed copy, since other memory may be free by then. Operations do not wait that
 * long. The wait doubles with each failure in a row. Each try is an operation, and idle versions
 * are parked again and again. */
static const int64_t retry_ns = 60 * NS_PER_S;
enum { MAX_RETRY_DOUBLINGS = 6 };
/* Limits of copies that the manager failed to take over, and of answers "not yet". More would
 * fail too. */
enum { MAX_COPIES = 5, MAX_TRIES = 600 };

bool park_copy_is_needed(const struct slot *slot)
{
    return slot_runs(slot) && slot->run.link && !slot_is_parked_worker(slot) &&
           slot_is_to_park(slot) && !seeded_bug("I2_parks_what_is_not_kept") &&
           !weights_are_whole(slot->fleet->weights, slot->id);
}

bool park_copy_has_failed(const struct slot *slot)
{
    const pb_deployment *deployment = slot->copy_failed ? slot_deployment(slot) : NULL;
    return deployment && deployment->parked && deployment->generation == slot->copy_failed &&
           fleet_now_ns(slot->fleet) < slot->run.copy.at_ns;
}

/* True where the replica is to serve and its process does not yet report READY. */
static bool is_about_to_serve(struct fleet *fleet, const pb_replica *row)
{
    const struct slot *slot = slot_find(fleet, row->id);
    bool serves =
        slot && slot_runs(slot) && slot->run.status && (int)slot->run.status->state == WORKER_READY;
    return !row->retiring && (int)row->state != REPLICA_STOPPED &&
           (int)row->state != REPLICA_FAILED && !serves;
}

static bool is_one_of(const char *device, char *const *devices, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(devices[i], device) == 0)
            return true;
    return false;
}

/* True where another replica will serve on one of these devices soon, and no device hold prevents
 * that. */
static bool another_is_to_serve(struct fleet *fleet, char *const *devices, size_t n)
{
    const struct catalog *catalog = fleet->context->catalog;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const pb_group *group = catalog_group(catalog, row->device_group);
        const pb_deployment *deployment =
            catalog_deployment(catalog, row->model, row->version, row->device_group);
        struct error err;
        if (!group || !deployment || deployment->parked ||
            device_hold_check(catalog, group, catalog_n_ranks(deployment), &err) != 0 ||
            !is_about_to_serve(fleet, row))
            continue;
        for (size_t d = 0; d < group->n_devices; d++)
            if (is_one_of(group->devices[d], devices, n))
                return true;
    }
    return false;
}

/* Reason why a replica waits before it loads on a GPU for a park alone. */
enum wait_for { WAIT_NONE, WAIT_ANOTHER, WAIT_ROOM };

static enum wait_for waits_for(const struct slot *slot)
{
    const struct fleet *fleet = slot->fleet;
    const pb_replica *row = catalog_replica(fleet->context->catalog, slot->id);
    const pb_group *group = row ? catalog_group(fleet->context->catalog, row->device_group) : NULL;
    char *usable[DEVICES_MAX];
    if (!group || !slot_is_on_gpus(slot) || !slot_is_to_park(slot) ||
        weights_are_whole(fleet->weights, slot->id))
        return WAIT_NONE;
    size_t n_usable = device_hold_choose(fleet->context->catalog, group, usable);
    if (another_is_to_serve(slot->fleet, usable, n_usable))
        return WAIT_ANOTHER;
    for (size_t i = 0; i < n_usable; i++) {
        struct device_room room;
        device_room_read(fleet, usable[i], slot->id, &room);
        if (room.is_there &&
            room.available_bytes + room.ended_bytes >= estimate_gpu_bytes(fleet, slot->id))
            return WAIT_NONE;
    }
    return WAIT_ROOM;
}

bool park_copy_waits_for_gpu(const struct slot *slot)
{
    return waits_for(slot) != WAIT_NONE;
}

bool park_copy_sleeps(const struct slot *slot)
{
    const pb_replica *row = catalog_replica(slot->fleet->context->catalog, slot->id);
    const pb_deployment *deployment = slot_deployment(slot);
    return row && (int)row->state == REPLICA_PENDING && deployment && deployment->parked &&
           (!slot_is_on_gpus(slot) || weights_are_whole(slot->fleet->weights, slot->id) ||
            park_copy_waits_for_gpu(slot));
}

bool park_copy_lacks_gpu(const struct slot *slot)
{
    const pb_replica *row = catalog_replica(slot->fleet->context->catalog, slot->id);
    return row && slot->phase == SLOT_EMPTY && !slot->busy && !row->retiring &&
           ((int)row->state == REPLICA_PENDING || (int)row->state == REPLICA_PARKED) &&
           fleet_is_settled(slot->fleet) && /* a parked worker may not have reported its weights
                                             * yet */
           waits_for(slot) == WAIT_ROOM;
}

int64_t park_copy_at_ns(const struct slot *slot)
{
    const pb_deployment *deployment = slot->copy_failed ? slot_deployment(slot) : NULL;
    return deployment && deployment->generation != slot->copy_failed ? 0 : slot->run.copy.at_ns;
}

static void fail_copy(struct slot *slot, const struct error *why)
{
    const pb_deployment *deployment = slot_deployment(slot);
    struct slot_copy *copy = &slot->run.copy;
    log_warn(LOG_EVENT("park copy failed"), LOG_STR("replica", slot->id),
             LOG_STR("reason", error_reason_name(why)), LOG_STR("message", why->message));
    copy->at_ns = fleet_now_ns(slot->fleet) + (retry_ns << copy->n_failures);
    copy->n_failures += copy->n_failures < MAX_RETRY_DOUBLINGS;
    slot->copy_failed = deployment ? deployment->generation : 0;
    slot->copy_error = *why;
    copy->n_done = copy->n_waits = 0; /* the next command to park starts from zero */
}

/* Weights on a CPU need no copy. The manager opens the worker's memory again, since descriptors
 * may be free now. A park without that memory would pack the weights again and again. */
static void take_over(struct slot *slot)
{
    struct weights *weights = slot->fleet->weights;
    struct error err;
    if (slot->run.status)
        (void)weights_on_status(weights, slot->id, slot->run.process.pid, slot->run.status);
    if (!weights_are_whole(weights, slot->id)) {
        error_set(&err, STATUS_INTERNAL,
                  "the manager could not open the memory with the packed weights of %s; the limit "
                  "of open files may be too low",
                  slot->id);
        error_reason(&err, REASON_WEIGHTS_NOT_KEPT);
        fail_copy(slot, &err);
    }
    supervisor_kick(slot->fleet->supervisor);
}

void park_copy_start(struct slot *slot)
{
    struct fleet *fleet = slot->fleet;
    struct error err;
    struct slot_copy *copy = &slot->run.copy;
    slot->copy_failed = 0;
    if (!slot_is_on_gpus(slot)) {
        take_over(slot);
        return;
    }
    copy->base_bytes = process_resident_bytes(slot->run.process.pid);
    uint64_t promised = ledger_sum(fleet, &(struct ledger_query){0}).promised_bytes;
    copy->asked = worker_link_keep(slot->run.link, promised,
                                   device_room_in_budget(fleet, NULL, NULL, 0), &err) == 0;
    if (!copy->asked)
        copy->at_ns = fleet_now_ns(fleet) + ask_interval_ns;
}

void park_copy_on_answer(struct slot *slot, const struct error *status)
{
    struct error err = *status;
    struct slot_copy *copy = &slot->run.copy;
    copy->asked = false;
    copy->at_ns = fleet_now_ns(slot->fleet) + ask_interval_ns;
    bool again = err.status == STATUS_UNAVAILABLE || err.status == STATUS_CANCELLED;
    if (again && ++copy->n_waits > MAX_TRIES)
        error_set(&err, STATUS_INTERNAL, "the worker did not come to keep its weights: %s",
                  status->message);
    if (!status->status && ++copy->n_done > MAX_COPIES)
        error_set(&err, STATUS_INTERNAL,
                  "the worker keeps its weights, but they cannot be taken over");
    if (err.status && !err.reason)
        error_reason(&err, REASON_WEIGHTS_NOT_KEPT);
    if (err.status && err.status != STATUS_UNAVAILABLE && err.status != STATUS_CANCELLED)
        fail_copy(slot, &err);
    supervisor_kick(slot->fleet->supervisor);
}

bool park_copy_why_not(const struct fleet *fleet, const pb_operation *operation,
                       struct error *out_why)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const struct slot *slot = slot_find(fleet, operation->replica_ids[i]);
        if (!slot || !park_copy_has_failed(slot))
            continue;
        *out_why = slot->copy_error;
        error_prefix(out_why, "not parked, it serves on");
        return true;
    }
    return false;
}

bool park_copy_is_possible(struct fleet *fleet, const pb_deployment *deployment)
{
    int64_t now_ns = fleet_now_ns(fleet);
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (slot->copy_failed && now_ns < slot->run.copy.at_ns &&
            slot_deployment(slot) == deployment)
            return false;
    return true;
}
