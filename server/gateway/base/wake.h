/* wake.h: wakes the ticker before its next tick is due, and stops it. Any thread; lock inside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct wake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_wanted; /* a tick was requested since the last wait */
    bool stopping;
};

void wake_init(struct wake *wake);
void wake_fini(struct wake *wake);

/* Requests the next tick as soon as possible. */
void wake_now(struct wake *wake);
/* Ends every wait from now on. */
void wake_stop(struct wake *wake);
/* Ticker only. Waits until latest_ns, or until soonest_ns if a tick is requested. Returns false
 * after wake_stop. Both times are clock_now_ns() times. */
bool wake_wait(struct wake *wake, int64_t soonest_ns, int64_t latest_ns);
