/* Logits of a small random checkpoint of each family against transformers (tests/golden/tiny). The
 * checkpoints are read from the Hugging Face folder and from GGUF. A prompt and 32 steps go past
 * window and original context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_family.h"

static const struct family families[] = {
    {"llama3", true, 4},
    {"llama_linear", true, 4},
    {"llama_yarn", false, 2},
    {"llama_dynamic", true, 1},
    {"mistral", false, 4},
    {"qwen3", true, 4},
    {"qwen3vl", true, 2},
    {"qwen2", true, 4},
    {"qwen2_window", false, 4},
    {"smollm3", true, 4},
    {"gemma2", true, 4},
    {"gemma2_scale", false, 4},
    {"gemma3", true, 2},
    {"gemma3_images", false, 2},
    {"phi3", true, 2},
    {"phi3_long", true, 2},
    {"granite", true, 4},
    {"olmo2", true, 4},
    {"olmo3", true, 4},
    {"cohere", true, 2},
    {"cohere_norms", true, 2},
    {"cohere2", true, 4},
    {"glm4", true, 4},
    {"starcoder2", true, 2},
    {"starcoder2_window", false, 2},
    {"gptneox", true, 2},
    {"gptneox_sequential", true, 2},
    {"phi2", true, 2},
    {"phi2_joined", true, 2},
    {"phi2_norms", false, 2},
    {"nemotron", true, 4},
    {"ernie4_5", true, 4},
    {"hunyuan", true, 4},
    {"exaone4", true, 4},
    {"exaone4_small", true, 4},
    {"seed_oss", true, 4},
    {"ministral3", true, 4},
    {"mistral3_images", false, 4},
    {"gpt2", true, 2},
    {"bloom", true, 2},
    {"falcon", true, 2},
    {"falcon_40b", true, 2},
    {"falcon_one_norm", true, 2},
    {"falcon_rw", false, 2},
    {"opt", false, 2},
    {"gptj", false, 2},
    {"mpt", true, 2},
    {"stablelm", true, 2},
    {"stablelm_norms", true, 2},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static void test_families_equal_transformers_from_folder_and_gguf(void **state)
{
    (void)state;
    family_check_logits(families, N_FAMILIES);
}

static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    (void)state;
    family_check_bits(families, N_FAMILIES);
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    (void)state;
    family_check_contract(families, N_FAMILIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers_from_folder_and_gguf),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
