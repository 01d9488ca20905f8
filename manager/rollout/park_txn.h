/* park_txn.h: parking and waking a version on a device group, inside a transaction. Store
 * thread, except park_find, which takes any catalog. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"
#include "manager/rollout/lifecycle.h"

struct arena;
struct error;
struct txn;

typedef Sluice__Manager__V1__WakeModelVersionRequest wake_request;

struct park_args {
    struct lifecycle_limits limits;
    uint32_t grace_ms;
};

/* Finds the deployment to park or wake, and checks that the command is allowed. */
const pb_deployment *park_find(const struct catalog *catalog, const wake_request *request,
                               const struct park_args *args, struct error *err);

/* Parks (`parked`) or wakes the deployment of the request. *out_operation is a copy in the
 * arena. */
int park_apply(struct txn *txn, const wake_request *request, bool parked,
               const struct park_args *args, struct arena *arena, pb_operation **out_operation,
               struct error *err);

/* A request with copies of the target's names, since rows move when other rows are written. */
struct park_named {
    char model[80], version[48], group[80];
    wake_request request;
};

void park_name(struct park_named *out, const struct lifecycle_target *target);

/* Parks a version on a group without a request of a client. */
int park_version(struct txn *txn, const struct lifecycle_target *target,
                 const struct lifecycle_limits *limits, uint32_t grace_ms, struct error *err);
