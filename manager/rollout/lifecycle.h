/* lifecycle.h: the parts that load, unload, scale, drain, restart and cancel share inside their
 * transactions (store thread). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

struct arena;
struct catalog;
struct error;
struct settings;
struct txn;

/* Limits of the manager's settings that transactions check. */
struct lifecycle_limits {
    uint64_t max_open_operations, max_replicas;
};
struct lifecycle_limits lifecycle_limits_of(const struct settings *settings);

/* A version on a device group. */
struct lifecycle_target {
    const char *model, *version, *group;
};

/* Finds the deployment of a request. `version` and `group` may be empty where only one
 * deployment matches. NULL with err set: NOT_FOUND; INVALID_ARGUMENT where several match;
 * FAILED_PRECONDITION (reason NOT_LOADED) where none matches. */
const pb_deployment *lifecycle_find(const struct catalog *catalog, const char *model,
                                    const char *version, const char *group, struct error *err);
struct lifecycle_target lifecycle_target_of(const pb_deployment *deployment);
/* FAILED_PRECONDITION, reason ALREADY_LOADED, where the deployment's split or configuration
 * differs from `asked`; the text lists the differences. */
int lifecycle_check_same(const pb_deployment *deployment, const pb_deployment *asked,
                         struct error *err);
/* FAILED_PRECONDITION, reason PARKED, where the deployment is parked. */
int lifecycle_check_awake(const pb_deployment *deployment, struct error *err);

/* RESOURCE_EXHAUSTED, reason TOO_MANY_OPERATIONS. */
int lifecycle_check_room(const struct catalog *catalog, const struct lifecycle_limits *limits,
                         struct error *err);
/* FAILED_PRECONDITION, reason OPERATION_IN_PROGRESS, where an operation on the target is open.
 * Version or group NULL: any version of the model, any group. */
int lifecycle_check_no_operation(const struct catalog *catalog,
                                 const struct lifecycle_target *target, struct error *err);
/* lifecycle_check_no_operation() and lifecycle_check_room(). */
int lifecycle_check_free(const struct catalog *catalog, const struct lifecycle_target *target,
                         const struct lifecycle_limits *limits, struct error *err);

/* True where the replica belongs to the target and is neither failed, stopped nor retiring. */
bool lifecycle_is_live(const pb_replica *replica, const struct lifecycle_target *target);
uint32_t lifecycle_n_live(const struct catalog *catalog, const struct lifecycle_target *target);

/* Creates a running operation with the next id; owned until lifecycle_put. NULL with err set. */
pb_operation *lifecycle_operation(struct txn *txn, enum operation_kind kind, const char *request_id,
                                  const char *model, const char *version, const char *group,
                                  struct error *err);
/* Adds a copy of the id. False where memory is exhausted. */
bool lifecycle_add_replica(pb_operation *operation, const char *replica_id);
/* Writes the operation and its event. Takes the operation in any case. */
int lifecycle_put(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err);

/* Ends a command: where `rc` is 0, copies the operation to *out_answer in the arena, and writes it
 * like lifecycle_put(). Takes the operation in any case. Returns `rc`, or the error of the write.
 */
int lifecycle_answer(struct txn *txn, int rc, pb_operation *operation, uint32_t grace_ms,
                     struct arena *arena, pb_operation **out_answer, struct error *err);

/* RESOURCE_EXHAUSTED, reason TOO_MANY_REPLICAS, where lifecycle_fill() would exceed a limit. */
int lifecycle_check_fill(const struct catalog *catalog, const struct lifecycle_target *target,
                         uint32_t n_replicas, const struct lifecycle_limits *limits,
                         struct error *err);
/* Gives the target n_replicas live replicas. Live replicas stay; new replicas replace failed
 * ones. All of them become replicas of the operation. */
int lifecycle_fill(struct txn *txn, const struct lifecycle_target *target, uint32_t n_replicas,
                   const struct lifecycle_limits *limits, pb_operation *operation,
                   struct error *err);
/* Adds one PENDING replica to the target and to the operation. */
int lifecycle_put_replica(struct txn *txn, const struct lifecycle_target *target,
                          pb_operation *operation, struct error *err);
/* Marks the replica as retiring: its process will end. */
int lifecycle_retire(struct txn *txn, const char *replica_id, struct error *err);
/* Retires all failed replicas of the target. */
int lifecycle_retire_failed(struct txn *txn, const struct lifecycle_target *target,
                            struct error *err);
/* Sets the deployment's number of replicas and raises its generation. 0 deletes the deployment. */
int lifecycle_set_wanted(struct txn *txn, const struct lifecycle_target *target,
                         uint32_t n_replicas, struct error *err);
/* Undoes what the operation began: retires its new replicas, and gives the deployment the earlier
 * number of replicas. */
int lifecycle_undo(struct txn *txn, const pb_operation *operation, struct error *err);

/* Raises the generation of the model. */
int lifecycle_bump_model(struct txn *txn, const char *model, struct error *err);
/* Raises the generations of the version and its model. */
int lifecycle_bump(struct txn *txn, const char *model, const char *version, struct error *err);

int lifecycle_no_version(const char *model, const char *version, struct error *err);
/* Stage of a retiring replica: "drain", "stop", ... */
const char *lifecycle_leaving_stage(const pb_replica *replica);
/* True where a request wakes the parked deployment: its own configuration decides, else the
 * version's. */
bool lifecycle_wakes_on_demand(const struct catalog *catalog, const pb_deployment *deployment);
/* ABORTED, reason STALE_GENERATION, where `has` is set and the generations differ. */
int lifecycle_check_generation(const char *what, int has, uint64_t expected, uint64_t is,
                               struct error *err);
