#include "manager/rollout/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/message.h"
#include "manager/rollout/lifecycle.h"
#include "manager/settings/config.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"

enum { MODEL_BYTES = 80, VERSION_BYTES = 48 };
static const int64_t refused_hold_ns = 2 * NS_PER_S;

struct policy_runner {
    struct fleet *fleet;
    struct change_subscriber on_change;
    bool busy; /* a change is on its way to the store */
    int64_t hold_until_ns;
    ev_timer timer;
};

/* --- desired state --- */

bool policy_is_set(const pb_policy *policy)
{
    if (!policy)
        return false;
    switch (policy->kind_case) {
    case SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST:
    case SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC:
        return true;
    case SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL:
        return policy->all;
    default:
        return false;
    }
}

static bool is_among_latest(const struct catalog *catalog, const pb_version *version, uint32_t n)
{
    uint32_t n_later = 0;
    for (size_t i = catalog_first_version(catalog, version->model);; i++) {
        const pb_version *other = catalog_version_at(catalog, i);
        if (!other || strcmp(other->model, version->model) != 0)
            return n_later < n;
        n_later += other->sequence > version->sequence;
    }
}

/* True where the model's policy wants the version, or the model has no policy. */
static bool is_wanted(const struct catalog *catalog, const char *model, const char *version)
{
    const pb_model *row = catalog_model(catalog, model);
    const pb_policy *policy = row ? row->policy : NULL;
    const pb_version *of = catalog_version(catalog, model, version);
    if (!policy_is_set(policy) || !of)
        return true;
    if (policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST)
        return is_among_latest(catalog, of, policy->latest);
    if (policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL)
        return true;
    for (size_t i = 0; policy->specific && i < policy->specific->n_versions; i++)
        if (strcmp(policy->specific->versions[i], version) == 0)
            return true;
    return false;
}

static int refuse_version(const char *model, const char *version, const char *what,
                          struct error *err)
{
    error_set(err, STATUS_FAILED_PRECONDITION,
              "version: the version policy of %s %s %s; SetVersionPolicy changes it", model, what,
              version);
    return error_reason(err, REASON_VERSION_POLICY);
}

int policy_check_load(const struct catalog *catalog, const char *model, const char *version,
                      struct error *err)
{
    return is_wanted(catalog, model, version)
               ? 0
               : refuse_version(model, version, "excludes version", err);
}

int policy_check_unload(const struct catalog *catalog, const char *model, const char *version,
                        struct error *err)
{
    const pb_model *row = catalog_model(catalog, model);
    return row && policy_is_set(row->policy) && is_wanted(catalog, model, version)
               ? refuse_version(model, version, "includes version", err)
               : 0;
}

/* --- the next change --- */

static bool is_loaded(const struct catalog *catalog, const char *model, const char *version)
{
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *row = catalog_deployment_at(catalog, i);
        if (strcmp(row->model, model) == 0 && strcmp(row->version, version) == 0)
            return true;
    }
    return false;
}

static bool is_ready(const struct catalog *catalog, const char *model, const char *version)
{
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if ((int)row->state == REPLICA_READY && strcmp(row->model, model) == 0 &&
            strcmp(row->version, version) == 0)
            return true;
    }
    return false;
}

static bool has_open_operation(const struct catalog *catalog, const char *model)
{
    for (size_t i = 0; catalog_operation_at(catalog, i); i++)
        if (pb_operation_is_open(catalog_operation_at(catalog, i)) &&
            strcmp(catalog_operation_at(catalog, i)->model, model) == 0)
            return true;
    return false;
}

/* The next change by a model's policy: `load` with the settings of `like`, or `unload`; NULL: no
 * change. */
struct next_change {
    const pb_version *load, *like, *unload;
};

static struct next_change find_next_change(const struct catalog *catalog, const pb_model *model)
{
    struct next_change next_change = {0};
    const pb_version *missing = NULL, *surplus = NULL;
    bool some_ready = false;
    if (!policy_is_set(model->policy) || has_open_operation(catalog, model->name))
        return next_change;
    for (size_t i = catalog_first_version(catalog, model->name);; i++) {
        const pb_version *version = catalog_version_at(catalog, i);
        if (!version || strcmp(version->model, model->name) != 0)
            break;
        bool loaded = is_loaded(catalog, model->name, version->version);
        bool wanted = is_wanted(catalog, model->name, version->version);
        if (loaded && (!next_change.like || version->sequence > next_change.like->sequence))
            next_change.like = version;
        if (wanted && !loaded && (!missing || version->sequence > missing->sequence))
            missing = version;
        if (!wanted && loaded && !surplus)
            surplus = version;
        some_ready |= wanted && is_ready(catalog, model->name, version->version);
    }
    if (next_change.like && missing)
        next_change.load = missing;
    else if (some_ready)
        next_change.unload = surplus;
    return next_change;
}

/* --- the change --- */

struct change {
    struct policy_runner *policies;
    struct lifecycle_limits limits;
    uint32_t grace_ms;
    char model[MODEL_BYTES];
};

static int load_on(struct txn *txn, const struct change *change, const char *version,
                   const pb_deployment *like, struct error *err)
{
    const pb_version *row = catalog_version(txn_catalog(txn), change->model, version);
    struct lifecycle_target target = {change->model, version, like->device_group};
    if (config_check_fits("the policy's config", like->config, row->info, err) != 0 ||
        lifecycle_check_room(txn_catalog(txn), &change->limits, err) != 0)
        return err->status;
    pb_deployment *deployment = MESSAGE_COPY(pb_deployment, like);
    if (!deployment || !message_set(&deployment->version, version)) {
        if (deployment)
            message_free(&deployment->base);
        return error_no_memory(err);
    }
    deployment->generation = 1;
    deployment->parked = 0;
    if (txn_put(txn, TABLE_DEPLOYMENT, &deployment->base, err) != 0)
        return err->status;
    pb_operation *operation = lifecycle_operation(txn, OPERATION_LOAD, "", change->model, version,
                                                  like->device_group, err);
    if (!operation)
        return err->status;
    if (lifecycle_fill(txn, &target, like->n_replicas, &change->limits, operation, err) != 0 ||
        lifecycle_bump(txn, change->model, version, err) != 0) {
        message_free(&operation->base);
        return err->status;
    }
    return lifecycle_put(txn, operation, 0, err);
}

/* Loads the version on every group of `like`. Every write moves rows, so the loop copies each
 * row. */
static int load_like(struct txn *txn, const struct change *change, const char *version,
                     const char *like, struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    for (size_t i = 0; i < catalog_count(catalog, TABLE_DEPLOYMENT); i++) {
        const pb_deployment *row = catalog_deployment_at(catalog, i);
        if (strcmp(row->model, change->model) != 0 || strcmp(row->version, like) != 0 ||
            catalog_deployment(catalog, change->model, version, row->device_group))
            continue;
        pb_deployment *copy = MESSAGE_COPY(pb_deployment, row);
        int rc = copy ? load_on(txn, change, version, copy, err) : error_no_memory(err);
        if (copy)
            message_free(&copy->base);
        if (rc != 0)
            return rc;
        i = (size_t)-1; /* start again: there is one row more */
    }
    return 0;
}

static int unload(struct txn *txn, const struct change *change, const char *version,
                  struct error *err)
{
    const struct catalog *catalog = txn_catalog(txn);
    if (lifecycle_check_room(catalog, &change->limits, err) != 0)
        return err->status;
    pb_operation *operation =
        lifecycle_operation(txn, OPERATION_UNLOAD, "", change->model, version, "", err);
    if (!operation)
        return err->status;
    int rc = 0;
    for (size_t i = 0; rc == 0 && catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if ((int)row->state != REPLICA_STOPPED && strcmp(row->model, change->model) == 0 &&
            strcmp(row->version, version) == 0 && !lifecycle_add_replica(operation, row->id))
            rc = error_no_memory(err);
    }
    for (size_t i = 0; rc == 0 && catalog_deployment_at(catalog, i);) {
        const pb_deployment *row = catalog_deployment_at(catalog, i);
        char group[MODEL_BYTES];
        if (strcmp(row->model, change->model) != 0 || strcmp(row->version, version) != 0) {
            i++;
            continue;
        }
        snprintf(group, sizeof(group), "%s", row->device_group);
        struct lifecycle_target target = {change->model, version, group};
        rc = lifecycle_set_wanted(txn, &target, 0, err);
    }
    if (rc == 0)
        rc = lifecycle_bump(txn, change->model, version, err);
    if (rc == 0)
        return lifecycle_put(txn, operation, change->grace_ms, err);
    message_free(&operation->base);
    return rc;
}

/* Searches for the change again inside the transaction, because the recorded state may have
 * changed since the decision. */
static int run_change(struct txn *txn, void *arg, struct error *err)
{
    const struct change *change = arg;
    const pb_model *model = catalog_model(txn_catalog(txn), change->model);
    struct next_change next_change = {0};
    char version[VERSION_BYTES], like[VERSION_BYTES] = "";
    if (model)
        next_change = find_next_change(txn_catalog(txn), model);
    const pb_version *of = next_change.load ? next_change.load : next_change.unload;
    if (!of)
        return 0;
    snprintf(version, sizeof(version), "%s", of->version);
    if (next_change.like)
        snprintf(like, sizeof(like), "%s", next_change.like->version);
    struct txn_event event = {
        .type = next_change.load ? "policy.load" : "policy.unload",
        .model = change->model,
        .version = version,
        .message = next_change.load ? "the version policy includes the version"
                                    : "the version policy excludes the version",
    };
    failpoint("policy.before_write");
    if (txn_event(txn, &event, err) != 0)
        return err->status;
    return next_change.load ? load_like(txn, change, version, like, err)
                            : unload(txn, change, version, err);
}

static void end_change(void *arg, const struct error *status)
{
    struct change *change = arg;
    struct policy_runner *policies = change->policies;
    policies->busy = false;
    if (status->status != 0 && status->status != STATUS_CANCELLED) {
        log_warn(LOG_EVENT("version policy not applied"), LOG_STR("model", change->model),
                 LOG_STR("why", status->message));
        policies->hold_until_ns = clock_now_ns() + refused_hold_ns;
    }
    free(change);
    if (status->status != STATUS_CANCELLED)
        change_hub_notify(&policies->fleet->context->changes, NULL);
}

static bool submit(struct policy_runner *policies, const pb_model *model)
{
    struct fleet *fleet = policies->fleet;
    struct error err;
    struct change *change = calloc(1, sizeof(*change));
    if (!change)
        return false;
    change->policies = policies;
    change->limits = (struct lifecycle_limits){fleet->context->settings->max_open_operations,
                                               fleet->context->settings->max_replicas};
    change->grace_ms = (uint32_t)fleet->context->settings->drain_grace_ms;
    snprintf(change->model, sizeof(change->model), "%s", model->name);
    policies->busy = store_submit(fleet->context->store, run_change, end_change, change, &err) == 0;
    if (!policies->busy)
        free(change);
    return policies->busy;
}

static void apply_policies(struct policy_runner *policies)
{
    if (policies->busy || !fleet_is_settled(policies->fleet))
        return;
    const struct catalog *catalog = policies->fleet->context->catalog;
    int64_t wait_ns = policies->hold_until_ns - clock_now_ns();
    for (size_t i = 0; catalog_model_at(catalog, i); i++) {
        struct next_change next_change = find_next_change(catalog, catalog_model_at(catalog, i));
        if (!next_change.load && !next_change.unload)
            continue;
        if (wait_ns <= 0 && submit(policies, catalog_model_at(catalog, i)))
            return;
        ev_timer_stop(policies->fleet->context->loop, &policies->timer);
        ev_timer_set(&policies->timer, wait_ns > 0 ? (double)wait_ns / 1e9 : 1., 0.);
        ev_timer_start(policies->fleet->context->loop, &policies->timer);
        return;
    }
}

static void on_timer(struct ev_loop *loop, ev_timer *timer, int events)
{
    (void)loop;
    (void)events;
    apply_policies(timer->data);
}

static void on_change(void *arg, const char *replica_id)
{
    (void)replica_id;
    apply_policies(arg);
}

int policy_runner_create(struct fleet *fleet, struct policy_runner **out_policies,
                         struct error *err)
{
    struct policy_runner *policies = calloc(1, sizeof(*policies));
    if (!policies)
        return error_no_memory(err);
    policies->fleet = fleet;
    change_hub_subscribe(&fleet->context->changes, &policies->on_change, on_change, policies);
    ev_timer_init(&policies->timer, on_timer, 0., 0.);
    policies->timer.data = policies;
    *out_policies = policies;
    return 0;
}

void policy_runner_destroy(struct policy_runner *policies)
{
    if (!policies)
        return;
    ev_timer_stop(policies->fleet->context->loop, &policies->timer);
    free(policies);
}
