/* clock.h: time. Timeouts and intervals use the monotonic clock; records for people use wall time.
 * Any thread. */
#pragma once

#include <stdint.h>

#define NS_PER_S  1000000000LL
#define NS_PER_MS 1000000LL
#define NS_PER_US 1000LL

/* CLOCK_MONOTONIC in ns: comparable between processes of one boot. */
int64_t clock_now_ns(void);
/* Nanoseconds since the epoch, for records shown to people. */
int64_t clock_wall_ns(void);
/* CPU time of the calling thread in ns. */
int64_t clock_thread_cpu_ns(void);
