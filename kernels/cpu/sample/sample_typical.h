/* sample_typical.h: selects the tokens that typical sampling keeps. No allocation. */
#pragma once

#include <stdint.h>

/* Input: the tokens with w[i] > 0, at least one, all w normal numbers ≤ 1, n ≤ 2^20. Keeps the
 * tokens whose −log p = log_sum − log w is nearest to `entropy`. The kept tokens, at least one, end
 * where the running f64 sum of w reaches `wanted`. The others become 0. Order of ties: of two
 * equally near tokens the likelier comes first. Among equal weights the higher id comes first if
 * they are likelier than the entropy, otherwise the lower id. The array `ids` has room for n. Takes
 * a few passes for any distribution, because only the end of the window is sorted. */
void sample_keep_typical(float *w, uint32_t n, uint32_t *ids, float log_sum, float entropy,
                         double wanted);
