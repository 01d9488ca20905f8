#include "manager/capacity/device_room.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/names.h"
#include "manager/capacity/estimate.h"
#include "manager/capacity/fit.h"
#include "manager/devices/device_hold.h"
#include "manager/devices/device_watch.h"
#include "manager/settings/settings.h"
#include "manager/slots/slot.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"

static uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* --- the room of a GPU --- */

/* Bytes of processes that ended after the last NVML sample, which still counts those bytes as
 * used. */
static uint64_t bytes_ended_since(const struct fleet *fleet, const char *device,
                                  int64_t sampled_unix_ns)
{
    uint64_t n_bytes = 0;
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (slot->ended_unix_ns > sampled_unix_ns)
            n_bytes += slot_gpus_bytes(&slot->ended, device);
    return n_bytes;
}

/* Fills in the available bytes by NVML and the probe. The worker asks the driver itself. */
static void read_free_memory(const struct fleet *fleet, const pb_device *device,
                             struct device_room *room)
{
    struct device_view view;
    uint64_t total = device->memory_total_bytes;
    uint64_t of_free = UINT64_MAX;
    if (device_watch_view(fleet->device_watch, device, &view) && view.sampled &&
        view.figures.memory_total_bytes) {
        total = view.figures.memory_total_bytes;
        of_free = bytes_less(bytes_less(total, view.figures.memory_used_bytes),
                             bytes_less(room->claims.taken_bytes, room->claims.held_bytes));
        room->ended_bytes = bytes_ended_since(fleet, device->name, view.sampled_unix_ns);
    }
    uint64_t of_total = bytes_less(total, room->claims.taken_bytes);
    room->available_bytes = of_free < of_total ? of_free : of_total;
    if (room->ended_bytes > of_total - room->available_bytes)
        room->ended_bytes = of_total - room->available_bytes;
}

void device_room_read(const struct fleet *fleet, const char *device, const char *but_id,
                      struct device_room *out_room)
{
    const pb_device *at = catalog_device(fleet->context->catalog, device);
    struct device_room room = {.is_there = at != NULL};
    if (device_name_is_gpu(device))
        room.claims = ledger_sum(fleet, &(struct ledger_query){.device = device, .but_id = but_id});
    if (at)
        read_free_memory(fleet, at, &room);
    *out_room = room;
}

bool device_room_is_being_taken(const struct fleet *fleet, const char *replica_id)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, replica_id);
    const pb_group *group = row ? catalog_group(catalog, row->device_group) : NULL;
    for (size_t i = 0; group && i < group->n_devices; i++)
        if (device_name_is_gpu(group->devices[i]) &&
            ledger_sum(fleet,
                       &(struct ledger_query){.device = group->devices[i], .but_id = replica_id})
                .n_taking)
            return true;
    return false;
}

/* --- the budget of the host memory --- */

/* Kept packed weights of a replica that no other replica maps: those are in the other replica's
 * claim already. Park copies are claims of their own. */
static uint64_t unshared_kept_bytes(const struct fleet *fleet, const char *id)
{
    const struct slot *slot = id ? slot_find(fleet, id) : NULL;
    const struct slot *other;
    size_t cursor = 0;
    if (!slot || !slot->served.shared_id || slot_is_on_gpus(slot) ||
        !weights_are_whole(fleet->weights, id))
        return 0;
    while ((other = fleet_next(fleet, &cursor)))
        if (other != slot && other->served.shared_id == slot->served.shared_id &&
            (slot_runs(other) || slot_comes_back(other)))
            return 0; /* counted with the other replica */
    return slot->served.shared_bytes;
}

static struct ledger_sum sum_host(const struct fleet *fleet, const char *device, const char *but_id)
{
    return ledger_sum(fleet, &(struct ledger_query){.device = device, .but_id = but_id});
}

uint64_t device_room_in_budget(const struct fleet *fleet, const char *but_id, char *const *devices,
                               size_t n_devices)
{
    const struct memory_budget *budget = &fleet->context->settings->memory_budget;
    uint64_t left = UINT64_MAX, of_node;
    uint64_t kept = unshared_kept_bytes(fleet, but_id);
    if (budget->total_bytes)
        left = bytes_less(budget->total_bytes, sum_host(fleet, NULL, but_id).taken_bytes + kept);
    for (size_t i = 0; i < n_devices; i++) {
        if (!memory_budget_of(budget, devices[i], &of_node))
            continue;
        of_node =
            bytes_less(of_node, sum_host(fleet, devices[i], but_id).taken_bytes + kept / n_devices);
        /* the replica is on all nodes in equal parts */
        of_node = of_node < UINT64_MAX / n_devices ? of_node * n_devices : UINT64_MAX;
        left = of_node < left ? of_node : left;
    }
    if (left == UINT64_MAX)
        return 0;
    return left ? left : 1;
}

uint64_t device_room_freed_by(const struct fleet *fleet, const pb_deployment *deployment,
                              const char *device)
{
    uint64_t of_node;
    bool gpu = device_name_is_gpu(device);
    bool by_node = memory_budget_of(&fleet->context->settings->memory_budget, device, &of_node);
    struct ledger_sum claims = ledger_sum(
        fleet, &(struct ledger_query){.device = gpu || by_node ? device : NULL, .of = deployment});
    return gpu ? claims.held_bytes : claims.taken_bytes;
}

/* --- the choice of a device --- */

static enum fit_policy policy_of(const struct fleet *fleet, const pb_config *config)
{
    enum fit_policy policy = fleet->context->settings->placement;
    if (config && *config->placement)
        (void)fit_policy_parse(config->placement, &policy);
    return policy;
}

/* The wanted memory. On a GPU: the configured limit, else the size of the last process. */
static uint64_t wanted_bytes(const struct fleet *fleet, const struct device_wish *wish, bool gpu)
{
    const struct slot *slot = wish->but_id ? slot_find(fleet, wish->but_id) : NULL;
    if (!gpu)
        return estimate_host_bytes(fleet, wish->version, wish->group, wish->config);
    return !wish->config->gpu_memory_bytes && slot ? slot_gpus_bytes(&slot->served.gpus, NULL)
                                                   : wish->config->gpu_memory_bytes;
}

static struct fit_device read_node(const struct fleet *fleet, const char *device,
                                   const char *but_id)
{
    const pb_device *at = catalog_device(fleet->context->catalog, device);
    struct ledger_sum claims = sum_host(fleet, device, but_id);
    uint64_t most = at && at->memory_total_bytes ? at->memory_total_bytes : UINT64_MAX;
    uint64_t budget;
    if (memory_budget_of(&fleet->context->settings->memory_budget, device, &budget) &&
        budget < most)
        most = budget;
    return (struct fit_device){.is_there = at != NULL,
                               .room_bytes = bytes_less(most, claims.taken_bytes),
                               .n_processes = claims.n_processes};
}

static struct fit_device read_gpu(const struct fleet *fleet, const char *device, const char *but_id)
{
    struct device_room room;
    device_room_read(fleet, device, but_id, &room);
    return (struct fit_device){.is_there = room.is_there,
                               .room_bytes = room.available_bytes,
                               .n_processes = room.claims.n_processes};
}

size_t device_room_choose(const struct fleet *fleet, const struct device_wish *wish,
                          char *devices[], size_t n_devices)
{
    enum fit_policy policy = policy_of(fleet, wish->config);
    struct fit_device fits[DEVICES_MAX];
    bool gpu = n_devices && device_name_is_gpu(devices[0]);
    if (wish->n_ranks > 1 || n_devices < 2 || (!gpu && policy == FIT_AUTO))
        return n_devices;
    for (size_t i = 0; i < n_devices; i++)
        fits[i] = gpu ? read_gpu(fleet, devices[i], wish->but_id)
                      : read_node(fleet, devices[i], wish->but_id);
    devices[0] = devices[fit_choose(policy, fits, n_devices, wanted_bytes(fleet, wish, gpu))];
    return 1;
}

/* --- the check of a wake --- */

static bool is_of_any(const pb_replica *row, const pb_deployment *const *deployments, size_t n)
{
    for (size_t i = 0; row && i < n; i++)
        if (pb_replica_is_of(row, deployments[i]))
            return true;
    return false;
}

static bool is_to_wake(const struct slot *slot, const pb_replica *row)
{
    bool serves = slot && slot_runs(slot) && !slot_is_parked_worker(slot);
    return slot && !serves && !row->retiring && (int)row->state != REPLICA_STOPPED;
}

/* GPU memory that replicas to wake will take on a device. The last deployment counts with its
 * replicas among the first `n_rows` rows, whose GPUs are chosen. An earlier check has chosen the
 * other GPUs. */
static uint64_t waking_bytes(const struct fleet *fleet, const pb_deployment *const *deployments,
                             size_t n, size_t n_rows, const char *device)
{
    const struct catalog *catalog = fleet->context->catalog;
    uint64_t n_bytes = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (is_to_wake(slot, row) && strcmp(slot->wake_gpu, device) == 0 &&
            is_of_any(row, deployments, i < n_rows ? n : n - 1))
            n_bytes += estimate_gpu_bytes(fleet, row->id);
    }
    return n_bytes;
}

/* Places each replica of the last deployment on the GPU with the most room left. */
static int place_on_gpus(const struct fleet *fleet, const pb_deployment *const *deployments,
                         size_t n, const pb_group *group, struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_deployment *last = deployments[n - 1];
    char *usable[DEVICES_MAX], missing[32], left[32];
    size_t n_usable = device_hold_choose(catalog, group, usable);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        struct slot *slot = slot_find(fleet, row->id);
        const char *best = NULL;
        uint64_t most = 0, needed = estimate_gpu_bytes(fleet, row->id);
        if (!is_to_wake(slot, row) || !pb_replica_is_of(row, last))
            continue;
        for (size_t d = 0; d < n_usable; d++) {
            struct device_room room;
            device_room_read(fleet, usable[d], NULL, &room);
            uint64_t of_device =
                bytes_less(room.available_bytes, waking_bytes(fleet, deployments, n, i, usable[d]));
            if (!best || of_device > most) {
                best = usable[d];
                most = of_device;
            }
        }
        if (best)
            snprintf(slot->wake_gpu, sizeof(slot->wake_gpu), "%s", best);
        if (needed <= most)
            continue;
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%s/%s takes %s of a GPU once woken, but %s has %s; unload another version "
                  "there, or park it",
                  last->model, last->version, format_bytes(needed, missing),
                  n_usable == 1 ? usable[0] : group->name, format_bytes(most, left));
        return error_reason(err, REASON_DEVICE_MEMORY);
    }
    return 0;
}

/* Host memory while the deployments serve: of the last one, and of all others. */
struct awake {
    const pb_deployment *const *deployments;
    size_t n;
    struct ledger_shares shares;
    uint64_t others_bytes, last_bytes;
};

static void count_other(void *arg, const struct claim *claim)
{
    struct awake *awake = arg;
    uint64_t n_bytes =
        claim->planned_bytes > claim->held_bytes ? claim->planned_bytes : claim->held_bytes;
    if (!is_of_any(claim->row, awake->deployments, awake->n))
        awake->others_bytes += ledger_count_once(&awake->shares, claim->replica_id, n_bytes,
                                                 claim->shared_bytes, claim->shared_id);
}

/* On GPUs the packed weights on the CPU count with the park copies. */
static void count_awake(struct awake *awake, const struct slot *slot, const pb_replica *row)
{
    uint64_t serving = estimate_serving_bytes(slot);
    uint64_t *sum = pb_replica_is_of(row, awake->deployments[awake->n - 1]) ? &awake->last_bytes
                                                                            : &awake->others_bytes;
    if (slot_is_on_gpus(slot))
        *sum += bytes_less(serving, slot_parked_cpu_bytes(slot));
    else
        *sum += ledger_count_once(&awake->shares, slot->id, serving, slot->served.shared_bytes,
                                  slot->served.shared_id);
}

int device_room_check_wake(const struct fleet *fleet, const pb_deployment *const *deployments,
                           size_t n, struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_deployment *last = deployments[n - 1];
    const pb_group *group = catalog_group(catalog, last->device_group);
    uint64_t total = fleet->context->settings->memory_budget.total_bytes;
    struct awake awake = {.deployments = deployments, .n = n};
    char missing[32], left[32];
    if (group && group->n_devices && device_name_is_gpu(group->devices[0]) &&
        place_on_gpus(fleet, deployments, n, group, err) != 0)
        return err->status;
    if (!total)
        return 0;
    ledger_each(fleet, &(struct ledger_query){0}, count_other, &awake);
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (slot && slot_runs(slot) && is_of_any(row, deployments, n))
            count_awake(&awake, slot, row);
    }
    if (awake.others_bytes + awake.last_bytes <= total)
        return 0;
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "%s/%s takes %s once woken, but the manager's memory_budget leaves %s; unload "
              "another version, or park it",
              last->model, last->version, format_bytes(awake.last_bytes, missing),
              format_bytes(bytes_less(total, awake.others_bytes), left));
    return error_reason(err, REASON_DEVICE_MEMORY);
}
