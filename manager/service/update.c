/* update.c: UpdateModelVersion; rollout/update.c then carries the update out. */
#include "manager/rollout/update.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/host/model_path.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/plan.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/traffic.h"
#include "manager/rollout/update_rules.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__UpdateModelVersionRequest update_request;
typedef Sluice__Manager__V1__UpdateModelVersionResponse update_response;

enum { MAX_STEPS = 32, MAX_STEP_MS = 24 * 3600 * 1000, STEP_MS = 30000, MAX_REPLICAS = 64 };
static const uint32_t default_steps[] = {10, 50, 100};
static const double default_error_rate = 0.05, default_ttft_ratio = 3;

struct update_args {
    struct lifecycle_limits limits;
    uint32_t grace_ms;
    const char *model_root;
};

static int check_gates(const pb_gates *gates, struct error *err)
{
    if (!gates)
        return 0;
    if (gates->has_max_error_rate && !(gates->max_error_rate >= 0 && gates->max_error_rate <= 1))
        return error_field(err, "gates.max_error_rate", "%g is not in [0, 1]",
                           gates->max_error_rate);
    if (gates->has_max_ttft_ms && !(gates->max_ttft_ms > 0 && isfinite(gates->max_ttft_ms)))
        return error_field(err, "gates.max_ttft_ms", "%g is not above 0", gates->max_ttft_ms);
    if (gates->has_max_ttft_ratio &&
        !(gates->max_ttft_ratio > 0 && isfinite(gates->max_ttft_ratio)))
        return error_field(err, "gates.max_ttft_ratio", "%g is not above 0", gates->max_ttft_ratio);
    if (gates->has_ttft_quantile && !(gates->ttft_quantile >= 0 && gates->ttft_quantile < 1))
        return error_field(err, "gates.ttft_quantile", "%g is not in [0, 1)", gates->ttft_quantile);
    if (gates->has_max_wait_ms && gates->max_wait_ms > MAX_STEP_MS)
        return error_field(err, "gates.max_wait_ms", "%" PRIu64 "; %d is the limit",
                           gates->max_wait_ms, MAX_STEP_MS);
    return 0;
}

static int check_steps(const update_request *request, struct error *err)
{
    uint32_t last = 0;
    if (request->n_steps > MAX_STEPS)
        return error_field(err, "steps", "%zu of them; %d is the limit", request->n_steps,
                           MAX_STEPS);
    for (size_t i = 0; i < request->n_steps; i++) {
        if (request->steps[i] <= last || request->steps[i] > 100)
            return error_field(err, "steps",
                               "%" PRIu32 " is not more than the one before and at "
                               "most 100",
                               request->steps[i]);
        last = request->steps[i];
    }
    if (request->n_steps && last != 100)
        return error_field(err, "steps", "the last one is %" PRIu32 ", not 100", last);
    if (request->has_step_ms && request->step_ms > MAX_STEP_MS)
        return error_field(err, "step_ms", "%" PRIu64 "; %d is the limit", request->step_ms,
                           MAX_STEP_MS);
    return 0;
}

static int check_request(const struct fleet *fleet, const update_request *request,
                         struct update_args *args, struct error *err)
{
    if (name_check("model", request->model, err) != 0 ||
        name_check_version("version", request->version, err) != 0 ||
        (*request->from_version &&
         name_check_version("from_version", request->from_version, err) != 0) ||
        (*request->device_group && name_check("device_group", request->device_group, err) != 0) ||
        check_steps(request, err) != 0 || check_gates(request->gates, err) != 0 ||
        config_check("config", request->config, err) != 0)
        return err->status;
    if (strcmp(request->version, request->from_version) == 0)
        return error_field(err, "version", "\"%s\" is the version to replace; name another",
                           request->version);
    if (request->has_n_replicas && (request->n_replicas < 1 || request->n_replicas > MAX_REPLICAS))
        return error_field(err, "n_replicas", "%" PRIu32 " is not between 1 and %d",
                           request->n_replicas, MAX_REPLICAS);
    args->limits = lifecycle_limits_of(fleet->context->settings);
    args->model_root = fleet->context->settings->model_root;
    return service_grace(fleet, request->has_grace_ms, request->grace_ms, &args->grace_ms, err);
}

/* Finds the deployment to replace. NULL with err set. */
static const pb_deployment *find_old(const struct catalog *catalog, const update_request *request,
                                     struct error *err)
{
    const pb_deployment *found = NULL;
    if (*request->from_version &&
        !catalog_version(catalog, request->model, request->from_version)) {
        lifecycle_no_version(request->model, request->from_version, err);
        return NULL;
    }
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *row = catalog_deployment_at(catalog, i);
        if (strcmp(row->model, request->model) != 0 ||
            strcmp(row->version, request->version) == 0 ||
            (*request->from_version && strcmp(row->version, request->from_version) != 0) ||
            (*request->device_group && strcmp(row->device_group, request->device_group) != 0))
            continue;
        if (found) {
            bool versions = strcmp(found->version, row->version) != 0;
            error_field(
                err, versions ? "from_version" : "device_group",
                "%s is loaded as version %s on %s and as version %s on %s; name one of them",
                request->model, found->version, found->device_group, row->version,
                row->device_group);
            return NULL;
        }
        found = row;
    }
    if (found)
        return found;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "no other version of %s is loaded%s%s; LoadModelVersion loads this one",
              request->model, *request->device_group ? " on " : "", request->device_group);
    error_reason(err, REASON_NOT_LOADED);
    return NULL;
}

/* The desired state of the new version: as the old version, with the changes of the request.
 * Owned. */
static pb_deployment *new_deployment(const struct catalog *catalog, const update_request *request,
                                     const struct update_args *args, const pb_deployment *old,
                                     struct error *err)
{
    const pb_deployment *loaded =
        catalog_deployment(catalog, request->model, request->version, old->device_group);
    pb_config *config = NULL;
    pb_deployment *deployment = MESSAGE_COPY(pb_deployment, old);
    bool complete = deployment && message_set(&deployment->version, request->version);
    if (!complete)
        error_no_memory(err);
    if (complete && request->config) {
        complete = model_path_of_config(args->model_root, request->config, &config, err) == 0;
        if (complete && !message_set_copy(&deployment->config, config))
            complete = error_no_memory(err) == 0;
        if (config)
            message_free(&config->base);
    }
    if (complete) {
        if (request->has_n_replicas)
            deployment->n_replicas = request->n_replicas;
        deployment->generation = (loaded ? loaded->generation : 0) + 1;
        return deployment;
    }
    if (deployment)
        message_free(&deployment->base);
    return NULL;
}

/* Where the new version is loaded already, its settings must equal the update's, with at most
 * that many replicas. */
static int check_loaded(const struct catalog *catalog, pb_deployment *deployment, struct error *err)
{
    struct lifecycle_target target = lifecycle_target_of(deployment);
    const pb_deployment *loaded =
        catalog_deployment(catalog, target.model, target.version, target.group);
    if (!loaded || !lifecycle_n_live(catalog, &target))
        return 0;
    if (lifecycle_check_awake(loaded, err) != 0)
        return err->status;
    if (lifecycle_check_same(loaded, deployment, err) != 0)
        return err->status;
    if (loaded->n_replicas > deployment->n_replicas)
        deployment->n_replicas = loaded->n_replicas;
    return 0;
}

/* Saves the traffic rule before the update. A rule without weights is saved as weights with the
 * effect of the default rule. */
static bool save_traffic(const struct catalog *catalog, const char *model, pb_update *update)
{
    const pb_traffic *row = traffic_find(catalog, model);
    const pb_version *chosen = traffic_default(catalog, model);
    update->had_traffic = row && row->n_weights;
    if (update->had_traffic)
        return message_set_copy(&update->traffic_before, row);
    pb_traffic *traffic = MESSAGE_NEW(pb_traffic, sluice__manager__v1__traffic__descriptor);
    bool complete = traffic && message_set(&traffic->model, model) &&
                    traffic_set_weight(traffic, chosen ? chosen->version : update->from_version, 1);
    if (complete)
        traffic->sticky = 1;
    if (complete)
        complete = message_set_copy(&update->traffic_before, traffic);
    if (traffic)
        message_free(&traffic->base);
    return complete;
}

static bool save_gates(const update_request *request, pb_update *update)
{
    pb_gates gates = SLUICE__MANAGER__V1__UPDATE_GATES__INIT;
    gates.has_max_error_rate = gates.has_max_ttft_ratio = 1;
    gates.max_error_rate = default_error_rate;
    gates.max_ttft_ratio = default_ttft_ratio;
    return message_set_copy(&update->gates, request->gates ? request->gates : &gates);
}

static bool fill_update(const struct catalog *catalog, const update_request *request,
                        const char *from, pb_operation *operation)
{
    size_t n_steps =
        request->n_steps ? request->n_steps : sizeof(default_steps) / sizeof(default_steps[0]);
    pb_update *update = MESSAGE_NEW(pb_update, sluice__manager__v1__update_progress__descriptor);
    operation->update = update;
    if (!update || !(update->steps = calloc(n_steps, sizeof(*update->steps))))
        return false;
    memcpy(update->steps, request->n_steps ? request->steps : default_steps,
           n_steps * sizeof(*update->steps));
    update->n_steps = n_steps;
    update->step_ms = request->has_step_ms ? request->step_ms : STEP_MS;
    update->phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_LOAD;
    return message_set(&update->from_version, from) && save_gates(request, update) &&
           save_traffic(catalog, request->model, update) && message_set(&operation->stage, "place");
}

/* Writes the deployment (takes it in any case), its replicas and the operation (taken in any
 * case). Also writes traffic that keeps all requests where they are. */
static int begin(struct txn *txn, pb_deployment *deployment, pb_operation *operation,
                 const struct update_args *args, update_response *response, struct error *err)
{
    struct lifecycle_target target = {operation->model, operation->version,
                                      operation->device_group};
    uint32_t n_replicas = deployment->n_replicas;
    int rc = txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err);
    if (rc == 0)
        rc = lifecycle_fill(txn, &target, n_replicas, &args->limits, operation, err);
    if (rc == 0)
        rc = update_pin_traffic(txn, operation, 0, err);
    if (rc == 0)
        rc = lifecycle_bump(txn, target.model, target.version, err);
    return lifecycle_answer(txn, rc, operation, args->grace_ms, &response->operation, err);
}

static int check_rows(const struct catalog *catalog, const update_request *request,
                      const struct update_args *args, const pb_deployment *old, struct error *err)
{
    const pb_version *version = catalog_version(catalog, request->model, request->version);
    const pb_group *group = catalog_group(catalog, old->device_group);
    /* An open operation on any version of the model refuses the update, as an open update
     * refuses other operations. */
    struct lifecycle_target all = {request->model, NULL, old->device_group};
    if (!version)
        return lifecycle_no_version(request->model, request->version, err);
    if (request->config && (config_check_fits("config", request->config, version->info, err) != 0 ||
                            config_check_devices("config", request->config, group, err) != 0))
        return err->status;
    if (config_check_devices("the version's config", version->config, group, err) != 0 ||
        lifecycle_check_awake(old, err) != 0 ||
        policy_check_load(catalog, request->model, request->version, err) != 0 ||
        policy_check_unload(catalog, request->model, old->version, err) != 0 ||
        update_check_none(catalog, request->model, err) != 0)
        return err->status;
    return lifecycle_check_free(catalog, &all, &args->limits, err);
}

/* Checks that the update may begin now. Returns the new deployment (owned) and *out_old, the
 * deployment to replace (borrowed). NULL with err set. */
static pb_deployment *check_update(const struct catalog *catalog, const update_request *request,
                                   const struct update_args *args, const pb_deployment **out_old,
                                   struct error *err)
{
    const pb_model *model = catalog_model(catalog, request->model);
    if (!model) {
        lifecycle_no_version(request->model, "", err);
        return NULL;
    }
    if (lifecycle_check_generation(request->model, request->has_expected_generation,
                                   request->expected_generation, model->generation, err) != 0)
        return NULL;
    const pb_deployment *old = find_old(catalog, request, err);
    if (!old || check_rows(catalog, request, args, old, err) != 0)
        return NULL;
    pb_deployment *deployment = new_deployment(catalog, request, args, old, err);
    const struct lifecycle_target target =
        deployment ? lifecycle_target_of(deployment) : lifecycle_target_of(old);
    if (deployment &&
        (check_loaded(catalog, deployment, err) != 0 ||
         lifecycle_check_fill(catalog, &target, deployment->n_replicas, &args->limits, err) != 0)) {
        message_free(&deployment->base);
        return NULL;
    }
    *out_old = old;
    return deployment;
}

static int apply_update(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const update_request *request = (const update_request *)message;
    const struct update_args *args = arg;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_deployment *old = NULL;
    pb_deployment *deployment = check_update(catalog, request, args, &old, err);
    if (!deployment)
        return err->status;
    char from[48], group[80];
    snprintf(from, sizeof(from), "%s", old->version);
    snprintf(group, sizeof(group), "%s", old->device_group);
    pb_operation *operation = lifecycle_operation(txn, OPERATION_UPDATE, request->request_id,
                                                  request->model, request->version, group, err);
    if (operation && fill_update(catalog, request, from, operation))
        return begin(txn, deployment, operation, args, (update_response *)response, err);
    message_free(&deployment->base);
    if (!operation)
        return err->status;
    message_free(&operation->base);
    return error_no_memory(err);
}

static const struct service_change update_change = {
    .arg_bytes = sizeof(struct update_args), .apply = apply_update, .free_arg = free};

/* --- validate_only --- */

static void answer_plan(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    (void)arg;
    if (!plan)
        return;
    update_response response = SLUICE__MANAGER__V1__UPDATE_MODEL_VERSION_RESPONSE__INIT;
    response.plan = plan;
    rpc_call_reply(call, &response.base);
}

/* Plans the new version beside the old one, which keeps its memory until all traffic has moved. */
static int plan_update(struct service *service, struct rpc_call *call,
                       const update_request *request, const struct update_args *args,
                       struct error *err)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    const pb_deployment *old = NULL;
    pb_deployment *deployment = check_update(catalog, request, args, &old, err);
    if (!deployment)
        return err->status;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    struct lifecycle_target leaving = lifecycle_target_of(old);
    uint32_t n_live = lifecycle_n_live(catalog, &target);
    uint32_t n_leaving = lifecycle_n_live(catalog, &leaving);
    char note[ERROR_MESSAGE_BYTES];
    snprintf(note, sizeof(note),
             "version %s serves beside it on %s with %" PRIu32
             " replica%s until all its traffic has moved; then its memory "
             "is free",
             old->version, old->device_group, n_leaving, n_leaving == 1 ? "" : "s");
    struct plan_wish wish = {
        .model = target.model,
        .version = target.version,
        .group = target.group,
        .tp = deployment->tp,
        .pp = deployment->pp,
        .config = deployment->config,
        .n_replicas = deployment->n_replicas > n_live ? deployment->n_replicas - n_live : 0,
        .note = note};
    int rc = plan_run(service->fleet, call, &wish, answer_plan, NULL, err);
    message_free(&deployment->base);
    return rc;
}

void service_update(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const update_request *request = (const update_request *)message;
    struct update_args args = {0};
    struct error err;
    int rc = check_request(service->fleet, request, &args, &err);
    if (rc == 0 && request->validate_only)
        rc = plan_update(service, call, request, &args, &err);
    else if (rc == 0)
        service_change_copy(service, call, message, &update_change, &args);
    if (rc != 0)
        service_fail(call, &err);
}
