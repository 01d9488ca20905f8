#include "manager/rollout/plan.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/device_name.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/capacity/device_room.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/host/model_path.h"
#include "manager/host/tool.h"
#include "manager/replicas/launch.h"
#include "manager/rollout/evict.h"
#include "manager/rollout/lifecycle.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "proto/rpc/server/call.h"

struct planning {
    struct rpc_call *call; /* a reference */
    struct fleet *fleet;
    plan_answer_fn *answer;
    plan_inspected_fn *inspected; /* in place of answer; or NULL */
    void *arg;                    /* argument of answer */
    bool nothing;                 /* no new replicas: the plan describes one replica */
    char note[ERROR_MESSAGE_BYTES];
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1], group[NAME_MAX_BYTES + 1];
};

static void clear_sizes(Sluice__V1__Plan *plan)
{
    plan->n_replicas = 0;
    plan->fits = 1;
    for (size_t i = 0; i < plan->n_devices; i++) {
        Sluice__V1__DevicePlan *device = plan->devices[i];
        device->weight_bytes = device->kv_bytes = device->workspace_bytes = 0;
        device->state_bytes = device->missing_bytes = 0;
    }
}

/* Answers with the tool's report plus fields that belong to others. Afterwards the report's own
 * fields are restored, because the report is freed with its message. */
static void answer_call(struct planning *planning, Sluice__V1__Plan *plan)
{
    const Sluice__V1__Plan report = *plan;
    char **more = NULL;
    plan->model = planning->model;
    plan->version = planning->version;
    if (*planning->note && (more = calloc(plan->n_notes + 1, sizeof(*more)))) {
        if (plan->n_notes)
            memcpy(more, plan->notes, plan->n_notes * sizeof(*more));
        more[plan->n_notes++] = planning->note;
        plan->notes = more;
    }
    Sluice__V1__Eviction **evictions = NULL;
    if (!plan->fits)
        evict_choose(planning->fleet, planning->model, planning->version, planning->group, plan,
                     &evictions);
    plan->evictions = evictions;
    planning->answer(planning->call, plan, planning->arg);
    evict_free(evictions, plan->n_evictions);
    *plan = report;
    free(more);
}

static void on_inspected(void *arg, const pb_tool *report, const struct error *status)
{
    struct planning *planning = arg;
    const Sluice__V1__Inspection *inspection =
        report && report->result_case == SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT
            ? report->inspect->inspection
            : NULL;
    struct error err = *status;
    if (err.status == 0 && !inspection)
        error_set(&err, STATUS_INTERNAL, "the inspecting process sent a report of another kind");
    if (err.status != 0)
        rpc_call_finish(planning->call, &err);
    planning->inspected(planning->call, err.status == 0 ? inspection : NULL, planning->arg);
    rpc_call_release(planning->call);
    free(planning);
}

static void on_planned(void *arg, const pb_tool *report, const struct error *status)
{
    struct planning *planning = arg;
    struct error err = *status;
    if (err.status == 0 &&
        (!report || report->result_case != SLUICE__WORKER__V1__TOOL_REPORT__RESULT_PLAN))
        error_set(&err, STATUS_INTERNAL, "the planning process sent a report of another kind");
    if (err.status == 0 && report && planning->nothing)
        clear_sizes(report->plan);
    if (err.status == 0 && report) {
        answer_call(planning, report->plan);
    } else {
        rpc_call_finish(planning->call, &err);
        planning->answer(planning->call, NULL, planning->arg);
    }
    rpc_call_release(planning->call);
    free(planning);
}

static int start_tool(struct fleet *fleet, const pb_launch *launch, const struct planning *wish,
                      const char *const *arguments, struct error *err)
{
    struct planning *planning = malloc(sizeof(*planning));
    if (!planning)
        return error_no_memory(err);
    *planning = *wish;
    rpc_call_retain(planning->call);
    bool inspect = planning->inspected != NULL;
    const char *argv[PLAN_MAX_ARGUMENTS + 3] = {inspect ? "inspect" : "plan",
                                                inspect ? "--plan" : NULL};
    for (size_t i = 0; inspect && arguments && arguments[i] && i < PLAN_MAX_ARGUMENTS; i++)
        argv[i + 2] = arguments[i];
    int rc =
        tool_run(fleet->tools, argv, launch, inspect ? on_inspected : on_planned, planning, err);
    if (rc != 0) {
        rpc_call_release(planning->call);
        free(planning);
    }
    return rc;
}

static void make_note(const struct plan_wish *wish, const char *device,
                      const struct device_room *room, char *out, size_t n_bytes)
{
    char unsized[160] = "";
    if (room->claims.n_unsized)
        snprintf(unsized, sizeof(unsized),
                 "%u replica%s of %s %s not reported their memory yet and are not counted",
                 room->claims.n_unsized, room->claims.n_unsized == 1 ? "" : "s", device,
                 room->claims.n_unsized == 1 ? "has" : "have");
    snprintf(out, n_bytes, "%s%s%s", wish->note ? wish->note : "",
             wish->note && *unsized ? "; " : "", unsized);
}

static uint32_t n_ranks(const struct plan_wish *wish)
{
    return wish->tp * (wish->pp ? wish->pp : 1);
}

int plan_run(struct fleet *fleet, struct rpc_call *call, const struct plan_wish *wish,
             plan_answer_fn *answer, void *arg, struct error *err)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_version *version = catalog_version(catalog, wish->model, wish->version);
    const pb_group *group = catalog_group(catalog, wish->group);
    pb_launch *launch = NULL;
    char path[4096], draft_path[4096];
    pb_config *config = version ? config_merge(version->config, wish->config) : NULL;
    if (!config || !group) {
        if (config)
            message_free(&config->base);
        return error_no_memory(err);
    }
    if (wish->n_replicas && !wish->inspected &&
        device_hold_check(catalog, group, n_ranks(wish), err) != 0) {
        message_free(&config->base);
        return err->status;
    }
    model_path_absolute(fleet->context->settings->model_root, version->path, path, sizeof(path));
    model_path_absolute(fleet->context->settings->model_root, config->draft_model, draft_path,
                        sizeof(draft_path));
    char *usable[DEVICES_MAX];
    size_t n_usable = device_hold_choose(catalog, group, usable);
    struct device_room room = {0};
    const struct device_wish place = {
        .version = version, .group = wish->group, .n_ranks = n_ranks(wish), .config = config};
    n_usable = device_room_choose(fleet, &place, usable, n_usable);
    if (n_usable)
        device_room_read(fleet, usable[0], NULL, &room);
    bool held =
        !wish->inspected && weights_are_held(fleet->weights, wish->model, wish->version,
                                             wish->group, wish->tp, wish->pp, config->kernels);
    struct ledger_sum host = ledger_sum(fleet, &(struct ledger_query){0});
    struct launch_plan parts = {.model_path = path,
                                .draft_path = draft_path,
                                .digest = version->info ? version->info->weights_digest : "",
                                .devices = n_usable ? usable : group->devices,
                                .n_devices = n_usable ? n_usable : group->n_devices,
                                .tp = wish->tp,
                                .pp = wish->pp,
                                .config = config,
                                .cpus = config->cpus,
                                .promised_bytes = host.promised_bytes,
                                .limit_bytes = device_room_in_budget(fleet, NULL, usable, n_usable),
                                .gpu_promised_bytes = room.claims.taken_bytes,
                                .gpu_held_bytes = room.claims.held_bytes,
                                .shared = strncmp(group->devices[0], "cpu", 3) == 0,
                                .held = held};
    int rc = launch_create_plan(&parts, wish->n_replicas ? wish->n_replicas : 1, &launch, err);
    struct planning planning = {.call = call,
                                .fleet = fleet,
                                .answer = answer,
                                .inspected = wish->inspected,
                                .arg = arg,
                                .nothing = wish->n_replicas == 0};
    make_note(wish, n_usable ? usable[0] : "", &room, planning.note, sizeof(planning.note));
    snprintf(planning.model, sizeof(planning.model), "%s", wish->model);
    snprintf(planning.version, sizeof(planning.version), "%s", wish->version);
    snprintf(planning.group, sizeof(planning.group), "%s", wish->group);
    if (rc == 0)
        rc = start_tool(fleet, launch, &planning, wish->arguments, err);
    launch_destroy(launch);
    message_free(&config->base);
    return rc;
}

static bool is_auto(const pb_config *config)
{
    return !config || !*config->placement || strcmp(config->placement, "auto") == 0;
}

static bool has_size(const pb_config *config)
{
    return config &&
           (config->has_gpu_memory_bytes || config->has_kv_bytes || config->has_kv_tokens);
}

bool plan_is_of_all(const struct fleet *fleet, const struct plan_wish *wish)
{
    const struct catalog *catalog = fleet->context->catalog;
    const pb_version *version = catalog_version(catalog, wish->model, wish->version);
    const pb_group *group = catalog_group(catalog, wish->group);
    if (!version || !group || !group->n_devices)
        return false;
    /* A replica on a GPU without a configured size is planned to take most of the free memory.
     * The next one would be planned the same way. */
    if (device_name_is_gpu(group->devices[0]) && !has_size(version->config) &&
        !has_size(wish->config))
        return false;
    return group->n_devices == 1 || n_ranks(wish) > 1 ||
           (!device_name_is_gpu(group->devices[0]) &&
            fleet->context->settings->placement == FIT_AUTO && is_auto(version->config) &&
            is_auto(wish->config));
}

void plan_does_not_fit(const Sluice__V1__Plan *plan, const char *then, struct error *err)
{
    char missing[32];
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < plan->n_devices; i++)
        n_bytes += plan->devices[i]->missing_bytes;
    error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s/%s: %s of memory are missing%s%s; %s",
              plan->model, plan->version, format_bytes(n_bytes, missing),
              plan->n_replicas > 1 ? " for all" : "", plan->n_replicas > 1 ? " replicas" : "",
              then);
    error_reason(err, REASON_DEVICE_MEMORY);
}
