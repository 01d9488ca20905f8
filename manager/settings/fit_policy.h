/* fit_policy.h: --placement, and `placement` of a load: which of several devices a replica takes
 * (capacity/fit.h). Any thread. */
#pragma once

#include <stdbool.h>

enum fit_policy {
    FIT_AUTO, /* replicas spread over GPUs; a replica on CPUs takes every node of its group */
    FIT_SPREAD,
    FIT_PACK,
};

/* Parses "auto", "spread" or "pack". False: another word. */
bool fit_policy_parse(const char *word, enum fit_policy *out_policy);
