#include "manager/rollout/evict.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/capacity/device_room.h"
#include "manager/replicas/replica_view.h"
#include "manager/rollout/lifecycle.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"

/* Two intervals: workers send a status once a second. */
static const int64_t idle_ns = 2 * NS_PER_S;

struct candidate {
    const pb_deployment *deployment;
    int64_t idle_ns;
};

static bool is_evictable(const struct catalog *catalog, const pb_deployment *deployment)
{
    const pb_version *version = catalog_version(catalog, deployment->model, deployment->version);
    if (deployment->config && deployment->config->has_evictable)
        return deployment->config->evictable;
    return version && version->config && version->config->evictable;
}

static int longest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return (x->idle_ns < y->idle_ns) - (x->idle_ns > y->idle_ns);
}

static size_t list_candidates(struct fleet *fleet, const char *model, const char *version,
                              const char *group, struct candidate *out)
{
    const struct catalog *catalog = fleet->context->catalog;
    struct lifecycle_limits limits = lifecycle_limits_of(fleet->context->settings);
    size_t n = 0;
    for (size_t i = 0; n < EVICT_MAX && catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *d = catalog_deployment_at(catalog, i);
        bool own = strcmp(d->model, model) == 0 && strcmp(d->version, version) == 0 &&
                   strcmp(d->device_group, group) == 0;
        struct lifecycle_target target = lifecycle_target_of(d);
        struct error err; /* a deployment under an open operation is not evicted */
        own |= lifecycle_check_free(catalog, &target, &limits, &err) != 0;
        int64_t idle = own || !is_evictable(catalog, d) ? -1 : replica_idle_ns(fleet, d);
        if (idle >= idle_ns)
            out[n++] = (struct candidate){d, idle};
    }
    if (n)
        qsort(out, n, sizeof(*out), longest_first);
    return n;
}

static bool add_eviction(Sluice__V1__Plan *plan, Sluice__V1__Eviction ***evictions,
                         const char *replica_id, const pb_deployment *d, const char *device,
                         uint64_t bytes)
{
    Sluice__V1__Eviction *row = MESSAGE_NEW(Sluice__V1__Eviction, sluice__v1__eviction__descriptor);
    if (!row)
        return false;
    row->bytes = bytes;
    if (message_set(&row->replica_id, replica_id) && message_set(&row->model, d->model) &&
        message_set(&row->version, d->version) && message_set(&row->device, device) &&
        message_append(&plan->n_evictions, evictions, row))
        return true;
    message_free(&row->base);
    return false;
}

/* Adds all replicas of a deployment. The first row carries the bytes that they free together. */
static bool add_deployment(const struct catalog *catalog, Sluice__V1__Plan *plan,
                           Sluice__V1__Eviction ***evictions, const pb_deployment *d,
                           const char *device, uint64_t freed)
{
    for (size_t i = 0; catalog_replica_at(catalog, i); i++) {
        const pb_replica *row = catalog_replica_at(catalog, i);
        if ((int)row->state == REPLICA_STOPPED || !pb_replica_is_of(row, d))
            continue;
        if (plan->n_evictions == EVICT_MAX ||
            !add_eviction(plan, evictions, row->id, d, device, freed))
            return false;
        freed = 0;
    }
    return true;
}

/* Chooses replicas for one device that lacks memory. Host memory is named in the first row
 * alone. */
static bool choose_for_device(struct fleet *fleet, const struct candidate *candidates, size_t n,
                              bool *taken, const Sluice__V1__DevicePlan *lacking,
                              Sluice__V1__Plan *plan, Sluice__V1__Eviction ***evictions)
{
    uint64_t freed = 0;
    for (size_t i = 0; i < n && freed < lacking->missing_bytes; i++) {
        const pb_deployment *d = candidates[i].deployment;
        uint64_t gives = device_room_freed_by(fleet, d, lacking->device);
        freed += gives;
        if (taken[i] || !gives)
            continue;
        taken[i] = true;
        if (!add_deployment(fleet->context->catalog, plan, evictions, d, lacking->device, gives))
            return false;
    }
    return freed >= lacking->missing_bytes;
}

void evict_choose(struct fleet *fleet, const char *model, const char *version, const char *group,
                  Sluice__V1__Plan *plan, Sluice__V1__Eviction ***out_evictions)
{
    struct candidate candidates[EVICT_MAX];
    bool taken[EVICT_MAX] = {false}, enough = true;
    Sluice__V1__Eviction **evictions = NULL;
    size_t n = list_candidates(fleet, model, version, group, candidates);
    plan->n_evictions = 0;
    for (size_t i = 0; enough && i < plan->n_devices; i++)
        if (plan->devices[i]->missing_bytes)
            enough =
                choose_for_device(fleet, candidates, n, taken, plan->devices[i], plan, &evictions);
    if (!enough) {
        evict_free(evictions, plan->n_evictions);
        evictions = NULL;
        plan->n_evictions = 0;
    }
    *out_evictions = evictions;
}

void evict_free(Sluice__V1__Eviction **evictions, size_t n_evictions)
{
    for (size_t i = 0; evictions && i < n_evictions; i++)
        message_free(&evictions[i]->base);
    free(evictions);
}
