/* lifecycle.h: what load, unload, scale, drain, restart and cancel share inside their transactions
 * (store thread). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

struct catalog;
struct error;
struct settings;
struct txn;

/* Limits of the manager's settings that a transaction is held to. */
struct lifecycle_limits {
    uint64_t max_open_operations, max_replicas;
};
struct lifecycle_limits lifecycle_limits_of(const struct settings *settings);

/* A version on a device group. */
struct lifecycle_target {
    const char *model, *version, *group;
};

/* The one deployment that a request means: `version` and `group` may be empty where there is only
 * one. NULL with err set: NOT_FOUND, INVALID_ARGUMENT where there are several, FAILED_PRECONDITION
 * (reason NOT_LOADED) where there is none. */
const pb_deployment *lifecycle_find(const struct catalog *catalog, const char *model,
                                    const char *version, const char *group, struct error *err);
struct lifecycle_target lifecycle_target_of(const pb_deployment *deployment);
/* FAILED_PRECONDITION, reason ALREADY_LOADED, saying what differs, where it has another split or
 * configuration than `asked`. */
int lifecycle_check_same(const pb_deployment *deployment, const pb_deployment *asked,
                         struct error *err);
/* FAILED_PRECONDITION, reason PARKED, where it is: it is woken first. */
int lifecycle_check_awake(const pb_deployment *deployment, struct error *err);

/* RESOURCE_EXHAUSTED, reason TOO_MANY_OPERATIONS. */
int lifecycle_check_room(const struct catalog *catalog, const struct lifecycle_limits *limits,
                         struct error *err);
/* FAILED_PRECONDITION, reason OPERATION_IN_PROGRESS, where an operation on the target is open,
 * whose version and group may be NULL: any of the model, wherever. */
int lifecycle_check_no_operation(const struct catalog *catalog,
                                 const struct lifecycle_target *target, struct error *err);
/* Both. */
int lifecycle_check_free(const struct catalog *catalog, const struct lifecycle_target *target,
                         const struct lifecycle_limits *limits, struct error *err);

/* A replica that is there and is to stay: neither failed, stopped nor retiring; of the target. */
bool lifecycle_is_live(const pb_replica *replica, const struct lifecycle_target *target);
uint32_t lifecycle_n_live(const struct catalog *catalog, const struct lifecycle_target *target);

/* A new running operation with the next id; owned until lifecycle_put. NULL with err set. */
pb_operation *lifecycle_operation(struct txn *txn, enum operation_kind kind, const char *request_id,
                                  const char *model, const char *version, const char *group,
                                  struct error *err);
/* Adds a copy of the id. False where memory is exhausted. */
bool lifecycle_add_replica(pb_operation *operation, const char *replica_id);
/* Writes the operation (takes it in any case) and its event. */
int lifecycle_put(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err);

/* RESOURCE_EXHAUSTED, reason TOO_MANY_REPLICAS, where lifecycle_fill would be one beyond. */
int lifecycle_check_fill(const struct catalog *catalog, const struct lifecycle_target *target,
                         uint32_t n_replicas, const struct lifecycle_limits *limits,
                         struct error *err);
/* Makes the target have n_replicas live ones: those that live stay, failed ones are given up for
 * new ones. All of them are the operation's. */
int lifecycle_fill(struct txn *txn, const struct lifecycle_target *target, uint32_t n_replicas,
                   const struct lifecycle_limits *limits, pb_operation *operation,
                   struct error *err);
/* One new PENDING replica, which is the operation's. */
int lifecycle_put_replica(struct txn *txn, const struct lifecycle_target *target,
                          pb_operation *operation, struct error *err);
/* The replica is to end. */
int lifecycle_retire(struct txn *txn, const char *replica_id, struct error *err);
/* Failed ones of the target are given up. */
int lifecycle_retire_failed(struct txn *txn, const struct lifecycle_target *target,
                            struct error *err);
/* The deployment's number, and its next generation; 0: the deployment goes. */
int lifecycle_set_wanted(struct txn *txn, const struct lifecycle_target *target,
                         uint32_t n_replicas, struct error *err);

/* A new generation of the version and its model. */
int lifecycle_bump(struct txn *txn, const char *model, const char *version, struct error *err);

int lifecycle_no_version(const char *model, const char *version, struct error *err);
/* "drain", "stop", ... of a replica that is to end. */
const char *lifecycle_leaving_stage(const pb_replica *replica);
/* Whether a request wakes the deployment while it is parked: as its own configuration says, or the
 * version's. */
bool lifecycle_wakes_on_demand(const struct catalog *catalog, const pb_deployment *deployment);
/* ABORTED, reason STALE_GENERATION, where `has` and the generations differ. */
int lifecycle_check_generation(const char *what, int has, uint64_t expected, uint64_t is,
                               struct error *err);
