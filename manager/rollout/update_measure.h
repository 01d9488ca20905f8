/* update_measure.h: the requests of a version's workers, from their statuses: the figures for an
 * update's gates. Loop thread. */
#pragma once

#include <stdbool.h>

#include "manager/base/pb.h"
#include "manager/rollout/update_rules.h"

struct fleet;

/* Sums the counts of the version's ready workers on the operation's group. False: a worker has
 * not reported yet. */
bool update_measure(struct fleet *fleet, const pb_operation *row, const char *version,
                    struct update_counts *out);
/* True where a total fell because a worker ended. The caller must then count from `now` on. */
bool update_went_down(const struct update_counts *now, const struct update_counts *then);
