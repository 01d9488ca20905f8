#include "manager/replicas/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/cpus.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/capacity/device_room.h"
#include "manager/capacity/memory_claims.h"
#include "manager/devices/device_hold.h"
#include "manager/host/cpu_share.h"
#include "manager/host/model_path.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "proto/config/model_config.h"

enum { MAX_ARGUMENTS = 96 };

struct launch {
    char *argv[MAX_ARGUMENTS + 1];
    size_t n_arguments;
    bool failed;
};

static void add_text(struct launch *launch, const char *text)
{
    if (launch->n_arguments == MAX_ARGUMENTS) {
        launch->failed = true;
        return;
    }
    char *copy = strdup(text);
    if (!copy)
        launch->failed = true;
    else
        launch->argv[launch->n_arguments++] = copy;
}

static void add(struct launch *launch, const char *flag, const char *value)
{
    if (!value || !*value)
        return;
    add_text(launch, flag);
    add_text(launch, value);
}

static void add_number(struct launch *launch, const char *flag, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    if (value)
        add(launch, flag, text);
}

static void add_setting(struct launch *launch, const struct load_setting *row, const char *value)
{
    char flag[64];
    if (row->kind == LOAD_BOOL) {
        snprintf(flag, sizeof(flag), "--%s=%s", row->flag, value);
        add_text(launch, flag);
    } else {
        snprintf(flag, sizeof(flag), "--%s", row->flag);
        add(launch, flag, value);
    }
}

/* The settings that the worker takes as they are; add_plan() and launch_create() add the others. */
static void add_config(struct launch *launch, const pb_config *config)
{
    for (size_t i = 0; config && i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        struct strbuf value = {0};
        if (!(row->users & LOAD_WORKER) || (row->traits & LOAD_RESOLVED))
            continue;
        if (model_config_flag_text(config, i, &value))
            add_setting(launch, row, strbuf_str(&value));
        if (strbuf_failed(&value))
            launch->failed = true;
        strbuf_fini(&value);
    }
}

static void add_plan(struct launch *launch, const struct launch_plan *plan)
{
    struct strbuf devices;
    strbuf_init(&devices, 0);
    for (size_t i = 0; i < plan->n_devices; i++)
        strbuf_printf(&devices, "%s%s", i ? "," : "", plan->devices[i]);
    if (strbuf_failed(&devices))
        launch->failed = true;
    add(launch, "--model", plan->model_path);
    add(launch, "--digest", plan->digest);
    add(launch, "--draft", plan->draft_path);
    add(launch, "--devices", strbuf_str(&devices));
    add_number(launch, "--tp", plan->tp);
    add_number(launch, "--pp", plan->pp);
    add(launch, "--cpus", plan->cpus);
    add_number(launch, "--memory-promised", plan->promised_bytes);
    add_number(launch, "--memory-limit", plan->limit_bytes);
    add_number(launch, "--gpu-promised", plan->gpu_promised_bytes);
    add_number(launch, "--gpu-held", plan->gpu_held_bytes);
    if (plan->shared)
        add_text(launch, "--weights-shared=true");
    if (plan->held)
        add_text(launch, "--weights-held=true");
    add_config(launch, plan->config);
    strbuf_fini(&devices);
}

static struct launch *create(const char *mode)
{
    struct launch *launch = calloc(1, sizeof(*launch));
    if (!launch)
        return NULL;
    add_text(launch, "sluice-worker");
    add_text(launch, mode);
    return launch;
}

static int finish(struct launch *launch, struct launch **out_launch, struct error *err)
{
    if (!launch || launch->failed) {
        launch_destroy(launch);
        return error_no_memory(err);
    }
    *out_launch = launch;
    return 0;
}

void launch_destroy(struct launch *launch)
{
    if (!launch)
        return;
    for (size_t i = 0; i < launch->n_arguments; i++)
        free(launch->argv[i]);
    free(launch);
}

char *const *launch_argv(const struct launch *launch)
{
    return launch->argv;
}

/* Writes the chat template of register or load to a file beside the socket. */
static int write_template(const struct fleet *fleet, const char *replica_id, const char *text,
                          char *out_path, size_t n_bytes, struct error *err)
{
    snprintf(out_path, n_bytes, "%s/replica-%s/chat_template.jinja",
             fleet->context->settings->run_dir, replica_id);
    int fd = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_errno(err, errno, "chat_template.jinja");
    size_t n = strlen(text);
    ssize_t written = write(fd, text, n);
    int err_no = errno;
    close(fd);
    return written == (ssize_t)n
               ? 0
               : error_errno(err, written < 0 ? err_no : ENOSPC, "chat_template.jinja");
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
                  bool is_parked_worker, struct launch **out_launch, struct cpus *out_cpus,
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
    if (!is_parked_worker && device_hold_check(catalog, group, deployment->tp, err) != 0)
        return err->status;
    pb_config *config = config_merge(version->config, deployment->config);
    if (!config)
        return error_no_memory(err);
    char model_path[4096], draft_path[4096], path[4096];
    struct memory_promises promises = memory_promises(fleet, replica_id);
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
                                     .n_ranks = deployment->tp,
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
        .promised_bytes = promises.n_bytes,
        .limit_bytes = memory_left_in_budget(fleet, replica_id, usable, n_usable),
        .gpu_promised_bytes = room.promised_bytes,
        .gpu_held_bytes = room.held_bytes,
        .shared = n_packed_fds && !device_name_is_gpu(group->devices[0]) &&
                  promises.n_unsized == promises.n_unsized_same,
    };
    struct launch *launch = strbuf_failed(&cpus_text) ? NULL : create("serve");
    if (launch) {
        const char *run_dir = fleet->context->settings->run_dir;
        snprintf(path, sizeof(path), "%s/replica-%s/worker.sock", run_dir, replica_id);
        add(launch, "--socket", path);
        snprintf(path, sizeof(path), "%s/replica-%s/exit.pb", run_dir, replica_id);
        add(launch, "--exit-report", path);
        add(launch, "--replica", replica_id);
        snprintf(path, sizeof(path), "unix:%s/replica-%s/metrics.sock", run_dir, replica_id);
        add(launch, "--metrics", path);
        add_number(launch, "--epoch", replica->epoch);
        add(launch, "--name", replica->model);
        add(launch, "--version-id", replica->version);
        add(launch, "--device-group", replica->device_group);
        add_plan(launch, &plan);
        add_number(launch, "--replicas", promises.n_unsized + 1);
        add_number(launch, "--packed-fds", n_packed_fds);
        if (is_parked_worker)
            add_text(launch, "--parked=true");
        add(launch, "--log-level", fleet->context->settings->log_level);
        add(launch, "--log-format", fleet->context->settings->log_format);
        if (*config->chat_template) {
            rc = write_template(fleet, replica_id, config->chat_template, path, sizeof(path), err);
            add(launch, "--chat-template-file", path);
        }
    }
    message_free(&config->base);
    strbuf_fini(&cpus_text);
    if (rc == 0)
        rc = finish(launch, out_launch, err);
    else
        launch_destroy(launch);
    if (rc == 0)
        *out_cpus = cpus;
    return rc;
}

int launch_create_plan(const struct launch_plan *plan, uint32_t n_replicas,
                       struct launch **out_launch, struct error *err)
{
    struct launch *launch = create("plan");
    if (launch) {
        add_plan(launch, plan);
        add_number(launch, "--replicas", n_replicas);
    }
    return finish(launch, out_launch, err);
}
