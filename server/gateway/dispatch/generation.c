#include "server/gateway/dispatch/generation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/relay/relay_private.h"
#include "server/gateway/replicas/replicas.h"

/* Checks that depend on the RPC that brought the request. */
static int check_rpc(const struct relay_params *params, struct error *err)
{
    const Sluice__V1__GenerateRequest *request = params->request;
    if (params->whole && request->reattach_window_ms)
        return error_field(err, "reattach_window_ms",
                           "Complete cannot be reattached; use Generate or GenerateStream");
    if (request->reattach_window_ms && request->output && request->output->prompt_logprobs)
        return error_field(err, "output.prompt_logprobs",
                           "are not kept for a reattach; leave reattach_window_ms at 0");
    if (!params->streams && request->has_credit_tokens)
        return error_field(
            err, "credit_tokens",
            "only GenerateStream can add credit; use GenerateStream, or leave credit_tokens out");
    return 0;
}

/* Chooses the version for the request. *out_found belongs to the table *out_routes, which the
 * caller releases. */
static int choose_version(struct dispatch *dispatch, const Sluice__V1__GenerateRequest *request,
                          struct route_table **out_routes, const route **out_found,
                          struct error *err)
{
    const struct route_wish wish = {.model = request->model,
                                    .version = request->version,
                                    .session_key = request->session_key,
                                    .draw = rng_u64(),
                                    .usable = replicas_will_take_requests,
                                    .arg = dispatch->replicas};
    *out_routes = replicas_routes(dispatch->replicas);
    int rc = route_table_pick(*out_routes, &wish, out_found, err);
    return rc ? rc : validate_for_model(request, (*out_found)->info, err);
}

static void set_version(struct relay *relay, const route *found)
{
    snprintf(relay->model, sizeof(relay->model), "%s", found->model);
    snprintf(relay->version, sizeof(relay->version), "%s", found->version);
    relay_allow_tokens(relay, found->info);
    relay_take_sampling(relay, found->info);
}

/* Chooses the version and writes it into the relay. */
static int resolve_version(struct dispatch *dispatch, struct relay *relay, struct error *err)
{
    struct route_table *routes;
    const route *found;
    int rc = choose_version(dispatch, relay->request, &routes, &found, err);
    if (!rc)
        set_version(relay, found);
    route_table_release(routes);
    return rc;
}

bool generation_choose_again(struct dispatch *dispatch, struct relay *relay)
{
    enum { MAX_TIMES = 4 }; /* a request does not wait for versions that change this often */
    struct error err;
    struct route_table *routes;
    const route *found;
    if (relay->request->version[0])
        return false;
    int rc = choose_version(dispatch, relay->request, &routes, &found, &err);
    pthread_mutex_lock(&relay->lock);
    bool other = rc == 0 && !relay->prompt_info && !relay->ended &&
                 relay->n_other_versions < MAX_TIMES && strcmp(relay->version, found->version) != 0;
    if (other) {
        set_version(relay, found);
        relay->n_other_versions++;
        relay->lost_ns = relay->resumed_lost_ns = relay->refused_ns = 0;
        relay->numerics_id[0] = '\0';
    }
    pthread_mutex_unlock(&relay->lock);
    route_table_release(routes);
    return other;
}

/* Registers the request. If an ended request is kept under the same id for a reattach, that one
 * is closed. */
static int register_id(struct dispatch *dispatch, struct relay *relay, struct error *err)
{
    struct registry *registry = &dispatch->relays->registry;
    int rc = registry_add(registry, relay->caller, relay->request_id, relay, err);
    if (rc != STATUS_ALREADY_EXISTS)
        return rc;
    struct relay *old = registry_find(registry, relay->caller, relay->request_id);
    bool freed = !old || dispatch_forget(old);
    relay_release(old);
    return freed ? registry_add(registry, relay->caller, relay->request_id, relay, err) : rc;
}

int generation_open(struct dispatch *dispatch, const struct relay_params *params,
                    struct relay **out_relay, struct error *err)
{
    struct relay *relay = NULL;
    struct limit_check check = {.limits = dispatch->relays->limits};
    int rc = validate_generate(params->request, &check, err);
    if (check.over != LIMIT_NONE)
        counters_refusal(dispatch->relays->counters, check.over);
    if (!rc)
        rc = check_rpc(params, err);
    if (!rc)
        rc = relay_create(dispatch->relays, params, &relay, err);
    if (!rc)
        rc = resolve_version(dispatch, relay, err);
    if (!rc)
        rc = register_id(dispatch, relay, err);
    dispatch_count_begin(dispatch->relays, relay);
    if (rc) {
        if (relay)
            relay->outcome = *err;
        else
            meter_log_refused(params->caller, params->request->request_id, params->trace, err);
        dispatch_count_end(dispatch->relays, relay, rc, 0);
        relay_release(relay);
        return rc;
    }
    relay_retain(relay); /* dispatch_close drops the first reference */
    *out_relay = relay;
    return 0;
}

void generation_start(struct dispatch *dispatch, struct relay *relay)
{
    dispatch_place(dispatch, relay);
    relay_tell(relay); /* a Cancel may have come before the sink was attached */
}
