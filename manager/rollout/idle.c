#include "manager/rollout/idle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/park_txn.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/unload_txn.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"

static const int64_t refused_hold_ns = 5 * NS_PER_S; /* after a refused change */

struct idle {
    struct fleet *fleet;
    struct change_subscriber on_tick;
    bool busy; /* a change is on its way to the store */
    int64_t hold_until_ns;
    struct idle_counts counts;
};

struct idle_change {
    struct idle *idle;
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1], group[NAME_MAX_BYTES + 1];
    bool park;
    uint64_t generation; /* generation of the deployment at the decision */
    int64_t idle_ns;
    uint32_t grace_ms;
    struct lifecycle_limits limits;
};

/* Reads the idle settings of the deployment, or else of the version. */
static bool settings_of(const struct catalog *catalog, const pb_deployment *d,
                        int64_t *out_after_ns, bool *out_park)
{
    const pb_version *version = catalog_version(catalog, d->model, d->version);
    const pb_config *configs[] = {d->config, version ? version->config : NULL};
    for (size_t i = 0; i < 2; i++) {
        if (!configs[i] || !configs[i]->has_idle_after_ms)
            continue;
        *out_after_ns = (int64_t)configs[i]->idle_after_ms * NS_PER_MS;
        *out_park = strcmp(configs[i]->idle_action, "unload") != 0;
        return true;
    }
    return false;
}

static int run_change(struct txn *txn, void *arg, struct error *err)
{
    const struct idle_change *idle_change = arg;
    const struct lifecycle_target target = {idle_change->model, idle_change->version,
                                            idle_change->group};
    const pb_deployment *now =
        catalog_deployment(txn_catalog(txn), target.model, target.version, target.group);
    char text[96];
    if (!now || now->generation != idle_change->generation ||
        lifecycle_check_free(txn_catalog(txn), &target, &idle_change->limits, err) != 0)
        return 0; /* another command came first */
    snprintf(text, sizeof(text), "no request for %lld s: %s",
             (long long)(idle_change->idle_ns / NS_PER_S), idle_change->park ? "park" : "unload");
    struct txn_event event = {.type = "version.idle",
                              .model = idle_change->model,
                              .version = idle_change->version,
                              .device_group = idle_change->group,
                              .message = text,
                              .reason =
                                  reason_name(idle_change->park ? REASON_PARK : REASON_UNLOAD)};
    if (txn_event(txn, &event, err) != 0)
        return err->status;
    return idle_change->park
               ? park_version(txn, &target, &idle_change->limits, idle_change->grace_ms, err)
               : unload_version(txn, &target, &idle_change->limits, idle_change->grace_ms, NULL,
                                err);
}

static void end_change(void *arg, const struct error *status)
{
    struct idle_change *idle_change = arg;
    struct idle *idle = idle_change->idle;
    idle->busy = false;
    if (status->status != 0) {
        if (status->status != STATUS_CANCELLED)
            log_warn(LOG_EVENT("idle version not parked or unloaded"),
                     LOG_STR("model", idle_change->model), LOG_STR("version", idle_change->version),
                     LOG_STR("why", status->message));
        idle->hold_until_ns = clock_now_ns() + refused_hold_ns;
    } else {
        idle->counts.n_parked += idle_change->park;
        idle->counts.n_unloaded += !idle_change->park;
    }
    bool go_on = status->status != STATUS_CANCELLED;
    free(idle_change);
    if (go_on)
        change_hub_notify(&idle->fleet->context->changes, NULL);
}

static void park_or_unload(struct idle *idle, const pb_deployment *d, bool park, int64_t idle_ns)
{
    struct context *context = idle->fleet->context;
    struct error err;
    struct idle_change *idle_change = malloc(sizeof(*idle_change));
    if (!idle_change)
        return;
    *idle_change = (struct idle_change){.idle = idle,
                                        .park = park,
                                        .generation = d->generation,
                                        .idle_ns = idle_ns,
                                        .grace_ms = (uint32_t)context->settings->drain_grace_ms,
                                        .limits = lifecycle_limits_of(context->settings)};
    snprintf(idle_change->model, sizeof(idle_change->model), "%s", d->model);
    snprintf(idle_change->version, sizeof(idle_change->version), "%s", d->version);
    snprintf(idle_change->group, sizeof(idle_change->group), "%s", d->device_group);
    if (store_submit(context->store, run_change, end_change, idle_change, &err) == 0)
        idle->busy = true;
    else
        free(idle_change);
}

static void check_deployments(struct idle *idle)
{
    struct fleet *fleet = idle->fleet;
    const struct catalog *catalog = fleet->context->catalog;
    if (idle->busy || clock_now_ns() < idle->hold_until_ns)
        return;
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *d = catalog_deployment_at(catalog, i);
        int64_t after_ns, idle_ns;
        bool park;
        if (!settings_of(catalog, d, &after_ns, &park) || (park && d->parked))
            continue;
        idle_ns = replica_idle_ns(fleet, d);
        struct lifecycle_target target = {d->model, d->version, d->device_group};
        struct lifecycle_limits limits = lifecycle_limits_of(fleet->context->settings);
        struct error err;
        if (idle_ns < (seeded_bug("I2_parks_the_busy") ? 0 : after_ns) ||
            lifecycle_check_free(catalog, &target, &limits, &err) != 0 ||
            (park && !park_copy_is_possible(fleet, d)) ||
            (!park && policy_check_unload(catalog, d->model, d->version, &err) != 0))
            continue;
        park_or_unload(idle, d, park, idle_ns);
        return;
    }
}

static void on_tick(void *arg, const char *replica_id)
{
    (void)replica_id;
    check_deployments(arg);
}

int idle_create(struct fleet *fleet, struct idle **out_idle, struct error *err)
{
    struct idle *idle = calloc(1, sizeof(*idle));
    if (!idle)
        return error_no_memory(err);
    idle->fleet = fleet;
    change_hub_subscribe(&fleet->context->ticks, &idle->on_tick, on_tick, idle);
    *out_idle = idle;
    return 0;
}

void idle_destroy(struct idle *idle)
{
    free(idle);
}

struct idle_counts idle_counts(const struct idle *idle)
{
    return idle->counts;
}
