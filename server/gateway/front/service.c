#include "server/gateway/front/service.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/identity.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/front/call_sink.h"
#include "server/gateway/front/generate_stream.h"
#include "server/gateway/relay/relay.h"

static void start_generation(struct service *service, struct rpc_call *call,
                             const ProtobufCMessage *message, bool whole)
{
    struct trace_context trace;
    const struct relay_params params = {.request = (const Sluice__V1__GenerateRequest *)message,
                                        .caller = gateway_caller(call),
                                        .trace = &trace,
                                        .deadline_ns = rpc_call_deadline_ns(call),
                                        .whole = whole};
    struct relay *relay;
    struct error err;
    gateway_trace(call, &trace);
    if (generation_open(service->dispatch, &params, &relay, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    if (call_sink_attach(call, relay, &call_sink_generate, NULL, &err) != 0) {
        rpc_call_finish(call, &err);
        dispatch_close(relay, err.status);
    } else {
        generation_start(service->dispatch, relay);
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
    struct service *service = context;
    const Sluice__V1__CancelRequest *request = (const Sluice__V1__CancelRequest *)message;
    Sluice__V1__CancelResponse response = SLUICE__V1__CANCEL_RESPONSE__INIT;
    struct error err, why;
    if (validate_cancel(request, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    struct relay *relay = registry_find(&service->dispatch->relays->registry, gateway_caller(call),
                                        request->request_id);
    if (!relay) {
        error_set(&err, STATUS_NOT_FOUND, "request_id: no live request \"%s\"",
                  request->request_id);
        error_reason(&err, REASON_REQUEST_NOT_FOUND);
        rpc_call_finish(call, &err);
        return;
    }
    error_set(&why, STATUS_CANCELLED, "cancelled by request_id");
    response.n_tokens_sent = dispatch_cancel(relay, &why);
    relay_release(relay);
    rpc_call_reply(call, &response.base);
}

static const struct rpc_method methods[] = {
    {"Generate", RPC_SHAPE_SERVER_STREAM, handle_generate},
    {"GenerateStream", RPC_SHAPE_BIDI, handle_generate_stream},
    {"Complete", RPC_SHAPE_UNARY, handle_complete},
    {"Tokenize", RPC_SHAPE_UNARY, handle_tokenize},
    {"Detokenize", RPC_SHAPE_UNARY, handle_detokenize},
    {"ApplyChatTemplate", RPC_SHAPE_UNARY, handle_apply_chat_template},
    {"ListModels", RPC_SHAPE_UNARY, handle_list_models},
    {"GetModel", RPC_SHAPE_UNARY, handle_get_model},
    {"Cancel", RPC_SHAPE_UNARY, handle_cancel},
};

void service_table(struct service *service, struct rpc_service *out_table)
{
    *out_table = (struct rpc_service){
        .descriptor = &sluice__v1__inference__descriptor,
        .methods = methods,
        .n_methods = sizeof(methods) / sizeof(methods[0]),
        .context = service,
    };
}

void service_init(struct service *service, struct dispatch *dispatch)
{
    *service = (struct service){.dispatch = dispatch};
    pthread_mutex_init(&service->lock, NULL);
    text_calls_init(&service->texts, dispatch);
}

void service_fini(struct service *service)
{
    text_calls_fini(&service->texts);
    pthread_mutex_destroy(&service->lock);
}
