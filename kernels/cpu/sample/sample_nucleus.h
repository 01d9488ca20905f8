/* sample_nucleus.h: finds the end of a nucleus (top-p). No allocation. */
#pragma once

#include <stdint.h>

enum { SAMPLE_NO_TOKEN = UINT32_MAX };

/* Returns the last token of the nucleus of ids[0..n), n ≤ 2^20, all with 0 < w ≤ 1. In order (w
 * descending, id ascending), this is the first token at which the running f64 sum of w reaches
 * `wanted`. If the sum stays below, the last of all; for n = 0 SAMPLE_NO_TOKEN. Reorders ids. Takes
 * about two passes over the ids for any distribution. */
uint32_t sample_nucleus_last(const float *w, uint32_t *ids, uint32_t n, double wanted);
