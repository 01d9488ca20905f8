/* support_seed.h: random numbers and case sizes of the GPU tests. A real GPU runs new numbers each
 * time, with shapes of real models. The emulated GPU, slow and exact, runs the same small numbers
 * (SLUICE_TEST_SEED=N changes them). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/unit/kernels/support/support_kernels.h"

/* Returns true if SLUICE_TEST_EMULATED_GPU is set. */
bool test_is_emulated(void);
/* Returns true if tests should include widths and contexts of real models: on a real GPU, or with
 * SLUICE_TEST_WIDE. */
bool test_is_wide(void);
/* Returns true if as much memory is free as before. A real driver counts in pieces and keeps some
 * memory. A leak in a hundred loads would be larger. */
bool test_memory_is_back(uint64_t before, uint64_t now);
/* Returns random numbers for this salt, from the program's seed. The first call prints the seed. */
struct random test_random(uint64_t salt);
