/* slot_phase.h: the life of a slot's process, as phases and a table of the transitions between
 * them. Pure; any thread.
 *
 *   EMPTY ──spawn, adopt──► SERVING ──Shutdown──► DRAINING ──┐
 *     ▲  └────────┐            ▲                             ├──► EXITED
 *     │           ▼            │ loads to serve              │
 *     │         PARKED ──Wake──► WAKING ─────────────────────┘
 *     │           │  ▲ refused: STUCK
 *     │           └──Shutdown──► PARKED_DRAINING ──► PARKED_EXITED
 *     └──────────── the end is recorded ────────────────┘
 *
 * A running process may end in every phase. */
#pragma once

#include <stdbool.h>

#include "manager/slots/deaths.h"

enum slot_phase {
    SLOT_EMPTY,           /* no process, and the end of the last process is handled */
    SLOT_SERVING,         /* the process loads or serves */
    SLOT_PARKED,          /* a parked worker: it keeps packed weights and serves nothing */
    SLOT_STUCK,           /* a parked worker that refused Wake, or cannot serve in place */
    SLOT_WAKING,          /* Wake was sent; the last status is still that of the parked worker */
    SLOT_DRAINING,        /* Shutdown was sent to a serving process */
    SLOT_PARKED_DRAINING, /* the same of a parked worker */
    SLOT_EXITED,          /* the end of the process was seen but is not yet handled */
    SLOT_PARKED_EXITED,   /* the same of a parked worker */
    SLOT_N_PHASES
};

/* True where the life of a process has this transition. Each phase may stay. */
bool slot_phase_may_follow(enum slot_phase from, enum slot_phase to);
/* True while the process is alive, by its pidfd. */
bool slot_phase_runs(enum slot_phase phase);
/* True where the process is, or was, a parked worker. */
bool slot_phase_is_parked(enum slot_phase phase);
/* The phase after the end of the process, and after Shutdown. */
enum slot_phase slot_phase_exited(enum slot_phase phase);
enum slot_phase slot_phase_draining(enum slot_phase phase);
/* The phase as reconcile() sees the process. */
enum process_state slot_phase_process(enum slot_phase phase);
/* "serving", for logs. */
const char *slot_phase_name(enum slot_phase phase);
