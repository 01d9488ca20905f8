/* Logits of the tiny checkpoints, one per kind of weight, against transformers (tests/golden/tiny):
 * f32 kernels to 2e-5 of the row's largest magnitude. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5;

static const char *const tiny_names[] = {
    "f32",       "f16",       "bf16",       "q8_0",       "q4_0",      "q4_1",
    "q5_0",      "q5_1",      "q4_k",       "gpt2_f32",   "gpt2_f16",  "gpt2_q8_0",
    "gpt2_q4_0", "bloom_f32", "bloom_bf16", "bloom_q8_0", "bloom_q4_1"};

struct worst {
    double error, sum;
    uint32_t n_rows;
    uint64_t hash; /* hash of the rows' bits */
};

/* FNV-1a over the floats' bits, beginning from `hash`. */
static uint64_t hash_of(uint64_t hash, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
}

/* Compares all golden rows of one checkpoint: a file or a folder below tests/golden/tiny. */
static struct worst compare_rows(const char *checkpoint, const char *golden,
                                 const struct executor_config *cfg, uint32_t chunk)
{
    struct worst worst = {0};
    struct golden g;
    struct model_run run;
    char path[512], file[64];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s", SLUICE_SOURCE_DIR, checkpoint);
    snprintf(file, sizeof(file), "tiny/%s.bin", golden);
    golden_open(&g, file, "SLTL");
    model_run_open(&run, path, cfg);
    uint32_t n_seqs = golden_u32(&g), vocab = golden_u32(&g);
    assert_int_equal(vocab, executor_model_info(run.ex)->vocab_size);
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t n_ids = golden_u32(&g), n_rows = golden_u32(&g);
        uint32_t *ids = golden_copy(&g, n_ids);
        float *all = malloc((size_t)n_ids * vocab * sizeof(float));
        assert_non_null(all);
        model_run_all(&run, ids, n_ids, chunk, false, all);
        for (uint32_t r = 0; r < n_rows; r++) {
            uint32_t row = golden_u32(&g);
            float *expected = golden_copy(&g, vocab);
            double e = model_relative_error(all + (size_t)row * vocab, expected, vocab);
            if (!(e <= worst.error))
                worst.error = e;
            worst.sum += e;
            worst.n_rows++;
            worst.hash = hash_of(worst.hash, all + (size_t)row * vocab, vocab);
            free(expected);
        }
        free(all);
        free(ids);
    }
    model_run_close(&run);
    golden_close(&g);
    return worst;
}

static struct worst compare_tiny(const char *name, const struct executor_config *cfg,
                                 uint32_t chunk)
{
    char checkpoint[64];
    snprintf(checkpoint, sizeof(checkpoint), "%s.gguf", name);
    return compare_rows(checkpoint, name, cfg, chunk);
}

static void check_tiny(const char *kernels, double bound, double mean_bound)
{
    for (size_t i = 0; i < sizeof(tiny_names) / sizeof(tiny_names[0]); i++) {
        struct executor_config cfg = model_run_config(kernels);
        struct worst worst = compare_tiny(tiny_names[i], &cfg, 16);
        double mean = worst.sum / worst.n_rows;
        print_message("%-10s %s: worst %.2e, mean %.2e of %u rows\n", tiny_names[i], kernels,
                      worst.error, mean, worst.n_rows);
        assert_true(worst.n_rows >= 12);
        if (!(worst.error <= bound && mean <= mean_bound))
            fail_msg("tiny/%s with %s kernels: relative error %.3g, mean %.3g exceed %.3g, %.3g",
                     tiny_names[i], kernels, worst.error, mean, bound, mean_bound);
    }
}

static void test_tiny_f32_kernels_equal_transformers(void **state)
{
    (void)state;
    check_tiny("f32", F32_BOUND, F32_BOUND);
}

/* Random weights with peaked attention are chaotic: a near tie between two keys turns a rounding of
 * int8 activations into another row. The bounds only show that nothing is wired wrongly.
 * test_logits_sample.c and accuracy measure the integers' accuracy on a real model. */
static void test_tiny_contract_kernels_near_transformers(void **state)
{
    (void)state;
    check_tiny("ref", 0.6, 0.12);
    check_tiny("auto", 0.6, 0.12);
}

static void test_tiny_bf16_cache_near_transformers(void **state)
{
    static const char *const names[] = {"f32", "gpt2_f32", "bloom_f32"};
    struct executor_config cfg = model_run_config("f32");
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        cfg.kv_dtype = DTYPE_BF16;
        double bf16 = compare_tiny(names[i], &cfg, 16).error;
        cfg.kv_dtype = DTYPE_F16;
        double f16 = compare_tiny(names[i], &cfg, 16).error;
        print_message("%-10s bf16 cache %.2e, f16 cache %.2e\n", names[i], bf16, f16);
        assert_true(bf16 < (i == 0 ? 2e-2 : 3e-2) && f16 < (i == 0 ? 3e-3 : 5e-3));
    }
}

/* Families of models, each from a Hugging Face folder and from a GGUF of the same weights. */
static const struct family {
    const char *name;
    uint32_t most_ranks;
} families[] = {{"qwen3", 4}};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static void test_families_equal_transformers_from_folder_and_gguf(void **state)
{
    struct executor_config cfg = model_run_config("f32");
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        struct worst folder = compare_rows(families[i].name, families[i].name, &cfg, 16);
        struct worst gguf = compare_tiny(families[i].name, &cfg, 16);
        print_message("%-10s worst %.2e of %u rows\n", families[i].name, folder.error,
                      folder.n_rows);
        if (!(folder.error <= F32_BOUND && gguf.error <= F32_BOUND))
            fail_msg("%s: relative error %.3g of the folder, %.3g of the GGUF", families[i].name,
                     folder.error, gguf.error);
    }
}

/* Layers split over ranks, and prompts in pieces of any size, give the same bits. */
static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < N_FAMILIES * 2; i++) {
        const char *name = families[i / 2].name, *kernels = sets[i % 2];
        struct executor_config cfg = model_run_config(kernels);
        uint64_t whole = compare_rows(name, name, &cfg, 1000).hash;
        if (compare_rows(name, name, &cfg, 7).hash != whole)
            fail_msg("%s, kernels %s: pieces of 7 tokens differ", name, kernels);
        for (cfg.tp = 2; cfg.tp <= families[i / 2].most_ranks; cfg.tp *= 2)
            if (compare_rows(name, name, &cfg, 16).hash != whole)
                fail_msg("%s, kernels %s: %u ranks differ", name, kernels, cfg.tp);
    }
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        struct executor_config cfg = model_run_config("auto");
        double error = compare_rows(families[i].name, families[i].name, &cfg, 16).error;
        print_message("%-10s auto: worst %.2e\n", families[i].name, error);
        assert_true(error <= 5e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny_f32_kernels_equal_transformers),
        cmocka_unit_test(test_tiny_contract_kernels_near_transformers),
        cmocka_unit_test(test_tiny_bf16_cache_near_transformers),
        cmocka_unit_test(test_families_equal_transformers_from_folder_and_gguf),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
