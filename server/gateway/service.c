#include "server/gateway/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/rpc_call.h"
#include "server/gateway/call_sink.h"
#include "server/gateway/gateway.h"
#include "server/gateway/identity.h"
#include "server/gateway/relay.h"
#include "server/gateway/validate.h"

/* Finds the version and notes it in the relay. */
static int resolve_version(struct gateway *gateway, struct relay *relay, struct error *err)
{
    const Sluice__V1__GenerateRequest *request = relay->request;
    struct route_table *routes = gateway_routes(gateway);
    const route *found;
    int rc = route_table_pick(routes, request->model, request->version, request->session_key,
                              rng_u64(), &found, err);
    if (!rc)
        rc = validate_for_model(request, found->info, err);
    if (!rc) {
        snprintf(relay->model, sizeof(relay->model), "%s", found->model);
        snprintf(relay->version, sizeof(relay->version), "%s", found->version);
    }
    route_table_release(routes);
    return rc;
}

static void start_generation(struct gateway *gateway, struct rpc_call *call,
                             const ProtobufCMessage *message, bool whole)
{
    const Sluice__V1__GenerateRequest *request = (const Sluice__V1__GenerateRequest *)message;
    struct trace_context trace;
    const struct relay_params params = {.request = request,
                                        .caller = gateway_caller(call),
                                        .trace = &trace,
                                        .deadline_ns = rpc_call_deadline_ns(call),
                                        .whole = whole};
    struct relay *relay = NULL;
    struct error err;
    struct limit_check check = {.limits = &gateway->config.limits};
    gateway_trace(call, &trace);
    int rc = validate_generate(request, &check, &err);
    if (check.over != LIMIT_NONE)
        gateway_count_refusal(gateway, check.over);
    if (!rc)
        rc = relay_create(gateway, &params, &relay, &err);
    if (!rc)
        rc = resolve_version(gateway, relay, &err);
    if (!rc)
        rc = registry_add(&gateway->registry, relay->caller, relay->request_id, relay, &err);
    gateway_count_begin(gateway, relay);
    if (rc) {
        if (relay)
            relay->outcome = err;
        else
            meter_log_refused(params.caller, request->request_id, &trace, &err);
        gateway_count_end(gateway, relay, rc, 0);
        rpc_call_finish(call, &err);
        relay_release(relay);
        return;
    }
    relay_retain(relay);
    if (call_sink_attach(call, relay, &err) != 0) {
        rpc_call_finish(call, &err);
        relay_close(relay, err.status);
    } else {
        gateway_dispatch(gateway, relay);
        relay_tell(relay); /* a Cancel may have come before there was anyone to tell */
    }
    relay_release(relay);
}

static void handle_generate(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    start_generation(context, call, request, false);
}

static void handle_complete(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    start_generation(context, call, request, true);
}

static void handle_cancel(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct gateway *gateway = context;
    const Sluice__V1__CancelRequest *request = (const Sluice__V1__CancelRequest *)message;
    Sluice__V1__CancelResponse response = SLUICE__V1__CANCEL_RESPONSE__INIT;
    struct error err, why;
    if (validate_cancel(request, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    struct relay *relay =
        registry_find(&gateway->registry, gateway_caller(call), request->request_id);
    if (!relay) {
        error_set(&err, STATUS_NOT_FOUND, "request_id: no live request \"%s\"",
                  request->request_id);
        error_reason(&err, "REQUEST_NOT_FOUND");
        rpc_call_finish(call, &err);
        return;
    }
    error_set(&why, STATUS_CANCELLED, "cancelled by request_id");
    response.n_tokens_sent = relay_cancel(relay, &why);
    relay_release(relay);
    rpc_call_reply(call, &response.base);
}

static const struct rpc_method methods[] = {
    {"Generate", RPC_SHAPE_SERVER_STREAM, handle_generate},
    {"GenerateStream", RPC_SHAPE_BIDI, rpc_unimplemented},
    {"Complete", RPC_SHAPE_UNARY, handle_complete},
    {"Tokenize", RPC_SHAPE_UNARY, handle_tokenize},
    {"Detokenize", RPC_SHAPE_UNARY, handle_detokenize},
    {"ApplyChatTemplate", RPC_SHAPE_UNARY, rpc_unimplemented},
    {"ListModels", RPC_SHAPE_UNARY, handle_list_models},
    {"GetModel", RPC_SHAPE_UNARY, handle_get_model},
    {"Cancel", RPC_SHAPE_UNARY, handle_cancel},
};

void inference_service(struct gateway *gateway, struct rpc_service *out_service)
{
    *out_service = (struct rpc_service){
        .descriptor = &sluice__v1__inference__descriptor,
        .methods = methods,
        .n_methods = sizeof(methods) / sizeof(methods[0]),
        .context = gateway,
    };
}
