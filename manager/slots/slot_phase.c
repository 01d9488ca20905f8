#include "manager/slots/slot_phase.h"

#include <stdint.h>

#define TO(phase) (1U << SLOT_##phase)

/* A status may come late: a process that drains may still report that it is parked, or that it
 * serves. A spawn that fails is an exit. */
static const struct {
    const char *name;
    enum process_state process;
    bool is_parked;
    uint32_t next;
} phases[SLOT_N_PHASES] = {
    [SLOT_EMPTY] = {"empty", PROCESS_NONE, false, TO(SERVING) | TO(PARKED) | TO(EXITED)},
    [SLOT_SERVING] = {"serving", PROCESS_RUNNING, false, TO(PARKED) | TO(DRAINING) | TO(EXITED)},
    [SLOT_PARKED] = {"parked", PROCESS_RUNNING, true,
                     TO(SERVING) | TO(STUCK) | TO(WAKING) | TO(PARKED_DRAINING) |
                         TO(PARKED_EXITED)},
    [SLOT_STUCK] = {"stuck", PROCESS_RUNNING, true,
                    TO(SERVING) | TO(PARKED_DRAINING) | TO(PARKED_EXITED)},
    [SLOT_WAKING] = {"waking", PROCESS_RUNNING, false,
                     TO(SERVING) | TO(STUCK) | TO(DRAINING) | TO(EXITED)},
    [SLOT_DRAINING] = {"draining", PROCESS_RUNNING, false, TO(PARKED_DRAINING) | TO(EXITED)},
    [SLOT_PARKED_DRAINING] = {"parked draining", PROCESS_RUNNING, true,
                              TO(DRAINING) | TO(PARKED_EXITED)},
    [SLOT_EXITED] = {"exited", PROCESS_EXITED, false, TO(EMPTY)},
    [SLOT_PARKED_EXITED] = {"parked exited", PROCESS_EXITED, true, TO(EMPTY)},
};

bool slot_phase_may_follow(enum slot_phase from, enum slot_phase to)
{
    return from == to || (phases[from].next >> to & 1U);
}

bool slot_phase_runs(enum slot_phase phase)
{
    return phases[phase].process == PROCESS_RUNNING;
}

bool slot_phase_is_parked(enum slot_phase phase)
{
    return phases[phase].is_parked;
}

enum slot_phase slot_phase_exited(enum slot_phase phase)
{
    return phases[phase].is_parked ? SLOT_PARKED_EXITED : SLOT_EXITED;
}

enum slot_phase slot_phase_draining(enum slot_phase phase)
{
    return phases[phase].is_parked ? SLOT_PARKED_DRAINING : SLOT_DRAINING;
}

enum process_state slot_phase_process(enum slot_phase phase)
{
    return phases[phase].process;
}

const char *slot_phase_name(enum slot_phase phase)
{
    return phases[phase].name;
}
