/* sample_typical.h: which tokens typical sampling keeps. No allocation. */
#pragma once

#include <stdint.h>

/* Of the tokens with w[i] > 0, at least one, all ≤ 1 and normal numbers, n ≤ 2^20, keeps those
 * whose −log p = log_sum − log w is nearest `entropy`, until the running f64 sum of w reaches
 * `wanted`, at least one; the others become 0. Of two equally near the likelier comes first; of
 * equal weights the higher id where they are likelier than the entropy says, else the lower. ids
 * has room for n. A few passes, however flat the row is: nothing but the end of the window is
 * ordered. */
void sample_keep_typical(float *w, uint32_t n, uint32_t *ids, float log_sum, float entropy,
                         double wanted);
