/* lifecycle.h: what load and unload share inside their transactions (store thread). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/pb.h"

struct error;
struct txn;

bool lifecycle_is_open(const pb_operation *operation);

/* A new running operation with the next id; owned until lifecycle_put. NULL with err set. */
pb_operation *lifecycle_operation(struct txn *txn, enum operation_kind kind, const char *request_id,
                                  const char *model, const char *version, const char *group,
                                  struct error *err);
/* Adds a copy of the id. False where memory is exhausted. */
bool lifecycle_add_replica(pb_operation *operation, const char *replica_id);
/* Writes the operation (takes it in any case) and its event. */
int lifecycle_put(struct txn *txn, pb_operation *operation, uint32_t grace_ms, struct error *err);

/* A new generation of the version and its model. */
int lifecycle_bump(struct txn *txn, const char *model, const char *version, struct error *err);

int lifecycle_no_version(const char *model, const char *version, struct error *err);
