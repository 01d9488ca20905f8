/* update_measure.h: what the workers of a version have told of their requests: the figures that an
 * update's gates are held against. Loop thread. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/rollout/update_rules.h"

struct fleet;

/* Totals of the version's ready workers on the operation's group. False: one has yet to say. */
bool update_measure(struct fleet *fleet, const pb_operation *row, const char *version,
                    struct update_counts *out);
/* Whether a worker took its totals with it as it ended: the figures begin anew. */
bool update_went_down(const struct update_counts *now, const struct update_counts *then);
