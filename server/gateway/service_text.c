/* Tokenize and Detokenize: forwarded to a worker of the version, which owns the tokenizer. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"
#include "proto/rpc/rpc_call.h"
#include "proto/rpc/rpc_client.h"
#include "server/gateway/gateway.h"
#include "server/gateway/link.h"
#include "server/gateway/service.h"
#include "server/gateway/validate.h"

enum { TEXT_TIMEOUT_MS = 30000 };

/* A forwarded call, from its arrival to the worker's answer. */
struct forward {
    struct rpc_call *call; /* retained */
    struct link *link;     /* retained */
    char version[65];
};

static void forward_free(struct forward *forward)
{
    rpc_call_release(forward->call);
    link_release(forward->link);
    free(forward);
}

/* The worker does not know by which rule it was chosen; the server writes the version that
 * answered. */
static void on_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    struct forward *forward = arg;
    if (!response) {
        struct error err = *status;
        if (err.status == STATUS_UNAVAILABLE && !err.reason[0]) { /* gRPC's text names our socket */
            error_set(&err, STATUS_UNAVAILABLE, "the replica was lost");
            error_reason(&err, "REPLICA_LOST");
            err.retry_after_ms = 1000;
        }
        rpc_call_finish(forward->call, &err);
    } else if (response->descriptor == &sluice__v1__tokenize_response__descriptor) {
        Sluice__V1__TokenizeResponse reply = *(const Sluice__V1__TokenizeResponse *)response;
        reply.version = forward->version;
        rpc_call_reply(forward->call, &reply.base);
    } else {
        Sluice__V1__DetokenizeResponse reply = *(const Sluice__V1__DetokenizeResponse *)response;
        reply.version = forward->version;
        rpc_call_reply(forward->call, &reply.base);
    }
    forward_free(forward);
}

static int pick(struct gateway *gateway, const char *model, const char *version,
                struct forward *forward, struct error *err)
{
    struct route_table *routes = gateway_routes(gateway);
    const route *found;
    int rc = route_table_pick(routes, model, version, "", rng_u64(), &found, err);
    if (!rc) {
        snprintf(forward->version, sizeof(forward->version), "%s", found->version);
        forward->link = gateway_pick_link(gateway, found->model, found->version, "");
        if (!forward->link) {
            rc = error_set(err, STATUS_UNAVAILABLE, "model: no replica of \"%s\" is ready", model);
            error_reason(err, "NO_REPLICA_READY");
            err->retry_after_ms = 1000;
        }
    }
    route_table_release(routes);
    return rc;
}

static void forward_call(struct gateway *gateway, struct rpc_call *call, const char *method,
                         const ProtobufCMessage *request, const char *model, const char *version)
{
    struct error err;
    struct rpc_call_options options = {.timeout_ms = TEXT_TIMEOUT_MS};
    int64_t deadline = rpc_call_deadline_ns(call);
    if (deadline != INT64_MAX)
        options.deadline_ns = deadline;
    struct forward *forward = calloc(1, sizeof(*forward));
    int rc = forward ? pick(gateway, model, version, forward, &err)
                     : error_set(&err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    if (!rc) {
        forward->call = call;
        rpc_call_retain(call);
        rc = rpc_client_unary_async(link_client(forward->link),
                                    &sluice__worker__v1__worker__descriptor, method, request,
                                    &options, on_reply, forward, &err);
    }
    if (rc) {
        rpc_call_finish(call, &err);
        if (forward)
            forward_free(forward);
    }
}

void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    struct error err;
    if (validate_tokenize(request, &err) != 0)
        rpc_call_finish(call, &err);
    else
        forward_call(context, call, "Tokenize", message, request->model, request->version);
}

void handle_detokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__DetokenizeRequest *request = (const Sluice__V1__DetokenizeRequest *)message;
    struct error err;
    if (validate_detokenize(request, &err) != 0)
        rpc_call_finish(call, &err);
    else
        forward_call(context, call, "Detokenize", message, request->model, request->version);
}
