#include "engine/load/loader_staging.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/model/plan.h"
#include "kernels/device.h"
#include "kernels/thread_pool.h"

/* Further threads make neither a disk nor a bus faster. */
enum { MAX_THREADS = 8 };

struct loader_staging {
    const struct loader_staging_work *work;
    struct loader_staging_hand hands[MAX_THREADS];
    uint32_t n_hands;
    atomic_uint_fast64_t next; /* next item to move */
    atomic_bool stop;
    pthread_mutex_t lock; /* protects the fields below */
    uint64_t done_bytes;
    struct error *err;
    int rc;
};

static int prepare_hand(struct loader_staging *staging, struct loader_staging_hand *hand)
{
    const struct loader_staging_work *work = staging->work;
    struct device *device = work->job->device;
    const struct device_ops *ops = device->ops;
    int rc = ops->stream_create(device, 1, &hand->stream, staging->err);
    if (!rc && work->scratch_bytes) {
        hand->scratch = aligned_alloc(64, (work->scratch_bytes + 63) / 64 * 64);
        if (!hand->scratch)
            rc = error_set(staging->err, STATUS_RESOURCE_EXHAUSTED,
                           "out of memory: %zu bytes for reading", work->scratch_bytes);
    }
    for (uint32_t i = 0; !rc && i < LOADER_STAGING_SLOTS; i++) {
        void *slice;
        rc = ops->alloc_host(device, work->slice_bytes, &slice, staging->err);
        if (rc)
            return error_prefix(staging->err, "staging memory");
        hand->slots[i].slice = slice;
        rc = ops->event_create(device, &hand->slots[i].copied, staging->err);
    }
    return rc;
}

static void release_hand(const struct loader_staging_work *work, struct loader_staging_hand *hand)
{
    struct device *device = work->job->device;
    const struct device_ops *ops = device->ops;
    if (hand->stream)
        ops->stream_destroy(hand->stream);
    for (uint32_t i = 0; i < LOADER_STAGING_SLOTS; i++) {
        if (hand->slots[i].copied)
            ops->event_destroy(hand->slots[i].copied);
        if (hand->slots[i].slice)
            ops->free_host(device, hand->slots[i].slice, work->slice_bytes);
    }
    free(hand->scratch);
}

static void fail_work(struct loader_staging *staging, int rc, const struct error *err)
{
    pthread_mutex_lock(&staging->lock);
    if (!staging->rc) {
        staging->rc = rc;
        *staging->err = *err;
    }
    pthread_mutex_unlock(&staging->lock);
    atomic_store(&staging->stop, true);
}

void loader_staging_report(struct loader_staging *staging, uint64_t n_bytes)
{
    const struct loader_device_job *job = staging->work->job;
    pthread_mutex_lock(&staging->lock);
    staging->done_bytes += n_bytes;
    if (job->progress)
        job->progress(job->progress_ctx, job->i_rank, staging->done_bytes,
                      job->plan->weights_bytes);
    pthread_mutex_unlock(&staging->lock);
}

void *loader_staging_ctx(const struct loader_staging *staging)
{
    return staging->work->ctx;
}

/* Waits until the slot's copy has ended, and reports it to the caller. */
static int wait_for_copy(struct loader_staging *staging, struct loader_staging_slot *slot,
                         struct error *err)
{
    int rc = staging->work->job->device->ops->event_wait(slot->copied, err);
    if (!rc && staging->work->settled)
        staging->work->settled(staging, slot);
    return rc;
}

int loader_staging_slot(struct loader_staging *staging, struct loader_staging_hand *hand,
                        struct loader_staging_slot **out_slot, struct error *err)
{
    *out_slot = &hand->slots[hand->i_slot++ % LOADER_STAGING_SLOTS];
    return wait_for_copy(staging, *out_slot, err);
}

int loader_staging_queued(struct loader_staging *staging, struct loader_staging_hand *hand,
                          struct loader_staging_slot *slot, int rc, struct error *err)
{
    const struct device_ops *ops = staging->work->job->device->ops;
    if (!rc)
        rc = ops->event_record(hand->stream, slot->copied);
    return rc ? ops->stream_sync(hand->stream, err) : 0; /* the stream has the cause */
}

static void run_items(void *ctx, uint32_t index, uint32_t n_threads)
{
    struct loader_staging *staging = ctx;
    const struct loader_staging_work *work = staging->work;
    const struct loader_device_job *job = work->job;
    struct loader_staging_hand *hand = &staging->hands[index];
    struct error err = {0};
    int rc = 0;
    (void)n_threads;
    while (!rc && !atomic_load(&staging->stop)) {
        uint64_t i = atomic_fetch_add(&staging->next, 1);
        if (i >= work->n_items)
            break;
        if (job->cancel && *job->cancel)
            rc = error_set(&err, STATUS_CANCELLED, "%s was cancelled", work->what);
        else
            rc = work->item(staging, hand, i, &err);
    }
    for (uint32_t i = 0; !rc && work->settled && i < LOADER_STAGING_SLOTS; i++)
        rc = wait_for_copy(staging, &hand->slots[i], &err);
    struct error late;
    int late_rc = job->device->ops->stream_sync(hand->stream, rc ? &late : &err);
    rc = rc ? rc : late_rc;
    if (rc)
        fail_work(staging, rc, &err);
}

int loader_staging_run(const struct loader_staging_work *work, struct error *err)
{
    struct loader_staging staging = {.work = work, .err = err};
    struct thread_pool *pool = NULL;
    uint32_t n = work->job->n_threads < MAX_THREADS ? work->job->n_threads : MAX_THREADS;
    int rc = 0;
    if (!work->n_items)
        return 0;
    n = work->n_items < n ? (uint32_t)work->n_items : n;
    pthread_mutex_init(&staging.lock, NULL);
    for (; !rc && staging.n_hands < n; staging.n_hands++)
        rc = prepare_hand(&staging, &staging.hands[staging.n_hands]);
    if (!rc)
        rc = thread_pool_create(n, &pool, err);
    if (!rc) {
        thread_pool_run(pool, run_items, &staging);
        rc = staging.rc;
    }
    thread_pool_destroy(pool);
    for (uint32_t i = 0; i < staging.n_hands; i++)
        release_hand(work, &staging.hands[i]);
    pthread_mutex_destroy(&staging.lock);
    return rc;
}
