/* update.c: UpdateModelVersion; rollout/update.c then carries the update out. */
#include "manager/rollout/update.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/message.h"
#include "manager/host/model_path.h"
#include "manager/rollout/plan.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/traffic.h"
#include "manager/rollout/update_rules.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

typedef Sluice__Manager__V1__UpdateModelVersionRequest update_request;

enum { MAX_STEPS = 32, MAX_STEP_MS = 24 * 3600 * 1000, STEP_MS = 30000, MAX_REPLICAS = 64 };
static const double default_error_rate = 0.05, default_ttft_ratio = 3;

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

static int check_update(struct service_call *call, struct error *err)
{
    const update_request *request = call->request;
    if (check_steps(request, err) != 0 || check_gates(request->gates, err) != 0 ||
        config_check("config", request->config, err) != 0)
        return err->status;
    if (strcmp(request->version, request->from_version) == 0)
        return error_field(err, "version", "\"%s\" is the version to replace; name another",
                           request->version);
    if (request->has_n_replicas && (request->n_replicas < 1 || request->n_replicas > MAX_REPLICAS))
        return error_field(err, "n_replicas", "%" PRIu32 " is not between 1 and %d",
                           request->n_replicas, MAX_REPLICAS);
    return 0;
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
    CATALOG_EACH(deployment, row, catalog) {
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

/* The desired state of the new version: as the old version, with the changes of the request. */
static int make_deployment(struct service_call *call, const struct catalog *catalog,
                           const pb_deployment *old, pb_deployment *out, struct error *err)
{
    const update_request *request = call->request;
    const pb_deployment *loaded =
        catalog_deployment(catalog, request->model, request->version, old->device_group);
    *out = *old;
    out->version = request->version;
    if (request->has_n_replicas)
        out->n_replicas = request->n_replicas;
    out->generation = (loaded ? loaded->generation : 0) + 1;
    if (!request->config)
        return 0;
    return model_path_of_config(call->model_root, request->config, &call->arena, &out->config, err);
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

/* Records the traffic rule before the update. A rule without weights is recorded as weights with
 * the effect of the default rule. */
static const pb_traffic *traffic_before(struct arena *arena, const struct catalog *catalog,
                                        const char *model, const char *from)
{
    const pb_traffic *row = traffic_find(catalog, model);
    const pb_version *chosen = traffic_default(catalog, model);
    Sluice__Manager__V1__TrafficWeight all = SLUICE__MANAGER__V1__TRAFFIC_WEIGHT__INIT;
    Sluice__Manager__V1__TrafficWeight *weights[] = {&all};
    pb_traffic traffic = SLUICE__MANAGER__V1__TRAFFIC__INIT;
    if (row && row->n_weights)
        return row;
    all.version = message_text_in(arena, chosen ? chosen->version : from);
    all.weight = 1;
    traffic.model = message_text_in(arena, model);
    traffic.n_weights = 1;
    traffic.weights = weights;
    traffic.sticky = 1;
    return message_copy_in(arena, &traffic);
}

/* Adds the plan of the update to its operation. False where memory is exhausted. */
static bool fill_update(struct service_call *call, const struct catalog *catalog,
                        const pb_deployment *old, pb_operation *operation)
{
    const update_request *request = call->request;
    pb_update update = SLUICE__MANAGER__V1__UPDATE_PROGRESS__INIT;
    pb_gates gates = SLUICE__MANAGER__V1__UPDATE_GATES__INIT;
    uint32_t steps[] = {10, 50, 100};
    gates.has_max_error_rate = gates.has_max_ttft_ratio = 1;
    gates.max_error_rate = default_error_rate;
    gates.max_ttft_ratio = default_ttft_ratio;
    update.gates = request->gates ? request->gates : &gates;
    update.n_steps = request->n_steps ? request->n_steps : sizeof(steps) / sizeof(steps[0]);
    update.steps = request->n_steps ? request->steps : steps;
    update.step_ms = request->has_step_ms ? request->step_ms : STEP_MS;
    update.phase = (Sluice__Manager__V1__UpdatePhase)UPDATE_LOAD;
    update.from_version = old->version;
    const pb_traffic *traffic = traffic_before(&call->arena, catalog, request->model, old->version);
    update.had_traffic = traffic == traffic_find(catalog, request->model);
    update.traffic_before = message_copy_in(&call->arena, traffic);
    return update.traffic_before && message_set_copy(&operation->update, &update) &&
           message_set(&operation->stage, "place");
}

static int check_rows(const struct service_call *call, const struct catalog *catalog,
                      const pb_deployment *old, struct error *err)
{
    const update_request *request = call->request;
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
    return lifecycle_check_free(catalog, &all, &call->limits, err);
}

/* Checks that the update may begin now. Fills in the new deployment, and returns the deployment
 * to replace. NULL with err set. */
static const pb_deployment *find_update(struct service_call *call, const struct catalog *catalog,
                                        pb_deployment *out_deployment, struct error *err)
{
    const update_request *request = call->request;
    const pb_model *model = catalog_model(catalog, request->model);
    if (!model) {
        lifecycle_no_version(request->model, "", err);
        return NULL;
    }
    if (service_check_generation(call, request->model, model->generation, err) != 0)
        return NULL;
    const pb_deployment *old = find_old(catalog, request, err);
    if (!old || check_rows(call, catalog, old, err) != 0 ||
        make_deployment(call, catalog, old, out_deployment, err) != 0 ||
        check_loaded(catalog, out_deployment, err) != 0)
        return NULL;
    const struct lifecycle_target target = lifecycle_target_of(out_deployment);
    return lifecycle_check_fill(catalog, &target, out_deployment->n_replicas, &call->limits, err) ==
                   0
               ? old
               : NULL;
}

/* Also writes traffic that keeps all requests where they are. */
static int apply_update(struct txn *txn, struct service_call *call, struct error *err)
{
    const update_request *request = call->request;
    Sluice__Manager__V1__UpdateModelVersionResponse *response = call->response;
    const struct catalog *catalog = txn_catalog(txn);
    pb_deployment deployment;
    const pb_deployment *old = find_update(call, catalog, &deployment, err);
    if (!old)
        return err->status;
    const struct lifecycle_target target = lifecycle_target_of(&deployment);
    pb_operation *operation = lifecycle_operation(txn, OPERATION_UPDATE, request->request_id,
                                                  target.model, target.version, target.group, err);
    if (!operation)
        return err->status;
    int rc = fill_update(call, catalog, old, operation) ? 0 : error_no_memory(err);
    if (rc == 0)
        rc = txn_put_copy(txn, TABLE_DEPLOYMENT, &deployment, err);
    if (rc == 0)
        rc = lifecycle_fill(txn, &target, deployment.n_replicas, &call->limits, operation, err);
    if (rc == 0)
        rc = update_pin_traffic(txn, operation, 0, err);
    if (rc == 0)
        rc = lifecycle_bump(txn, target.model, target.version, err);
    return lifecycle_answer(txn, rc, operation, call->grace_ms, &call->arena, &response->operation,
                            err);
}

/* Plans the new version beside the old one, which keeps its memory until all traffic has moved. */
static int plan_update(struct service_call *call, struct error *err)
{
    pb_deployment deployment;
    const pb_deployment *old = find_update(call, call->catalog, &deployment, err);
    if (!old)
        return err->status;
    struct lifecycle_target target = lifecycle_target_of(&deployment);
    struct lifecycle_target leaving = lifecycle_target_of(old);
    uint32_t n_live = lifecycle_n_live(call->catalog, &target);
    uint32_t n_leaving = lifecycle_n_live(call->catalog, &leaving);
    struct plan_wish wish = service_wish_of(
        &deployment, deployment.n_replicas > n_live ? deployment.n_replicas - n_live : 0);
    wish.note =
        message_printf_in(&call->arena,
                          "version %s serves beside it on %s with %" PRIu32
                          " replica%s until all its traffic has moved; then its memory "
                          "is free",
                          old->version, old->device_group, n_leaving, n_leaving == 1 ? "" : "s");
    return service_plan(call, &wish, err);
}

const struct service_change service_update = {
    .check = check_update, .plan = plan_update, .apply = apply_update};
