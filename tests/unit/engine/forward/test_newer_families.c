/* Logits of small random checkpoints of Gemma 4 and Llama 4 against transformers
 * (tests/golden/family_groups/newer.py). Pieces, ranks and other rows do not change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const struct family families[] = {
    {"gemma4", true, 2},
    {"gemma4_moe", true, 2},
    {"llama4", false, 2},
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

static void test_rows_do_not_depend_on_rows_beside_them(void **state)
{
    (void)state;
    family_check_batches("gemma4");
    family_check_batches("gemma4_moe");
    family_check_batches("llama4_8192");
}

/* GGUF files of Llama 4 have no keys for chunks and temperature: real models share their numbers.
 */
static void test_llama4_file_equals_transformers(void **state)
{
    static const struct {
        const char *kernels;
        double bound;
    } sets[] = {{"f32", 2e-5}, {"ref", 5e-2}, {"auto", 5e-2}};
    (void)state;
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        struct executor_config cfg = model_run_config(sets[i].kernels);
        struct match match = match_golden("llama4_8192", ".gguf", &cfg, 16);
        print_message("llama4_8192, kernels %s: %.1e of %u rows\n", sets[i].kernels, match.error,
                      match.n_rows);
        assert_true(match.n_rows >= 16 && match.error <= sets[i].bound);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_rows_do_not_depend_on_rows_beside_them),
        cmocka_unit_test(test_llama4_file_equals_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
