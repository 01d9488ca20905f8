/* awake_clock.h: the time for which this process ran. The ticker advances the clock by the time
 * since the last tick, but by 250 ms at most. So a pause of the machine or process makes no
 * client slow and no worker stalled. */
#pragma once

#include <stdint.h>

enum { AWAKE_CLOCK_MAX_TICK_MS = 250 };

struct awake_clock {
    int64_t last_ns;           /* ticker only: clock_now_ns() of the last tick, 0: none yet */
    _Atomic int64_t awake_ns;  /* time at the last tick; starts at 1, because 0 means no time */
    _Atomic int64_t ticked_ns; /* clock_now_ns() of that tick, stored after awake_ns */
};

void awake_clock_init(struct awake_clock *clock);
/* Ticker only. Returns the new time. */
int64_t awake_clock_tick(struct awake_clock *clock, int64_t now_ns);
/* Returns the time at the last tick. Any thread. */
int64_t awake_clock_ticked_ns(const struct awake_clock *clock);
/* Returns the time now, also between ticks: a period that starts between two ticks must not end
 * a tick early. Any thread. */
int64_t awake_clock_now_ns(const struct awake_clock *clock);
