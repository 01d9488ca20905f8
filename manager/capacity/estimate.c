#include "manager/capacity/estimate.h"

#include <string.h>

#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/settings/config.h"
#include "manager/store/catalog.h"

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

/* True if the model has recurrent layers alone. */
static bool has_no_cache(const pb_info *info)
{
    return !info->kv_elements_per_token && info->state_bytes_per_sequence;
}

bool estimate_has_size(const pb_info *info, const pb_config *config)
{
    if (has_no_cache(info))
        return config->has_kv_tokens || config->has_state_slots;
    return estimate_kv_bytes(info, config) > 0;
}

uint64_t estimate_kv_bytes(const pb_info *info, const pb_config *config)
{
    uint64_t element = strcmp(config->kv_dtype, "f32") == 0    ? 4
                       : strcmp(config->kv_dtype, "int8") == 0 ? 1
                                                               : 2;
    uint64_t n = info->kv_elements_per_token;
    if (!n) /* facts of an older release: layers of one shape, values as wide as keys */
        n = (uint64_t)2 * info->n_layers * info->n_kv_heads * info->head_dim;
    uint64_t per_token = element * n;
    if (has_no_cache(info))
        return 0;
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

uint64_t estimate_state_bytes(const pb_info *info, const pb_config *config)
{
    uint64_t n_slots = config->has_state_slots && config->state_slots ? config->state_slots : 1;
    uint64_t slot = info->state_bytes_per_sequence;
    return slot < UINT64_MAX / n_slots ? slot * n_slots : UINT64_MAX / 2;
}

uint64_t estimate_host_bytes(const struct fleet *fleet, const pb_version *version,
                             const char *group, const pb_config *config)
{
    const struct catalog *catalog = fleet->context->catalog;
    uint64_t planned = 0;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        const struct slot *slot = slot_find(fleet, row->id);
        if (!slot || slot_is_parked_worker(slot) || strcmp(row->model, version->model) != 0 ||
            strcmp(row->version, version->version) != 0 || strcmp(row->device_group, group) != 0)
            continue;
        uint64_t n_bytes = slot_planned_bytes(slot);
        planned = n_bytes > planned ? n_bytes : planned;
    }
    if (planned || !version->info)
        return planned;
    return version->info->weight_bytes + estimate_kv_bytes(version->info, config) +
           estimate_state_bytes(version->info, config);
}

uint64_t estimate_serving_bytes(const struct slot *slot)
{
    const struct catalog *catalog = slot->fleet->context->catalog;
    const pb_replica *row = catalog_replica(catalog, slot->id);
    const pb_version *version = row ? catalog_version(catalog, row->model, row->version) : NULL;
    const pb_deployment *deployment = slot_deployment(slot);
    if (slot->served.host_bytes ||
        slot_is_on_gpus(slot)) /* on GPUs the weights take no host memory */
        return slot->served.host_bytes;
    pb_config *config =
        version && deployment ? config_merge(version->config, deployment->config) : NULL;
    if (!config)
        return 0;
    bool has_size = !version->info || estimate_has_size(version->info, config);
    uint64_t n_bytes =
        has_size ? estimate_host_bytes(slot->fleet, version, row->device_group, config) : 0;
    message_free(&config->base);
    return n_bytes;
}

uint64_t estimate_gpu_budget(const struct fleet *fleet, const pb_replica *row)
{
    const struct catalog *catalog = fleet->context->catalog;
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

uint64_t estimate_gpu_bytes(const struct fleet *fleet, const char *replica_id)
{
    const struct catalog *catalog = fleet->context->catalog;
    const struct slot *slot = slot_find(fleet, replica_id);
    const pb_replica *row = catalog_replica(catalog, replica_id);
    const pb_version *version = row ? catalog_version(catalog, row->model, row->version) : NULL;
    uint64_t n_bytes = slot ? slot_gpus_bytes(&slot->served.gpus, NULL) : 0;
    if (!n_bytes && row)
        n_bytes = estimate_gpu_budget(fleet, row);
    return !n_bytes && version && version->info ? version->info->weight_bytes : n_bytes;
}
