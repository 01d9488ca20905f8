/* wake.h: wakes the ticker before its next tick is due, and ends it. Any thread; lock inside. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct wake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_wanted; /* something came up since the ticker last looked */
    bool stopping;
};

void wake_init(struct wake *wake);
void wake_fini(struct wake *wake);

/* The next tick comes as soon as it may. */
void wake_now(struct wake *wake);
/* Every wait ends at once from now on. */
void wake_stop(struct wake *wake);
/* Ticker only. Waits until latest_ns, or until soonest_ns where a tick is wanted. False: stopped.
 * Both times are clock_now_ns()'s. */
bool wake_wait(struct wake *wake, int64_t soonest_ns, int64_t latest_ns);
