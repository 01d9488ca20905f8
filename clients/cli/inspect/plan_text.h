/* plan_text.h: the splits of `sluice plan` as lines for people. Single-threaded. */
#pragma once

#include <stdbool.h>

#include "sluice/v1/common.pb-c.h"

/* Prints a group to stdout. The caller has made the texts printable. */
void plan_text_print(const Sluice__V1__GroupPlan *group);
/* True if a split of the group fits and a load accepts it. */
bool plan_text_has_split(const Sluice__V1__GroupPlan *group);
