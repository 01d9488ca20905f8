/* park.c: ParkModelVersion, WakeModelVersion, WakeVersion. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/format.h"
#include "base/system/device_name.h"
#include "base/system/memory_limit.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/capacity/device_room.h"
#include "manager/capacity/ledger.h"
#include "manager/devices/device_hold.h"
#include "manager/host/cpu_share.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/park_txn.h"
#include "manager/rollout/plan.h"
#include "manager/service/service.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

typedef Sluice__Manager__V1__ParkModelVersionRequest park_request;
typedef Sluice__Manager__V1__ParkModelVersionResponse park_response;
typedef Sluice__Manager__V1__WakeVersionRequest demand_request;

/* A wake of one version on its way to the store. The checked groups have room; until the wake is
 * recorded, other wakes count that room as taken. */
enum { MAX_WOKEN = 16 };
struct waking {
    struct waking *next; /* in service->waking */
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1];
    char groups[MAX_WOKEN][NAME_MAX_BYTES + 1];
    size_t n_groups;
};

static void remove_waking(struct service_call *call)
{
    struct waking **at = &call->service->waking;
    while (*at && *at != call->arg)
        at = &(*at)->next;
    if (*at)
        *at = (*at)->next;
}

static struct park_args args_of(const struct service_call *call)
{
    return (struct park_args){.limits = call->limits, .grace_ms = call->grace_ms};
}

/* The common fields of both requests; borrowed. */
static wake_request common_fields(const park_request *from)
{
    wake_request request = SLUICE__MANAGER__V1__WAKE_MODEL_VERSION_REQUEST__INIT;
    request.request_id = from->request_id;
    request.has_expected_generation = from->has_expected_generation;
    request.expected_generation = from->expected_generation;
    request.model = from->model;
    request.version = from->version;
    request.device_group = from->device_group;
    return request;
}

/* --- the changes --- */

static int apply_park(struct txn *txn, struct service_call *call, struct error *err)
{
    const wake_request request = common_fields(call->request);
    const struct park_args args = args_of(call);
    park_response *response = call->response;
    return park_apply(txn, &request, true, &args, &call->arena, &response->operation, err);
}

static int apply_wake(struct txn *txn, struct service_call *call, struct error *err)
{
    const struct park_args args = {.limits = call->limits};
    Sluice__Manager__V1__WakeModelVersionResponse *response = call->response;
    return park_apply(txn, call->request, false, &args, &call->arena, &response->operation, err);
}

/* True where the deployment is parked, a request may wake it, and no operation is changing it. */
static bool can_be_woken(const struct catalog *catalog, const pb_deployment *deployment,
                         const demand_request *request, const struct lifecycle_limits *limits)
{
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    struct error err;
    return deployment->parked && strcmp(deployment->model, request->model) == 0 &&
           strcmp(deployment->version, request->version) == 0 &&
           lifecycle_wakes_on_demand(catalog, deployment) &&
           lifecycle_check_free(catalog, &target, limits, &err) == 0;
}

/* True where a replica of the deployment serves or may come to serve. A PENDING replica may wait
 * for ever; the gateway that asked for the wake watches for that (route_watch_woke()). */
static bool may_serve(const struct catalog *catalog, const pb_deployment *deployment)
{
    CATALOG_EACH(replica, row, catalog) {
        if (pb_replica_is_of(row, deployment) && !row->retiring &&
            (int)row->state != REPLICA_PENDING && (int)row->state != REPLICA_FAILED &&
            (int)row->state != REPLICA_STOPPED)
            return true;
    }
    return false;
}

/* Error where no deployment of the version was woken and none is about to serve. Requests then
 * end instead of waiting for ever. */
static int why_not_woken(const struct catalog *catalog, const demand_request *request,
                         const struct lifecycle_limits *limits, struct error *err)
{
    struct error why = {0};
    CATALOG_EACH(deployment, deployment, catalog) {
        const struct lifecycle_target target = lifecycle_target_of(deployment);
        if (strcmp(deployment->model, request->model) != 0 ||
            strcmp(deployment->version, request->version) != 0)
            continue;
        if (!deployment->parked && may_serve(catalog, deployment))
            return 0;
        if (!deployment->parked || why.status)
            continue;
        if (lifecycle_wakes_on_demand(catalog, deployment)) {
            (void)lifecycle_check_free(catalog, &target, limits, &why);
        } else {
            error_set(&why, STATUS_FAILED_PRECONDITION,
                      "%s/%s is parked on %s without wake_on_demand; WakeModelVersion wakes it",
                      deployment->model, deployment->version, deployment->device_group);
            error_reason(&why, REASON_PARKED);
        }
    }
    *err = why;
    return why.status;
}

static int wake_one(struct txn *txn, struct service_call *call, const pb_deployment *deployment,
                    struct error *err)
{
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    const struct park_args args = {.limits = call->limits};
    pb_operation *operation = NULL;
    struct park_named named;
    park_name(&named, &target);
    struct txn_event event = {.type = "version.demanded",
                              .model = named.model,
                              .version = named.version,
                              .device_group = named.group,
                              .message = "woken by a request"};
    int rc = txn_event(txn, &event, err);
    return rc == 0 ? park_apply(txn, &named.request, false, &args, &call->arena, &operation, err)
                   : rc;
}

static int apply_demand(struct txn *txn, struct service_call *call, struct error *err)
{
    const demand_request *request = call->request;
    Sluice__Manager__V1__WakeVersionResponse *response = call->response;
    const struct waking *waking = call->arg;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < waking->n_groups; i++) {
        const pb_deployment *deployment = catalog_deployment(txn_catalog(txn), request->model,
                                                             request->version, waking->groups[i]);
        if (!deployment || !can_be_woken(txn_catalog(txn), deployment, request, &call->limits))
            continue; /* woken or changed since the check */
        rc = wake_one(txn, call, deployment, err);
        response->n_woken += rc == 0;
    }
    return rc;
}

/* --- validate_only --- */

static int plan_wake(struct service_call *call, struct error *err)
{
    const struct park_args args = args_of(call);
    const pb_deployment *deployment = park_find(call->catalog, call->request, &args, err);
    if (!deployment)
        return err->status;
    const struct plan_wish wish =
        service_wish_of(deployment, deployment->parked ? deployment->n_replicas : 0);
    return service_plan(call, &wish, err);
}

/* Adds the park copy to the plan. Weights on a GPU are copied once for all replicas before they
 * leave the GPU. */
static void plan_copy(struct service_call *call, Sluice__V1__Plan *plan, uint64_t n_bytes)
{
    const struct fleet *fleet = call->fleet;
    struct memory_limit limit;
    uint64_t promised = ledger_sum(fleet, &(struct ledger_query){0}).promised_bytes;
    uint64_t budget = device_room_in_budget(fleet, NULL, NULL, 0);
    char needed[32], left[32], text[160];
    (void)memory_limit_read("", 0, &limit);
    promised +=
        64ULL << 20; /* reserve that the worker leaves free (engine/forward/executor_keep.c) */
    uint64_t free_bytes = limit.free_bytes > promised ? limit.free_bytes - promised : 0;
    if (budget && budget < free_bytes)
        free_bytes = budget;
    plan->packed_bytes = n_bytes;
    plan->fits = n_bytes <= free_bytes;
    snprintf(text, sizeof(text), "%s of weights are copied into host memory first; %s %s",
             format_bytes(n_bytes, needed), format_bytes(free_bytes, left),
             plan->fits ? "are free" : "are free, so it would be refused");
    message_append_text_in(&call->arena, &plan->n_notes, &plan->notes, text);
}

/* Bytes of weights that the replica has on GPUs without a park copy. */
static uint64_t bytes_to_copy(const struct service_call *call, const pb_replica *replica,
                              const pb_status *status)
{
    uint64_t n_on_gpu = 0;
    for (size_t i = 0; status && i < status->n_memory; i++)
        if (device_name_is_gpu(status->memory[i]->device))
            n_on_gpu += status->memory[i]->weight_bytes;
    return weights_are_whole(call->fleet->weights, replica->id) ? 0 : n_on_gpu;
}

/* The replicas free all but their weights, and on a GPU the weights too. */
static int plan_park(struct service_call *call, struct error *err)
{
    const wake_request request = common_fields(call->request);
    const struct park_args args = args_of(call);
    park_response *response = call->response;
    const pb_deployment *deployment = park_find(call->catalog, &request, &args, err);
    uint64_t n_copied = 0;
    if (!deployment)
        return err->status;
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    Sluice__V1__Plan *plan = build_plan(&call->arena, target.model, target.version);
    if (!plan)
        return error_no_memory(err);
    response->plan = plan;
    CATALOG_EACH(replica, replica, call->catalog) {
        struct replica_view view = {0};
        if (!lifecycle_is_live(replica, &target) || (int)replica->state == REPLICA_PARKED)
            continue;
        replica_view_take(call->fleet, replica->id, &view);
        build_plan_replica(&call->arena, plan, view.status, false);
        uint64_t n_bytes = bytes_to_copy(call, replica, view.status);
        n_copied = n_bytes > n_copied ? n_bytes : n_copied;
    }
    for (size_t i = 0; i < plan->n_devices; i++)
        if (!device_name_is_gpu(plan->devices[i]->device))
            plan->devices[i]->weight_bytes = 0;
    if (n_copied)
        plan_copy(call, plan, n_copied);
    return 0;
}

/* --- the room of a wake --- */

/* Checks the configured CPUs: some may have gone since the load. */
static int check_cpus(const struct catalog *catalog, const pb_deployment *deployment,
                      struct error *err)
{
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    const pb_config *configs[] = {deployment->config, version ? version->config : NULL};
    for (size_t i = 0; i < 2; i++)
        if (configs[i] && *configs[i]->cpus)
            return cpu_share_check("config.cpus", configs[i]->cpus, err);
    return 0;
}

/* Deployments that wake at the same time are checked together. */
enum { MAX_WAKING = 64 };
struct wakes {
    const pb_deployment *deployments[MAX_WAKING];
    size_t n;
};

static bool has_deployment(const struct wakes *wakes, const pb_deployment *deployment)
{
    for (size_t i = 0; i < wakes->n; i++)
        if (wakes->deployments[i] == deployment)
            return true;
    return false;
}

static void collect_waking(const struct service *service, struct wakes *wakes)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    wakes->n = 0;
    for (const struct waking *waking = service->waking; waking; waking = waking->next)
        for (size_t i = 0; i < waking->n_groups; i++) {
            const pb_deployment *deployment =
                catalog_deployment(catalog, waking->model, waking->version, waking->groups[i]);
            if (deployment && deployment->parked && wakes->n < MAX_WAKING &&
                !has_deployment(wakes, deployment))
                wakes->deployments[wakes->n++] = deployment;
        }
}

/* Checks that the deployment can wake beside those of `wakes`, and adds it to them. Runs before
 * the workers receive Wake: a worker that cannot serve would have given its park copy up by
 * then. */
static int add_wake(struct service *service, struct wakes *wakes, const pb_deployment *deployment,
                    struct error *err)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    const pb_group *group = catalog_group(catalog, deployment->device_group);
    if (has_deployment(wakes, deployment)) /* already on its way: the change answers so */
        return 0;
    if (wakes->n == MAX_WAKING) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED,
                  "%d versions are waking: that is the limit; try again", MAX_WAKING);
        return error_reason(err, REASON_STORE_BUSY);
    }
    wakes->deployments[wakes->n] = deployment;
    if (check_cpus(catalog, deployment, err) != 0 ||
        (group && device_hold_check(catalog, group, catalog_n_ranks(deployment), err) != 0) ||
        device_room_check_wake(service->fleet, wakes->deployments, wakes->n + 1, err) != 0)
        return err->status;
    wakes->n++;
    return 0;
}

/* Adds the call to the wakes whose room is taken, in the order of their checks. */
static void link_waking(struct service_call *call)
{
    struct waking **last = &call->service->waking;
    while (*last)
        last = &(*last)->next;
    *last = call->arg;
}

static void add_group(struct waking *waking, const pb_deployment *deployment)
{
    snprintf(waking->model, sizeof(waking->model), "%s", deployment->model);
    snprintf(waking->version, sizeof(waking->version), "%s", deployment->version);
    snprintf(waking->groups[waking->n_groups++], sizeof(waking->groups[0]), "%s",
             deployment->device_group);
}

/* Checks the room, for a request that was not answered before. */
static int prepare_wake(struct service_call *call, struct error *err)
{
    const struct park_args args = args_of(call);
    struct wakes wakes;
    const pb_deployment *deployment = park_find(call->catalog, call->request, &args, err);
    if (!deployment) /* no deployment to wake, for example during a park. Fail here: the change
                      * could find a deployment later that is parked and was not checked */
        return err->status;
    if (deployment->parked) {
        collect_waking(call->service, &wakes);
        if (add_wake(call->service, &wakes, deployment, err) != 0)
            return err->status;
        add_group(call->arg, deployment);
    }
    link_waking(call);
    return 0;
}

static int check_wake(struct service_call *call, struct error *err)
{
    (void)err;
    call->prepares = true;
    return 0;
}

static int check_demand(struct service_call *call, struct error *err)
{
    const demand_request *request = call->request;
    struct waking *waking = call->arg;
    struct wakes wakes;
    struct error why = {0};
    collect_waking(call->service, &wakes);
    CATALOG_EACH(deployment, deployment, call->catalog) {
        if (waking->n_groups == MAX_WOKEN ||
            !can_be_woken(call->catalog, deployment, request, &call->limits))
            continue;
        if (add_wake(call->service, &wakes, deployment, err) == 0)
            add_group(waking, deployment);
        else if (!why.status) /* another group may have room */
            why = *err;
    }
    if (waking->n_groups) {
        link_waking(call);
        return 0;
    }
    if (why.status || why_not_woken(call->catalog, request, &call->limits, &why) != 0) {
        *err = why;
        return why.status;
    }
    service_reply(call); /* awake or on its way: no change */
    return SERVICE_LATER;
}

const struct service_change service_park = {.plan = plan_park, .apply = apply_park};
const struct service_change service_wake = {
    .arg_bytes = sizeof(struct waking),
    .check = check_wake,
    .plan = plan_wake,
    .prepare = prepare_wake,
    .apply = apply_wake,
    .leave = remove_waking,
};
const struct service_change service_wake_on_demand = {
    .arg_bytes = sizeof(struct waking),
    .check = check_demand,
    .apply = apply_demand,
    .leave = remove_waking,
};
