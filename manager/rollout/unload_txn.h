/* unload_txn.h: unloading versions, inside a transaction. Store thread, except the checks, which
 * take any catalog. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/rollout/lifecycle.h"

struct arena;
struct error;
struct txn;

typedef Sluice__Manager__V1__UnloadModelVersionRequest unload_request;
typedef Sluice__Manager__V1__UnloadModelVersionResponse unload_response;

struct unload_args {
    uint32_t grace_ms;
    struct lifecycle_limits limits;
};

/* True where the request names this version on this group. */
bool unload_concerns(const unload_request *request, const char *model, const char *version,
                     const char *group);
/* Runs all checks of an unload. */
int unload_check(const struct catalog *catalog, const unload_request *request,
                 const struct unload_args *args, struct error *err);
/* *out_operation is a copy in the arena. */
int unload_apply(struct txn *txn, const unload_request *request, const struct unload_args *args,
                 struct arena *arena, pb_operation **out_operation, struct error *err);
/* Unloads a loaded version from a group. `evicts_for`: the operation that must wait for the end
 * of the version's replicas, or NULL. */
int unload_version(struct txn *txn, const struct lifecycle_target *target,
                   const struct lifecycle_limits *limits, uint32_t grace_ms,
                   pb_operation *evicts_for, struct error *err);
