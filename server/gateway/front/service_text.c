/* Tokenize, Detokenize and ApplyChatTemplate are forwarded to a worker of the version, which
 * owns the tokenizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/front/service.h"
#include "server/gateway/relay/upstream.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"

enum { TEXT_TIMEOUT_MS = 30000, BEYOND_STALL_MS = 2000, MAX_TRIES = 3 };

/* A forwarded call, from its arrival to the worker's answer. Two references: one until the
 * answer, one until the client's call is done. */
struct text_forward {
    _Atomic unsigned n_refs;
    pthread_mutex_t lock;      /* held while a worker's call is opened, so that worker calls come
                                * in order */
    struct rpc_stream *stream; /* under the lock: the call to the worker; NULL before the first */
    bool over;                 /* under the lock: the client cancelled, is gone, or its deadline
                                * passed */
    struct service *service;
    struct rpc_call *call;           /* retained */
    const ProtobufCMessage *request; /* borrowed from the call */
    const char *method;
    char model[65], version[65];
    int64_t waits_ns;   /* awake_clock_now_ns() when the wait for a replica began */
    int64_t arrived_ns; /* awake_clock_now_ns() when the call arrived */
    unsigned n_tries;
    struct link *link;                 /* retained; NULL while the call waits */
    struct text_forward *next_waiting; /* service->waiting_texts, under the service's lock */
};

static void forward_release(struct text_forward *forward, unsigned n_refs)
{
    if (atomic_fetch_sub(&forward->n_refs, n_refs) != n_refs)
        return;
    rpc_stream_release(forward->stream);
    pthread_mutex_destroy(&forward->lock);
    free(forward);
}

/* Ends a forward whose call was answered or gets no answer any more. Drops n_refs of the caller's
 * references. */
static void forward_end(struct text_forward *forward, unsigned n_refs)
{
    rpc_call_release(forward->call);
    link_release(forward->link);
    forward_release(forward, n_refs);
}

/* Cancels the worker's call: a template may take a second of a request thread. */
static void on_cancel(void *arg, struct rpc_call *call)
{
    struct text_forward *forward = arg;
    (void)call;
    pthread_mutex_lock(&forward->lock);
    forward->over = true;
    struct rpc_stream *stream = forward->stream;
    if (stream)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&forward->lock);
    if (stream)
        rpc_stream_cancel(stream);
    rpc_stream_release(stream);
}

static void on_done(void *arg, struct rpc_call *call)
{
    (void)call;
    forward_release(arg, 1);
}

static const struct rpc_call_events events = {.on_cancel = on_cancel, .on_done = on_done};

static void wait_for_replica(struct text_forward *forward)
{
    struct service *service = forward->service;
    pthread_mutex_lock(&service->lock);
    forward->next_waiting = service->waiting_texts;
    service->waiting_texts = forward;
    pthread_mutex_unlock(&service->lock);
}

/* True if the client cancelled, is gone, or its deadline passed. */
static bool is_over(struct text_forward *forward)
{
    pthread_mutex_lock(&forward->lock);
    bool over = forward->over;
    pthread_mutex_unlock(&forward->lock);
    return over;
}

/* True if the replica was lost. A dead replica gives no reason. An ending one gives a reason, or
 * gRPC cancels the call at the very end. */
static bool is_lost(struct text_forward *forward, const struct error *status)
{
    if (status->status == STATUS_CANCELLED)
        return !is_over(forward);
    return (status->status == STATUS_UNAVAILABLE && !status->reason) || upstream_is_ending(status);
}

/* True if another replica may be tried: the replica was lost or does not answer. The calls
 * change nothing, so a retry is safe. The ticker finds the replica. */
static bool may_try_again(struct text_forward *forward, const struct error *status)
{
    bool lost = is_lost(forward, status);
    bool silent = status->status == STATUS_DEADLINE_EXCEEDED &&
                  clock_now_ns() < rpc_call_deadline_ns(forward->call);
    return (lost || silent) && ++forward->n_tries < MAX_TRIES;
}

/* The server fills the version in the reply: the worker does not know the name that the traffic
 * rule chose. */
static void on_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    struct text_forward *forward = arg;
    if (!response && may_try_again(forward, status)) {
        link_release(forward->link);
        forward->link = NULL;
        forward->waits_ns = awake_clock_now_ns(
            forward->service->dispatch->relays->clock); /* the wait for another replica begins */
        wait_for_replica(forward);
        return;
    }
    if (!response) {
        struct error err = *status;
        if (is_lost(forward, status)) { /* gRPC's text would reveal the path of the socket */
            error_set(&err, STATUS_UNAVAILABLE, "the replica was lost");
            error_reason(&err, REASON_REPLICA_LOST);
            err.retry_after_ms = 1000;
        }
        counters_refusal_reason(forward->service->dispatch->relays->counters, &err);
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
    forward_end(forward, 1);
}

static void forward_fail(struct text_forward *forward, const struct error *err)
{
    rpc_call_finish(forward->call, err);
    forward_end(forward, 1);
}

static void fail_without_replica(struct text_forward *forward)
{
    struct error err;
    dispatch_no_replica(forward->service->dispatch, forward->model, forward->version, &err);
    forward_fail(forward, &err);
}

/* Opens the call to the worker. The answer may arrive, and a retry start, before this returns.
 * So the caller holds a reference of its own. */
static int ask(struct text_forward *forward, const struct rpc_call_options *options,
               struct error *err)
{
    struct rpc_stream *stream = NULL, *before = NULL;
    pthread_mutex_lock(&forward->lock);
    int rc = forward->over ? error_set(err, STATUS_CANCELLED, "the client cancelled or is gone")
                           : rpc_client_unary_open(link_client(forward->link),
                                                   &sluice__worker__v1__worker__descriptor,
                                                   forward->method, forward->request, options,
                                                   on_reply, forward, &stream, err);
    if (!rc) {
        before = forward->stream;
        forward->stream = stream;
    }
    pthread_mutex_unlock(&forward->lock);
    rpc_stream_release(before);
    return rc;
}

/* Sends the call to a worker, or queues it until a worker is there, or ends it. */
static void place(struct text_forward *forward)
{
    struct dispatch *dispatch = forward->service->dispatch;
    const struct relay_shared *relays = dispatch->relays;
    struct error err;
    /* A worker without an answer by then is stalled, and routing avoids it. */
    uint64_t patience_ms = relays->limits->stall_ms + BEYOND_STALL_MS;
    struct rpc_call_options options = {
        .timeout_ms = patience_ms < TEXT_TIMEOUT_MS ? patience_ms : TEXT_TIMEOUT_MS};
    int64_t deadline = rpc_call_deadline_ns(forward->call), now_ns = clock_now_ns();
    int64_t waited_ns = awake_clock_now_ns(relays->clock) - forward->waits_ns;
    int64_t limit_ns = (int64_t)relays->limits->replica_wait_ms * NS_PER_MS;
    if (is_over(forward)) {
        error_set(&err, STATUS_CANCELLED, "the client cancelled or is gone");
        forward_fail(forward, &err);
        return;
    }
    if (deadline != INT64_MAX)
        options.deadline_ns = deadline;
    forward->link = dispatch_pick_link(dispatch, forward->model, forward->version, "", "");
    if (forward->link) {
        atomic_fetch_add(&forward->n_refs, 1);
        if (ask(forward, &options, &err) == 0) {
            forward_release(forward, 1);
        } else {
            rpc_call_finish(forward->call, &err);
            forward_end(forward, 2);
        }
        return;
    }
    enum dispatch_prospect prospect = dispatch_prospect(dispatch, forward->model, forward->version);
    if (prospect == PROSPECT_WAKING) /* if the wake fails, the wait for a replica starts now */
        forward->waits_ns = awake_clock_now_ns(relays->clock);
    bool waits =
        prospect == PROSPECT_WAKING || (prospect == PROSPECT_COMING && waited_ns < limit_ns);
    if (!waits || now_ns >= deadline) {
        fail_without_replica(forward);
        return;
    }
    if (prospect == PROSPECT_WAKING &&
        awake_clock_now_ns(relays->clock) - forward->arrived_ns > WAKE_HEADERS_MS * NS_PER_MS)
        rpc_call_send_headers(forward->call); /* headers keep a proxy from giving the call up */
    wait_for_replica(forward);
}

static struct text_forward *take_waiting(struct service *service)
{
    pthread_mutex_lock(&service->lock);
    struct text_forward *list = service->waiting_texts;
    service->waiting_texts = NULL;
    pthread_mutex_unlock(&service->lock);
    return list;
}

void service_text_retry_waiting(struct service *service)
{
    struct text_forward *list = take_waiting(service);
    while (list) {
        struct text_forward *forward = list;
        list = forward->next_waiting;
        place(forward);
    }
}

void service_text_end_waiting(struct service *service)
{
    struct text_forward *list = take_waiting(service);
    while (list) {
        struct text_forward *forward = list;
        list = forward->next_waiting;
        fail_without_replica(forward);
    }
}

static void forward_call(struct service *service, struct rpc_call *call, const char *method,
                         const ProtobufCMessage *request, const char *model, const char *version)
{
    struct error err;
    const route *found;
    struct text_forward *forward = calloc(1, sizeof(*forward));
    struct route_table *routes = replicas_routes(service->dispatch->replicas);
    const struct route_wish wish = {.model = model,
                                    .version = version,
                                    .draw = rng_u64(),
                                    .usable = replicas_take_requests,
                                    .arg = service->dispatch->replicas};
    int rc = forward ? route_table_pick(routes, &wish, &found, &err)
                     : error_set(&err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    if (!rc) {
        atomic_init(&forward->n_refs, 2);
        pthread_mutex_init(&forward->lock, NULL);
        forward->service = service;
        forward->call = call;
        forward->request = request;
        forward->method = method;
        forward->waits_ns = forward->arrived_ns =
            awake_clock_now_ns(service->dispatch->relays->clock);
        snprintf(forward->model, sizeof(forward->model), "%s", found->model);
        snprintf(forward->version, sizeof(forward->version), "%s", found->version);
        rpc_call_retain(call);
        rpc_call_set_events(call, &events, forward);
    }
    route_table_release(routes);
    if (!rc) {
        place(forward);
        return;
    }
    rpc_call_finish(call, &err);
    free(forward);
}

void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    struct service *service = context;
    struct limit_check check = {.limits = service->dispatch->relays->limits};
    struct error err;
    if (validate_tokenize(request, &check, &err) == 0) {
        forward_call(service, call, "Tokenize", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        counters_refusal(service->dispatch->relays->counters, check.over);
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
    struct service *service = context;
    struct limit_check check = {.limits = service->dispatch->relays->limits};
    struct error err;
    if (validate_apply_chat_template(request, &check, &err) == 0) {
        forward_call(service, call, "ApplyChatTemplate", message, request->model, request->version);
        return;
    }
    if (check.over != LIMIT_NONE)
        counters_refusal(service->dispatch->relays->counters, check.over);
    rpc_call_finish(call, &err);
}
