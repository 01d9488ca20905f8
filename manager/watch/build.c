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

static bool ignores_sampling(const struct catalog *catalog, const pb_version *row)
{
    bool loaded = false, ignores = false;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (strcmp(deployment->model, row->model) != 0 ||
            strcmp(deployment->version, row->version) != 0)
            continue;
        loaded = true;
        ignores |= config_ignores_sampling(row->config, deployment->config);
    }
    return loaded ? ignores : config_ignores_sampling(row->config, NULL);
}

bool build_default_sampling(const struct catalog *catalog, const pb_version *row, pb_info *info)
{
    if (ignores_sampling(catalog, row))
        return message_set_copy(&info->default_sampling, NULL);
    return info->default_sampling || !row->info ||
           message_set_copy(&info->default_sampling, row->info->default_sampling);
}

pb_version *build_version(const struct catalog *catalog, const pb_version *row)
{
    pb_version *version = MESSAGE_COPY(pb_version, row);
    uint32_t n_failed = 0, n_parked = 0;
    if (!version)
        return NULL;
    if (version->info && !build_default_sampling(catalog, row, version->info)) {
        message_free(&version->base);
        return NULL;
    }
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (strcmp(deployment->model, row->model) != 0 ||
            strcmp(deployment->version, row->version) != 0)
            continue;
        if (!message_append_copy(&version->n_deployments, &version->deployments, deployment)) {
            message_free(&version->base);
            return NULL;
        }
    }
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if (strcmp(replica->model, row->model) != 0 ||
            strcmp(replica->version, row->version) != 0 || (int)replica->state == REPLICA_STOPPED)
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

pb_model *build_model(const struct catalog *catalog, const pb_model *row)
{
    pb_model *model = MESSAGE_COPY(pb_model, row);
    if (!model)
        return NULL;
    for (size_t i = catalog_first_version(catalog, row->name);; i++) {
        const pb_version *version = catalog_version_at(catalog, i);
        if (!version || strcmp(version->model, row->name) != 0)
            break;
        pb_version *built = build_version(catalog, version);
        if (!built || !message_append(&model->n_versions, &model->versions, built)) {
            if (built)
                message_free(&built->base);
            message_free(&model->base);
            return NULL;
        }
    }
    if (model->n_versions)
        qsort(model->versions, model->n_versions, sizeof(pb_version *), by_sequence);
    struct row *traffic = catalog_get(catalog, TABLE_TRAFFIC, row->name);
    if (!message_set_copy(&model->traffic, traffic ? row_message(traffic) : NULL)) {
        message_free(&model->base);
        return NULL;
    }
    return model;
}

pb_group *build_group(const struct catalog *catalog, const pb_group *row)
{
    pb_group *group = MESSAGE_COPY(pb_group, row);
    for (size_t i = 0; group && catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if (strcmp(replica->device_group, row->name) != 0 || (int)replica->state == REPLICA_STOPPED)
            continue;
        if (!message_append_text(&group->n_replica_ids, &group->replica_ids, replica->id)) {
            message_free(&group->base);
            return NULL;
        }
    }
    return group;
}

bool build_plan_memory(Sluice__V1__Plan *plan, const pb_memory *memory)
{
    Sluice__V1__DevicePlan *device =
        MESSAGE_NEW(Sluice__V1__DevicePlan, sluice__v1__device_plan__descriptor);
    if (!device)
        return false;
    device->weight_bytes = memory->weight_bytes;
    device->kv_bytes = memory->kv_bytes;
    device->state_bytes = memory->state_bytes;
    device->workspace_bytes = memory->workspace_bytes;
    device->free_bytes = memory->free_bytes;
    if (message_set(&device->device, memory->device) &&
        message_append(&plan->n_devices, &plan->devices, device))
        return true;
    message_free(&device->base);
    return false;
}
