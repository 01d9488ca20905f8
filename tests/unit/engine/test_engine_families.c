/* 64 requests alone give the same tokens as the same 64 at once, for families with windows, sinks
 * and experts. Preemption, the prefix cache, drafts and ranks change nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_same.h"

static const struct same_variant variants[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"tp 2, chunks of 5", 2, 2, 32, 4096, 5, 128, 64, false, false, 0.75, 0, 0, NULL, 0},
    {"small pool", 1, 2, 4, 320, 32, 64, 64, false, true, 0.0, 0, 0, NULL, 0},
    {"drafts, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0.0, 0, 16, NULL, 0},
};

static void test_64_alone_equal_64_at_once_windows(void **state)
{
    (void)state;
    same_check("exaone4", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

static void test_64_alone_equal_64_at_once_sinks_and_experts(void **state)
{
    (void)state;
    same_check("gpt_oss", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

static void test_64_alone_equal_64_at_once_groups_of_experts(void **state)
{
    (void)state;
    same_check("glm4moe", DTYPE_BF16, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

/* Over an int8 cache, with keys wider than values. */
static void test_64_alone_equal_64_at_once_widths_that_differ(void **state)
{
    (void)state;
    same_check("mimo2", DTYPE_I8, variants, sizeof(variants) / sizeof(variants[0]), 44);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_at_once_windows),
        cmocka_unit_test(test_64_alone_equal_64_at_once_sinks_and_experts),
        cmocka_unit_test(test_64_alone_equal_64_at_once_groups_of_experts),
        cmocka_unit_test(test_64_alone_equal_64_at_once_widths_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
