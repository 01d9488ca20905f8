/* support_seed.h: random numbers and case sizes of the GPU tests. A real GPU runs new numbers each
 * time, with shapes of real models. The emulated GPU, slow and exact, runs the same small numbers
 * (SLUICE_TEST_SEED=N changes them). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/kernels/support/support_kernels.h"

/* SLUICE_TEST_EMULATED_GPU is set. */
bool test_is_emulated(void);
/* Models' widths and contexts too: a real GPU, or SLUICE_TEST_WIDE. */
bool test_is_wide(void);
/* Returns true if as much memory is free as before. A real driver counts in pieces and keeps some
 * memory. A leak in a hundred loads would be larger. */
bool test_memory_is_back(uint64_t before, uint64_t now);
/* The stream of this salt, of the program's seed, which is printed at the first call. */
struct random test_random(uint64_t salt);
