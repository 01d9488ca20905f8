/* 64 requests alone give the same tokens as the same 64 at once, for a model with recurrent layers.
 * Snapshots, choices, drafts, preemption and ranks change nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_same.h"

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"chunks of 5", 1, 1, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, true, true, 0.0, 0, 0, NULL, 0},
    {"few slots", 1, 2, 8, 2048, 40, 64, 6, true, false, 0.0, 0, 0, NULL, 0},
    {"drafts", 1, 2, 16, 4096, 32, 128, 16, false, false, 0.0, 0, 16, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
};

enum { N_VARIANTS = sizeof(variants) / sizeof(variants[0]) };

/* Runs the first n variants. */
static void check(const char *golden, size_t n)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", golden_source_dir(), golden);
    same_check(path, DTYPE_BF16, variants, n, 44);
}

static void test_64_alone_equal_64_at_once_delta_net(void **state)
{
    (void)state;
    check("qwen35", N_VARIANTS);
}

/* A model without attention takes no KV. Its blocks are numbers alone. */
static void test_64_alone_equal_64_at_once_without_attention(void **state)
{
    (void)state;
    check("mamba2", N_VARIANTS);
}

static void test_64_alone_equal_64_at_once_mamba_and_experts(void **state)
{
    (void)state;
    check("granitehybrid_moe", N_VARIANTS);
}

static void test_64_alone_equal_64_at_once_short_convolution(void **state)
{
    (void)state;
    /* its drafts end requests so early that the small pool of the last variant may suffice */
    check("lfm2", N_VARIANTS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_at_once_delta_net),
        cmocka_unit_test(test_64_alone_equal_64_at_once_without_attention),
        cmocka_unit_test(test_64_alone_equal_64_at_once_mamba_and_experts),
        cmocka_unit_test(test_64_alone_equal_64_at_once_short_convolution),
    };
    if (getenv("SLUICE_TEST_FILTER")) /* tests/gpu */
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
