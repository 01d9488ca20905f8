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

static const int64_t again_ns = 5 * NS_PER_S; /* after it was refused */

struct idle {
    struct fleet *fleet;
    struct change_subscriber on_tick;
    bool busy; /* a change is on its way to the store */
    int64_t hold_until_ns;
    struct idle_counts counts;
};

struct acting {
    struct idle *idle;
    char model[NAME_MAX_BYTES + 1], version[VERSION_MAX_BYTES + 1], group[NAME_MAX_BYTES + 1];
    bool park;
    uint64_t generation; /* of the deployment as it was looked at */
    int64_t idle_ns;
    uint32_t grace_ms;
    struct lifecycle_limits limits;
};

/* Of the deployment or, where that says nothing, of the version. */
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

static int run(struct txn *txn, void *arg, struct error *err)
{
    const struct acting *acting = arg;
    const struct lifecycle_target target = {acting->model, acting->version, acting->group};
    const pb_deployment *now =
        catalog_deployment(txn_catalog(txn), target.model, target.version, target.group);
    char text[96];
    if (!now || now->generation != acting->generation ||
        lifecycle_check_free(txn_catalog(txn), &target, &acting->limits, err) != 0)
        return 0; /* somebody else was first */
    snprintf(text, sizeof(text), "no request for %lld s: %s",
             (long long)(acting->idle_ns / NS_PER_S), acting->park ? "park" : "unload");
    struct txn_event event = {.type = "version.idle",
                              .model = acting->model,
                              .version = acting->version,
                              .device_group = acting->group,
                              .message = text,
                              .reason = acting->park ? "PARK" : "UNLOAD"};
    if (txn_event(txn, &event, err) != 0)
        return err->status;
    return acting->park
               ? park_version(txn, &target, &acting->limits, acting->grace_ms, err)
               : unload_version(txn, &target, &acting->limits, acting->grace_ms, NULL, err);
}

static void end(void *arg, const struct error *status)
{
    struct acting *acting = arg;
    struct idle *idle = acting->idle;
    idle->busy = false;
    if (status->status != 0) {
        if (status->status != STATUS_CANCELLED)
            log_warn(LOG_EVENT("idle version left as it is"), LOG_STR("model", acting->model),
                     LOG_STR("version", acting->version), LOG_STR("why", status->message));
        idle->hold_until_ns = clock_now_ns() + again_ns;
    } else {
        idle->counts.n_parked += acting->park;
        idle->counts.n_unloaded += !acting->park;
    }
    bool go_on = status->status != STATUS_CANCELLED;
    free(acting);
    if (go_on)
        change_hub_notify(&idle->fleet->context->changes, NULL);
}

static void act(struct idle *idle, const pb_deployment *d, bool park, int64_t idle_ns)
{
    struct context *context = idle->fleet->context;
    struct error err;
    struct acting *acting = malloc(sizeof(*acting));
    if (!acting)
        return;
    *acting = (struct acting){.idle = idle,
                              .park = park,
                              .generation = d->generation,
                              .idle_ns = idle_ns,
                              .grace_ms = (uint32_t)context->settings->drain_grace_ms,
                              .limits = lifecycle_limits_of(context->settings)};
    snprintf(acting->model, sizeof(acting->model), "%s", d->model);
    snprintf(acting->version, sizeof(acting->version), "%s", d->version);
    snprintf(acting->group, sizeof(acting->group), "%s", d->device_group);
    if (store_submit(context->store, run, end, acting, &err) == 0)
        idle->busy = true;
    else
        free(acting);
}

static void look(struct idle *idle)
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
        act(idle, d, park, idle_ns);
        return;
    }
}

static void on_tick(void *arg, const char *replica_id)
{
    (void)replica_id;
    look(arg);
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
