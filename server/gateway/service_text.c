/* Tokenize, Detokenize and ApplyChatTemplate: forwarded to a worker of the version, which owns the
 * tokenizer. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "proto/rpc/rpc_call.h"
#include "proto/rpc/rpc_client.h"
#include "server/gateway/dispatch.h"
#include "server/gateway/gateway.h"
#include "server/gateway/link.h"
#include "server/gateway/service.h"
#include "server/gateway/validate.h"

enum { TEXT_TIMEOUT_MS = 30000, BEYOND_STALL_MS = 2000, MAX_TRIES = 3 };

/* A forwarded call, from its arrival to the worker's answer. */
struct text_forward {
    struct gateway *gateway;
    struct rpc_call *call;           /* retained */
    const ProtobufCMessage *request; /* borrowed from the call */
    const char *method;
    char model[65], version[65];
    int64_t arrived_ns;
    unsigned n_tries;
    struct link *link;                 /* retained; NULL while it waits */
    struct text_forward *next_waiting; /* gateway->waiting_texts, under gateway->lock */
};

static void forward_free(struct text_forward *forward)
{
    rpc_call_release(forward->call);
    link_release(forward->link);
    free(forward);
}

static void wait_for_replica(struct text_forward *forward)
{
    struct gateway *gateway = forward->gateway;
    pthread_mutex_lock(&gateway->lock);
    forward->next_waiting = gateway->waiting_texts;
    gateway->waiting_texts = forward;
    pthread_mutex_unlock(&gateway->lock);
}

/* Its replica was lost or does not answer: what is asked changes nothing, so another is asked,
 * which the ticker finds. */
static bool may_try_again(struct text_forward *forward, const struct error *status)
{
    bool lost = status->status == STATUS_UNAVAILABLE && !status->reason[0];
    bool silent = status->status == STATUS_DEADLINE_EXCEEDED &&
                  clock_now_ns() < rpc_call_deadline_ns(forward->call);
    return (lost || silent) && ++forward->n_tries < MAX_TRIES;
}

/* The worker does not know by which rule it was chosen; the server writes the version that
 * answered. */
static void on_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    struct text_forward *forward = arg;
    if (!response && may_try_again(forward, status)) {
        link_release(forward->link);
        forward->link = NULL;
        forward->arrived_ns = clock_now_ns(); /* another time to wait for a replica */
        wait_for_replica(forward);
        return;
    }
    if (!response) {
        struct error err = *status;
        if (err.status == STATUS_UNAVAILABLE && !err.reason[0]) { /* gRPC's text names our socket */
            error_set(&err, STATUS_UNAVAILABLE, "the replica was lost");
            error_reason(&err, "REPLICA_LOST");
            err.retry_after_ms = 1000;
        }
        dispatch_count_refusal(forward->gateway, &err);
        rpc_call_finish(forward->call, &err);
    } else if (response->descriptor == &sluice__v1__tokenize_response__descriptor) {
        Sluice__V1__TokenizeResponse reply = *(const Sluice__V1__TokenizeResponse *)response;
        reply.version = forward->version;
        rpc_call_reply(forward->call, &reply.base);
    } else if (response->descriptor == &sluice__v1__apply_chat_template_response__descriptor) {
        Sluice__V1__ApplyChatTemplateResponse reply =
            *(const Sluice__V1__ApplyChatTemplateResponse *)response;
        reply.version = forward->version;
        rpc_call_reply(forward->call, &reply.base);
    } else {
        Sluice__V1__DetokenizeResponse reply = *(const Sluice__V1__DetokenizeResponse *)response;
        reply.version = forward->version;
        rpc_call_reply(forward->call, &reply.base);
    }
    forward_free(forward);
}

static void forward_fail(struct text_forward *forward, const struct error *err)
{
    rpc_call_finish(forward->call, err);
    forward_free(forward);
}

static void fail_without_replica(struct text_forward *forward)
{
    struct error err;
    error_set(&err, STATUS_UNAVAILABLE, "model: no replica of \"%s\" version \"%s\" is ready",
              forward->model, forward->version);
    error_reason(&err, "NO_REPLICA_READY");
    err.retry_after_ms = 1000;
    forward_fail(forward, &err);
}

/* To a worker, into the queue of those that wait for one, or to its end. */
static void dispatch(struct text_forward *forward)
{
    struct gateway *gateway = forward->gateway;
    struct error err;
    /* A worker that has not answered by then is stalled and no longer asked. */
    uint64_t patience_ms = gateway->config.limits.stall_ms + BEYOND_STALL_MS;
    struct rpc_call_options options = {
        .timeout_ms = patience_ms < TEXT_TIMEOUT_MS ? patience_ms : TEXT_TIMEOUT_MS};
    int64_t deadline = rpc_call_deadline_ns(forward->call), now_ns = clock_now_ns();
    int64_t until_ns =
        forward->arrived_ns + (int64_t)gateway->config.limits.replica_wait_ms * NS_PER_MS;
    bool coming;
    if (deadline != INT64_MAX)
        options.deadline_ns = deadline;
    forward->link = gateway_pick_link(gateway, forward->model, forward->version, "", "");
    if (forward->link) {
        if (rpc_client_unary_async(link_client(forward->link),
                                   &sluice__worker__v1__worker__descriptor, forward->method,
                                   forward->request, &options, on_reply, forward, &err) != 0)
            forward_fail(forward, &err);
    } else if (now_ns < until_ns && now_ns < deadline &&
               gateway_still_loaded(gateway, forward->model, forward->version, &coming) && coming) {
        wait_for_replica(forward);
    } else {
        fail_without_replica(forward);
    }
}

static struct text_forward *take_waiting(struct gateway *gateway)
{
    pthread_mutex_lock(&gateway->lock);
    struct text_forward *list = gateway->waiting_texts;
    gateway->waiting_texts = NULL;
    pthread_mutex_unlock(&gateway->lock);
    return list;
}

void text_retry_waiting(struct gateway *gateway)
{
    struct text_forward *list = take_waiting(gateway);
    while (list) {
        struct text_forward *forward = list;
        list = forward->next_waiting;
        dispatch(forward);
    }
}

void text_end_waiting(struct gateway *gateway)
{
    struct text_forward *list = take_waiting(gateway);
    while (list) {
        struct text_forward *forward = list;
        list = forward->next_waiting;
        fail_without_replica(forward);
    }
}

static void forward_call(struct gateway *gateway, struct rpc_call *call, const char *method,
                         const ProtobufCMessage *request, const char *model, const char *version)
{
    struct error err;
    const route *found;
    struct text_forward *forward = calloc(1, sizeof(*forward));
    struct route_table *routes = gateway_routes(gateway);
    int rc = forward ? route_table_pick(routes, model, version, "", rng_u64(), &found, &err)
                     : error_set(&err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    if (!rc) {
        forward->gateway = gateway;
        forward->call = call;
        forward->request = request;
        forward->method = method;
        forward->arrived_ns = clock_now_ns();
        snprintf(forward->model, sizeof(forward->model), "%s", found->model);
        snprintf(forward->version, sizeof(forward->version), "%s", found->version);
        rpc_call_retain(call);
    }
    route_table_release(routes);
    if (!rc) {
        dispatch(forward);
        return;
    }
    rpc_call_finish(call, &err);
    free(forward);
}

void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    struct gateway *gateway = context;
    struct limit_check check = {.limits = &gateway->config.limits};
    struct error err;
    if (validate_tokenize(request, &check, &err) == 0) {
        forward_call(gateway, call, "Tokenize", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        gateway_count_refusal(gateway, check.over);
    rpc_call_finish(call, &err);
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

void handle_apply_chat_template(void *context, struct rpc_call *call,
                                const ProtobufCMessage *message)
{
    const Sluice__V1__ApplyChatTemplateRequest *request =
        (const Sluice__V1__ApplyChatTemplateRequest *)message;
    struct gateway *gateway = context;
    struct limit_check check = {.limits = &gateway->config.limits};
    struct error err;
    if (validate_apply_chat_template(request, &check, &err) == 0) {
        forward_call(gateway, call, "ApplyChatTemplate", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        gateway_count_refusal(gateway, check.over);
    rpc_call_finish(call, &err);
}
