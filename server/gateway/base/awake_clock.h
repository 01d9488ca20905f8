/* awake_clock.h: the time for which this process ran. The ticker advances it by the time since the
 * last tick, but by 250 ms at most. So after a pause of the machine or of the process no client is
 * slow and no worker is stalled for the length of the pause. */
#pragma once

#include <stdint.h>

enum { AWAKE_CLOCK_MAX_TICK_MS = 250 };

struct awake_clock {
    int64_t last_ns;           /* ticker only: clock_now_ns() of the last tick, 0: none yet */
    _Atomic int64_t awake_ns;  /* at the last tick; begins at 1, because 0 stands for no time */
    _Atomic int64_t ticked_ns; /* clock_now_ns() of that tick, stored after awake_ns */
};

void awake_clock_init(struct awake_clock *clock);
/* Ticker only. Returns the new time. */
int64_t awake_clock_tick(struct awake_clock *clock, int64_t now_ns);
/* The time at the last tick. Any thread. */
int64_t awake_clock_ticked_ns(const struct awake_clock *clock);
/* The time now: for a period that begins between two ticks, so that it does not end a tick early.
 * Any thread. */
int64_t awake_clock_now_ns(const struct awake_clock *clock);
