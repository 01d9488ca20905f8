/* Logits of small random checkpoints of the families with latent attention against transformers
 * (tests/golden/expert_groups/latent.py). Pieces, ranks and other rows do not change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

/* The GGUF of deepseek_v2_lite has both up projections of a layer in one quantized matrix, as old
 * files. That of deepseek_v3 has a matrix per head. */
static const struct family families[] = {
    {"deepseek_v2_lite", true, 1},
    {"deepseek_v3", true, 1},
    {"glm4_moe_lite", false, 1},
    {"deepseek_v2_wide", false, 4}, /* ranks have unequal numbers of heads */
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

static void test_pieces_of_any_size_give_the_same_bits(void **state)
{
    static const uint32_t pieces[] = {1, 64, 200};
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < 2 * N_FAMILIES; i++) {
        struct executor_config cfg = model_run_config(sets[i % 2]);
        uint64_t whole = match_golden(families[i / 2].name, "", &cfg, 1000).hash;
        for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++)
            if (match_golden(families[i / 2].name, "", &cfg, pieces[p]).hash != whole)
                fail_msg("%s, kernels %s: pieces of %u tokens differ", families[i / 2].name,
                         cfg.kernels, pieces[p]);
    }
}

static void test_rows_beside_others_give_the_same_bits(void **state)
{
    (void)state;
    family_check_batches("deepseek_v2_lite");
    family_check_batches("deepseek_v3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_pieces_of_any_size_give_the_same_bits),
        cmocka_unit_test(test_rows_beside_others_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
