#include "server/gateway/dispatch/text_call.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/relay/upstream.h"
#include "server/gateway/replicas/link.h"
#include "server/gateway/replicas/replicas.h"
#include "sluice/v1/inference.pb-c.h"

enum { TEXT_TIMEOUT_MS = 30000, BEYOND_STALL_MS = 2000, MAX_TRIES = 3 };

/* A call, from its arrival to the worker's answer. Two references at first: one belongs to the
 * client's side, and one is released after the answer. */
struct text_call {
    _Atomic unsigned n_refs;
    pthread_mutex_t lock;      /* held while a worker's call is opened, so that worker calls come
                                * in order */
    struct rpc_stream *stream; /* under the lock: the call to the worker; NULL before the first */
    bool over;                 /* under the lock: see text_call_cancel */
    struct text_calls *calls;
    struct text_call_params params; /* without the names */
    char model[65], version[65];
    int64_t waits_ns;   /* awake_clock_now_ns() when the wait for a replica began */
    int64_t arrived_ns; /* awake_clock_now_ns() when the call arrived */
    unsigned n_tries;
    struct link *link;              /* retained; NULL while the call waits */
    struct text_call *next_waiting; /* calls->waiting, under its lock */
};

static const struct relay_shared *shared(const struct text_call *call)
{
    return call->calls->dispatch->relays;
}

static void release(struct text_call *call, unsigned n_refs)
{
    if (atomic_fetch_sub(&call->n_refs, n_refs) != n_refs)
        return;
    rpc_stream_release(call->stream);
    pthread_mutex_destroy(&call->lock);
    free(call);
}

/* Answers the call. Drops n_refs of the caller's references. */
static void finish(struct text_call *call, const ProtobufCMessage *response,
                   const struct error *err, unsigned n_refs)
{
    call->params.ops->answer(call->params.arg, response, err);
    link_release(call->link);
    release(call, n_refs);
}

static void wait_for_replica(struct text_call *call)
{
    struct text_calls *calls = call->calls;
    pthread_mutex_lock(&calls->lock);
    call->next_waiting = calls->waiting;
    calls->waiting = call;
    pthread_mutex_unlock(&calls->lock);
}

static bool is_over(struct text_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool over = call->over;
    pthread_mutex_unlock(&call->lock);
    return over;
}

/* True if the replica was lost. A dead replica gives no reason. A replica that ends gives a reason,
 * or gRPC cancels the call at the very end. */
static bool is_lost(struct text_call *call, const struct error *status)
{
    if (status->status == STATUS_CANCELLED)
        return !is_over(call);
    return (status->status == STATUS_UNAVAILABLE && !status->reason) || upstream_is_ending(status);
}

/* True if another replica may be tried: the replica was lost or does not answer. The calls
 * change nothing, so a retry is safe. The ticker finds the replica. */
static bool may_try_again(struct text_call *call, const struct error *status)
{
    bool lost = is_lost(call, status);
    bool silent =
        status->status == STATUS_DEADLINE_EXCEEDED && clock_now_ns() < call->params.deadline_ns;
    return (lost || silent) && ++call->n_tries < MAX_TRIES;
}

/* Answers with the version in the reply: the worker does not know the name that the traffic rule
 * chose. */
static void finish_well(struct text_call *call, const ProtobufCMessage *response)
{
    if (response->descriptor == &sluice__v1__tokenize_response__descriptor) {
        Sluice__V1__TokenizeResponse reply = *(const Sluice__V1__TokenizeResponse *)response;
        reply.version = call->version;
        finish(call, &reply.base, NULL, 1);
    } else if (response->descriptor == &sluice__v1__apply_chat_template_response__descriptor) {
        Sluice__V1__ApplyChatTemplateResponse reply =
            *(const Sluice__V1__ApplyChatTemplateResponse *)response;
        reply.version = call->version;
        finish(call, &reply.base, NULL, 1);
    } else {
        Sluice__V1__DetokenizeResponse reply = *(const Sluice__V1__DetokenizeResponse *)response;
        reply.version = call->version;
        finish(call, &reply.base, NULL, 1);
    }
}

static void on_reply(void *arg, const ProtobufCMessage *response, const struct error *status)
{
    struct text_call *call = arg;
    if (response) {
        finish_well(call, response);
        return;
    }
    if (may_try_again(call, status)) {
        link_release(call->link);
        call->link = NULL;
        call->waits_ns =
            awake_clock_now_ns(shared(call)->clock); /* the wait for another replica begins */
        wait_for_replica(call);
        return;
    }
    struct error err = *status;
    if (is_lost(call, status)) { /* gRPC's text would reveal the path of the socket */
        error_set(&err, STATUS_UNAVAILABLE, "the replica was lost");
        error_reason(&err, REASON_REPLICA_LOST);
        err.retry_after_ms = 1000;
    }
    counters_refusal_reason(shared(call)->counters, &err);
    finish(call, NULL, &err, 1);
}

static void fail_without_replica(struct text_call *call)
{
    struct error err;
    dispatch_no_replica(call->calls->dispatch, call->model, call->version, &err);
    finish(call, NULL, &err, 1);
}

/* Opens the call to the worker. The answer may arrive, and a retry start, before this returns.
 * So the caller holds a reference of its own. */
static int ask(struct text_call *call, const struct rpc_call_options *options, struct error *err)
{
    struct rpc_stream *stream = NULL, *before = NULL;
    pthread_mutex_lock(&call->lock);
    int rc = call->over ? error_set(err, STATUS_CANCELLED, "the client cancelled or is gone")
                        : rpc_client_unary_open(link_client(call->link),
                                                &sluice__worker__v1__worker__descriptor,
                                                call->params.method, call->params.request, options,
                                                on_reply, call, &stream, err);
    if (!rc) {
        before = call->stream;
        call->stream = stream;
    }
    pthread_mutex_unlock(&call->lock);
    rpc_stream_release(before);
    return rc;
}

/* Sends the call to the worker of its link. */
static void send_call(struct text_call *call)
{
    struct error err;
    /* A worker without an answer by then is stalled, and routing avoids it. */
    uint64_t patience_ms = shared(call)->limits->stall_ms + BEYOND_STALL_MS;
    struct rpc_call_options options = {
        .timeout_ms = patience_ms < TEXT_TIMEOUT_MS ? patience_ms : TEXT_TIMEOUT_MS};
    if (call->params.deadline_ns != INT64_MAX)
        options.deadline_ns = call->params.deadline_ns;
    atomic_fetch_add(&call->n_refs, 1);
    if (ask(call, &options, &err) == 0)
        release(call, 1);
    else
        finish(call, NULL, &err, 2);
}

/* Sends the call to a worker, or queues it until a worker is there, or ends it. */
static void place(struct text_call *call)
{
    struct dispatch *dispatch = call->calls->dispatch;
    const struct relay_shared *relays = shared(call);
    struct error err;
    int64_t now_ns = clock_now_ns();
    int64_t waited_ns = awake_clock_now_ns(relays->clock) - call->waits_ns;
    int64_t limit_ns = (int64_t)relays->limits->replica_wait_ms * NS_PER_MS;
    if (is_over(call)) {
        error_set(&err, STATUS_CANCELLED, "the client cancelled or is gone");
        finish(call, NULL, &err, 1);
        return;
    }
    call->link = dispatch_pick_link(dispatch, call->model, call->version, "", "");
    if (call->link) {
        send_call(call);
        return;
    }
    enum dispatch_prospect prospect = dispatch_prospect(dispatch, call->model, call->version);
    if (prospect == PROSPECT_WAKING) /* if the wake fails, the wait for a replica starts now */
        call->waits_ns = awake_clock_now_ns(relays->clock);
    bool waits =
        prospect == PROSPECT_WAKING || (prospect == PROSPECT_COMING && waited_ns < limit_ns);
    if (!waits || now_ns >= call->params.deadline_ns) {
        fail_without_replica(call);
        return;
    }
    if (prospect == PROSPECT_WAKING && call->params.ops->waits &&
        awake_clock_now_ns(relays->clock) - call->arrived_ns > WAKE_HEADERS_MS * NS_PER_MS)
        call->params.ops->waits(call->params.arg);
    wait_for_replica(call);
}

/* --- the waiting calls --- */

void text_calls_init(struct text_calls *calls, struct dispatch *dispatch)
{
    *calls = (struct text_calls){.dispatch = dispatch};
    pthread_mutex_init(&calls->lock, NULL);
}

void text_calls_fini(struct text_calls *calls)
{
    pthread_mutex_destroy(&calls->lock);
}

static struct text_call *take_waiting(struct text_calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    struct text_call *list = calls->waiting;
    calls->waiting = NULL;
    pthread_mutex_unlock(&calls->lock);
    return list;
}

void text_calls_retry_waiting(struct text_calls *calls)
{
    struct text_call *list = take_waiting(calls);
    while (list) {
        struct text_call *call = list;
        list = call->next_waiting;
        place(call);
    }
}

void text_calls_end_waiting(struct text_calls *calls)
{
    struct text_call *list = take_waiting(calls);
    while (list) {
        struct text_call *call = list;
        list = call->next_waiting;
        fail_without_replica(call);
    }
}

/* --- the client's side --- */

int text_call_create(struct text_calls *calls, const struct text_call_params *params,
                     struct text_call **out_call, struct error *err)
{
    const route *found;
    struct text_call *call = calloc(1, sizeof(*call));
    if (!call)
        return error_no_memory(err);
    struct route_table *routes = replicas_routes(calls->dispatch->replicas);
    const struct route_wish wish = {.model = params->model,
                                    .version = params->version,
                                    .draw = rng_u64(),
                                    .usable = replicas_take_requests,
                                    .arg = calls->dispatch->replicas};
    int rc = route_table_pick(routes, &wish, &found, err);
    if (!rc) {
        snprintf(call->model, sizeof(call->model), "%s", found->model);
        snprintf(call->version, sizeof(call->version), "%s", found->version);
    }
    route_table_release(routes);
    if (rc) {
        free(call);
        return rc;
    }
    atomic_init(&call->n_refs, 2);
    pthread_mutex_init(&call->lock, NULL);
    call->calls = calls;
    call->params = *params;
    call->params.model = call->params.version = NULL;
    call->waits_ns = call->arrived_ns = awake_clock_now_ns(shared(call)->clock);
    *out_call = call;
    return 0;
}

void text_call_start(struct text_call *call)
{
    place(call);
}

void text_call_cancel(struct text_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->over = true;
    struct rpc_stream *stream = call->stream;
    if (stream)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&call->lock);
    if (stream)
        rpc_stream_cancel(stream);
    rpc_stream_release(stream);
}

void text_call_release(struct text_call *call)
{
    if (call)
        release(call, 1);
}
