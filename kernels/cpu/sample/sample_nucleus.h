/* sample_nucleus.h: where a nucleus (top-p) ends. No allocation. */
#pragma once

#include <stdint.h>

enum { SAMPLE_NO_TOKEN = UINT32_MAX };

/* Of the tokens ids[0..n), n ≤ 2^20, all with 0 < w ≤ 1, taken in order (w descending, id
 * ascending): the first at which the running f64 sum of w reaches `wanted`, or else the last of
 * all; n = 0: SAMPLE_NO_TOKEN. Reorders ids. About two passes over them, however flat the row is.
 */
uint32_t sample_nucleus_last(const float *w, uint32_t *ids, uint32_t n, double wanted);
