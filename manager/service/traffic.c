/* traffic.c: SetTraffic, GetTraffic. */
#include "manager/rollout/traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/names.h"
#include "manager/rollout/lifecycle.h"
#include "manager/rollout/update.h"
#include "manager/service/service.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/txn.h"
#include "proto/rpc/server/call.h"

typedef Sluice__Manager__V1__SetTrafficRequest set_request;
typedef Sluice__Manager__V1__SetTrafficResponse set_response;

static int check_set(struct service *service, struct rpc_call *call,
                     const ProtobufCMessage *message, void *arg, struct error *err)
{
    const set_request *request = (const set_request *)message;
    uint64_t sum = 0;
    (void)service;
    (void)call;
    (void)arg;
    if (name_check("model", request->model, err) != 0)
        return err->status;
    if (request->n_weights > TRAFFIC_MAX_VERSIONS)
        return error_field(err, "weights", "%zu of them; %d is the limit", request->n_weights,
                           TRAFFIC_MAX_VERSIONS);
    for (size_t i = 0; i < request->n_weights; i++) {
        const Sluice__Manager__V1__TrafficWeight *weight = request->weights[i];
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
    for (size_t i = 0; catalog_deployment_at(catalog, i); i++) {
        const pb_deployment *deployment = catalog_deployment_at(catalog, i);
        if (strcmp(deployment->model, model) == 0 && strcmp(deployment->version, version) == 0)
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
        const Sluice__Manager__V1__TrafficWeight *weight = request->weights[i];
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

static int apply_set(struct txn *txn, const ProtobufCMessage *message, void *arg,
                     ProtobufCMessage *response, struct error *err)
{
    const set_request *request = (const set_request *)message;
    const struct catalog *catalog = txn_catalog(txn);
    const pb_traffic *old = traffic_find(catalog, request->model);
    char what[96];
    (void)arg;
    if (!catalog_model(catalog, request->model))
        return lifecycle_no_version(request->model, "", err);
    snprintf(what, sizeof(what), "the traffic of %.64s", request->model);
    if (lifecycle_check_generation(what, request->has_expected_generation,
                                   request->expected_generation, old ? old->generation : 0,
                                   err) != 0 ||
        update_check_none(catalog, request->model, err) != 0 ||
        check_versions(catalog, request, err) != 0)
        return err->status;
    pb_traffic *traffic = MESSAGE_NEW(pb_traffic, sluice__manager__v1__traffic__descriptor);
    bool complete = traffic && message_set(&traffic->model, request->model);
    for (size_t i = 0; complete && i < request->n_weights; i++)
        complete =
            traffic_set_weight(traffic, request->weights[i]->version, request->weights[i]->weight);
    if (!complete) {
        if (traffic)
            message_free(&traffic->base);
        return error_no_memory(err);
    }
    traffic->sticky = request->sticky;
    if (traffic_put(txn, traffic, NULL, err) != 0)
        return err->status;
    return message_set_copy(&((set_response *)response)->traffic,
                            traffic_find(txn_catalog(txn), request->model))
               ? 0
               : error_no_memory(err);
}

const struct service_change service_set_traffic = {.check = check_set, .apply = apply_set};

/* Answers with the rule, or with the default rule where none was set. */
int service_get_traffic(struct service *service, const ProtobufCMessage *message,
                        ProtobufCMessage *response, struct error *err)
{
    const Sluice__Manager__V1__GetTrafficRequest *request =
        (const Sluice__Manager__V1__GetTrafficRequest *)message;
    const struct catalog *catalog = service->fleet->context->catalog;
    if (name_check("model", request->model, err) != 0)
        return err->status;
    if (!catalog_model(catalog, request->model))
        return lifecycle_no_version(request->model, "", err);
    const pb_traffic *row = traffic_find(catalog, request->model);
    pb_traffic none = SLUICE__MANAGER__V1__TRAFFIC__INIT;
    none.model = request->model;
    return message_set_copy(&((Sluice__Manager__V1__GetTrafficResponse *)response)->traffic,
                            row ? row : &none)
               ? 0
               : error_no_memory(err);
}
