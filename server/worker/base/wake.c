#include "server/worker/base/wake.h"

#include <time.h>

#include "base/clock.h"

void wake_init(struct wake *wake)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&wake->lock, NULL);
    pthread_cond_init(&wake->changed, &attr);
    pthread_condattr_destroy(&attr);
    wake->set = false;
}

void wake_fini(struct wake *wake)
{
    pthread_cond_destroy(&wake->changed);
    pthread_mutex_destroy(&wake->lock);
}

void wake_signal(struct wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    wake->set = true;
    pthread_cond_signal(&wake->changed);
    pthread_mutex_unlock(&wake->lock);
}

bool wake_wait(struct wake *wake, int64_t timeout_ns)
{
    int64_t end_ns = clock_now_ns() + timeout_ns;
    struct timespec end = {.tv_sec = end_ns / NS_PER_S, .tv_nsec = end_ns % NS_PER_S};
    int rc = 0;
    pthread_mutex_lock(&wake->lock);
    while (!wake->set && rc == 0)
        rc = timeout_ns < 0 ? pthread_cond_wait(&wake->changed, &wake->lock)
                            : pthread_cond_timedwait(&wake->changed, &wake->lock, &end);
    bool was_set = wake->set;
    wake->set = false;
    pthread_mutex_unlock(&wake->lock);
    return was_set;
}
