#include "server/worker/park/park_copy.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/settings.h"
#include "server/worker/serve/device_end.h"
#include "server/worker/serve/worker.h"

/* For a manager that was told of it to take it over, also one that has just been started. */
static const int64_t lease_ns = 10 * NS_PER_S;

void keep_init(struct keep *keep)
{
    pthread_condattr_t monotonic;
    *keep = (struct keep){.kept = {.why = ""}};
    pthread_mutex_init(&keep->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&keep->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void keep_fini(struct keep *keep)
{
    pthread_cond_destroy(&keep->changed);
    pthread_mutex_destroy(&keep->lock);
}

/* Under the lock. */
static void let_go(struct keep *keep)
{
    for (uint32_t r = 0; r < keep->kept.n_ranks; r++)
        close(keep->kept.fds[r]);
    keep->kept = (struct executor_packed){.why = ""};
}

static uint64_t kept_bytes(const struct keep *keep)
{
    uint64_t n_bytes = 0;
    for (uint32_t r = 0; r < keep->kept.n_ranks; r++)
        n_bytes += keep->kept.n_bytes[r];
    return n_bytes;
}

/* Under the lock. A worker that drains is about to end: a manager that comes meanwhile finds it. */
static void wait_for_taker(struct worker *worker)
{
    struct keep *keep = &worker->keep;
    while (!keep->stops) {
        int64_t now_ns = clock_now_ns();
        bool serves = worker_state(worker) == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
        if (now_ns >= keep->until_ns && serves)
            return;
        int64_t at_ns = serves ? keep->until_ns : now_ns + NS_PER_S;
        const struct timespec at = {at_ns / NS_PER_S, at_ns % NS_PER_S};
        pthread_cond_timedwait(&keep->changed, &keep->lock, &at);
    }
}

static void answer(struct rpc_call *call, uint64_t n_bytes, int rc, const struct error *err)
{
    Sluice__Worker__V1__KeepWeightsResponse reply = SLUICE__WORKER__V1__KEEP_WEIGHTS_RESPONSE__INIT;
    reply.bytes = n_bytes;
    if (rc)
        rpc_call_finish(call, err);
    else
        rpc_call_reply(call, &reply.base);
    rpc_call_release(call);
}

static void *run(void *arg)
{
    struct worker *worker = arg;
    struct keep *keep = &worker->keep;
    struct executor_packed kept;
    struct error err = {0};
    const struct executor_keep terms = {
        .n_threads = (uint32_t)worker->settings->threads,
        .promised_bytes = keep->promised_bytes,
        .limit_bytes = keep->limit_bytes,
        .cancel = &keep->cancel,
    };
    int64_t start_ns = clock_now_ns();
    int rc = engine_keep(worker->engine, &terms, &kept, &err);
    if (rc && device_is_at_its_end(&err)) /* no step may come by to find it so */
        device_end(worker, &err);
    pthread_mutex_lock(&keep->lock);
    struct rpc_call *call = keep->call;
    keep->call = NULL;
    keep->copies = false;
    if (!rc)
        keep->kept = kept;
    keep->until_ns = clock_now_ns() + lease_ns;
    uint64_t n_bytes = kept_bytes(keep);
    pthread_mutex_unlock(&keep->lock);
    if (rc)
        log_warn(LOG_EVENT("weights not kept"), LOG_STR("reason", err.reason),
                 LOG_STR("message", err.message));
    else
        log_info(LOG_EVENT("weights kept"), LOG_U64("bytes", n_bytes),
                 LOG_I64("ms", (clock_now_ns() - start_ns) / NS_PER_MS));
    wake_signal(&worker->status); /* which names the memory */
    answer(call, n_bytes, rc, &err);
    if (rc)
        return NULL;
    pthread_mutex_lock(&keep->lock);
    wait_for_taker(worker);
    let_go(keep);
    pthread_mutex_unlock(&keep->lock);
    wake_signal(&worker->status);
    return NULL;
}

/* Under the lock: true where the caller's call is answered when the copy is whole. */
static bool begin(struct worker *worker, struct rpc_call *call, struct error *err)
{
    struct keep *keep = &worker->keep;
    if (keep->stops) {
        error_set(err, STATUS_UNAVAILABLE, "the worker is ending");
        error_reason(err, "DRAINING");
        return false;
    }
    if (keep->has_thread) /* it let go of what nobody took, or ends this moment */
        pthread_join(keep->thread, NULL);
    keep->has_thread = keep->copies = true;
    keep->call = call;
    atomic_store(&keep->cancel, false);
    rpc_call_retain(call);
    int code = pthread_create(&keep->thread, NULL, run, worker);
    if (code == 0)
        return true;
    keep->has_thread = keep->copies = false;
    keep->call = NULL;
    rpc_call_release(call);
    error_errno(err, code, "a thread to keep weights");
    return false;
}

void handle_keep_weights(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__KeepWeightsRequest *request =
        (const Sluice__Worker__V1__KeepWeightsRequest *)message;
    struct worker *worker = context;
    struct keep *keep = &worker->keep;
    struct error err;
    if (!worker_engine(worker, &err)) {
        rpc_call_finish(call, &err);
        return;
    }
    pthread_mutex_lock(&keep->lock);
    bool waits = false, has = keep->kept.n_ranks > 0;
    uint64_t n_bytes = kept_bytes(keep);
    if (keep->copies) {
        error_set(&err, STATUS_UNAVAILABLE, "the weights are being copied for another call");
        error_reason(&err, "KEEPING");
    } else if (has) {
        keep->until_ns = clock_now_ns() + lease_ns;
    } else {
        keep->promised_bytes = request->promised_bytes;
        keep->limit_bytes = request->limit_bytes;
        waits = begin(worker, call, &err);
    }
    pthread_mutex_unlock(&keep->lock);
    if (has) {
        rpc_call_retain(call);
        answer(call, n_bytes, 0, NULL);
    } else if (!waits) {
        rpc_call_finish(call, &err);
    }
}

void keep_stop(struct keep *keep)
{
    pthread_mutex_lock(&keep->lock);
    keep->stops = true;
    atomic_store(&keep->cancel, true);
    pthread_cond_broadcast(&keep->changed);
    bool has_thread = keep->has_thread;
    keep->has_thread = false;
    pthread_mutex_unlock(&keep->lock);
    if (has_thread)
        pthread_join(keep->thread, NULL);
}

const struct executor_packed *keep_begin(struct keep *keep)
{
    pthread_mutex_lock(&keep->lock);
    return &keep->kept;
}

void keep_done(struct keep *keep)
{
    pthread_mutex_unlock(&keep->lock);
}
