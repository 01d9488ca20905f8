/* wake.h: a thread waits until others signal work. Any thread. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct wake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool set;
};

void wake_init(struct wake *wake);
void wake_fini(struct wake *wake);
void wake_signal(struct wake *wake);
/* Returns when signalled since the last return, or after timeout_ns (negative: no time-out).
 * True if signalled. */
bool wake_wait(struct wake *wake, int64_t timeout_ns);
