/* picture.h: what reconcile() looks at, taken from the records and the slots at one moment.
 * Internal to supervise*.c. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/replicas/slot.h"

struct picture {
    struct reconcile_input input;
    uint32_t *n_wanted;
    struct reconcile_replica *replicas;
    struct reconcile_operation *operations;
    const char **operation_ids;
    size_t *members; /* replica indices of all operations, one after the other */
    struct action *actions;
    int64_t clock_ns; /* clock_now_ns() at which operations were looked at: whose hold ends later
                         has yet to be waited for, however long the rest of the pass takes */
};

/* False where memory is exhausted. picture_fini() afterwards in any case. */
bool picture_take(struct supervisor *supervisor, int64_t now_ns, struct picture *picture);
void picture_fini(struct picture *picture);
