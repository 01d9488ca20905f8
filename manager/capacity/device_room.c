#include "manager/capacity/device_room.h"

#include <string.h>

#include "base/clock.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/capacity/fit.h"
#include "manager/capacity/memory_claims.h"
#include "manager/devices/device_watch.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/slot.h"
#include "manager/store/catalog.h"

/* How long a started worker may take to allocate its memory, as the driver may be slow to start.
 * After this time only its reported plan counts. */
static const int64_t allocation_timeout_ns = 60 * NS_PER_S;

static uint64_t bytes_less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static bool is_gpu(const char *device)
{
    return device_name_is_gpu(device);
}

static const pb_memory *memory_row(const struct slot *slot, const char *device)
{
    for (size_t i = 0; slot->status && i < slot->status->n_memory; i++)
        if (strcmp(slot->status->memory[i]->device, device) == 0)
            return slot->status->memory[i];
    return NULL;
}

/* Limit of the replica's GPU memory by its configuration; 0: no limit. */
static uint64_t budget_of(const struct catalog *catalog, const pb_replica *row)
{
    const pb_deployment *deployment =
        catalog_deployment(catalog, row->model, row->version, row->device_group);
    const pb_version *version = catalog_version(catalog, row->model, row->version);
    const pb_config *configs[] = {deployment ? deployment->config : NULL,
                                  version ? version->config : NULL};
    for (size_t i = 0; i < 2; i++)
        if (configs[i] && configs[i]->has_gpu_memory_bytes)
            return configs[i]->gpu_memory_bytes;
    return 0;
}

static bool will_return(const pb_replica *row)
{
    return !row->retiring && (int)row->state != REPLICA_FAILED &&
           (int)row->state != REPLICA_STOPPED;
}

static void add_running(const struct catalog *catalog, const struct slot *slot,
                        const pb_replica *row, const char *device, struct device_room *room)
{
    const pb_memory *memory = memory_row(slot, device);
    uint64_t held = memory ? memory->after_bytes : 0;
    uint64_t planned = memory ? memory->expected_bytes : 0;
    bool ends = (slot->status && (int)slot->status->state == WORKER_FAILED) || !will_return(row);
    if (!planned && !ends) {
        planned = slot->gpu_bytes ? slot->gpu_bytes : budget_of(catalog, row);
        room->n_unsized += !planned;
    }
    if (ends || held > planned)
        planned = held;
    room->n_processes++;
    room->promised_bytes += planned;
    room->held_bytes += held;
}

/* Adds a replica without a process: on the GPU of its last process. A replica that never started
 * is added only where its group has no other device. */
static void add_waiting(const struct catalog *catalog, const struct slot *slot,
                        const pb_replica *row, const char *device, bool new_too,
                        struct device_room *room)
{
    const pb_group *group = catalog_group(catalog, row->device_group);
    if (!will_return(row))
        return;
    if (slot && *slot->gpu) {
        bool is_here = strcmp(slot->gpu, device) == 0;
        room->n_processes += is_here; /* counts the replica's next process */
        room->promised_bytes += is_here ? slot->gpu_bytes : 0;
        return;
    }
    if (!new_too || !group || group->n_devices != 1 || strcmp(group->devices[0], device) != 0)
        return;
    uint64_t budget = budget_of(catalog, row);
    room->promised_bytes += budget;
    room->n_unsized += !budget;
}

/* Adds a parked worker that will be woken soon. Its GPU is wake_gpu, else the last GPU, else the
 * only device of the group. */
static void add_waking(const struct fleet *fleet, const struct slot *slot, const pb_replica *row,
                       const char *device, struct device_room *room)
{
    const pb_group *group = catalog_group(fleet->context->catalog, row->device_group);
    bool is_only = group && group->n_devices == 1 && strcmp(group->devices[0], device) == 0;
    const char *at = *slot->wake_gpu ? slot->wake_gpu : slot->gpu;
    if (*at ? strcmp(at, device) != 0 : !is_only)
        return;
    room->n_processes++;
    room->promised_bytes += device_room_of_gpu(fleet, row->id);
}

/* True for a parked worker, or a replica whose next process will be one: it holds no GPU memory.
 * A replica that lost its weights waits for room (park_copy_waits_for_gpu). */
static bool holds_no_gpu_memory(const struct slot *slot)
{
    if (slot && slot->process_state == PROCESS_RUNNING)
        return slot->is_parked_worker;
    return slot && slot_is_to_park(slot);
}

/* Bytes of processes that ended after the last NVML sample, which still counts those bytes as
 * used. */
static uint64_t bytes_ended_since(const struct fleet *fleet, const char *device,
                                  int64_t sampled_unix_ns)
{
    uint64_t n_bytes = 0;
    size_t cursor = 0;
    const struct slot *slot;
    while ((slot = fleet_next(fleet, &cursor)))
        if (strcmp(slot->ended_gpu, device) == 0 && slot->ended_unix_ns > sampled_unix_ns)
            n_bytes += slot->ended_gpu_bytes;
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
                             bytes_less(room->promised_bytes, room->held_bytes));
        room->ended_bytes = bytes_ended_since(fleet, device->name, view.sampled_unix_ns);
    }
    uint64_t of_total = bytes_less(total, room->promised_bytes);
    room->available_bytes = of_free < of_total ? of_free : of_total;
    if (room->ended_bytes > of_total - room->available_bytes)
        room->ended_bytes = of_total - room->available_bytes;
}

/* True for an adopted worker without a status: its last GPU is the best guess. */
static bool was_last_on(const struct slot *slot, const char *device)
{
    return !slot->status && !slot->devices && strcmp(slot->gpu, device) == 0;
}

void device_room_read(const struct fleet *fleet, const char *device, const char *but_id,
                      struct device_room *out_room)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_device *at = catalog_device(catalog, device);
    struct device_room room = {0};
    for (size_t i = 0; is_gpu(device) && catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (but_id && strcmp(row->id, but_id) == 0)
            continue;
        if (slot && slot_waits_to_wake(slot))
            add_waking(fleet, slot, row, device, &room);
        if (holds_no_gpu_memory(slot))
            continue;
        if (!slot || slot->process_state != PROCESS_RUNNING)
            add_waiting(catalog, slot, row, device, !but_id, &room);
        else if (slot_is_on(slot, device) || was_last_on(slot, device))
            add_running(catalog, slot, row, device, &room);
    }
    room.is_there = at != NULL;
    if (at)
        read_free_memory(fleet, at, &room);
    *out_room = room;
}

static enum fit_policy policy_of(const struct fleet *fleet, const pb_config *config)
{
    enum fit_policy policy = fleet->context->settings->placement;
    if (config && *config->placement)
        (void)fit_policy_parse(config->placement, &policy);
    return policy;
}

/* Tokens that layers with a window hold for all sequences, at most. An estimate: the worker counts
 * in blocks of its own size, and names its plan once it has started. */
static uint64_t window_tokens(const pb_info *info, const pb_config *config)
{
    /* the defaults of a load, and the tokens of three blocks */
    enum { MOST_SEQUENCES = 256, STEP_TOKENS = 512, MORE_TOKENS = 3 * 32 };
    uint64_t n_seqs = config->has_max_concurrent_requests ? config->max_concurrent_requests
                                                          : (uint32_t)MOST_SEQUENCES;
    uint64_t n_rows =
        config->has_max_batch_tokens ? config->max_batch_tokens : (uint32_t)STEP_TOKENS;
    return (n_seqs * ((uint64_t)info->window_tokens + MORE_TOKENS) + n_rows) * 5 / 4;
}

uint64_t device_room_kv_bytes(const pb_info *info, const pb_config *config)
{
    uint64_t element = strcmp(config->kv_dtype, "f32") == 0    ? 4
                       : strcmp(config->kv_dtype, "int8") == 0 ? 1
                                                               : 2;
    uint64_t n = info->kv_elements_per_token;
    if (!n) /* facts of an older release: layers of one shape, values as wide as keys */
        n = (uint64_t)2 * info->n_layers * info->n_kv_heads * info->head_dim;
    uint64_t per_token = element * n;
    if (config->has_kv_bytes)
        return config->kv_bytes;
    /* config_check refuses tokens whose product is out of range. */
    if (!config->has_kv_tokens || !per_token || config->kv_tokens >= UINT64_MAX / per_token)
        return 0;
    uint64_t in_windows = config->kv_tokens;
    if (info->window_elements_per_token && window_tokens(info, config) < in_windows)
        in_windows = window_tokens(info, config);
    return element * ((n - info->window_elements_per_token) * config->kv_tokens +
                      info->window_elements_per_token * in_windows);
}

uint64_t device_room_state_bytes(const pb_info *info, const pb_config *config)
{
    uint64_t n_slots = config->has_state_slots && config->state_slots ? config->state_slots : 1;
    uint64_t slot = info->state_bytes_per_sequence;
    return slot < UINT64_MAX / n_slots ? slot * n_slots : UINT64_MAX / 2;
}

/* The wanted host memory. */
static uint64_t wanted_bytes(const struct fleet *fleet, const struct device_wish *wish)
{
    const struct catalog *catalog = fleet->context->catalog;
    uint64_t planned = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (!slot || strcmp(row->model, wish->version->model) != 0 ||
            strcmp(row->version, wish->version->version) != 0 ||
            strcmp(row->device_group, wish->group) != 0)
            continue;
        uint64_t n_bytes = slot_planned_bytes(slot);
        planned = n_bytes > planned && !slot->is_parked_worker ? n_bytes : planned;
    }
    const pb_info *info = wish->version->info;
    if (planned || !info)
        return planned;
    return info->weight_bytes + device_room_kv_bytes(info, wish->config) +
           device_room_state_bytes(info, wish->config);
}

uint64_t device_room_estimate(const struct fleet *fleet, const char *replica_id)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, replica_id);
    const pb_version *version = row ? catalog_version(catalog, row->model, row->version) : NULL;
    const pb_deployment *deployment =
        row ? catalog_deployment(catalog, row->model, row->version, row->device_group) : NULL;
    pb_config *config =
        version && deployment ? config_merge(version->config, deployment->config) : NULL;
    uint64_t n_bytes = 0;
    if (config && (!version->info || device_room_kv_bytes(version->info, config))) {
        const struct device_wish wish = {
            .version = version, .group = row->device_group, .config = config};
        n_bytes = wanted_bytes(fleet, &wish);
    }
    if (config)
        message_free(&config->base);
    return n_bytes;
}

uint64_t device_room_of_gpu(const struct fleet *fleet, const char *replica_id)
{
    const struct catalog *catalog = fleet->context->catalog;
    const struct slot *slot = slot_find(fleet, replica_id);
    const pb_replica *row = catalog_replica(catalog, replica_id);
    const pb_version *version = row ? catalog_version(catalog, row->model, row->version) : NULL;
    uint64_t n_bytes = slot ? slot->gpu_bytes : 0;
    if (!n_bytes && row)
        n_bytes = budget_of(catalog, row);
    return !n_bytes && version && version->info ? version->info->weight_bytes : n_bytes;
}

/* The wanted GPU memory: the configured limit, else the size of the last process. */
static uint64_t wanted_gpu_bytes(const struct fleet *fleet, const struct device_wish *wish)
{
    const struct slot *slot = wish->but_id ? slot_find(fleet, wish->but_id) : NULL;
    return !wish->config->gpu_memory_bytes && slot ? slot->gpu_bytes
                                                   : wish->config->gpu_memory_bytes;
}

static struct fit_device read_node_room(const struct fleet *fleet, const char *device,
                                        const char *but_id)
{
    const pb_device *at = catalog_device(fleet->context->catalog, device);
    struct fit_device fit = {.is_there = at != NULL};
    uint64_t taken = memory_taken_on(fleet, device, but_id, &fit.n_processes);
    uint64_t most = at && at->memory_total_bytes ? at->memory_total_bytes : UINT64_MAX;
    uint64_t budget;
    if (memory_budget_of(&fleet->context->settings->memory_budget, device, &budget) &&
        budget < most)
        most = budget;
    fit.room_bytes = bytes_less(most, taken);
    return fit;
}

size_t device_room_choose(const struct fleet *fleet, const struct device_wish *wish,
                          char *devices[], size_t n_devices)
{
    enum fit_policy policy = policy_of(fleet, wish->config);
    struct fit_device fits[DEVICES_MAX];
    struct device_room room;
    if (wish->n_ranks > 1 || n_devices < 2 || (!is_gpu(devices[0]) && policy == FIT_AUTO))
        return n_devices;
    bool gpu = is_gpu(devices[0]);
    for (size_t i = 0; i < n_devices; i++) {
        if (!gpu) {
            fits[i] = read_node_room(fleet, devices[i], wish->but_id);
            continue;
        }
        device_room_read(fleet, devices[i], wish->but_id, &room);
        fits[i] = (struct fit_device){.is_there = room.is_there,
                                      .room_bytes = room.available_bytes,
                                      .n_processes = room.n_processes};
    }
    devices[0] = devices[fit_choose(
        policy, fits, n_devices, gpu ? wanted_gpu_bytes(fleet, wish) : wanted_bytes(fleet, wish))];
    return 1;
}

static bool is_allocating(const struct slot *slot, const char *device, int64_t now_ns)
{
    const pb_memory *memory = memory_row(slot, device);
    bool loads = !slot->status || (int)slot->status->state == WORKER_LOADING;
    return slot->process_state == PROCESS_RUNNING && slot_is_on(slot, device) && loads &&
           !(memory && memory->after_bytes) && now_ns - slot->started_ns < allocation_timeout_ns;
}

bool device_room_is_being_taken(struct fleet *fleet, const char *replica_id)
{
    const pb_replica *row = catalog_replica(fleet->context->catalog, replica_id);
    const pb_group *group = row ? catalog_group(fleet->context->catalog, row->device_group) : NULL;
    int64_t now_ns = fleet_now_ns(fleet);
    size_t cursor = 0;
    const struct slot *slot;
    while (group && (slot = fleet_next(fleet, &cursor)))
        for (size_t i = 0; i < group->n_devices; i++)
            if (strcmp(slot->id, replica_id) != 0 && is_gpu(group->devices[i]) &&
                is_allocating(slot, group->devices[i], now_ns))
                return true;
    return false;
}
