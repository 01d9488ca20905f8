/* deaths.h: whether a replica has a process, and how its earlier processes ended. Plain data. */
#pragma once

#include <stdint.h>

enum { DEATHS_MAX = 64 }; /* the highest crash_limit */

enum process_state {
    PROCESS_NONE,    /* no process, and the end of the last one is dealt with */
    PROCESS_RUNNING, /* alive, as far as its pidfd says */
    PROCESS_EXITED,  /* seen to end; not yet dealt with */
};

/* Kept by the slot, changed by reconcile_note_death. */
struct reconcile_deaths {
    int64_t at_ns[DEATHS_MAX]; /* the latest ones, a ring */
    uint32_t n_total;
    uint32_t n_in_a_row;    /* since it was last READY for stable_ns */
    uint32_t n_never_ready; /* since it was last READY at all */
};
