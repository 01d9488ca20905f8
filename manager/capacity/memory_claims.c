#include "manager/capacity/memory_claims.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/seeded_bug.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/names.h"
#include "manager/capacity/device_room.h"
#include "manager/devices/device_hold.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

uint64_t memory_share_add(struct memory_share_set *set, uint64_t n_bytes, uint64_t shared_bytes,
                          uint64_t id)
{
    enum { CAPACITY = sizeof(set->ids) / sizeof(set->ids[0]) };
    if (!id)
        return n_bytes;
    for (size_t i = 0; i < set->n_ids; i++)
        if (set->ids[i] == id)
            return n_bytes > shared_bytes ? n_bytes - shared_bytes : 0;
    if (set->n_ids < CAPACITY)
        set->ids[set->n_ids++] = id;
    return n_bytes;
}

uint64_t memory_serving_bytes(const struct slot *slot)
{
    if (slot->served_bytes || slot_is_on_gpus(slot)) /* on GPUs the weights take no host memory */
        return slot->served_bytes;
    return device_room_estimate(slot->fleet, slot->id);
}

/* slot_planned_bytes(); for a parked worker that waits for Wake, memory_serving_bytes(). For
 * plans only: an actual start does not wait for replicas that come after it. */
static uint64_t expected_bytes(const struct slot *slot)
{
    uint64_t planned = slot_planned_bytes(slot);
    uint64_t n_bytes = slot_waits_to_wake(slot) ? memory_serving_bytes(slot) : 0;
    return n_bytes > planned ? n_bytes : planned;
}

static uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* `for_plan`: parked workers that wait for Wake count with what they will take. */
static uint64_t planned_by(const struct slot *slot, bool for_plan)
{
    return for_plan ? expected_bytes(slot) : slot_planned_bytes(slot);
}

static uint64_t taken_by(const struct slot *slot, bool for_plan, struct memory_share_set *set)
{
    uint64_t id, shared = slot_shared_bytes(slot, &id);
    /* Memory to which a replica will return counts as taken. After a restart of the manager, CPU
     * replicas whose shared id is unknown are left out. Each of them would count the shared
     * weights again. */
    if (slot_comes_back(slot) && !slot->shared_id && !slot_is_on_gpus(slot) && slot->served_before)
        return 0;
    if (slot_comes_back(slot))
        return memory_share_add(set, slot->served_bytes, slot->shared_bytes, slot->shared_id);
    uint64_t planned = planned_by(slot, for_plan), copied, copy = slot_copy_bytes(slot, &copied);
    uint64_t held =
        slot->process_state == PROCESS_RUNNING ? process_resident_bytes(slot->process.pid) : 0;
    held = bytes_less(held, copied);
    return memory_share_add(set, planned > held ? planned : held, shared, id) + copy;
}

/* Park copies that no parked worker has mapped yet. */
static uint64_t taken_by_park_copies(const struct fleet *fleet, struct memory_share_set *set)
{
    uint64_t n_bytes = 0, image, id;
    for (size_t i = 0; weights_park_copy_at(fleet->weights, i, &image, &id); i++)
        n_bytes += memory_share_add(set, image, image, id);
    return n_bytes;
}

uint64_t memory_taken_bytes(const struct fleet *fleet, const char *but_id)
{
    struct memory_share_set set = {0};
    uint64_t n_bytes = 0;
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (!but_id || strcmp(slot->id, but_id) != 0)
            n_bytes += taken_by(slot, !but_id, &set);
    return n_bytes + taken_by_park_copies(fleet, &set);
}

/* Number of devices of the process, at least one. */
static size_t n_devices_of(const struct slot *slot)
{
    size_t n = 1;
    for (const char *at = slot->devices; at && (at = strchr(at, ',')); at++)
        n++;
    if (!slot->devices && slot->status && slot->status->n_memory)
        n = slot->status->n_memory;
    return n;
}

uint64_t memory_taken_on(const struct fleet *fleet, const char *device, const char *but_id,
                         uint32_t *out_n_processes)
{
    struct memory_share_set set = {0};
    uint64_t n_bytes = 0;
    size_t cursor = 0;
    const struct slot *slot;
    *out_n_processes = 0;
    while ((slot = fleet_next(fleet, &cursor))) {
        if (slot->process_state != PROCESS_RUNNING || !slot_is_on(slot, device) ||
            (but_id && strcmp(slot->id, but_id) == 0))
            continue;
        n_bytes += taken_by(slot, !but_id, &set) / n_devices_of(slot);
        ++*out_n_processes;
    }
    return n_bytes;
}

/* Kept packed weights of a replica that no other replica maps: those are in the other replica's
 * claim already. Park copies are counted apart (taken_by_park_copies). */
static uint64_t unshared_kept_bytes(const struct fleet *fleet, const char *id)
{
    const struct slot *slot = id ? slot_find(fleet, id) : NULL;
    const struct slot *other;
    size_t cursor = 0;
    if (!slot || !slot->shared_id || slot_is_on_gpus(slot) ||
        !weights_are_whole(fleet->weights, id))
        return 0;
    while ((other = fleet_next(fleet, &cursor)))
        if (other != slot && other->shared_id == slot->shared_id &&
            (other->process_state == PROCESS_RUNNING || slot_comes_back(other)))
            return 0; /* counted with the other replica */
    return slot->shared_bytes;
}

uint64_t memory_left_in_budget(const struct fleet *fleet, const char *but_id, char *const *devices,
                               size_t n_devices)
{
    const struct memory_budget *budget = &fleet->context->settings->memory_budget;
    uint64_t left = UINT64_MAX, of_node;
    uint64_t kept = unshared_kept_bytes(fleet, but_id);
    if (budget->total_bytes)
        left = bytes_less(budget->total_bytes, memory_taken_bytes(fleet, but_id) + kept);
    for (size_t i = 0; i < n_devices; i++) {
        uint32_t n_processes;
        if (!memory_budget_of(budget, devices[i], &of_node))
            continue;
        of_node = bytes_less(of_node, memory_taken_on(fleet, devices[i], but_id, &n_processes) +
                                          kept / n_devices);
        /* the replica is on all nodes in equal parts */
        of_node = of_node < UINT64_MAX / n_devices ? of_node * n_devices : UINT64_MAX;
        left = of_node < left ? of_node : left;
    }
    if (left == UINT64_MAX)
        return 0;
    return left ? left : 1;
}

/* Memory that the deployments to be woken will take, per device. */
struct wake_tally {
    const char *devices[DEVICES_MAX];
    uint64_t taken[DEVICES_MAX];
    size_t n_devices;
};

/* Returns NULL where there are too many devices. */
static uint64_t *taken_entry(struct wake_tally *tally, const char *device)
{
    for (size_t i = 0; i < tally->n_devices; i++)
        if (strcmp(tally->devices[i], device) == 0)
            return &tally->taken[i];
    if (tally->n_devices == DEVICES_MAX)
        return NULL;
    tally->devices[tally->n_devices] = device;
    tally->taken[tally->n_devices] = 0;
    return &tally->taken[tally->n_devices++];
}

static bool is_parked_replica_of(const struct fleet *fleet, const pb_replica *row,
                                 const pb_deployment *deployment)
{
    const struct slot *slot = slot_find(fleet, row->id);
    bool serves = slot && slot->process_state == PROCESS_RUNNING && !slot->is_parked_worker;
    return slot && !serves && !row->retiring && (int)row->state != REPLICA_STOPPED &&
           pb_replica_is_of(row, deployment);
}

/* Adds a deployment that was checked before, on the GPUs that were found for it. */
static void add_checked(const struct fleet *fleet, const pb_deployment *deployment,
                        struct wake_tally *tally)
{
    const struct catalog *catalog = fleet->context->catalog;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (!is_parked_replica_of(fleet, row, deployment) || !slot->wake_gpu[0])
            continue;
        uint64_t *taken = taken_entry(tally, slot->wake_gpu);
        if (taken)
            *taken += device_room_of_gpu(fleet, row->id);
    }
}

/* Places each replica on the GPU with the most room left. Claims of earlier deployments stay. */
static int add_wake_on_gpus(const struct fleet *fleet, const pb_deployment *deployment,
                            const pb_group *group, struct wake_tally *tally, struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    char *usable[DEVICES_MAX];
    size_t n_usable = device_hold_choose(catalog, group, usable);
    char missing[32], left[32];
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        uint64_t most = 0, *best = NULL;
        if (!is_parked_replica_of(fleet, row, deployment))
            continue;
        for (size_t d = 0; d < n_usable; d++) {
            struct device_room room;
            uint64_t *taken = taken_entry(tally, usable[d]);
            device_room_read(fleet, usable[d], NULL, &room);
            uint64_t of_device = taken ? bytes_less(room.available_bytes, *taken) : 0;
            if (!best || of_device > most) {
                best = taken;
                most = of_device;
            }
        }
        uint64_t needed = device_room_of_gpu(fleet, row->id);
        if (best) {
            struct slot *slot = slot_find(fleet, row->id);
            *best += needed;
            snprintf(slot->wake_gpu, sizeof(slot->wake_gpu), "%s",
                     tally->devices[best - tally->taken]);
        }
        if (needed <= most)
            continue;
        error_set(
            err, STATUS_RESOURCE_EXHAUSTED,
            "%s/%s takes %s of a GPU once woken, but %s has %s; unload another version there, or "
            "park it",
            deployment->model, deployment->version, format_bytes(needed, missing),
            n_usable == 1 ? usable[0] : group->name, format_bytes(most, left));
        return error_reason(err, REASON_DEVICE_MEMORY);
    }
    return 0;
}

static bool is_of_one(const pb_replica *row, const pb_deployment *const *deployments, size_t n)
{
    for (size_t i = 0; row && i < n; i++)
        if (pb_replica_is_of(row, deployments[i]))
            return true;
    return false;
}

/* Checks the host memory against its budget. */
static int check_wake_in_budget(const struct fleet *fleet, const pb_deployment *const *deployments,
                                size_t n, struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_deployment *last = deployments[n - 1];
    uint64_t total = fleet->context->settings->memory_budget.total_bytes;
    uint64_t n_bytes = 0, others = 0;
    struct memory_share_set set = {0};
    size_t cursor = 0;
    const struct slot *slot;
    char missing[32], left[32];
    while ((slot = fleet_next(fleet, &cursor))) {
        const pb_replica *row = catalog_replica(catalog, slot->id);
        uint64_t serving = memory_serving_bytes(slot);
        uint64_t *sum = row && pb_replica_is_of(row, last) ? &n_bytes : &others;
        if (!is_of_one(row, deployments, n))
            others += taken_by(slot, true, &set);
        else if (slot->process_state != PROCESS_RUNNING)
            continue;
        else if (slot_is_on_gpus(slot))
            /* the packed weights on the CPU count with the park copies, below */
            *sum += bytes_less(serving, slot_parked_cpu_bytes(slot));
        else
            *sum += memory_share_add(&set, serving, slot->shared_bytes, slot->shared_id);
    }
    others += taken_by_park_copies(fleet, &set);
    if (!total || others + n_bytes <= total)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%s/%s takes %s once woken, but the manager's memory_budget leaves %s; unload "
              "another version, or park it",
              last->model, last->version, format_bytes(n_bytes, missing),
              format_bytes(bytes_less(total, others), left));
    return error_reason(err, REASON_DEVICE_MEMORY);
}

int memory_check_wake(const struct fleet *fleet, const pb_deployment *const *deployments, size_t n,
                      struct error *err)
{
    struct wake_tally tally = {.n_devices = 0};
    for (size_t i = 0; i < n; i++) {
        const pb_group *group =
            catalog_group(fleet->context->catalog, deployments[i]->device_group);
        if (!group || !group->n_devices || !device_name_is_gpu(group->devices[0]))
            continue;
        if (i + 1 < n)
            add_checked(fleet, deployments[i], &tally);
        else if (add_wake_on_gpus(fleet, deployments[i], group, &tally, err) != 0)
            return err->status;
    }
    return check_wake_in_budget(fleet, deployments, n, err);
}

uint64_t memory_freed_by(const struct fleet *fleet, const pb_deployment *deployment,
                         const char *device)
{
    const struct catalog *catalog = fleet->context->catalog;
    bool gpu = device_name_is_gpu(device);
    uint64_t n_bytes = 0, of_node;
    bool by_node = memory_budget_of(&fleet->context->settings->memory_budget, device, &of_node);
    struct memory_share_set set = {0};
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (!slot || !pb_replica_is_of(row, deployment))
            continue;
        if (by_node && !slot_is_on(slot, device))
            continue; /* memory of another node does not help */
        if (!gpu)
            n_bytes += taken_by(slot, true, &set) / (by_node ? n_devices_of(slot) : 1);
        else if (slot_is_on(slot, device))
            n_bytes += slot_gpu_held_bytes(slot);
    }
    return n_bytes;
}

struct memory_promises memory_promises(const struct fleet *fleet, const char *but_id)
{
    struct memory_promises promises = {0};
    const struct catalog *catalog = fleet->context->catalog;
    const pb_replica *but = but_id ? catalog_replica(catalog, but_id) : NULL;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (but_id && strcmp(row->id, but_id) == 0)
            continue;
        uint64_t planned = slot ? planned_by(slot, !but_id) : 0;
        uint64_t copied = 0, copy = slot ? slot_copy_bytes(slot, &copied) : 0;
        uint64_t resident = planned ? process_resident_bytes(slot->process.pid) : 0;
        bool on_gpu = slot && slot_is_on_gpus(slot);
        promises.n_bytes += copy - copied;
        if (slot && slot_is_sized(slot))
            promises.n_bytes += bytes_less(planned, bytes_less(resident, copied));
        else if (!row->retiring && !on_gpu &&
                 ((int)row->state == REPLICA_PENDING ||
                  ((int)row->state == REPLICA_FAILED && seeded_bug("I5_keeps_a_promise")) ||
                  (int)row->state == REPLICA_LOADING)) {
            promises.n_unsized++;
            promises.n_unsized_same += but && strcmp(but->model, row->model) == 0 &&
                                       strcmp(but->version, row->version) == 0 &&
                                       strcmp(but->device_group, row->device_group) == 0;
        }
    }
    return promises;
}

uint64_t memory_promised_on(const struct fleet *fleet, const char *device)
{
    uint64_t n_bytes = 0, copied;
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor))) {
        if (!slot_is_sized(slot) || !slot_is_on(slot, device))
            continue;
        uint64_t copy = slot_copy_bytes(slot, &copied);
        uint64_t resident = process_resident_bytes(slot->process.pid);
        uint64_t to_come = bytes_less(expected_bytes(slot), bytes_less(resident, copied));
        n_bytes += (to_come + copy - copied) / n_devices_of(slot);
    }
    return n_bytes;
}
