/* park.c: ParkModelVersion, WakeModelVersion, WakeVersion. */
#include <stdio.h>
#include <stdlib.h>
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
#include "manager/slots/fleet.h"
#include "manager/slots/weights.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__ParkModelVersionRequest park_request;
typedef Sluice__Manager__V1__ParkModelVersionResponse park_response;
typedef Sluice__Manager__V1__WakeModelVersionResponse wake_response;

typedef Sluice__Manager__V1__WakeVersionRequest demand_request;
typedef Sluice__Manager__V1__WakeVersionResponse demand_response;

/* A wake of one version on its way to the store. The checked groups have room; until the wake is
 * recorded, other wakes count that room as taken. */
enum { MAX_WOKEN = 16 };
struct waking {
    struct park_args park;
    struct service *service;
    struct waking *next; /* in service->waking */
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1];
    char groups[MAX_WOKEN][NAME_MAX_BYTES + 1];
    size_t n_groups;
};

static void remove_waking(void *arg)
{
    struct waking *waking = arg, **at = waking ? &waking->service->waking : NULL;
    if (!waking)
        return;
    while (*at && *at != waking)
        at = &(*at)->next;
    if (*at)
        *at = waking->next;
    free(waking);
}

static int check_names(const wake_request *request, struct error *err)
{
    return service_check_names(request->request_id, request->model, request->version,
                               request->device_group, err);
}

/* The common fields of both requests; borrowed. */
static wake_request common_fields(const park_request *from)
{
    wake_request request = SLUICE__MANAGER__V1__WAKE_MODEL_VERSION_REQUEST__INIT;
    request.request_id = from->request_id;
    request.has_expected_generation = from->has_expected_generation;
    request.expected_generation = from->expected_generation;
    request.validate_only = from->validate_only;
    request.model = from->model;
    request.version = from->version;
    request.device_group = from->device_group;
    return request;
}

/* --- the change --- */

static int apply_park(struct txn *txn, const ProtobufCMessage *message, void *arg,
                      ProtobufCMessage *response, struct error *err)
{
    const wake_request request = common_fields((const park_request *)message);
    return park_apply(txn, &request, true, arg, &((park_response *)response)->operation, err);
}

static int apply_wake(struct txn *txn, const ProtobufCMessage *message, void *arg,
                      ProtobufCMessage *response, struct error *err)
{
    return park_apply(txn, (const wake_request *)message, false,
                      &((const struct waking *)arg)->park, &((wake_response *)response)->operation,
                      err);
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
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
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
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
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

static int wake_one(struct txn *txn, const pb_deployment *deployment, const struct park_args *args,
                    struct error *err)
{
    const struct lifecycle_target target = lifecycle_target_of(deployment);
    pb_operation *operation = NULL;
    struct park_named named;
    park_name(&named, &target);
    struct txn_event event = {.type = "version.demanded",
                              .model = named.model,
                              .version = named.version,
                              .device_group = named.group,
                              .message = "woken by a request"};
    int rc = txn_event(txn, &event, err);
    if (rc == 0)
        rc = park_apply(txn, &named.request, false, args, &operation, err);
    if (operation)
        message_free(&operation->base);
    return rc;
}

static int apply_demand(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const demand_request *request = (const demand_request *)message;
    const struct waking *args = arg;
    const struct catalog *catalog = txn_catalog(txn);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < args->n_groups; i++) {
        const pb_deployment *deployment_to_wake =
            catalog_deployment(catalog, request->model, request->version, args->groups[i]);
        if (!deployment_to_wake ||
            !can_be_woken(catalog, deployment_to_wake, request, &args->park.limits))
            continue; /* woken or changed since the check */
        rc = wake_one(txn, deployment_to_wake, &args->park, err);
        ((demand_response *)response)->n_woken += rc == 0;
    }
    return rc;
}

static const struct service_change demand_change = {.apply = apply_demand,
                                                    .free_arg = remove_waking};
static const struct service_change park_change = {
    .arg_bytes = sizeof(struct park_args), .apply = apply_park, .free_arg = free};
static const struct service_change wake_change = {.apply = apply_wake, .free_arg = remove_waking};

/* --- validate_only --- */

static void answer_wake(struct rpc_call *call, Sluice__V1__Plan *plan, void *arg)
{
    (void)arg;
    if (!plan)
        return;
    wake_response response = SLUICE__MANAGER__V1__WAKE_MODEL_VERSION_RESPONSE__INIT;
    response.plan = plan;
    rpc_call_reply(call, &response.base);
}

static int plan_wake(struct service *service, struct rpc_call *call, const wake_request *request,
                     const struct park_args *args, struct error *err)
{
    const struct catalog *catalog = service->fleet->context->catalog;
    const pb_deployment *deployment = park_find(catalog, request, args, err);
    if (!deployment)
        return err->status;
    struct plan_wish wish = {.model = deployment->model,
                             .version = deployment->version,
                             .group = deployment->device_group,
                             .tp = deployment->tp,
                             .pp = deployment->pp,
                             .config = deployment->config,
                             .n_replicas = deployment->parked ? deployment->n_replicas : 0};
    return plan_run(service->fleet, call, &wish, answer_wake, NULL, err);
}

/* Adds the park copy to the plan. Weights on a GPU are copied once for all replicas before they
 * leave the GPU. */
static bool plan_copy(const struct fleet *fleet, Sluice__V1__Plan *plan, uint64_t n_bytes)
{
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
    return message_append_text(&plan->n_notes, &plan->notes, text);
}

/* Adds what the replica frees: all but its weights, and on a GPU the weights too. *n_copied
 * becomes the largest weight size on a GPU without a park copy. */
static bool plan_leaving(const struct fleet *fleet, const pb_replica *replica,
                         Sluice__V1__Plan *plan, uint64_t *n_copied)
{
    struct replica_view view = {0};
    uint64_t n_on_gpu = 0;
    plan->n_replicas++;
    replica_view_take(fleet, replica->id, &view);
    for (size_t i = 0; view.status && i < view.status->n_memory; i++) {
        const pb_memory *memory = view.status->memory[i];
        bool on_gpu = device_name_is_gpu(memory->device);
        n_on_gpu += on_gpu ? memory->weight_bytes : 0;
        if (!build_plan_memory(plan, memory))
            return false;
        if (!on_gpu)
            plan->devices[plan->n_devices - 1]->weight_bytes = 0;
    }
    if (n_on_gpu > *n_copied && !weights_are_whole(fleet->weights, replica->id))
        *n_copied = n_on_gpu;
    return true;
}

static int plan_park(struct service *service, struct rpc_call *call, const wake_request *request,
                     const struct park_args *args, struct error *err)
{
    struct fleet *fleet = service->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    const pb_deployment *deployment = park_find(catalog, request, args, err);
    if (!deployment)
        return err->status;
    struct lifecycle_target target = lifecycle_target_of(deployment);
    park_response *response =
        MESSAGE_NEW(park_response, sluice__manager__v1__park_model_version_response__descriptor);
    if (response)
        response->plan = MESSAGE_NEW(Sluice__V1__Plan, sluice__v1__plan__descriptor);
    bool complete = response && response->plan &&
                    message_set(&response->plan->model, target.model) &&
                    message_set(&response->plan->version, target.version);
    uint64_t n_copied = 0;
    if (complete)
        response->plan->fits = 1;
    for (size_t i = 0; complete && catalog_replica_at(catalog, i); i++) {
        const pb_replica *replica = catalog_replica_at(catalog, i);
        if (lifecycle_is_live(replica, &target) && (int)replica->state != REPLICA_PARKED)
            complete = plan_leaving(fleet, replica, response->plan, &n_copied);
    }
    if (complete && n_copied)
        complete = plan_copy(fleet, response->plan, n_copied);
    if (complete)
        rpc_call_reply(call, &response->base);
    if (response)
        message_free(&response->base);
    return complete ? 0 : error_no_memory(err);
}

void service_park(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const park_request *from = (const park_request *)message;
    const wake_request request = common_fields(from);
    struct park_args args = {.limits = lifecycle_limits_of(service->fleet->context->settings)};
    struct error err;
    int rc = check_names(&request, &err);
    if (rc == 0)
        rc =
            service_grace(service->fleet, from->has_grace_ms, from->grace_ms, &args.grace_ms, &err);
    if (rc == 0 && request.validate_only)
        rc = plan_park(service, call, &request, &args, &err);
    if (rc != 0)
        service_fail(call, &err);
    else if (!request.validate_only)
        service_change_copy(service, call, message, &park_change, &args);
}

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

/* Submits the wake. Until the wake is recorded, other checks count the memory of its deployments
 * as taken. */
static void submit_wake(struct service *service, struct rpc_call *call,
                        const ProtobufCMessage *message, const struct service_change *change,
                        const struct waking *waking)
{
    struct waking *copy = malloc(sizeof(*copy));
    struct error err;
    if (!copy) {
        error_no_memory(&err);
        service_fail(call, &err);
        return;
    }
    *copy = *waking;
    copy->service = service;
    copy->next = NULL;
    struct waking **last = &service->waking; /* kept in the order of their checks */
    while (*last)
        last = &(*last)->next;
    *last = copy;
    service_change(service, call, message, change, copy);
}

static void add_waking(struct waking *waking, const pb_deployment *deployment)
{
    snprintf(waking->model, sizeof(waking->model), "%s", deployment->model);
    snprintf(waking->version, sizeof(waking->version), "%s", deployment->version);
    snprintf(waking->groups[waking->n_groups++], sizeof(waking->groups[0]), "%s",
             deployment->device_group);
}

static int check_room(struct service *service, const wake_request *request, struct waking *waking,
                      struct error *err)
{
    struct wakes wakes;
    const pb_deployment *deployment =
        park_find(service->fleet->context->catalog, request, &waking->park, err);
    if (!deployment) /* no deployment to wake, for example during a park. Fail here: the change
                      * could find a deployment later that is parked and was not checked */
        return err->status;
    if (!deployment->parked)
        return 0;
    collect_waking(service, &wakes);
    if (add_wake(service, &wakes, deployment, err) != 0)
        return err->status;
    add_waking(waking, deployment);
    return 0;
}

/* Runs the checks only for a request that was not answered before. */
static void check_and_wake(struct service *service, struct rpc_call *call,
                           const ProtobufCMessage *message, void *arg)
{
    const wake_request *request = (const wake_request *)message;
    struct waking waking = {.park.limits = lifecycle_limits_of(service->fleet->context->settings)};
    struct error err;
    (void)arg;
    if (check_room(service, request, &waking, &err) != 0)
        service_fail(call, &err);
    else
        submit_wake(service, call, message, &wake_change, &waking);
}

void service_wake(struct service *service, struct rpc_call *call, const ProtobufCMessage *message)
{
    const wake_request *request = (const wake_request *)message;
    const struct park_args args = {.limits =
                                       lifecycle_limits_of(service->fleet->context->settings)};
    struct error err;
    int rc = check_names(request, &err);
    if (rc == 0 && request->validate_only)
        rc = plan_wake(service, call, request, &args, &err);
    if (rc != 0)
        service_fail(call, &err);
    else if (!request->validate_only)
        service_once(service, call, message, &wake_change, NULL, check_and_wake);
}

void service_wake_on_demand(struct service *service, struct rpc_call *call,
                            const ProtobufCMessage *message)
{
    const demand_request *request = (const demand_request *)message;
    const struct catalog *catalog = service->fleet->context->catalog;
    struct waking waking = {.park.limits = lifecycle_limits_of(service->fleet->context->settings)};
    struct wakes wakes;
    struct error err, why = {0};
    if (name_check("model", request->model, &err) != 0 ||
        name_check_version("version", request->version, &err) != 0) {
        service_fail(call, &err);
        return;
    }
    collect_waking(service, &wakes);
    for (size_t i = 0; waking.n_groups < MAX_WOKEN && catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment_to_wake = catalog_deployment_at(catalog, i);
        if (!can_be_woken(catalog, deployment_to_wake, request, &waking.park.limits))
            continue;
        if (add_wake(service, &wakes, deployment_to_wake, &err) == 0)
            add_waking(&waking, deployment_to_wake);
        else if (!why.status) /* another group may have room */
            why = err;
    }
    demand_response none = SLUICE__MANAGER__V1__WAKE_VERSION_RESPONSE__INIT;
    if (waking.n_groups)
        submit_wake(service, call, message, &demand_change, &waking);
    else if (why.status || why_not_woken(catalog, request, &waking.park.limits, &why) != 0)
        service_fail(call, &why);
    else /* awake or on its way: no change */
        rpc_call_reply(call, &none.base);
}
