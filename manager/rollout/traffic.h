/* traffic.h: a model's traffic rule, the row that says how requests without a version are spread.
 * Store thread, inside transactions, save the look-ups. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "manager/base/pb.h"

struct catalog;
struct error;
struct txn;

enum { TRAFFIC_MAX_WEIGHT = 1000000, TRAFFIC_MAX_VERSIONS = 64 };

/* The row, or NULL: none was ever set. Any catalog. */
const pb_traffic *traffic_find(const struct catalog *catalog, const char *model);
/* The version's weight in the row; 0: none. `row` may be NULL. */
uint32_t traffic_weight(const pb_traffic *row, const char *version);
/* The version that a model without weights sends requests to: the ready one registered last. NULL:
 * none is ready. */
const pb_version *traffic_default(const struct catalog *catalog, const char *model);

/* Sets or replaces a weight in a message; false where memory is exhausted. */
bool traffic_set_weight(pb_traffic *traffic, const char *version, uint32_t weight);
/* No weights: the default rule. */
void traffic_clear_weights(pb_traffic *traffic);

/* Writes the rule with its next generation, the model's, and an event "traffic.set"; takes
 * `traffic` in any case. `operation_id`: on whose behalf, or NULL. */
int traffic_put(struct txn *txn, pb_traffic *traffic, const char *operation_id, struct error *err);
/* A version is deleted: so is its weight; where no other has one, the rule is the default again. */
int traffic_forget(struct txn *txn, const char *model, const char *version, struct error *err);
