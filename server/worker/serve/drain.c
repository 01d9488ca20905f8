#include "server/worker/serve/drain.h"

#include <stdlib.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/health.h"
#include "proto/rpc/server/server.h"
#include "server/worker/base/settings.h"
#include "server/worker/park/unpark.h"
#include "server/worker/serve/session.h"
#include "server/worker/serve/status.h"
#include "server/worker/state/worker.h"

enum { DEFAULT_GRACE_MS = 60000 };

static void queue_call(struct worker *worker, struct rpc_call *call, bool shutdown,
                       uint32_t grace_ms)
{
    struct error err;
    struct drain_call *drain = calloc(1, sizeof(*drain));
    if (!drain) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "drain: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    drain->call = call;
    rpc_call_retain(call);
    drain->shutdown = shutdown;
    drain->deadline_ns = clock_now_ns() + grace_ms * NS_PER_MS;
    pthread_mutex_lock(&worker->lock);
    drain->next = worker->drain_calls;
    worker->drain_calls = drain;
    pthread_mutex_unlock(&worker->lock);
    if (shutdown)
        worker->cancel_load = true;
    wake_signal(&worker->main);
}

void drain_handle_drain(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__DrainRequest *request =
        (const Sluice__Worker__V1__DrainRequest *)message;
    queue_call(context, call, false, request->has_grace_ms ? request->grace_ms : DEFAULT_GRACE_MS);
}

void drain_handle_shutdown(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__ShutdownRequest *request =
        (const Sluice__Worker__V1__ShutdownRequest *)message;
    queue_call(context, call, true, request->has_grace_ms ? request->grace_ms : DEFAULT_GRACE_MS);
}

void drain_on_signal(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->fast = worker->shutdown_asked;
    worker->shutdown_asked = true;
    pthread_mutex_unlock(&worker->lock);
    worker->cancel_load = true;
    wake_signal(&worker->main);
}

static struct drain_call *take_calls(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    struct drain_call *calls = worker->drain_calls;
    worker->drain_calls = NULL;
    pthread_mutex_unlock(&worker->lock);
    return calls;
}

static void answer(struct worker *worker, struct drain_call *calls)
{
    pthread_mutex_lock(&worker->lock);
    uint32_t n_finished = worker->n_finished, n_ended = worker->n_ended;
    pthread_mutex_unlock(&worker->lock);
    while (calls) {
        struct drain_call *call = calls;
        calls = call->next;
        if (call->shutdown) {
            Sluice__Worker__V1__ShutdownResponse reply =
                SLUICE__WORKER__V1__SHUTDOWN_RESPONSE__INIT;
            struct arena arena;
            arena_init(&arena, 0, 0);
            reply.n_finished = n_finished;
            reply.n_ended = n_ended;
            status_memory(worker, &arena, &reply.n_memory, &reply.memory);
            rpc_call_reply(call->call, &reply.base);
            arena_fini(&arena);
        } else {
            Sluice__Worker__V1__DrainResponse reply = SLUICE__WORKER__V1__DRAIN_RESPONSE__INIT;
            reply.n_finished = n_finished;
            reply.n_ended = n_ended;
            rpc_call_reply(call->call, &reply.base);
        }
        rpc_call_release(call->call);
        free(call);
    }
}

void drain_answer_all(struct worker *worker)
{
    answer(worker, take_calls(worker));
}

/* The drain that the main thread has been asked for so far. */
struct wish {
    struct drain_call *calls;
    bool drain, shutdown;
    int64_t deadline_ns; /* earliest deadline of all calls and signals */
};

static void collect_wishes(struct worker *worker, struct wish *wish)
{
    struct drain_call *fresh = take_calls(worker);
    pthread_mutex_lock(&worker->lock);
    bool asked = worker->shutdown_asked, fast = worker->fast;
    pthread_mutex_unlock(&worker->lock);
    while (fresh) {
        struct drain_call *call = fresh;
        fresh = call->next;
        call->next = wish->calls;
        wish->calls = call;
        wish->drain = true;
        wish->shutdown |= call->shutdown;
        if (call->deadline_ns < wish->deadline_ns)
            wish->deadline_ns = call->deadline_ns;
    }
    if (asked && !(wish->drain && wish->shutdown)) {
        int64_t end_ns = clock_now_ns() + (int64_t)worker->settings->drain_grace_ms * NS_PER_MS;
        wish->drain = wish->shutdown = true;
        if (end_ns < wish->deadline_ns)
            wish->deadline_ns = end_ns;
    }
    if (fast)
        wish->deadline_ns = 0;
}

static void begin(struct worker *worker, const struct wish *wish)
{
    int64_t left_ms = (wish->deadline_ns - clock_now_ns()) / NS_PER_MS;
    log_info(LOG_EVENT("draining"), LOG_I64("grace_ms", left_ms > 0 ? left_ms : 0),
             LOG_U64("requests", atomic_load(&worker->n_live)));
    pthread_mutex_lock(&worker->lock);
    worker->n_finished = worker->n_ended = 0;
    pthread_mutex_unlock(&worker->lock);
    if (worker->engine) /* a parked worker has no engine */
        engine_drain(worker->engine);
    worker_set_state(worker, SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_DRAINING);
    rpc_health_set(rpc_server_health(worker->server), "", false);
    session_drain_all(worker, left_ms > 0 ? (uint64_t)left_ms : 0);
}

bool drain_wait_for_end(struct worker *worker)
{
    struct wish wish = {.deadline_ns = INT64_MAX};
    bool draining = false, ended = false;
    for (;;) {
        if (!draining && unpark_is_asked(worker)) /* a Drain that comes now waits for the load */
            return true;
        collect_wishes(worker, &wish);
        if (wish.drain && !draining) {
            draining = true;
            begin(worker, &wish);
        }
        bool idle = atomic_load(&worker->n_live) == 0;
        if (wish.drain && idle) {
            answer(worker, wish.calls);
            wish.calls = NULL;
            if (wish.shutdown)
                return false;
        }
        int64_t left_ns = wish.deadline_ns - clock_now_ns();
        if (draining && !idle && left_ns <= 0 && !ended) {
            ended = true;
            session_end_requests(worker);
        }
        bool timed = draining && !idle && !ended && wish.deadline_ns != INT64_MAX;
        wake_wait(&worker->main, timed ? left_ns : -1);
    }
}
