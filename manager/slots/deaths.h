/* deaths.h: whether a replica has a process, and how its earlier processes ended. Plain data. */
#pragma once

#include <stdint.h>

enum { DEATHS_MAX = 64 }; /* the highest crash_limit */

enum process_state {
    PROCESS_NONE,    /* no process, and the end of the last process is handled */
    PROCESS_RUNNING, /* alive, by its pidfd */
    PROCESS_EXITED,  /* its end was seen but is not yet handled */
};

/* Part of the slot; reconcile_note_death() changes it. */
struct reconcile_deaths {
    int64_t at_ns[DEATHS_MAX]; /* times of the latest deaths, a ring */
    uint32_t n_total;
    uint32_t n_in_a_row;    /* since the replica was last READY for stable_ns */
    uint32_t n_never_ready; /* since the replica was last READY at all */
};
