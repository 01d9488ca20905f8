/* load.c: LoadModelVersion, and InspectModelVersion, which plans a load without one. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/host/model_path.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/plan.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/unload_txn.h"
#include "manager/service/service.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__LoadModelVersionRequest load_request;
typedef Sluice__Manager__V1__LoadModelVersionResponse load_response;

enum { MAX_PER_DEPLOYMENT = 64, MAX_EVICTED = 16, MAX_STAGES = 8 };

/* A version on a group to unload before the load. */
struct evicted {
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1], group[NAME_MAX_BYTES + 1];
};

/* The request with defaults filled in, and the limits to check. */
struct load_args {
    char group[NAME_MAX_BYTES + 1];
    uint32_t n_replicas, tp, pp;
    struct lifecycle_limits limits;
    const char *model_root;
    uint32_t grace_ms; /* for evicted versions */
    size_t n_evicted;
    struct evicted evicted[MAX_EVICTED];
    pb_config *config; /* configuration of the request as recorded; owned once it is set */
};

static void fini_args(struct load_args *args)
{
    if (args->config)
        message_free(&args->config->base);
    args->config = NULL;
}

static void free_args(void *arg)
{
    if (arg)
        fini_args(arg);
    free(arg);
}

static int check_tp(uint32_t tp, struct error *err)
{
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8)
        return error_field(err, "tp", "%u; must be 1, 2, 4 or 8", tp);
    return 0;
}

/* How many stages a model can have is known to the worker alone. */
static int check_pp(uint32_t tp, uint32_t pp, struct error *err)
{
    if (pp < 1 || pp > MAX_STAGES)
        return error_field(err, "pp", "%u; must be 1 to %d", pp, MAX_STAGES);
    if (tp * pp > WEIGHTS_MAX_RANKS)
        return error_field(err, "pp", "%u stages of %u ranks are %u ranks; at most %d", pp, tp,
                           tp * pp, WEIGHTS_MAX_RANKS);
    return 0;
}

static int check_split(const load_request *request, struct load_args *args, struct error *err)
{
    args->tp = request->has_tp ? request->tp : 1;
    args->pp = request->has_pp ? request->pp : 1;
    args->n_replicas = request->has_n_replicas ? request->n_replicas : 1;
    if (check_tp(args->tp, err) != 0)
        return err->status;
    if (check_pp(args->tp, args->pp, err) != 0)
        return err->status;
    if (args->n_replicas < 1 || args->n_replicas > MAX_PER_DEPLOYMENT)
        return error_field(err, "n_replicas", "%u is not between 1 and %d", args->n_replicas,
                           MAX_PER_DEPLOYMENT);
    return 0;
}

static int check_load(const struct fleet *fleet, const load_request *request,
                      struct load_args *args, struct error *err)
{
    const char *group = *request->device_group ? request->device_group : "cpu";
    if (service_check_names(request->request_id, request->model, request->version, group, err) !=
            0 ||
        check_split(request, args, err) != 0 || config_check("config", request->config, err) != 0)
        return err->status;
    snprintf(args->group, sizeof(args->group), "%s", group);
    args->limits = lifecycle_limits_of(fleet->context->settings);
    args->model_root = fleet->context->settings->model_root;
    args->grace_ms = (uint32_t)fleet->context->settings->drain_grace_ms;
    return 0;
}

static int no_group(const char *group, struct error *err)
{
    error_set(err, STATUS_NOT_FOUND, "device_group: no device group \"%.64s\"", group);
    return error_reason(err, REASON_DEVICE_GROUP_NOT_FOUND);
}

/* --- the change --- */

/* True where a replica of the deployment lives or will return. */
static bool has_live_replica(const struct catalog *catalog, const pb_deployment *deployment)
{
    struct lifecycle_target target = {deployment->model, deployment->version,
                                      deployment->device_group};
    return lifecycle_n_live(catalog, &target) > 0;
}

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

/* Runs all checks of a load except those of its replicas. Returns the version's row, borrowed;
 * NULL with err set. Fills args->config. */
static const pb_version *check_rows(const struct catalog *catalog, const load_request *request,
                                    struct load_args *args, struct error *err)
{
    const pb_version *row = catalog_resolve_version(catalog, request->model, request->version);
    char key[TABLE_KEY_BYTES];
    if (!row) {
        lifecycle_no_version(request->model, request->version, err);
        return NULL;
    }
    table_key(key, row->model, row->version, NULL);
    if (lifecycle_check_generation(key, request->has_expected_generation,
                                   request->expected_generation, row->generation, err) != 0 ||
        config_check_fits("config", request->config, row->info, err) != 0 ||
        (!args->config &&
         model_path_of_config(args->model_root, request->config, &args->config, err) != 0))
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
        lifecycle_check_free(catalog, &target, &args->limits, err) != 0)
        return NULL;
    const pb_deployment *old = catalog_deployment(catalog, row->model, row->version, args->group);
    if (old && has_live_replica(catalog, old) &&
        (check_same(old, args, err) != 0 || lifecycle_check_awake(old, err) != 0))
        return NULL;
    return lifecycle_check_fill(catalog, &target, args->n_replicas, &args->limits, err) == 0 ? row
                                                                                             : NULL;
}

static pb_deployment *new_deployment(const pb_version *version, const struct load_args *args)
{
    pb_deployment *deployment =
        MESSAGE_NEW(pb_deployment, sluice__manager__v1__deployment__descriptor);
    if (!deployment)
        return NULL;
    deployment->tp = args->tp;
    deployment->pp = args->pp;
    if (message_set(&deployment->model, version->model) &&
        message_set(&deployment->version, version->version) &&
        message_set(&deployment->device_group, args->group) &&
        message_set_copy(&deployment->config, args->config))
        return deployment;
    message_free(&deployment->base);
    return NULL;
}

/* Writes the deployment. A deployment without a live replica, as after a failed load, takes the
 * settings of this request. */
static int put_deployment(struct txn *txn, const pb_version *version, const pb_deployment *old,
                          const struct load_args *args, struct error *err)
{
    bool kept = old && has_live_replica(txn_catalog(txn), old);
    uint64_t generation = old ? old->generation : 0;
    pb_deployment *deployment =
        kept ? MESSAGE_COPY(pb_deployment, old) : new_deployment(version, args);
    if (!deployment)
        return error_no_memory(err);
    deployment->n_replicas = args->n_replicas;
    deployment->generation = generation + 1;
    return txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err);
}

/* Unloads the versions to evict; a version that was unloaded meanwhile is skipped. */
static int evict(struct txn *txn, const struct load_args *args, pb_operation *operation,
                 struct error *err)
{
    for (size_t i = 0; i < args->n_evicted; i++) {
        const struct evicted *e = &args->evicted[i];
        const struct lifecycle_target target = {e->model, e->version, e->group};
        if (!catalog_deployment(txn_catalog(txn), e->model, e->version, e->group))
            continue;
        if (unload_version(txn, &target, &args->limits, args->grace_ms, operation, err) != 0)
            return err->status;
    }
    return 0;
}

static int apply_load(struct txn *txn, const ProtobufCMessage *message, void *arg,
                      ProtobufCMessage *response, struct error *err)
{
    const load_request *request = (const load_request *)message;
    struct load_args *args = arg;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_version *row = check_rows(catalog, request, args, err);
    if (!row)
        return err->status;
    const pb_deployment *old = catalog_deployment(catalog, row->model, row->version, args->group);
    /* Rows move when others are written: work on a copy. */
    pb_version *version = MESSAGE_COPY(pb_version, row);
    if (!version)
        return error_no_memory(err);
    pb_operation *operation =
        lifecycle_operation(txn, OPERATION_LOAD, request->request_id, version->model,
                            version->version, args->group, err);
    int rc = operation ? 0 : err->status;
    if (operation) {
        failpoint("load.before_write");
        const struct lifecycle_target target = {version->model, version->version, args->group};
        rc = put_deployment(txn, version, old, args, err);
        if (rc == 0)
            rc = lifecycle_fill(txn, &target, args->n_replicas, &args->limits, operation, err);
        if (rc == 0)
            rc = lifecycle_bump(txn, version->model, version->version, err);
        if (rc == 0)
            rc = evict(txn, args, operation, err);
        rc = lifecycle_answer(txn, rc, operation, 0, &((load_response *)response)->operation, err);
    }
    message_free(&version->base);
    return rc;
}

static const struct service_change load_change = {
    .arg_bytes = sizeof(struct load_args), .apply = apply_load, .free_arg = free_args};

/* --- validate_only --- */

static void answer_plan(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    (void)arg;
    if (!plan)
        return;
    load_response response = SLUICE__MANAGER__V1__LOAD_MODEL_VERSION_RESPONSE__INIT;
    response.plan = plan;
    rpc_call_reply(call, &response.base);
}

/* Plans the new replicas beyond the live ones. */
static int plan(struct service *service, struct rpc_call *call, const load_request *request,
                struct load_args *args, plan_answer_fn *answer_fn, void *arg, struct error *err)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    const pb_version *version = check_rows(catalog, request, args, err);
    if (!version)
        return err->status;
    const struct lifecycle_target target = {version->model, version->version, args->group};
    uint32_t n_live = lifecycle_n_live(catalog, &target);
    struct plan_wish wish = {.model = target.model,
                             .version = target.version,
                             .group = target.group,
                             .tp = args->tp,
                             .pp = args->pp,
                             .config = args->config,
                             .n_replicas =
                                 args->n_replicas > n_live ? args->n_replicas - n_live : 0};
    return plan_run(fleet, call, &wish, answer_fn, arg, err);
}

/* --- loads with a plan --- */

/* True where the load needs a plan first. A plan finds the versions to evict. Several replicas
 * are loaded together or not at all, as each replica alone would only check its own room. */
static bool needs_plan(const struct fleet *fleet, const load_request *request,
                       const struct load_args *args)
{
    const pb_version *version =
        catalog_resolve_version(fleet->context->catalog, request->model, request->version);
    if (!version) /* the change answers with the error */
        return request->evict;
    const struct plan_wish wish = {.model = version->model,
                                   .version = version->version,
                                   .group = args->group,
                                   .tp = args->tp,
                                   .pp = args->pp,
                                   .config = request->config};
    const struct lifecycle_target target = {version->model, version->version, args->group};
    uint32_t n_live = lifecycle_n_live(fleet->context->catalog, &target);
    bool adds = request->n_replicas > 1 && request->n_replicas > n_live;
    return request->evict || (adds && plan_is_of_all(fleet, &wish));
}

struct planned_load {
    struct load_args args; /* first member: free_args frees the whole struct */
    struct service *service;
    const ProtobufCMessage *request; /* lives as long as the call */
};

/* Adds the eviction's version once for all its replicas. False: there are too many. */
static bool add_evicted(struct load_args *args, const struct catalog *catalog,
                        const Sluice__V1__Eviction *eviction)
{
    const pb_replica *replica = catalog_replica(catalog, eviction->replica_id);
    struct evicted e;
    memset(&e, 0, sizeof(e));
    if (!replica)
        return true;
    snprintf(e.model, sizeof(e.model), "%s", replica->model);
    snprintf(e.version, sizeof(e.version), "%s", replica->version);
    snprintf(e.group, sizeof(e.group), "%s", replica->device_group);
    for (size_t i = 0; i < args->n_evicted; i++)
        if (memcmp(&args->evicted[i], &e, sizeof(e)) == 0)
            return true;
    if (args->n_evicted == MAX_EVICTED)
        return false;
    args->evicted[args->n_evicted++] = e;
    return true;
}

/* Takes `arg`. */
static void load_planned(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    struct planned_load *planned_load = arg;
    const load_request *request = (const load_request *)planned_load->request;
    struct fleet *fleet = planned_load->service->fleet;
    struct error err;
    bool fits = plan && (plan->fits || (request->evict && plan->n_evictions));
    for (size_t i = 0; fits && request->evict && i < plan->n_evictions; i++)
        fits = add_evicted(&planned_load->args, fleet->context->catalog, plan->evictions[i]);
    if (fits) {
        service_change_copy(planned_load->service, call, planned_load->request, &load_change,
                            &planned_load->args);
    } else if (plan) {
        plan_does_not_fit(plan,
                          request->evict ? "even without all evictable versions that were idle for "
                                           "2 s there is too little room; nothing was unloaded"
                                         : "nothing was loaded",
                          &err);
        service_fail(call, &err);
    }
    free(planned_load);
}

/* Takes `arg`. */
static void plan_first(struct service *service, struct rpc_call *call,
                       const ProtobufCMessage *message, void *arg)
{
    struct planned_load *planned_load = arg;
    struct load_args args;
    struct error err;
    if (!planned_load) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    args = planned_load->args;
    planned_load->service = service;
    planned_load->request = message;
    int rc =
        plan(service, call, (const load_request *)message, &args, load_planned, planned_load, &err);
    fini_args(&args);
    if (rc == 0)
        return;
    free(planned_load);
    service_fail(call, &err);
}

void service_load(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const load_request *request = (const load_request *)message;
    struct load_args args = {0};
    struct error err;
    int rc = check_load(service->fleet, request, &args, &err);
    if (rc == 0 && request->validate_only)
        rc = plan(service, call, request, &args, answer_plan, NULL, &err);
    bool plans = rc == 0 && needs_plan(service->fleet, request, &args);
    fini_args(&args);
    if (rc != 0) {
        service_fail(call, &err);
        return;
    }
    if (request->validate_only)
        return;
    if (plans) {
        struct planned_load *copy = calloc(1, sizeof(*copy));
        if (copy)
            copy->args = args;
        service_once(service, call, message, &load_change, copy, plan_first);
        return;
    }
    service_change_copy(service, call, message, &load_change, &args);
}

/* --- InspectModelVersion --- */

typedef Sluice__Manager__V1__InspectModelVersionRequest inspect_request;
typedef Sluice__Manager__V1__InspectModelVersionResponse inspect_response;

/* The names of the version, for the answer: its row may be gone by then. */
struct inspected {
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1], path[PATH_MAX];
};

/* Answers with the report, and the names in its plan. The report is freed with its own texts. */
static void reply_inspection(struct rpc_call *call, const Sluice__V1__Inspection *inspection,
                             struct inspected *names)
{
    inspect_response response = SLUICE__MANAGER__V1__INSPECT_MODEL_VERSION_RESPONSE__INIT;
    Sluice__V1__Inspection copy = *inspection;
    Sluice__V1__Plan plan = SLUICE__V1__PLAN__INIT;
    if (inspection->plan) {
        plan = *inspection->plan;
        plan.model = names->model;
        plan.version = names->version;
        copy.plan = &plan;
    }
    response.model = names->model;
    response.version = names->version;
    response.path = names->path;
    response.inspection = &copy;
    rpc_call_reply(call, &response.base);
}

/* Takes `arg`. */
static void answer_inspection(struct rpc_call *call, const Sluice__V1__Inspection *inspection,
                              void *arg)
{
    if (inspection)
        reply_inspection(call, inspection, arg);
    free(arg);
}

/* Returns the version's row, borrowed; NULL with err set. */
static const pb_version *check_inspect(const struct catalog *catalog,
                                       const inspect_request *request, const char *group_name,
                                       struct error *err)
{
    uint32_t tp = request->has_tp ? request->tp : 1;
    if (service_check_names("", request->model, request->version, group_name, err) != 0 ||
        check_tp(tp, err) != 0 || check_pp(tp, request->has_pp ? request->pp : 1, err) != 0 ||
        config_check("config", request->config, err) != 0)
        return NULL;
    const pb_version *row = catalog_resolve_version(catalog, request->model, request->version);
    const pb_group *group = catalog_group(catalog, group_name);
    if (!row)
        lifecycle_no_version(request->model, request->version, err);
    else if (!group)
        no_group(group_name, err);
    else if (config_check_fits("config", request->config, row->info, err) == 0 &&
             config_check_devices("config", request->config, group, err) == 0)
        return row;
    return NULL;
}

void service_inspect(struct service *service, struct rpc_call *call,
                     const ProtobufCMessage *message)
{
    const inspect_request *request = (const inspect_request *)message;
    struct fleet *fleet = service->fleet;
    const char *group = *request->device_group ? request->device_group : "cpu";
    struct inspected *names = NULL;
    pb_config *config = NULL;
    struct error err;
    const pb_version *row = check_inspect(fleet->context->catalog, request, group, &err);
    int rc = row ? model_path_of_config(fleet->context->settings->model_root, request->config,
                                        &config, &err)
                 : err.status;
    if (rc == 0 && !(names = calloc(1, sizeof(*names))))
        rc = error_no_memory(&err);
    if (rc == 0) {
        snprintf(names->model, sizeof(names->model), "%s", row->model);
        snprintf(names->version, sizeof(names->version), "%s", row->version);
        snprintf(names->path, sizeof(names->path), "%s", row->path);
        const struct plan_wish wish = {.model = names->model,
                                       .version = names->version,
                                       .group = group,
                                       .tp = request->has_tp ? request->tp : 1,
                                       .pp = request->has_pp ? request->pp : 1,
                                       .config = config,
                                       .n_replicas = 1,
                                       .inspected = answer_inspection};
        rc = plan_run(fleet, call, &wish, NULL, names, &err);
    }
    if (config)
        message_free(&config->base);
    if (rc == 0)
        return;
    free(names);
    service_fail(call, &err);
}
