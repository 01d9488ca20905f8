#include "server/worker/park/park_copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_stats.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/settings.h"
#include "server/worker/state/worker.h"

struct park_copy {
    struct worker *worker; /* borrowed */
    park_copy_failed_fn *on_failure;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread, copies, stops; /* copies: the thread copies; stops: the worker ends */
    struct executor_packed kept;    /* n_ranks 0: no copy */
    int64_t until_ns;               /* the copy is kept at least until then
                                     * (clock_now_ns) */
    uint64_t promised_bytes, limit_bytes;
    struct rpc_call *call; /* call that waits for the copy; retained */
    atomic_bool cancel;
};

/* How long the copy waits for a manager that takes the copy over. A manager that has just started
 * has enough time. */
static const int64_t lease_ns = 10 * NS_PER_S;

int park_copy_create(struct worker *worker, park_copy_failed_fn *on_failure,
                     struct park_copy **out_copy, struct error *err)
{
    pthread_condattr_t monotonic;
    struct park_copy *copy = calloc(1, sizeof(*copy));
    if (!copy)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "park copy: out of memory");
    copy->worker = worker;
    copy->on_failure = on_failure;
    copy->kept.why = "";
    pthread_mutex_init(&copy->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&copy->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out_copy = copy;
    return 0;
}

void park_copy_destroy(struct park_copy *copy)
{
    if (!copy)
        return;
    pthread_cond_destroy(&copy->changed);
    pthread_mutex_destroy(&copy->lock);
    free(copy);
}

/* Under the lock: closes the copy's descriptors. */
static void free_copy(struct park_copy *copy)
{
    for (uint32_t r = 0; r < copy->kept.n_ranks; r++)
        close(copy->kept.fds[r]);
    copy->kept = (struct executor_packed){.why = ""};
}

static uint64_t kept_bytes(const struct park_copy *copy)
{
    uint64_t n_bytes = 0;
    for (uint32_t r = 0; r < copy->kept.n_ranks; r++)
        n_bytes += copy->kept.n_bytes[r];
    return n_bytes;
}

/* Under the lock: waits until the lease has ended and no drain is under way, or the worker ends.
 * During a drain the copy stays for the manager. */
static void wait_for_taker(struct worker *worker)
{
    struct park_copy *copy = worker->copy;
    while (!copy->stops) {
        int64_t now_ns = clock_now_ns();
        bool serves = worker_state(worker) == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_READY;
        if (now_ns >= copy->until_ns && serves)
            return;
        int64_t at_ns = serves ? copy->until_ns : now_ns + NS_PER_S;
        const struct timespec at = {at_ns / NS_PER_S, at_ns % NS_PER_S};
        pthread_cond_timedwait(&copy->changed, &copy->lock, &at);
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
    struct park_copy *copy = worker->copy;
    struct executor_packed kept;
    struct error err = {0};
    const struct executor_keep terms = {
        .n_threads = worker->settings->config.n_threads,
        .promised_bytes = copy->promised_bytes,
        .limit_bytes = copy->limit_bytes,
        .cancel = &copy->cancel,
    };
    int64_t start_ns = clock_now_ns();
    int rc = engine_keep(worker->engine, &terms, &kept, &err);
    if (rc)
        copy->on_failure(worker, &err);
    pthread_mutex_lock(&copy->lock);
    struct rpc_call *call = copy->call;
    copy->call = NULL;
    copy->copies = false;
    if (!rc)
        copy->kept = kept;
    copy->until_ns = clock_now_ns() + lease_ns;
    uint64_t n_bytes = kept_bytes(copy);
    pthread_mutex_unlock(&copy->lock);
    if (rc)
        log_warn(LOG_EVENT("weights not kept"), LOG_STR("reason", error_reason_name(&err)),
                 LOG_STR("message", err.message));
    else
        log_info(LOG_EVENT("weights kept"), LOG_U64("bytes", n_bytes),
                 LOG_I64("ms", (clock_now_ns() - start_ns) / NS_PER_MS));
    wake_signal(&worker->status); /* the status lists the memory */
    answer(call, n_bytes, rc, &err);
    if (rc)
        return NULL;
    pthread_mutex_lock(&copy->lock);
    wait_for_taker(worker);
    free_copy(copy);
    pthread_mutex_unlock(&copy->lock);
    wake_signal(&worker->status);
    return NULL;
}

/* Under the lock: starts the copying thread. True if the thread will answer the call when the
 * copy is complete. */
static bool begin(struct worker *worker, struct rpc_call *call, struct error *err)
{
    struct park_copy *copy = worker->copy;
    if (copy->stops) {
        error_set(err, STATUS_UNAVAILABLE, "the worker is ending");
        error_reason(err, REASON_DRAINING);
        return false;
    }
    if (copy->has_thread) /* the earlier copy has no lease any more: its thread ends at once */
        pthread_join(copy->thread, NULL);
    copy->has_thread = copy->copies = true;
    copy->call = call;
    atomic_store(&copy->cancel, false);
    rpc_call_retain(call);
    int code = pthread_create(&copy->thread, NULL, run, worker);
    if (code == 0)
        return true;
    copy->has_thread = copy->copies = false;
    copy->call = NULL;
    rpc_call_release(call);
    error_errno(err, code, "thread that copies the weights");
    return false;
}

void park_copy_handle_keep(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__Worker__V1__KeepWeightsRequest *request =
        (const Sluice__Worker__V1__KeepWeightsRequest *)message;
    struct worker *worker = context;
    struct park_copy *copy = worker->copy;
    struct error err;
    if (!worker_engine(worker, &err)) {
        rpc_call_finish(call, &err);
        return;
    }
    pthread_mutex_lock(&copy->lock);
    bool waits = false, has = copy->kept.n_ranks > 0;
    uint64_t n_bytes = kept_bytes(copy);
    if (copy->copies) {
        error_set(&err, STATUS_UNAVAILABLE, "another call is copying the weights; try again later");
        error_reason(&err, REASON_KEEPING);
    } else if (has) {
        copy->until_ns = clock_now_ns() + lease_ns;
    } else {
        copy->promised_bytes = request->promised_bytes;
        copy->limit_bytes = request->limit_bytes;
        waits = begin(worker, call, &err);
    }
    pthread_mutex_unlock(&copy->lock);
    if (has) {
        rpc_call_retain(call);
        answer(call, n_bytes, 0, NULL);
    } else if (!waits) {
        rpc_call_finish(call, &err);
    }
}

void park_copy_stop(struct park_copy *copy)
{
    pthread_mutex_lock(&copy->lock);
    copy->stops = true;
    atomic_store(&copy->cancel, true);
    pthread_cond_broadcast(&copy->changed);
    bool has_thread = copy->has_thread;
    copy->has_thread = false;
    pthread_mutex_unlock(&copy->lock);
    if (has_thread)
        pthread_join(copy->thread, NULL);
}

const struct executor_packed *park_copy_borrow(struct park_copy *copy)
{
    pthread_mutex_lock(&copy->lock);
    return &copy->kept;
}

void park_copy_return(struct park_copy *copy)
{
    pthread_mutex_unlock(&copy->lock);
}
