#include "server/gateway/base/wake.h"

#include <time.h>

#include "base/clock.h"

void wake_init(struct wake *wake)
{
    pthread_condattr_t attr;
    *wake = (struct wake){.is_wanted = false};
    pthread_mutex_init(&wake->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&wake->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void wake_fini(struct wake *wake)
{
    pthread_cond_destroy(&wake->changed);
    pthread_mutex_destroy(&wake->lock);
}

void wake_now(struct wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    wake->is_wanted = true;
    pthread_cond_signal(&wake->changed);
    pthread_mutex_unlock(&wake->lock);
}

void wake_stop(struct wake *wake)
{
    pthread_mutex_lock(&wake->lock);
    wake->stopping = true;
    pthread_cond_signal(&wake->changed);
    pthread_mutex_unlock(&wake->lock);
}

bool wake_wait(struct wake *wake, int64_t soonest_ns, int64_t latest_ns)
{
    int64_t at_ns;
    pthread_mutex_lock(&wake->lock);
    while (!wake->stopping && clock_now_ns() < (at_ns = wake->is_wanted ? soonest_ns : latest_ns)) {
        struct timespec until = {.tv_sec = at_ns / NS_PER_S, .tv_nsec = at_ns % NS_PER_S};
        pthread_cond_timedwait(&wake->changed, &wake->lock, &until);
    }
    wake->is_wanted = false;
    bool goes_on = !wake->stopping;
    pthread_mutex_unlock(&wake->lock);
    return goes_on;
}
