#include "manager/receipt.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/device_watch.h"
#include "manager/message.h"
#include "manager/supervise.h"

static pb_memory *find_memory(pb_operation_result *result, const char *device)
{
    for (size_t i = 0; i < result->n_memory; i++)
        if (strcmp(result->memory[i]->device, device) == 0)
            return result->memory[i];
    pb_memory *memory = MESSAGE_NEW(pb_memory, sluice__v1__device_memory__descriptor);
    if (!memory)
        return NULL;
    if (message_set(&memory->device, device) &&
        message_append(&result->n_memory, &result->memory, memory))
        return memory;
    message_free(&memory->base);
    return NULL;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* `counted_bytes` of its weights are another replica's too, and counted there. */
static bool add_loaded(pb_operation_result *result, const pb_memory *from, uint64_t counted_bytes)
{
    pb_memory *memory = find_memory(result, from->device);
    if (!memory)
        return false;
    if (!memory->before_bytes || from->before_bytes < memory->before_bytes)
        memory->before_bytes = from->before_bytes;
    memory->after_bytes += less(from->after_bytes, counted_bytes);
    memory->expected_bytes += less(from->expected_bytes, counted_bytes);
    memory->weight_bytes += less(from->weight_bytes, counted_bytes);
    memory->kv_bytes += from->kv_bytes;
    memory->workspace_bytes += from->workspace_bytes;
    memory->free_bytes = from->free_bytes;
    memory->total_bytes = from->total_bytes;
    return true;
}

static bool concerns(const pb_operation *operation, const char *replica_id)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++)
        if (strcmp(operation->replica_ids[i], replica_id) == 0)
            return true;
    return false;
}

static void read_free_memory(uint64_t *out_free, uint64_t *out_total)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib;
    while (file && fgets(line, sizeof(line), file)) {
        char *end = NULL;
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        kib = strtoull(colon + 1, &end, 10);
        if (strncmp(line, "MemTotal:", 9) == 0)
            *out_total = kib * 1024;
        else if (strncmp(line, "MemAvailable:", 13) == 0)
            *out_free = kib * 1024;
    }
    if (file)
        fclose(file);
}

/* Device i of n gets its part of what a worker that spans them holds. */
static uint64_t part(uint64_t bytes, size_t i, size_t n)
{
    return bytes / n + (i < bytes % n);
}

struct held {
    uint64_t before, now, expected;
};

static bool add_part(pb_operation_result *result, const char *device, const struct held *held,
                     size_t i, size_t n)
{
    pb_memory *memory = find_memory(result, device);
    if (!memory)
        return false;
    memory->before_bytes += part(held->before, i, n);
    memory->after_bytes += part(held->now, i, n);
    memory->expected_bytes += part(held->expected, i, n);
    return true;
}

/* Adds one replica's bytes to the devices of its group; those of one on a GPU to that, and to the
 * machine what the process holds of its memory. */
static bool add_held(pb_operation_result *result, const pb_group *group,
                     const struct replica_view *view, const struct held *held, bool staying)
{
    const struct held gpu = {.before = staying ? view->gpu_bytes : view->drained_gpu_bytes,
                             .now = view->gpu_bytes,
                             .expected = staying ? view->gpu_bytes : 0};
    if (*view->gpu)
        return add_part(result, "cpu", held, 0, 1) && add_part(result, view->gpu, &gpu, 0, 1);
    for (size_t i = 0; i < group->n_devices; i++)
        if (!add_part(result, group->devices[i], held, i, group->n_devices))
            return false;
    return true;
}

/* Of a GPU as it was seen last; nothing where that is not known. */
static void read_device(struct manager *manager, pb_memory *memory)
{
    const pb_device *device = catalog_device(&manager->catalog, memory->device);
    struct device_view view;
    if (strncmp(memory->device, "cuda", 4) != 0) {
        read_free_memory(&memory->free_bytes, &memory->total_bytes);
        return;
    }
    if (!device || !device_watch_view(manager->device_watch, device, &view) || !view.sampled)
        return;
    memory->total_bytes = view.figures.memory_total_bytes;
    memory->free_bytes = less(view.figures.memory_total_bytes, view.figures.memory_used_bytes);
}

/* Gives memory back: all of it, or all but its weights. */
static bool leaves(const pb_operation *operation, const pb_replica *replica)
{
    return concerns(operation, replica->id) &&
           ((int)operation->kind == OPERATION_UNLOAD || (int)operation->kind == OPERATION_PARK ||
            replica->retiring);
}

/* What is held on the devices of the replicas that left: before they did, now, and by those that
 * stay. Weights that several share count once. */
static bool fill_released(struct manager *manager, const pb_operation *operation,
                          pb_operation_result *result)
{
    const struct catalog *catalog = &manager->catalog;
    struct share_set before = {0}, now = {0}, expected = {0};
    for (int staying = 0; staying < 2; staying++)
        for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
            const pb_replica *replica = catalog_replica_at(catalog, i);
            const pb_group *group = catalog_group(catalog, replica->device_group);
            struct replica_view view;
            if (leaves(operation, replica) == staying || !group || !group->n_devices ||
                !supervisor_view(manager->supervisor, replica->id, &view) ||
                (staying && !view.resident_bytes))
                continue;
            uint64_t held = view.resident_bytes;
            uint64_t then = staying
                                ? share_set_add(&before, held, view.shared_bytes, view.shared_id)
                                : share_set_add(&before, view.drained_bytes,
                                                view.drained_shared_bytes, view.drained_shared_id);
            bool keeps = (int)operation->kind == OPERATION_PARK && !replica->retiring;
            uint64_t to_stay = staying || keeps
                                   ? share_set_add(&expected, staying ? held : view.shared_bytes,
                                                   view.shared_bytes, view.shared_id)
                                   : 0;
            const struct held parts = {
                .before = then,
                .now = share_set_add(&now, held, view.shared_bytes, view.shared_id),
                .expected = to_stay,
            };
            if (!add_held(result, group, &view, &parts, staying))
                return false;
        }
    for (size_t i = 0; i < result->n_memory; i++)
        read_device(manager, result->memory[i]);
    return true;
}

static bool some_left(struct manager *manager, const pb_operation *operation)
{
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(&manager->catalog, operation->replica_ids[i]);
        if (replica && leaves(operation, replica))
            return true;
    }
    return (int)operation->kind == OPERATION_UNLOAD;
}

pb_operation_result *receipt_build(struct manager *manager, const pb_operation *operation)
{
    pb_operation_result *result =
        MESSAGE_NEW(pb_operation_result, sluice__manager__v1__operation_result__descriptor);
    if (!result)
        return NULL;
    struct share_set shared = {0};
    bool released = some_left(manager, operation), complete = true;
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(&manager->catalog, operation->replica_ids[i]);
        struct replica_view view;
        if (!replica || !supervisor_view(manager->supervisor, replica->id, &view))
            continue;
        result->n_finished += view.n_finished;
        result->n_ended += view.n_ended;
        result->n_ready_replicas += (int)replica->state == REPLICA_READY;
        if (released || !view.status)
            continue;
        uint64_t counted = view.shared_bytes - share_set_add(&shared, view.shared_bytes,
                                                             view.shared_bytes, view.shared_id);
        for (size_t j = 0; complete && j < view.status->n_memory; j++)
            complete = add_loaded(result, view.status->memory[j], counted / view.status->n_memory);
    }
    if (released && complete)
        complete = fill_released(manager, operation, result);
    if (complete)
        return result;
    message_free(&result->base);
    return NULL;
}
