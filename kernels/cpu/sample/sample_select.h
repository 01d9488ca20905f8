/* sample_select.h: the largest entries of a row, ordered by (value descending, id ascending): a
 * total order, so no result depends on the method. Values may be −∞ but not NaN. No allocation. */
#pragma once

#include <stdint.h>

/* Moves the ids of the k largest of ids[0..n) to the front, in order (k ≤ n). Cost: O(n + k log
 * k). */
void sample_select_sorted(const float *values, uint32_t *ids, uint32_t n, uint32_t k);
/* Does the same without order among the k. */
void sample_select(const float *values, uint32_t *ids, uint32_t n, uint32_t k);
/* Writes the ids of the k largest of values[0..n) to out_ids, in order: one pass with a heap, for
 * small k. Returns min(k, n). */
uint32_t sample_top(const float *values, uint32_t n, uint32_t k, uint32_t *out_ids);
