#include "manager/watch/build.h"

#include <stdlib.h>
#include <string.h>

#include "manager/base/message.h"
#include "manager/settings/config.h"
#include "manager/store/catalog.h"

static int version_state(uint32_t n_deployments, uint32_t n_parked, uint32_t n_live,
                         uint32_t n_ready, uint32_t n_failed)
{
    if (!n_deployments)
        return n_live ? SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_UNLOADING
                      : SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_REGISTERED;
    if (n_ready)
        return SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_READY;
    if (n_parked && n_parked == n_live)
        return SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_PARKED;
    return n_failed && n_failed == n_live
               ? SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_FAILED
               : SLUICE__MANAGER__V1__MODEL_VERSION_STATE__MODEL_VERSION_STATE_LOADING;
}

static bool is_of_version(const char *model, const char *version, const pb_version *row)
{
    return strcmp(model, row->model) == 0 && strcmp(version, row->version) == 0;
}

static bool ignores_sampling(const struct catalog *catalog, const pb_version *row)
{
    bool loaded = false, ignores = false;
    CATALOG_EACH(deployment, deployment, catalog) {
        if (!is_of_version(deployment->model, deployment->version, row))
            continue;
        loaded = true;
        ignores |= config_ignores_sampling(row->config, deployment->config);
    }
    return loaded ? ignores : config_ignores_sampling(row->config, NULL);
}

void build_default_sampling(struct arena *arena, const struct catalog *catalog,
                            const pb_version *row, pb_info *info)
{
    if (ignores_sampling(catalog, row))
        info->default_sampling = NULL;
    else if (!info->default_sampling && row->info)
        info->default_sampling = message_copy_in(arena, row->info->default_sampling);
}

pb_version *build_version(struct arena *arena, const struct catalog *catalog, const pb_version *row)
{
    pb_version *version = message_copy_in(arena, row);
    uint32_t n_failed = 0, n_parked = 0;
    if (!version)
        return NULL;
    if (version->info)
        build_default_sampling(arena, catalog, row, version->info);
    CATALOG_EACH(deployment, deployment, catalog) {
        if (is_of_version(deployment->model, deployment->version, row))
            message_append_in(arena, &version->n_deployments, &version->deployments,
                              message_copy_in(arena, deployment));
    }
    CATALOG_EACH(replica, replica, catalog) {
        if (!is_of_version(replica->model, replica->version, row) ||
            (int)replica->state == REPLICA_STOPPED)
            continue;
        version->n_replicas++;
        version->n_ready_replicas += (int)replica->state == REPLICA_READY;
        n_failed += (int)replica->state == REPLICA_FAILED;
        n_parked += (int)replica->state == REPLICA_PARKED;
    }
    version->state = (Sluice__Manager__V1__ModelVersionState)version_state(
        (uint32_t)version->n_deployments, n_parked, version->n_replicas, version->n_ready_replicas,
        n_failed);
    return version;
}

static int by_sequence(const void *a, const void *b)
{
    const pb_version *const *left = a, *const *right = b;
    return (*left)->sequence < (*right)->sequence ? -1 : (*left)->sequence > (*right)->sequence;
}

pb_model *build_model(struct arena *arena, const struct catalog *catalog, const pb_model *row)
{
    pb_model *model = message_copy_in(arena, row);
    const pb_version *version;
    if (!model)
        return NULL;
    for (size_t i = catalog_first_version(catalog, row->name);
         (version = catalog_version_at(catalog, i)) && strcmp(version->model, row->name) == 0; i++)
        message_append_in(arena, &model->n_versions, &model->versions,
                          build_version(arena, catalog, version));
    if (model->n_versions)
        qsort(model->versions, model->n_versions, sizeof(pb_version *), by_sequence);
    struct row *traffic = catalog_get(catalog, TABLE_TRAFFIC, row->name);
    model->traffic = message_copy_in(arena, traffic ? row_message(traffic) : NULL);
    return model;
}

pb_group *build_group(struct arena *arena, const struct catalog *catalog, const pb_group *row)
{
    pb_group *group = message_copy_in(arena, row);
    if (!group)
        return NULL;
    CATALOG_EACH(replica, replica, catalog) {
        if (strcmp(replica->device_group, row->name) == 0 && (int)replica->state != REPLICA_STOPPED)
            message_append_text_in(arena, &group->n_replica_ids, &group->replica_ids, replica->id);
    }
    return group;
}

Sluice__V1__Plan *build_plan(struct arena *arena, const char *model, const char *version)
{
    Sluice__V1__Plan *plan = message_new_in(arena, &sluice__v1__plan__descriptor);
    if (!plan)
        return NULL;
    plan->model = message_text_in(arena, model);
    plan->version = message_text_in(arena, version);
    plan->fits = 1;
    return plan;
}

void build_plan_replica(struct arena *arena, Sluice__V1__Plan *plan, const pb_status *status,
                        bool weights_stay)
{
    plan->n_replicas++;
    for (size_t i = 0; status && i < status->n_memory; i++) {
        const pb_memory *memory = status->memory[i];
        Sluice__V1__DevicePlan *device = message_add_in(arena, &plan->n_devices, &plan->devices,
                                                        &sluice__v1__device_plan__descriptor);
        if (!device)
            return;
        device->device = message_text_in(arena, memory->device);
        device->weight_bytes = weights_stay ? 0 : memory->weight_bytes;
        device->kv_bytes = memory->kv_bytes;
        device->state_bytes = memory->state_bytes;
        device->workspace_bytes = memory->workspace_bytes;
        device->free_bytes = memory->free_bytes;
    }
}
