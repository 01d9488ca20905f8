/* fit_policy.h: --placement, and `placement` of a load: which of several devices a replica takes
 * (capacity/fit.h). Any thread. */
#pragma once

#include <stdbool.h>

enum fit_policy {
    FIT_AUTO, /* GPUs are spread over; a replica on CPUs takes every node of its group */
    FIT_SPREAD,
    FIT_PACK,
};

/* "auto", "spread" or "pack". False: no such word. */
bool fit_policy_parse(const char *word, enum fit_policy *out_policy);
