#include "server/gateway/generation.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/rng.h"
#include "server/gateway/gateway.h"
#include "server/gateway/relay_private.h"
#include "server/gateway/validate.h"

/* What depends on the RPC that brought the request. */
static int check_rpc(const struct relay_params *params, struct error *err)
{
    const Sluice__V1__GenerateRequest *request = params->request;
    if (params->whole && request->reattach_window_ms)
        return error_field(err, "reattach_window_ms",
                           "a Complete cannot be reattached; use Generate or GenerateStream");
    if (request->reattach_window_ms && request->output && request->output->prompt_logprobs)
        return error_field(err, "output.prompt_logprobs",
                           "are not kept for a reattach; leave reattach_window_ms at 0");
    if (!params->streams && request->has_credit_tokens)
        return error_field(err, "credit_tokens",
                           "more credit can come on a GenerateStream only; use that");
    return 0;
}

/* Finds the version and notes it in the relay. */
static int resolve_version(struct gateway *gateway, struct relay *relay, struct error *err)
{
    const Sluice__V1__GenerateRequest *request = relay->request;
    struct route_table *routes = gateway_routes(gateway);
    const route *found;
    const struct route_wish wish = {.model = request->model,
                                    .version = request->version,
                                    .session_key = request->session_key,
                                    .draw = rng_u64(),
                                    .usable = gateway_takes_requests,
                                    .arg = gateway};
    int rc = route_table_pick(routes, &wish, &found, err);
    if (!rc)
        rc = validate_for_model(request, found->info, err);
    if (!rc) {
        snprintf(relay->model, sizeof(relay->model), "%s", found->model);
        snprintf(relay->version, sizeof(relay->version), "%s", found->version);
        relay_allow_tokens(relay, found->info);
    }
    route_table_release(routes);
    return rc;
}

/* A request that has ended and is only kept to be reattached gives its id up. */
static int enter(struct gateway *gateway, struct relay *relay, struct error *err)
{
    struct registry *registry = &gateway->registry;
    int rc = registry_add(registry, relay->caller, relay->request_id, relay, err);
    if (rc != STATUS_ALREADY_EXISTS)
        return rc;
    struct relay *old = registry_find(registry, relay->caller, relay->request_id);
    bool freed = !old || relay_forget(old);
    relay_release(old);
    return freed ? registry_add(registry, relay->caller, relay->request_id, relay, err) : rc;
}

int generation_open(struct gateway *gateway, const struct relay_params *params,
                    struct relay **out_relay, struct error *err)
{
    struct relay *relay = NULL;
    struct limit_check check = {.limits = &gateway->config.limits};
    int rc = validate_generate(params->request, &check, err);
    if (check.over != LIMIT_NONE)
        gateway_count_refusal(gateway, check.over);
    if (!rc)
        rc = check_rpc(params, err);
    if (!rc)
        rc = relay_create(gateway, params, &relay, err);
    if (!rc)
        rc = resolve_version(gateway, relay, err);
    if (!rc)
        rc = enter(gateway, relay, err);
    gateway_count_begin(gateway, relay);
    if (rc) {
        if (relay)
            relay->outcome = *err;
        else
            meter_log_refused(params->caller, params->request->request_id, params->trace, err);
        gateway_count_end(gateway, relay, rc, 0);
        relay_release(relay);
        return rc;
    }
    relay_retain(relay); /* relay_close drops the first reference */
    *out_relay = relay;
    return 0;
}

void generation_start(struct gateway *gateway, struct relay *relay)
{
    gateway_dispatch(gateway, relay);
    relay_tell(relay); /* a Cancel may have come before there was anyone to tell */
}
