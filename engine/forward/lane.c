#include "engine/forward/lane.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/futex.h"

struct lane {
    pthread_t thread;
    struct lane_job {
        lane_fn *fn; /* NULL: the thread ends */
        void *job;
    } jobs[LANE_MOST_JOBS]; /* ring */
    _Atomic uint32_t n_posted, n_done;
};

static void *lane_main(void *ctx)
{
    struct lane *lane = ctx;
    pthread_setname_np(pthread_self(), "sluice-stage");
    for (uint32_t i = 0;; i++) {
        futex_wait_count(&lane->n_posted, i + 1);
        struct lane_job job = lane->jobs[i % LANE_MOST_JOBS];
        if (!job.fn)
            return NULL;
        job.fn(job.job);
        atomic_fetch_add(&lane->n_done, 1);
        futex_wake_all(&lane->n_done);
    }
}

int lane_create(struct lane **out_lane, struct error *err)
{
    struct lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a stage");
    int failed = pthread_create(&lane->thread, NULL, lane_main, lane);
    if (failed) {
        free(lane);
        return error_errno(err, failed, "thread of a stage");
    }
    *out_lane = lane;
    return 0;
}

void lane_destroy(struct lane *lane)
{
    if (!lane)
        return;
    lane_wait(lane, atomic_load(&lane->n_posted));
    lane_post(lane, NULL, NULL);
    pthread_join(lane->thread, NULL);
    free(lane);
}

uint32_t lane_post(struct lane *lane, lane_fn *fn, void *job)
{
    uint32_t i = atomic_load_explicit(&lane->n_posted, memory_order_relaxed);
    assert(i - atomic_load(&lane->n_done) < LANE_MOST_JOBS);
    lane->jobs[i % LANE_MOST_JOBS] = (struct lane_job){fn, job};
    atomic_store(&lane->n_posted, i + 1);
    futex_wake_all(&lane->n_posted);
    return i + 1;
}

void lane_wait(struct lane *lane, uint32_t number)
{
    futex_wait_count(&lane->n_done, number);
}
