/* policy.c: SetVersionPolicy. */
#include "manager/rollout/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/rollout/lifecycle.h"
#include "manager/service/service.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "manager/watch/build.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__SetVersionPolicyRequest policy_request;
typedef Sluice__Manager__V1__SetVersionPolicyResponse policy_response;

static int check_specific(const Sluice__Manager__V1__SpecificVersions *specific, struct error *err)
{
    if (!specific->n_versions || specific->n_versions > POLICY_MAX_VERSIONS)
        return error_field(err, "policy.specific", "%zu versions; 1 to %d", specific->n_versions,
                           POLICY_MAX_VERSIONS);
    for (size_t i = 0; i < specific->n_versions; i++)
        if (name_check_version("policy.specific.versions", specific->versions[i], err) != 0)
            return err->status;
    return 0;
}

static int check_request(struct service *service, struct rpc_call *call,
                         const ProtobufCMessage *message, void *arg, struct error *err)
{
    const policy_request *request = (const policy_request *)message;
    const pb_policy *policy = request->policy;
    (void)service;
    (void)call;
    (void)arg;
    if (name_check("model", request->model, err) != 0)
        return err->status;
    if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST &&
        (policy->latest < 1 || policy->latest > POLICY_MAX_LATEST))
        return error_field(err, "policy.latest", "%u is not between 1 and %d", policy->latest,
                           POLICY_MAX_LATEST);
    if (policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC)
        return check_specific(policy->specific, err);
    return 0;
}

/* Text of a policy: "latest 2", "specific 1 3". */
static const char *describe(const pb_policy *policy, char out[256])
{
    size_t n = 0;
    if (!policy || !policy_is_set(policy))
        return "none";
    if (policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_ALL)
        return "all";
    if (policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_LATEST) {
        snprintf(out, 256, "latest %u", policy->latest);
        return out;
    }
    n += (size_t)snprintf(out, 256, "specific");
    for (size_t i = 0; i < policy->specific->n_versions && n < 256 - 40; i++)
        n += (size_t)snprintf(out + n, 256 - n, " %.32s", policy->specific->versions[i]);
    return out;
}

static int apply_policy(struct txn *txn, const ProtobufCMessage *message, void *arg,
                        ProtobufCMessage *response, struct error *err)
{
    const policy_request *request = (const policy_request *)message;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_model *row = catalog_model(catalog, request->model);
    const pb_policy *policy = policy_is_set(request->policy) ? request->policy : NULL;
    (void)arg;
    if (!row)
        return lifecycle_no_version(request->model, "", err);
    if (lifecycle_check_generation(request->model, request->has_expected_generation,
                                   request->expected_generation, row->generation, err) != 0)
        return err->status;
    bool specific =
        policy && policy->kind_case == SLUICE__MANAGER__V1__VERSION_POLICY__KIND_SPECIFIC;
    for (size_t i = 0; specific && i < policy->specific->n_versions; i++)
        if (!catalog_version(catalog, request->model, policy->specific->versions[i]))
            return lifecycle_no_version(request->model, policy->specific->versions[i], err);
    pb_model *model = MESSAGE_COPY(pb_model, row);
    if (!model || !message_set_copy(&model->policy, policy)) {
        if (model)
            message_free(&model->base);
        return error_no_memory(err);
    }
    model->generation++;
    char text[256];
    struct txn_event event = {
        .type = "policy.set", .model = request->model, .message = describe(policy, text)};
    if (txn_put(txn, TABLE_MODEL, &model->base, err) != 0 || txn_event(txn, &event, err) != 0)
        return err->status;
    pb_model *answer = build_model(catalog, catalog_model(catalog, request->model));
    ((policy_response *)response)->model = answer;
    return answer ? 0 : error_no_memory(err);
}

const struct service_change service_set_policy = {.check = check_request, .apply = apply_policy};
