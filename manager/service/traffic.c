/* traffic.c: SetTraffic, GetTraffic, SetVersionPolicy. */
#include "manager/rollout/traffic.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/rollout/policy.h"
#include "manager/rollout/update.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"

typedef Sluice__Manager__V1__SetTrafficRequest set_request;
typedef Sluice__Manager__V1__TrafficWeight traffic_share;
typedef Sluice__Manager__V1__SetVersionPolicyRequest policy_request;

/* --- SetTraffic --- */

static int check_set(struct service_call *call, struct error *err)
{
    const set_request *request = call->request;
    uint64_t sum = 0;
    if (request->n_weights > TRAFFIC_MAX_VERSIONS)
        return error_field(err, "weights", "%zu of them; %d is the limit", request->n_weights,
                           TRAFFIC_MAX_VERSIONS);
    for (size_t i = 0; i < request->n_weights; i++) {
        const traffic_share *weight = request->weights[i];
        if (name_check_version("weights.version", weight->version, err) != 0)
            return err->status;
        if (weight->weight > TRAFFIC_MAX_WEIGHT)
            return error_field(err, "weights.weight", "%u of version \"%s\"; %d is the limit",
                               weight->weight, weight->version, TRAFFIC_MAX_WEIGHT);
        for (size_t j = 0; j < i; j++)
            if (strcmp(request->weights[j]->version, weight->version) == 0)
                return error_field(err, "weights", "version \"%s\" is named twice",
                                   weight->version);
        sum += weight->weight;
    }
    if (request->n_weights && !sum)
        return error_field(err, "weights", "are all 0; give a weight above 0, or none at all");
    return 0;
}

static bool is_loaded(const struct catalog *catalog, const char *model, const char *version)
{
    CATALOG_EACH(deployment, row, catalog) {
        if (strcmp(row->model, model) == 0 && strcmp(row->version, version) == 0)
            return true;
    }
    return false;
}

/* All versions must exist, and a version with a share must be loaded: else requests would have
 * no version to go to. */
static int check_versions(const struct catalog *catalog, const set_request *request,
                          struct error *err)
{
    bool loaded = !request->n_weights;
    for (size_t i = 0; i < request->n_weights; i++) {
        const traffic_share *weight = request->weights[i];
        if (!catalog_version(catalog, request->model, weight->version))
            return lifecycle_no_version(request->model, weight->version, err);
        loaded |= weight->weight && is_loaded(catalog, request->model, weight->version);
    }
    if (loaded)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "weights: none of the versions of %s that would get traffic is loaded",
              request->model);
    return error_reason(err, REASON_NOT_LOADED);
}

static int apply_set(struct txn *txn, struct service_call *call, struct error *err)
{
    const set_request *request = call->request;
    Sluice__Manager__V1__SetTrafficResponse *response = call->response;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_traffic *old = traffic_find(catalog, request->model);
    char what[96];
    if (!catalog_model(catalog, request->model))
        return lifecycle_no_version(request->model, "", err);
    snprintf(what, sizeof(what), "the traffic of %.64s", request->model);
    if (service_check_generation(call, what, old ? old->generation : 0, err) != 0 ||
        update_check_none(catalog, request->model, err) != 0 ||
        check_versions(catalog, request, err) != 0)
        return err->status;
    pb_traffic traffic = SLUICE__MANAGER__V1__TRAFFIC__INIT;
    traffic.model = request->model;
    traffic.n_weights = request->n_weights;
    traffic.weights = request->weights;
    traffic.sticky = request->sticky;
    pb_traffic *row = (pb_traffic *)message_copy(&traffic.base);
    if (!row)
        return error_no_memory(err);
    if (traffic_put(txn, row, NULL, err) != 0)
        return err->status;
    response->traffic = message_copy_in(&call->arena, traffic_find(catalog, request->model));
    return 0;
}

const struct service_change service_set_traffic = {.check = check_set, .apply = apply_set};

/* --- GetTraffic --- */

/* Answers with the rule, or with the default rule where none was set. */
int service_get_traffic(struct service_call *call, struct error *err)
{
    const Sluice__Manager__V1__GetTrafficRequest *request = call->request;
    Sluice__Manager__V1__GetTrafficResponse *response = call->response;
    pb_traffic none = SLUICE__MANAGER__V1__TRAFFIC__INIT;
    if (!catalog_model(call->catalog, request->model))
        return lifecycle_no_version(request->model, "", err);
    const pb_traffic *row = traffic_find(call->catalog, request->model);
    none.model = request->model;
    response->traffic = message_copy_in(&call->arena, row ? row : &none);
    return 0;
}

/* --- SetVersionPolicy --- */

/* The versions that the policy names; NULL: a policy of another kind. */
static const Sluice__Manager__V1__SpecificVersions *specific_of(const pb_policy *policy)
{
    return policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC
               ? policy->specific
               : NULL;
}

static int check_policy(struct service_call *call, struct error *err)
{
    const policy_request *request = call->request;
    const pb_policy *policy = request->policy;
    const Sluice__Manager__V1__SpecificVersions *specific = specific_of(policy);
    if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST &&
        (policy->latest < 1 || policy->latest > POLICY_MAX_LATEST))
        return error_field(err, "policy.latest", "%u is not between 1 and %d", policy->latest,
                           POLICY_MAX_LATEST);
    if (specific && (!specific->n_versions || specific->n_versions > POLICY_MAX_VERSIONS))
        return error_field(err, "policy.specific", "%zu versions; 1 to %d", specific->n_versions,
                           POLICY_MAX_VERSIONS);
    for (size_t i = 0; specific && i < specific->n_versions; i++)
        if (name_check_version("policy.specific.versions", specific->versions[i], err) != 0)
            return err->status;
    return 0;
}

/* Text of a policy: "latest 2", "specific 1 3". */
static const char *describe(const pb_policy *policy, char out[256])
{
    const Sluice__Manager__V1__SpecificVersions *specific = specific_of(policy);
    if (!policy)
        return "none";
    if (policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL)
        return "all";
    size_t n = specific ? (size_t)snprintf(out, 256, "specific")
                        : (size_t)snprintf(out, 256, "latest %u", policy->latest);
    for (size_t i = 0; specific && i < specific->n_versions && n < 256 - 40; i++)
        n += (size_t)snprintf(out + n, 256 - n, " %.32s", specific->versions[i]);
    return out;
}

static int apply_policy(struct txn *txn, struct service_call *call, struct error *err)
{
    const policy_request *request = call->request;
    Sluice__Manager__V1__SetVersionPolicyResponse *response = call->response;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_model *row = catalog_model(catalog, request->model);
    pb_policy *policy = policy_is_set(request->policy) ? request->policy : NULL;
    const Sluice__Manager__V1__SpecificVersions *specific = specific_of(policy);
    if (!row)
        return lifecycle_no_version(request->model, "", err);
    if (service_check_generation(call, request->model, row->generation, err) != 0)
        return err->status;
    for (size_t i = 0; specific && i < specific->n_versions; i++)
        if (!catalog_version(catalog, request->model, specific->versions[i]))
            return lifecycle_no_version(request->model, specific->versions[i], err);
    pb_model model = *row;
    model.policy = policy;
    model.generation++;
    char text[256];
    struct txn_event event = {
        .type = "policy.set", .model = request->model, .message = describe(policy, text)};
    if (txn_put_copy(txn, TABLE_MODEL, &model, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    response->model = build_model(&call->arena, catalog, catalog_model(catalog, request->model));
    return 0;
}

const struct service_change service_set_policy = {.check = check_policy, .apply = apply_policy};
