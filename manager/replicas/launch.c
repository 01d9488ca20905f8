#include "manager/replicas/launch.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/cpus.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/capacity/device_room.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/host/cpu_share.h"
#include "manager/host/model_path.h"
#include "manager/host/process.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

/* Replaces the paths and CPUs of the settings by the worker's own. */
static bool resolve(pb_config *config, const char *draft_path, const char *cpus)
{
    return message_set(&config->draft_model, draft_path) && message_set(&config->cpus, cpus);
}

static bool set_devices(pb_launch *launch, const struct launch_plan *plan)
{
    struct strbuf devices = {0};
    for (size_t i = 0; i < plan->n_devices; i++)
        strbuf_printf(&devices, "%s%s", i ? "," : "", plan->devices[i]);
    bool set = !strbuf_failed(&devices) && message_set(&launch->devices, strbuf_str(&devices));
    strbuf_fini(&devices);
    return set;
}

static bool fill_plan(pb_launch *launch, const struct launch_plan *plan, uint32_t n_replicas)
{
    launch->tp = plan->tp;
    launch->pp = plan->pp;
    launch->replicas = n_replicas;
    launch->weights_shared = plan->shared;
    launch->weights_held = plan->held;
    launch->memory_limit = plan->limit_bytes;
    launch->memory_promised = plan->promised_bytes;
    launch->gpu_promised = plan->gpu_promised_bytes;
    launch->gpu_held = plan->gpu_held_bytes;
    return message_set(&launch->model, plan->model_path) &&
           message_set(&launch->digest, plan->digest) && set_devices(launch, plan) &&
           message_set_copy(&launch->config, plan->config) &&
           (!launch->config || resolve(launch->config, plan->draft_path, plan->cpus));
}

static bool set_file(char **field, const char *run_dir, const char *replica_id, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/replica-%s/%s", run_dir, replica_id, name);
    return message_set(field, path);
}

static bool set_metrics(pb_launch *launch, const char *run_dir)
{
    char address[4096];
    snprintf(address, sizeof(address), "unix:%s/replica-%s/metrics.sock", run_dir, launch->replica);
    return message_set(&launch->metrics, address);
}

static bool fill_replica(pb_launch *launch, const struct settings *settings,
                         const pb_replica *replica)
{
    const char *dir = settings->run_dir;
    launch->epoch = replica->epoch;
    return message_set(&launch->replica, replica->id) &&
           message_set(&launch->name, replica->model) &&
           message_set(&launch->version_id, replica->version) &&
           message_set(&launch->device_group, replica->device_group) &&
           message_set(&launch->log_level, settings->log_level) &&
           message_set(&launch->log_format, settings->log_format) &&
           set_file(&launch->socket, dir, replica->id, "worker.sock") &&
           set_file(&launch->exit_report, dir, replica->id, "exit.pb") && set_metrics(launch, dir);
}

/* The memory for packed weights comes first among the descriptors of a child. */
static bool set_packed(pb_launch *launch, size_t n_fds)
{
    launch->packed_fds = n_fds ? calloc(n_fds, sizeof(*launch->packed_fds)) : NULL;
    if (n_fds && !launch->packed_fds)
        return false;
    launch->n_packed_fds = n_fds;
    for (size_t i = 0; i < n_fds; i++)
        launch->packed_fds[i] = (uint32_t)(PROCESS_FIRST_FD + i);
    return true;
}

/* All devices of the group. A parked worker opens none of them, so holds do not matter. */
static size_t all_devices(const pb_group *group, char *out_devices[DEVICES_MAX])
{
    size_t n = group->n_devices < DEVICES_MAX ? group->n_devices : DEVICES_MAX;
    for (size_t i = 0; i < n; i++)
        out_devices[i] = group->devices[i];
    return n;
}

/* Chooses the CPUs of `list` that belong to the replica alone. */
static int share_cpus(const struct fleet *fleet, const char *replica_id, const char *list,
                      uint32_t n_threads, uint32_t n_replicas, struct cpus *out, struct error *err)
{
    uint16_t *n_users = NULL;
    if (*list && !(n_users = calloc(CPUS_MAX, sizeof(*n_users))))
        return error_no_memory(err);
    if (n_users)
        fleet_count_cpu_users(fleet, replica_id, n_users);
    int rc = cpu_share_take(replica_id, list, n_threads, n_replicas, n_users, out, err);
    free(n_users);
    return rc;
}

int launch_create(const struct fleet *fleet, const char *replica_id, size_t n_packed_fds,
                  bool is_parked_worker, pb_launch **out_launch, struct cpus *out_cpus,
                  struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_replica *replica = catalog_replica(catalog, replica_id);
    const pb_version *version =
        replica ? catalog_version(catalog, replica->model, replica->version) : NULL;
    const pb_deployment *deployment =
        replica
            ? catalog_deployment(catalog, replica->model, replica->version, replica->device_group)
            : NULL;
    const pb_group *group = replica ? catalog_group(catalog, replica->device_group) : NULL;
    if (!version || !deployment || !group)
        return error_set(err, STATUS_NOT_FOUND, "replica %s has lost its version or device group",
                         replica_id);
    if (!is_parked_worker &&
        device_hold_check(catalog, group, catalog_n_ranks(deployment), err) != 0)
        return err->status;
    pb_config *config = config_merge(version->config, deployment->config);
    if (!config)
        return error_no_memory(err);
    char model_path[4096], draft_path[4096];
    struct ledger_sum others = ledger_sum(fleet, &(struct ledger_query){.but_id = replica_id});
    struct ledger_sum siblings =
        ledger_sum(fleet, &(struct ledger_query){.but_id = replica_id, .of = deployment});
    model_path_absolute(fleet->context->settings->model_root, version->path, model_path,
                        sizeof(model_path));
    model_path_absolute(fleet->context->settings->model_root, config->draft_model, draft_path,
                        sizeof(draft_path));
    char *usable[DEVICES_MAX];
    struct cpus cpus;
    /* a parked worker computes nothing and takes no CPUs from others */
    int rc = share_cpus(fleet, replica_id, is_parked_worker ? "" : config->cpus, config->n_threads,
                        deployment->n_replicas, &cpus, err);
    if (rc != 0) {
        message_free(&config->base);
        return rc;
    }
    struct strbuf cpus_text = {0};
    cpus_format(&cpus, &cpus_text);
    size_t n_usable =
        is_parked_worker ? all_devices(group, usable) : device_hold_choose(catalog, group, usable);
    struct device_room room = {0};
    const struct device_wish wish = {.but_id = replica_id,
                                     .version = version,
                                     .group = group->name,
                                     .n_ranks = catalog_n_ranks(deployment),
                                     .config = config};
    n_usable = device_room_choose(fleet, &wish, usable, n_usable);
    if (n_usable)
        device_room_read(fleet, usable[0], replica_id, &room);
    struct launch_plan plan = {
        .model_path = model_path,
        .draft_path = draft_path,
        .digest = version->info ? version->info->weights_digest : "",
        .devices = usable,
        .n_devices = n_usable,
        .tp = deployment->tp,
        .pp = deployment->pp,
        .config = config,
        .cpus = strbuf_str(&cpus_text),
        .promised_bytes = others.promised_bytes,
        .limit_bytes = device_room_in_budget(fleet, replica_id, usable, n_usable),
        .gpu_promised_bytes = room.claims.taken_bytes,
        .gpu_held_bytes = room.claims.held_bytes,
        .shared = n_packed_fds && !device_name_is_gpu(group->devices[0]) &&
                  others.n_unsized == siblings.n_unsized,
    };
    pb_launch *launch = MESSAGE_NEW(pb_launch, sluice__worker__v1__launch__descriptor);
    if (!launch || strbuf_failed(&cpus_text) || !fill_plan(launch, &plan, others.n_unsized + 1) ||
        !fill_replica(launch, fleet->context->settings, replica) ||
        !set_packed(launch, n_packed_fds))
        rc = error_no_memory(err);
    message_free(&config->base);
    strbuf_fini(&cpus_text);
    if (rc != 0) {
        launch_destroy(launch);
        return rc;
    }
    launch->parked = is_parked_worker;
    *out_launch = launch;
    *out_cpus = cpus;
    return 0;
}

void launch_destroy(pb_launch *launch)
{
    if (launch)
        message_free(&launch->base);
}

int launch_create_plan(const struct launch_plan *plan, uint32_t n_replicas, pb_launch **out_launch,
                       struct error *err)
{
    pb_launch *launch = MESSAGE_NEW(pb_launch, sluice__worker__v1__launch__descriptor);
    if (!launch || !fill_plan(launch, plan, n_replicas)) {
        launch_destroy(launch);
        return error_no_memory(err);
    }
    *out_launch = launch;
    return 0;
}
