#include "manager/receipt.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    message_set(&memory->device, device);
    if (message_append(&result->n_memory, &result->memory, memory))
        return memory;
    message_free(&memory->base);
    return NULL;
}

static void add_loaded(pb_operation_result *result, const pb_memory *from)
{
    pb_memory *memory = find_memory(result, from->device);
    if (!memory)
        return;
    if (!memory->before_bytes || from->before_bytes < memory->before_bytes)
        memory->before_bytes = from->before_bytes;
    if (from->after_bytes > memory->after_bytes)
        memory->after_bytes = from->after_bytes;
    memory->expected_bytes += from->expected_bytes;
    memory->weight_bytes += from->weight_bytes;
    memory->kv_bytes += from->kv_bytes;
    memory->workspace_bytes += from->workspace_bytes;
    memory->free_bytes = from->free_bytes;
    memory->total_bytes = from->total_bytes;
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

/* Adds one replica's bytes to the devices of its group. */
static void add_held(pb_operation_result *result, const pb_group *group, uint64_t before,
                     uint64_t now, uint64_t expected)
{
    for (size_t i = 0; i < group->n_devices; i++) {
        pb_memory *memory = find_memory(result, group->devices[i]);
        if (!memory)
            continue;
        memory->before_bytes += part(before, i, group->n_devices);
        memory->after_bytes += part(now, i, group->n_devices);
        memory->expected_bytes += part(expected, i, group->n_devices);
    }
}

static void fill_unload(struct manager *manager, const pb_operation *operation,
                        pb_operation_result *result)
{
    const struct catalog *catalog = &manager->catalog;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        const pb_group *group = catalog_group(catalog, replica->device_group);
        struct replica_view view;
        if (!group || !group->n_devices ||
            !supervisor_view(manager->supervisor, replica->id, &view))
            continue;
        if (concerns(operation, replica->id))
            add_held(result, group, view.drained_bytes, view.resident_bytes, 0);
    }
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        const pb_group *group = catalog_group(catalog, replica->device_group);
        struct replica_view view;
        if (!group || !group->n_devices || concerns(operation, replica->id) ||
            !supervisor_view(manager->supervisor, replica->id, &view))
            continue;
        uint64_t held = view.resident_bytes;
        if (held)
            add_held(result, group, held, held, held);
    }
    for (size_t i = 0; i < result->n_memory; i++)
        read_free_memory(&result->memory[i]->free_bytes, &result->memory[i]->total_bytes);
}

pb_operation_result *receipt_build(struct manager *manager, const pb_operation *operation)
{
    pb_operation_result *result =
        MESSAGE_NEW(pb_operation_result, sluice__manager__v1__operation_result__descriptor);
    if (!result)
        return NULL;
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *replica = catalog_replica(&manager->catalog, operation->replica_ids[i]);
        struct replica_view view;
        if (!replica || !supervisor_view(manager->supervisor, replica->id, &view))
            continue;
        result->n_finished += view.n_finished;
        result->n_ended += view.n_ended;
        result->n_ready_replicas += (int)replica->state == REPLICA_READY;
        for (size_t j = 0;
             view.status && (int)operation->kind == OPERATION_LOAD && j < view.status->n_memory;
             j++)
            add_loaded(result, view.status->memory[j]);
    }
    if ((int)operation->kind == OPERATION_UNLOAD)
        fill_unload(manager, operation, result);
    return result;
}
