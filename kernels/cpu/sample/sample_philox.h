/* sample_philox.h: Philox4x32-10, a counter-based random number generator [Salmon, Moraes, Dror and
 * Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011]. A pure function: any thread. */
#pragma once

#include <stdint.h>

/* out[4] = Philox4x32-10(counter[4], key[2]). */
void sample_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
