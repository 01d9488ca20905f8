/* Moves of bytes before a step, as its plan says. States go to host memory and back, and KV blocks
 * are copied. The time of a state's move is measured, because the scheduler compares it with the
 * time to compute the state again. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/core/engine_private.h"
#include "engine/forward/executor.h"
#include "engine/schedule/scheduler.h"

/* First guess of the time to copy ten bytes of a state. */
#define FIRST_NS_OF_TEN_BYTES 1

/* Weight of the older measurements. */
enum { OLDER = 3 };

int engine_moves_open(struct engine *e, uint32_t n_states, struct error *err)
{
    uint64_t bytes = executor_state_bytes(e->executor);
    e->move_ns = (int64_t)(bytes / 10) * FIRST_NS_OF_TEN_BYTES;
    scheduler_set_move_ns(e->scheduler, 2 * e->move_ns);
    if (!n_states || !bytes)
        return 0;
    e->host_states = malloc(n_states * bytes);
    if (e->host_states)
        return 0;
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u states of %llu bytes",
                     n_states, (unsigned long long)bytes);
}

void engine_moves_close(struct engine *e)
{
    free(e->host_states);
}

static int move_state(struct engine *e, const struct state_move *move, struct error *err)
{
    int64_t begin_ns = clock_now_ns();
    unsigned char *host = e->host_states + move->place * executor_state_bytes(e->executor);
    int rc = move->to_host ? executor_save_state(e->executor, move->slot, host, err)
                           : executor_load_state(e->executor, move->slot, host, err);
    if (rc)
        return rc;
    e->move_ns = (OLDER * e->move_ns + clock_now_ns() - begin_ns) / (OLDER + 1);
    scheduler_set_move_ns(e->scheduler, 2 * e->move_ns);
    return 0;
}

int engine_moves_make(struct engine *e, const struct scheduler_plan *plan, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < plan->n_moves && !rc; i++)
        rc = move_state(e, &plan->moves[i], err);
    for (uint32_t i = 0; i < plan->n_copies && !rc; i++) {
        const struct kv_copy *copy = &plan->copies[i];
        rc = copy->is_window ? executor_copy_window(e->executor, copy->from, copy->to, err)
                             : executor_copy_block(e->executor, copy->from, copy->to, err);
    }
    return rc;
}
