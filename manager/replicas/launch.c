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
#include "manager/base/message.h"
#include "manager/capacity/cpu_share.h"
#include "manager/capacity/device_hold.h"
#include "manager/capacity/device_room.h"
#include "manager/host/model_path.h"
#include "manager/replicas/supervise.h"

enum { MAX_ARGUMENTS = 96 };

struct heritage {
    char *argv[MAX_ARGUMENTS + 1];
    size_t n_arguments;
    bool failed;
};

static void add_text(struct heritage *heritage, const char *text)
{
    if (heritage->n_arguments == MAX_ARGUMENTS) {
        heritage->failed = true;
        return;
    }
    char *copy = strdup(text);
    if (!copy)
        heritage->failed = true;
    else
        heritage->argv[heritage->n_arguments++] = copy;
}

static void add(struct heritage *heritage, const char *flag, const char *value)
{
    if (!value || !*value)
        return;
    add_text(heritage, flag);
    add_text(heritage, value);
}

static void add_number(struct heritage *heritage, const char *flag, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    if (value)
        add(heritage, flag, text);
}

static void add_config(struct heritage *heritage, const pb_config *config)
{
    if (!config)
        return;
    add_number(heritage, "--context-length", config->context_length);
    add(heritage, "--kv-dtype", config->kv_dtype);
    add_number(heritage, "--kv-bytes", config->kv_bytes);
    add_number(heritage, "--kv-tokens", config->kv_tokens);
    add(heritage, "--kernels", config->kernels);
    add_number(heritage, "--gpu-layers", config->gpu_layers);
    add_number(heritage, "--gpu-memory", config->gpu_memory_bytes);
    add(heritage, "--weight-format", config->weight_format);
    if (config->has_deterministic && !config->deterministic)
        add_text(heritage, "--no-deterministic=true");
    add_number(heritage, "--threads", config->n_threads);
    add_number(heritage, "--max-concurrent", config->max_concurrent_requests);
    add_number(heritage, "--max-queued", config->max_queued_requests);
    add_number(heritage, "--max-batch-tokens", config->max_batch_tokens);
    add_number(heritage, "--prefill-chunk-tokens", config->prefill_chunk_tokens);
    add_number(heritage, "--max-input-tokens", config->max_input_tokens);
    add_number(heritage, "--max-total-tokens", config->max_total_tokens);
    if (config->has_target_itl_ms && !config->target_itl_ms)
        add(heritage, "--target-itl-ms", "0");
    add_number(heritage, "--target-itl-ms", config->target_itl_ms);
    add_number(heritage, "--speculate", config->max_draft_tokens);
    if (config->has_prefix_cache)
        add_text(heritage, config->prefix_cache ? "--prefix-cache=true" : "--prefix-cache=false");
}

static void add_plan(struct heritage *heritage, const struct heritage_plan *plan)
{
    struct strbuf devices;
    strbuf_init(&devices, 0);
    for (size_t i = 0; i < plan->n_devices; i++)
        strbuf_printf(&devices, "%s%s", i ? "," : "", plan->devices[i]);
    if (strbuf_failed(&devices))
        heritage->failed = true;
    add(heritage, "--model", plan->model_path);
    add(heritage, "--digest", plan->digest);
    add(heritage, "--draft", plan->draft_path);
    add(heritage, "--devices", strbuf_str(&devices));
    add_number(heritage, "--tp", plan->tp);
    add_number(heritage, "--pp", plan->pp);
    add(heritage, "--cpus", plan->cpus);
    add_number(heritage, "--memory-promised", plan->promised_bytes);
    add_number(heritage, "--memory-limit", plan->limit_bytes);
    add_number(heritage, "--gpu-promised", plan->gpu_promised_bytes);
    add_number(heritage, "--gpu-held", plan->gpu_held_bytes);
    if (plan->shared)
        add_text(heritage, "--weights-shared=true");
    if (plan->held)
        add_text(heritage, "--weights-held=true");
    add_config(heritage, plan->config);
    strbuf_fini(&devices);
}

static struct heritage *create(const char *mode)
{
    struct heritage *heritage = calloc(1, sizeof(*heritage));
    if (!heritage)
        return NULL;
    add_text(heritage, "sluice-worker");
    add_text(heritage, mode);
    return heritage;
}

static int finish(struct heritage *heritage, struct heritage **out_heritage, struct error *err)
{
    if (!heritage || heritage->failed) {
        heritage_destroy(heritage);
        return error_no_memory(err);
    }
    *out_heritage = heritage;
    return 0;
}

void heritage_destroy(struct heritage *heritage)
{
    if (!heritage)
        return;
    for (size_t i = 0; i < heritage->n_arguments; i++)
        free(heritage->argv[i]);
    free(heritage);
}

char *const *heritage_argv(const struct heritage *heritage)
{
    return heritage->argv;
}

#define MERGE_NUMBER(field)                                                                        \
    do {                                                                                           \
        if (over->has_##field) {                                                                   \
            merged->has_##field = 1;                                                               \
            merged->field = over->field;                                                           \
        }                                                                                          \
    } while (0)

pb_config *config_merge(const pb_config *under, const pb_config *over)
{
    pb_config *merged = under
                            ? MESSAGE_COPY(pb_config, under)
                            : MESSAGE_NEW(pb_config, sluice__manager__v1__model_config__descriptor);
    if (!merged || !over)
        return merged;
    MERGE_NUMBER(context_length);
    MERGE_NUMBER(n_threads);
    MERGE_NUMBER(max_concurrent_requests);
    MERGE_NUMBER(max_queued_requests);
    MERGE_NUMBER(max_batch_tokens);
    MERGE_NUMBER(prefill_chunk_tokens);
    MERGE_NUMBER(max_input_tokens);
    MERGE_NUMBER(max_total_tokens);
    MERGE_NUMBER(target_itl_ms);
    MERGE_NUMBER(prefix_cache);
    MERGE_NUMBER(gpu_layers);
    MERGE_NUMBER(gpu_memory_bytes);
    MERGE_NUMBER(deterministic);
    MERGE_NUMBER(max_draft_tokens);
    MERGE_NUMBER(idle_after_ms);
    MERGE_NUMBER(evictable);
    MERGE_NUMBER(wake_on_demand);
    if (over->has_kv_bytes || over->has_kv_tokens)
        merged->has_kv_bytes = merged->has_kv_tokens =
            0; /* one way of saying it replaces the other */
    MERGE_NUMBER(kv_bytes);
    MERGE_NUMBER(kv_tokens);
    if ((!*over->kv_dtype || message_set(&merged->kv_dtype, over->kv_dtype)) &&
        (!*over->idle_action || message_set(&merged->idle_action, over->idle_action)) &&
        (!*over->cpus || message_set(&merged->cpus, over->cpus)) &&
        (!*over->placement || message_set(&merged->placement, over->placement)) &&
        (!*over->weight_format || message_set(&merged->weight_format, over->weight_format)) &&
        (!*over->kernels || message_set(&merged->kernels, over->kernels)) &&
        (!*over->draft_model || message_set(&merged->draft_model, over->draft_model)) &&
        (!*over->chat_template || message_set(&merged->chat_template, over->chat_template)))
        return merged;
    message_free(&merged->base);
    return NULL;
}

/* The template given at register or load, as a file beside the socket. */
static int write_template(const struct manager *manager, const char *replica_id, const char *text,
                          char *out_path, size_t n_bytes, struct error *err)
{
    snprintf(out_path, n_bytes, "%s/replica-%s/chat_template.jinja", manager->settings.run_dir,
             replica_id);
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

/* One that keeps weights opens none of them, whoever holds them. */
static size_t all_of(const pb_group *group, char *out_devices[DEVICES_MAX])
{
    size_t n = group->n_devices < DEVICES_MAX ? group->n_devices : DEVICES_MAX;
    for (size_t i = 0; i < n; i++)
        out_devices[i] = group->devices[i];
    return n;
}

int heritage_create(const struct manager *manager, const char *replica_id, size_t n_packed_fds,
                    bool keeps, struct heritage **out_heritage, struct cpus *out_cpus,
                    struct error *err)
{
    const struct catalog *catalog = &manager->catalog;
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
    if (!keeps && device_hold_check(catalog, group, deployment->tp, err) != 0)
        return err->status;
    pb_config *config = config_merge(version->config, deployment->config);
    if (!config)
        return error_no_memory(err);
    char model_path[4096], draft_path[4096], path[4096];
    struct supervisor_promises promises = supervisor_promises(manager->supervisor, replica_id);
    model_path_absolute(manager, version->path, model_path, sizeof(model_path));
    model_path_absolute(manager, config->draft_model, draft_path, sizeof(draft_path));
    char *usable[DEVICES_MAX];
    struct cpus cpus;
    /* One that computes nothing takes no CPUs from others. */
    int status = cpu_share_take(manager, replica_id, keeps ? "" : config->cpus, config->n_threads,
                                deployment->n_replicas, &cpus, err);
    if (status != 0) {
        message_free(&config->base);
        return status;
    }
    struct strbuf cpus_text = {0};
    cpus_format(&cpus, &cpus_text);
    size_t n_usable = keeps ? all_of(group, usable) : device_hold_choose(catalog, group, usable);
    struct device_room room = {0};
    const struct device_wish wish = {.but_id = replica_id,
                                     .version = version,
                                     .group = group->name,
                                     .n_ranks = deployment->tp,
                                     .config = config};
    n_usable = device_room_choose(manager, &wish, usable, n_usable);
    if (n_usable)
        device_room_look(manager, usable[0], replica_id, &room);
    struct heritage_plan plan = {
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
        .limit_bytes = supervisor_budget_left(manager->supervisor, replica_id, usable, n_usable),
        .gpu_promised_bytes = room.promised_bytes,
        .gpu_held_bytes = room.held_bytes,
        .shared = n_packed_fds && !device_name_is_gpu(group->devices[0]) &&
                  promises.n_unsized == promises.n_unsized_same,
    };
    struct heritage *heritage = strbuf_failed(&cpus_text) ? NULL : create("serve");
    if (heritage) {
        const char *run_dir = manager->settings.run_dir;
        snprintf(path, sizeof(path), "%s/replica-%s/worker.sock", run_dir, replica_id);
        add(heritage, "--socket", path);
        snprintf(path, sizeof(path), "%s/replica-%s/exit.pb", run_dir, replica_id);
        add(heritage, "--exit-report", path);
        add(heritage, "--replica", replica_id);
        snprintf(path, sizeof(path), "unix:%s/replica-%s/metrics.sock", run_dir, replica_id);
        add(heritage, "--metrics", path);
        add_number(heritage, "--epoch", replica->epoch);
        add(heritage, "--name", replica->model);
        add(heritage, "--version-id", replica->version);
        add(heritage, "--device-group", replica->device_group);
        add_plan(heritage, &plan);
        add_number(heritage, "--replicas", promises.n_unsized + 1);
        add_number(heritage, "--packed-fds", n_packed_fds);
        if (keeps)
            add_text(heritage, "--parked=true");
        add(heritage, "--log-level", manager->settings.log_level);
        add(heritage, "--log-format", manager->settings.log_format);
        if (*config->chat_template) {
            status =
                write_template(manager, replica_id, config->chat_template, path, sizeof(path), err);
            add(heritage, "--chat-template-file", path);
        }
    }
    message_free(&config->base);
    strbuf_fini(&cpus_text);
    if (status == 0)
        status = finish(heritage, out_heritage, err);
    else
        heritage_destroy(heritage);
    if (status == 0)
        *out_cpus = cpus;
    return status;
}

int heritage_create_plan(const struct heritage_plan *plan, uint32_t n_replicas,
                         struct heritage **out_heritage, struct error *err)
{
    struct heritage *heritage = create("plan");
    if (heritage) {
        add_plan(heritage, plan);
        add_number(heritage, "--replicas", n_replicas);
    }
    return finish(heritage, out_heritage, err);
}
