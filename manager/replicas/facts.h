/* facts.h: the input of reconcile(), taken from the records and the slots at one moment. Loop
 * thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/replicas/operation_ops.h"
#include "manager/replicas/reconcile.h"
#include "manager/slots/fleet.h"

struct facts {
    struct reconcile_input input;
    uint32_t *n_wanted;
    struct reconcile_replica *replicas;
    struct reconcile_operation *operations;
    const char **operation_ids;
    size_t *members; /* replica indices of all operations, one after the other */
    struct action *actions;
    int64_t clock_ns; /* clock_now_ns() when the operations were read. Holds that end later count
                       * as not yet over in this pass. */
};

/* False where memory is exhausted. The caller calls facts_fini() in any case. */
bool facts_take(struct fleet *fleet, const struct operation_ops *operations, int64_t now_ns,
                struct facts *facts);
void facts_fini(struct facts *facts);
