/* traffic.h: a model's traffic rule: the row with the shares of versions for requests without a
 * version. Store thread, inside transactions, except the lookups. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

struct catalog;
struct error;
struct txn;

enum { TRAFFIC_MAX_WEIGHT = 1000000, TRAFFIC_MAX_VERSIONS = 64 };

/* Returns the row, or NULL where none was ever set. Any catalog. */
const pb_traffic *traffic_find(const struct catalog *catalog, const char *model);
/* Weight of the version in the row; 0: none. `row` may be NULL. */
uint32_t traffic_weight(const pb_traffic *row, const char *version);
/* The version that gets all requests where no weights are set: the latest registered version
 * that is ready. NULL: no version is ready. */
const pb_version *traffic_default(const struct catalog *catalog, const char *model);

/* Sets or replaces a weight in the message. False where memory is exhausted. */
bool traffic_set_weight(pb_traffic *traffic, const char *version, uint32_t weight);

/* Writes the rule with the next generations of rule and model, and an event "traffic.set". Takes
 * `traffic` in any case. `operation_id`: the operation that changes the rule, or NULL. */
int traffic_put(struct txn *txn, pb_traffic *traffic, const char *operation_id, struct error *err);
/* Removes the weight of a deleted version. Without any weight left, the default rule holds
 * again. */
int traffic_forget(struct txn *txn, const char *model, const char *version, struct error *err);
