/* Logits of a small random checkpoint of each family against transformers (tests/golden/tiny). The
 * checkpoints are read from the Hugging Face folder and from GGUF. A prompt and 32 steps go past
 * window and original context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5;
static const double CONTRACT_BOUND = 5e-2;

/* A family's golden files: NAME/ is the folder, NAME.gguf the same weights. */
struct family {
    const char *name;
    bool has_gguf;
    uint32_t max_tp; /* ranks that the shapes allow */
};

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
    struct executor_config cfg = model_run_config("f32");
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const struct family *f = &families[i];
        struct match folder = match_golden(f->name, "", &cfg, 16);
        struct match gguf = f->has_gguf ? match_golden(f->name, ".gguf", &cfg, 16) : folder;
        print_message("%-18s folder %.1e, GGUF %.1e of %u rows\n", f->name, folder.error,
                      gguf.error, folder.n_rows);
        assert_true(folder.n_rows >= 16);
        if (!(folder.error <= F32_BOUND && gguf.error <= F32_BOUND))
            fail_msg("%s: relative error %.3g of the folder, %.3g of the GGUF", f->name,
                     folder.error, gguf.error);
    }
}

/* Layers split over ranks, and prompts in pieces of any size, give the same bits. */
static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < 2 * (size_t)N_FAMILIES; i++) {
        const struct family *f = &families[i / 2];
        struct executor_config cfg = model_run_config(sets[i % 2]);
        uint64_t whole = match_golden(f->name, "", &cfg, 1000).hash;
        if (match_golden(f->name, "", &cfg, 7).hash != whole)
            fail_msg("%s, kernels %s: pieces of 7 tokens differ", f->name, cfg.kernels);
        for (cfg.tp = 2; cfg.tp <= f->max_tp; cfg.tp *= 2)
            if (match_golden(f->name, "", &cfg, 16).hash != whole)
                fail_msg("%s, kernels %s: %u ranks differ", f->name, cfg.kernels, cfg.tp);
    }
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    static const char *const sets[] = {"ref", "auto"};
    (void)state;
    for (size_t i = 0; i < 2 * (size_t)N_FAMILIES; i++) {
        const struct family *f = &families[i / 2];
        struct executor_config cfg = model_run_config(sets[i % 2]);
        double folder = match_golden(f->name, "", &cfg, 16).error;
        double gguf = f->has_gguf ? match_golden(f->name, ".gguf", &cfg, 16).error : 0;
        if (!(folder <= CONTRACT_BOUND && gguf <= CONTRACT_BOUND))
            fail_msg("%s, kernels %s: relative error %.3g of the folder, %.3g of the GGUF", f->name,
                     cfg.kernels, folder, gguf);
    }
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
