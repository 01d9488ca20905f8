/* load.c: LoadModelVersion, and InspectModelVersion, which plans a load without one. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/host/model_path.h"
#include "manager/rollout/plan.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/unload_txn.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"

typedef Sluice__Manager__V1__LoadModelVersionRequest load_request;
typedef Sluice__Manager__V1__InspectModelVersionRequest inspect_request;

enum { MAX_PER_DEPLOYMENT = 64, MAX_EVICTED = 16, MAX_STAGES = 8 };

/* The request with defaults filled in. */
struct load_args {
    const char *group;
    uint32_t n_replicas, tp, pp;
    pb_config *config; /* configuration of the request as recorded; NULL before the first check */
    size_t n_evicted;  /* deployments to unload before the load */
    const pb_deployment *evicted[MAX_EVICTED];
};

/* How many stages a model can have is known to the worker alone. */
static int check_split(uint32_t tp, uint32_t pp, struct error *err)
{
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8)
        return error_field(err, "tp", "%u; must be 1, 2, 4 or 8", tp);
    if (pp < 1 || pp > MAX_STAGES)
        return error_field(err, "pp", "%u; must be 1 to %d", pp, MAX_STAGES);
    if (tp * pp > WEIGHTS_MAX_RANKS)
        return error_field(err, "pp", "%u stages of %u ranks are %u ranks; at most %d", pp, tp,
                           tp * pp, WEIGHTS_MAX_RANKS);
    return 0;
}

static const char *group_or_cpu(const char *group)
{
    return *group ? group : "cpu";
}

static int no_group(const char *group, struct error *err)
{
    error_set(err, STATUS_NOT_FOUND, "device_group: no device group \"%.64s\"", group);
    return error_reason(err, REASON_DEVICE_GROUP_NOT_FOUND);
}

/* --- the change --- */

/* Checks that the loaded deployment has the settings of the request, and at most as many
 * replicas: a load removes none. */
static int check_same(const pb_deployment *deployment, const struct load_args *args,
                      struct error *err)
{
    pb_deployment asked = SLUICE__MANAGER__V1__DEPLOYMENT__INIT;
    asked.tp = args->tp;
    asked.pp = args->pp;
    asked.config = args->config;
    if (lifecycle_check_same(deployment, &asked, err) != 0)
        return err->status;
    if (deployment->n_replicas <= args->n_replicas)
        return 0;
    error_field(err, "n_replicas",
                "%s/%s is loaded on %s with %u replicas, asked %u; a load removes none, "
                "ScaleModelVersion does",
                deployment->model, deployment->version, deployment->device_group,
                deployment->n_replicas, args->n_replicas);
    err->status = STATUS_FAILED_PRECONDITION;
    error_version(err, deployment->version);
    return error_reason(err, REASON_ALREADY_LOADED);
}

/* Runs all checks of a load except those of its replicas. Returns the version's row; NULL with
 * err set. Fills args->config. */
static const pb_version *check_rows(struct service_call *call, const struct catalog *catalog,
                                    struct error *err)
{
    const load_request *request = call->request;
    struct load_args *args = call->arg;
    const pb_version *row = catalog_resolve_version(catalog, request->model, request->version);
    char key[TABLE_KEY_BYTES];
    if (!row) {
        lifecycle_no_version(request->model, request->version, err);
        return NULL;
    }
    table_key(key, row->model, row->version, NULL);
    if (service_check_generation(call, key, row->generation, err) != 0 ||
        config_check_fits("config", request->config, row->info, err) != 0 ||
        (!args->config && model_path_of_config(call->model_root, request->config, &call->arena,
                                               &args->config, err) != 0))
        return NULL;
    const pb_group *group = catalog_group(catalog, args->group);
    if (!group) {
        no_group(args->group, err);
        return NULL;
    }
    const struct lifecycle_target target = {row->model, row->version, args->group};
    if (config_check_devices("config", request->config, group, err) != 0 ||
        config_check_devices("the version's config", row->config, group, err) != 0 ||
        policy_check_load(catalog, row->model, row->version, err) != 0 ||
        lifecycle_check_free(catalog, &target, &call->limits, err) != 0)
        return NULL;
    const pb_deployment *old = catalog_deployment(catalog, row->model, row->version, args->group);
    if (old && lifecycle_n_live(catalog, &target) > 0 &&
        (check_same(old, args, err) != 0 || lifecycle_check_awake(old, err) != 0))
        return NULL;
    return lifecycle_check_fill(catalog, &target, args->n_replicas, &call->limits, err) == 0 ? row
                                                                                             : NULL;
}

/* Writes the deployment. A deployment without a live replica, as after a failed load, takes the
 * settings of this request. */
static int put_deployment(struct txn *txn, const struct lifecycle_target *target,
                          const struct load_args *args, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    const pb_deployment *old =
        catalog_deployment(catalog, target->model, target->version, target->group);
    pb_deployment deployment = SLUICE__MANAGER__V1__DEPLOYMENT__INIT;
    deployment.model = (char *)(uintptr_t)target->model; /* the strings are only read */
    deployment.version = (char *)(uintptr_t)target->version;
    deployment.device_group = (char *)(uintptr_t)target->group;
    deployment.tp = args->tp;
    deployment.pp = args->pp;
    deployment.config = args->config;
    if (old && lifecycle_n_live(catalog, target) > 0)
        deployment = *old;
    deployment.n_replicas = args->n_replicas;
    deployment.generation = (old ? old->generation : 0) + 1;
    return txn_put_copy(txn, TABLE_DEPLOYMENT, &deployment, err);
}

/* Unloads the versions to evict; a version that was unloaded meanwhile is skipped. */
static int evict(struct txn *txn, struct service_call *call, pb_operation *operation,
                 struct error *err)
{
    const struct load_args *args = call->arg;
    for (size_t i = 0; i < args->n_evicted; i++) {
        const struct lifecycle_target target = lifecycle_target_of(args->evicted[i]);
        if (!catalog_deployment(txn_catalog(txn), target.model, target.version, target.group))
            continue;
        if (unload_version(txn, &target, &call->limits, call->grace_ms, operation, err) != 0)
            return err->status;
    }
    return 0;
}

static int apply_load(struct txn *txn, struct service_call *call, struct error *err)
{
    const load_request *request = call->request;
    Sluice__Manager__V1__LoadModelVersionResponse *response = call->response;
    const struct load_args *args = call->arg;
    const pb_version *version = check_rows(call, txn_catalog(txn), err);
    if (!version)
        return err->status;
    const struct lifecycle_target target = {version->model, version->version, args->group};
    pb_operation *operation = lifecycle_operation(txn, OPERATION_LOAD, request->request_id,
                                                  target.model, target.version, target.group, err);
    if (!operation)
        return err->status;
    failpoint("load.before_write");
    int rc = put_deployment(txn, &target, args, err);
    if (rc == 0)
        rc = lifecycle_fill(txn, &target, args->n_replicas, &call->limits, operation, err);
    if (rc == 0)
        rc = lifecycle_bump(txn, target.model, target.version, err);
    if (rc == 0)
        rc = evict(txn, call, operation, err);
    return lifecycle_answer(txn, rc, operation, 0, &call->arena, &response->operation, err);
}

/* --- plans --- */

/* Plans the new replicas beyond the live ones. */
static int plan_load(struct service_call *call, struct error *err)
{
    const struct load_args *args = call->arg;
    const pb_version *version = check_rows(call, call->catalog, err);
    if (!version)
        return err->status;
    const struct lifecycle_target target = {version->model, version->version, args->group};
    uint32_t n_live = lifecycle_n_live(call->catalog, &target);
    const struct plan_wish wish = {.model = target.model,
                                   .version = target.version,
                                   .group = target.group,
                                   .tp = args->tp,
                                   .pp = args->pp,
                                   .config = args->config,
                                   .n_replicas =
                                       args->n_replicas > n_live ? args->n_replicas - n_live : 0};
    return service_plan(call, &wish, err);
}

/* True where the load needs a plan first. A plan finds the versions to evict. Several replicas
 * are loaded together or not at all, as each replica alone would only check its own room. */
static bool needs_plan(const struct service_call *call)
{
    const load_request *request = call->request;
    const struct load_args *args = call->arg;
    const pb_version *version =
        catalog_resolve_version(call->catalog, request->model, request->version);
    if (!version) /* the change answers with the error */
        return request->evict;
    const struct plan_wish wish = {.model = version->model,
                                   .version = version->version,
                                   .group = args->group,
                                   .tp = args->tp,
                                   .pp = args->pp,
                                   .config = request->config};
    const struct lifecycle_target target = {version->model, version->version, args->group};
    bool adds =
        request->n_replicas > 1 && request->n_replicas > lifecycle_n_live(call->catalog, &target);
    return request->evict || (adds && plan_is_of_all(call->fleet, &wish));
}

/* Adds the deployment of the eviction once for all its replicas. False: there are too many. */
static bool add_evicted(struct service_call *call, const Sluice__V1__Eviction *eviction)
{
    struct load_args *args = call->arg;
    const pb_replica *replica = catalog_replica(call->catalog, eviction->replica_id);
    if (!replica)
        return true;
    for (size_t i = 0; i < args->n_evicted; i++)
        if (pb_replica_is_of(replica, args->evicted[i]))
            return true;
    pb_deployment *evicted =
        args->n_evicted < MAX_EVICTED
            ? message_new_in(&call->arena, &sluice__manager__v1__deployment__descriptor)
            : NULL;
    if (!evicted)
        return false;
    evicted->model = message_text_in(&call->arena, replica->model);
    evicted->version = message_text_in(&call->arena, replica->version);
    evicted->device_group = message_text_in(&call->arena, replica->device_group);
    args->evicted[args->n_evicted++] = evicted;
    return true;
}

static int load_planned(struct service_call *call, const Sluice__V1__Plan *plan, struct error *err)
{
    const load_request *request = call->request;
    bool fits = plan->fits || (request->evict && plan->n_evictions);
    for (size_t i = 0; fits && request->evict && i < plan->n_evictions; i++)
        fits = add_evicted(call, plan->evictions[i]);
    if (fits)
        return 0;
    plan_does_not_fit(plan,
                      request->evict ? "even without all evictable versions that were idle for "
                                       "2 s there is too little room; nothing was unloaded"
                                     : "nothing was loaded",
                      err);
    return err->status;
}

static int check_load(struct service_call *call, struct error *err)
{
    const load_request *request = call->request;
    struct load_args *args = call->arg;
    args->group = group_or_cpu(request->device_group);
    args->tp = request->has_tp ? request->tp : 1;
    args->pp = request->has_pp ? request->pp : 1;
    args->n_replicas = request->has_n_replicas ? request->n_replicas : 1;
    if (check_split(args->tp, args->pp, err) != 0)
        return err->status;
    if (args->n_replicas < 1 || args->n_replicas > MAX_PER_DEPLOYMENT)
        return error_field(err, "n_replicas", "%u is not between 1 and %d", args->n_replicas,
                           MAX_PER_DEPLOYMENT);
    call->prepares = needs_plan(call);
    return config_check("config", request->config, err);
}

const struct service_change service_load = {
    .arg_bytes = sizeof(struct load_args),
    .check = check_load,
    .plan = plan_load,
    .prepare = plan_load,
    .planned = load_planned,
    .apply = apply_load,
};

/* --- InspectModelVersion --- */

enum {
    GROUPS_MAX_BYTES = 1024,
    GROUPS_MAX_REQUESTS = 1 << 16,
    GROUPS_MAX_DEPTH = 1 << 24,
    MAX_GROUP_TP = 8,
};

/* The prediction assumes these where a request has none. */
enum { DEFAULT_REQUESTS = 32, DEFAULT_DEPTH = 1024 };

/* The worker checks the descriptions and the splits themselves. */
static int check_groups(const inspect_request *request, struct error *err)
{
    if (strlen(request->groups) > GROUPS_MAX_BYTES)
        return error_field(err, "groups", "longer than %d bytes", GROUPS_MAX_BYTES);
    if (request->tp > MAX_GROUP_TP)
        return error_field(err, "tp", "%u is not in 0..%d", request->tp, MAX_GROUP_TP);
    if (request->pp > MAX_STAGES)
        return error_field(err, "pp", "%u is not in 0..%d", request->pp, MAX_STAGES);
    if (request->n_requests > GROUPS_MAX_REQUESTS)
        return error_field(err, "n_requests", "%u is not in 0..%d", request->n_requests,
                           GROUPS_MAX_REQUESTS);
    if (request->depth_tokens > GROUPS_MAX_DEPTH)
        return error_field(err, "depth_tokens", "%u is not in 0..%d", request->depth_tokens,
                           GROUPS_MAX_DEPTH);
    return 0;
}

/* The flags of a plan of described groups. */
struct group_flags {
    const char *arguments[PLAN_MAX_ARGUMENTS + 1];
    char groups[GROUPS_MAX_BYTES + 32], tp[32], pp[32], requests[40], depth[40];
};

static void make_group_flags(const inspect_request *request, struct group_flags *out)
{
    snprintf(out->groups, sizeof(out->groups), "--split-groups=%s", request->groups);
    snprintf(out->tp, sizeof(out->tp), "--split-tp=%u", request->tp);
    snprintf(out->pp, sizeof(out->pp), "--split-pp=%u", request->pp);
    snprintf(out->requests, sizeof(out->requests), "--split-requests=%u",
             request->n_requests ? request->n_requests : DEFAULT_REQUESTS);
    snprintf(out->depth, sizeof(out->depth), "--split-depth=%u",
             request->depth_tokens ? request->depth_tokens : DEFAULT_DEPTH);
    const char *const all[] = {out->groups, out->tp, out->pp, out->requests, out->depth, NULL};
    memcpy(out->arguments, all, sizeof(all));
}

/* Answers with the report, and the names in its plan. The report is freed with its own texts. */
static void answer_inspection(struct rpc_call *rpc, const Sluice__V1__Inspection *inspection,
                              void *arg)
{
    struct service_call *call = arg;
    Sluice__Manager__V1__InspectModelVersionResponse *response = call->response;
    (void)rpc;
    if (!inspection) { /* the call has failed */
        service_drop(call);
        return;
    }
    Sluice__V1__Inspection copy = *inspection;
    Sluice__V1__Plan plan = SLUICE__V1__PLAN__INIT;
    if (inspection->plan) {
        plan = *inspection->plan;
        plan.model = response->model;
        plan.version = response->version;
        copy.plan = &plan;
    }
    response->inspection = &copy;
    service_reply(call);
}

/* The names of the version are copied for the answer: its row may be gone by then. */
int service_inspect(struct service_call *call, struct error *err)
{
    const inspect_request *request = call->request;
    Sluice__Manager__V1__InspectModelVersionResponse *response = call->response;
    const char *group_name = group_or_cpu(request->device_group);
    bool described = *request->groups != '\0';
    struct group_flags flags;
    struct plan_wish wish = {.group = group_name,
                             .tp = request->has_tp && !described ? request->tp : 1,
                             .pp = request->has_pp && !described ? request->pp : 1,
                             .arguments = described ? flags.arguments : NULL,
                             .n_replicas = 1,
                             .inspected = answer_inspection};
    pb_config *config = NULL;
    if (check_split(wish.tp, wish.pp, err) != 0 || (described && check_groups(request, err) != 0) ||
        config_check("config", request->config, err) != 0)
        return err->status;
    const pb_version *row =
        catalog_resolve_version(call->catalog, request->model, request->version);
    const pb_group *group = catalog_group(call->catalog, group_name);
    if (!row)
        return lifecycle_no_version(request->model, request->version, err);
    if (!group)
        return no_group(group_name, err);
    if (config_check_fits("config", request->config, row->info, err) != 0 ||
        config_check_devices("config", request->config, group, err) != 0 ||
        model_path_of_config(call->model_root, request->config, &call->arena, &config, err) != 0)
        return err->status;
    wish.model = response->model = message_text_in(&call->arena, row->model);
    wish.version = response->version = message_text_in(&call->arena, row->version);
    response->path = message_text_in(&call->arena, row->path);
    wish.config = config;
    if (described)
        make_group_flags(request, &flags);
    int rc = plan_run(call->fleet, call->rpc, &wish, NULL, call, err);
    return rc == 0 ? SERVICE_LATER : rc;
}
