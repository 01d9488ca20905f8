/* futex.h: lets threads of a process sleep until a 32-bit variable changes. Any thread. */
#pragma once

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sleeps while *word == expected; may return early. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static inline void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, NULL, NULL, 0);
}

/* Waits until the counter has reached n. Spins briefly, then sleeps. The counter only grows, and
 * may wrap around. The thread that adds to it must wake its waiters. */
static inline void futex_wait_count(_Atomic uint32_t *counter, uint32_t n)
{
    enum { N_SPINS = 2000 };
    uint32_t count;
    for (int i = 0; i < N_SPINS; i++) {
        if ((int32_t)(atomic_load_explicit(counter, memory_order_acquire) - n) >= 0)
            return;
        __builtin_ia32_pause();
    }
    while ((int32_t)((count = atomic_load(counter)) - n) < 0)
        futex_wait(counter, count);
}
