/* support_seed.h: random numbers of the tests on a GPU, and how large their cases are. A real GPU
 * is tried with other numbers each time and with shapes as models have them; the emulated one, slow
 * and exact, with the same small ones (SLUICE_TEST_SEED=N gives it others). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/kernels/support/support_kernels.h"

/* SLUICE_TEST_EMULATED_GPU is set. */
bool test_is_emulated(void);
/* Models' widths and contexts too: a real GPU, or SLUICE_TEST_WIDE. */
bool test_is_wide(void);
/* Whether as much is free as was before. A real driver counts in pieces and keeps some for itself;
 * what a hundred loads would lose is more than that. */
bool test_memory_is_back(uint64_t before, uint64_t now);
/* The stream of this salt, of the program's seed, which is printed at the first call. */
struct random test_random(uint64_t salt);
