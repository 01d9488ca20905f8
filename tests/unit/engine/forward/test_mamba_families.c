/* Logits of small random checkpoints with Mamba-2 or a short convolution, against transformers
 * (tests/golden/family_groups/mamba.py). Pieces and ranks do not change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"

static const struct family families[] = {
    {"lfm2", true, 2},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static void test_families_equal_transformers(void **state)
{
    (void)state;
    family_check_logits(families, N_FAMILIES);
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    (void)state;
    family_check_contract(families, N_FAMILIES);
}

static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    (void)state;
    family_check_bits(families, N_FAMILIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
