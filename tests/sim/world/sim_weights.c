/* sim_weights.c: memory of packed weights (manager/slots/weights.h). Records only which deployments
 * have complete packed weights. Passes no descriptors to workers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "tests/sim/sim.h"

enum { MAX_SETS = 32 };

struct weights {
    struct fleet *fleet;
    char keys[MAX_SETS][TABLE_KEY_BYTES];
    size_t n_keys;
};

int weights_create(struct fleet *fleet, struct weights **out_weights, struct error *err)
{
    struct weights *weights = calloc(1, sizeof(*weights));
    if (!weights)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
    weights->fleet = fleet;
    *out_weights = weights;
    return 0;
}

void weights_destroy(struct weights *weights)
{
    free(weights);
}

/* Writes the key of the replica's weights; returns false if the replica no longer exists. */
static bool key_of(const struct weights *weights, const char *replica_id, char out[TABLE_KEY_BYTES])
{
    const pb_replica *row = catalog_replica(weights->fleet->context->catalog, replica_id);
    if (!row)
        return false;
    table_key(out, row->model, row->version, row->device_group);
    return catalog_get(weights->fleet->context->catalog, TABLE_DEPLOYMENT, out) != NULL;
}

static bool holds(const struct weights *weights, const char *key)
{
    for (size_t i = 0; i < weights->n_keys; i++)
        if (strcmp(weights->keys[i], key) == 0)
            return true;
    return false;
}

bool weights_take(struct weights *weights, const char *replica_id, struct weights_fds *out_fds)
{
    (void)weights;
    (void)replica_id;
    out_fds->n_fds = 0;
    return !sim_chance(5); /* false: another replica fills the memory */
}

void weights_ended(struct weights *weights, const char *replica_id)
{
    (void)weights;
    (void)replica_id;
}

static const pb_deployment *deployment_of(const struct weights *weights, const char *key)
{
    for (size_t i = 0; catalog_deployment_at(weights->fleet->context->catalog, i); i++) {
        const pb_deployment *deployment =
            catalog_deployment_at(weights->fleet->context->catalog, i);
        char other[TABLE_KEY_BYTES];
        table_key(other, deployment->model, deployment->version, deployment->device_group);
        if (strcmp(other, key) == 0)
            return deployment;
    }
    return NULL;
}

static bool is_of_gpus(const struct weights *weights, const char *key)
{
    const pb_deployment *deployment = deployment_of(weights, key);
    const pb_group *group =
        deployment ? catalog_group(weights->fleet->context->catalog, deployment->device_group)
                   : NULL;
    return group && group->n_devices && device_name_is_gpu(group->devices[0]);
}

/* Records packed weights that the worker reports. In a tenth of the cases, the manager has no
 * descriptor left and takes nothing over. */
bool weights_on_status(struct weights *weights, const char *replica_id, pid_t pid,
                       const pb_status *status)
{
    char key[TABLE_KEY_BYTES];
    (void)pid;
    bool whole = status->n_packed && status->packed[0]->sealed;
    if (whole && key_of(weights, replica_id, key) && !holds(weights, key) &&
        weights->n_keys < MAX_SETS && (sim.quiet_phase || !sim_chance(10)))
        snprintf(weights->keys[weights->n_keys++], TABLE_KEY_BYTES, "%s", key);
    return sim_chance(10);
}

/* True if park copies of a GPU deployment are useless: all replicas serve there, and none is to
 * park. */
static bool is_of_no_use(const struct catalog *catalog, const pb_deployment *deployment)
{
    const pb_group *group = catalog_group(catalog, deployment->device_group);
    if (!group || !group->n_devices || !device_name_is_gpu(group->devices[0]) || deployment->parked)
        return false;
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if (strcmp(row->model, deployment->model) == 0 &&
            strcmp(row->version, deployment->version) == 0 &&
            strcmp(row->device_group, deployment->device_group) == 0 &&
            (int)row->state != REPLICA_STOPPED && (int)row->state != REPLICA_READY)
            return false;
    }
    return true;
}

static bool is_needed(const struct weights *weights, const char *key)
{
    const pb_deployment *deployment = deployment_of(weights, key);
    return deployment && !is_of_no_use(weights->fleet->context->catalog, deployment);
}

void weights_sweep(struct weights *weights)
{
    for (size_t i = weights->n_keys; i-- > 0;)
        if (!is_needed(weights, weights->keys[i]))
            memcpy(weights->keys[i], weights->keys[--weights->n_keys], TABLE_KEY_BYTES);
}

bool weights_park_copy_at(const struct weights *weights, size_t i, uint64_t *out_bytes,
                          uint64_t *out_id)
{
    enum { FIRST_ID = 1000 };
    *out_bytes = *out_id = 0;
    for (size_t k = 0; k < weights->n_keys; k++)
        if (is_of_gpus(weights, weights->keys[k]) && i-- == 0) {
            *out_bytes = 64 << 20;
            *out_id = FIRST_ID + k;
            return true;
        }
    return false;
}

bool weights_are_held(struct weights *weights, const char *model, const char *version,
                      const char *group, uint32_t tp, uint32_t pp, const char *kernels)
{
    char key[TABLE_KEY_BYTES];
    (void)tp;
    (void)pp;
    (void)kernels;
    table_key(key, model, version, group);
    return holds(weights, key);
}

/* In a tenth of the cases returns false for complete weights: then they are packed again. */
bool weights_are_whole(struct weights *weights, const char *replica_id)
{
    char key[TABLE_KEY_BYTES];
    return key_of(weights, replica_id, key) && holds(weights, key) &&
           (sim.quiet_phase || !sim_chance(10));
}
