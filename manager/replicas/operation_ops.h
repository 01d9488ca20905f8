/* operation_ops.h: what the supervisor and rolling updates need from operations;
 * watch/operations implements the functions. Loop thread only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/reason.h"
#include "manager/base/pb.h"

/* Each function gets `arg`. Times are of clock_now_ns. */
struct operation_ops {
    void *arg;
    /* True while the end of an open operation is on its way to the store, or waits for a new try.
     */
    bool (*is_busy)(void *arg, const char *id, int64_t now_ns);
    /* When the next such try is due; INT64_MAX: no try is due. */
    int64_t (*hold_ns)(void *arg, int64_t now_ns);
    /* Grace of the open operation that unloads this replica, else the default. */
    uint32_t (*grace_ms)(void *arg, const char *replica_id);
    /* Records the end of an operation, with its result. */
    void (*finish)(void *arg, const char *id, enum operation_state state, enum reason reason);
};
