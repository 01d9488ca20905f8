/* Logits of small random checkpoints of the families with experts against transformers
 * (tests/golden/make_experts.py). Both the folder and the GGUF are read. A prompt and 32 steps go
 * past window and original context. Ranks and pieces do not change a bit. */
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
static const double CONTRACT_BOUND = 5e-2;

/* Golden files: NAME/ is the folder, NAME.gguf has the same weights, NAME.bin the logits. */
static const struct family {
    const char *name;
    bool has_gguf;
} families[] = {
    {"qwen3moe", true},        {"qwen3moe_fused", false}, {"mixtral", true},
    {"gpt_oss", true},         {"gpt_oss_mxfp4", false},  {"qwen2moe", true},
    {"qwen2moe_dense", false}, {"granitemoe", true},      {"granitemoe_shared", true},
    {"glm4moe", true},         {"ernie4_5_moe", true},    {"ernie4_5_moe_end", false},
    {"minimax_m2", true},
};

struct result {
    double worst;  /* largest relative error of a golden row */
    uint64_t hash; /* hash of the bits of all rows */
};

static uint64_t hash_of(uint64_t hash, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        hash = (hash ^ bits) * 1099511628211u; /* FNV-1a */
    }
    return hash;
}

static void compare_sequence(struct model_run *run, struct golden *g, uint32_t vocab,
                             uint32_t chunk, struct result *out)
{
    uint32_t n_ids = golden_u32(g), n_rows = golden_u32(g);
    uint32_t *ids = golden_copy(g, n_ids);
    float *all = malloc((size_t)n_ids * vocab * sizeof(float));
    assert_non_null(all);
    model_run_all(run, ids, n_ids, chunk, false, all);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t row = golden_u32(g);
        float *expected = golden_copy(g, vocab);
        double e = model_relative_error(all + (size_t)row * vocab, expected, vocab);
        if (!(e <= out->worst))
            out->worst = e;
        free(expected);
    }
    out->hash = hash_of(out->hash, all, (size_t)n_ids * vocab);
    free(all);
    free(ids);
}

static struct result run_family(const struct family *family, const char *suffix,
                                const char *kernels, uint32_t tp, uint32_t chunk)
{
    struct executor_config cfg = model_run_config(kernels);
    struct result result = {0};
    struct golden g;
    struct model_run run;
    char path[512], file[64];
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s%s", SLUICE_SOURCE_DIR, family->name,
             suffix);
    snprintf(file, sizeof(file), "tiny/%s.bin", family->name);
    cfg.tp = tp;
    cfg.n_threads = 1;
    model_run_open(&run, path, &cfg);
    golden_open(&g, file, "SLTL");
    uint32_t n_seqs = golden_u32(&g), vocab = golden_u32(&g);
    assert_int_equal(vocab, executor_model_info(run.ex)->vocab_size);
    for (uint32_t s = 0; s < n_seqs; s++)
        compare_sequence(&run, &g, vocab, chunk, &result);
    golden_close(&g);
    model_run_close(&run);
    return result;
}

static const struct variant {
    const char *kernels;
    uint32_t tp, chunk;
} variants[] = {
    {"f32", 1, 64}, {"f32", 1, 7},   {"f32", 1, 1},  {"f32", 2, 16},
    {"ref", 1, 16}, {"auto", 1, 64}, {"auto", 1, 7}, {"auto", 2, 16},
};

static uint32_t check_format(const struct family *family, const char *suffix)
{
    uint32_t n_bad = 0;
    const char *kernels = "";
    uint64_t hash = 0;
    print_message("%-15s %-5s", family->name, *suffix ? suffix : "hf");
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const struct variant *v = &variants[i];
        bool f32 = strcmp(v->kernels, "f32") == 0;
        struct result r = run_family(family, suffix, v->kernels, v->tp, v->chunk);
        if (strcmp(kernels, v->kernels) != 0)
            hash = r.hash;
        kernels = v->kernels;
        bool good = r.worst <= (f32 ? F32_BOUND : CONTRACT_BOUND) && r.hash == hash;
        n_bad += !good;
        print_message(" %s/%u/%u %.1e%s%s", v->kernels, v->tp, v->chunk, r.worst,
                      good ? "" : " (!)", r.hash == hash ? "" : " (other bits)");
    }
    print_message("\n");
    return n_bad;
}

static void test_families_equal_transformers(void **state)
{
    const char *only = getenv("FAMILY");
    uint32_t n_bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (only && strcmp(only, families[i].name) != 0)
            continue;
        n_bad += check_format(&families[i], "");
        if (families[i].has_gguf)
            n_bad += check_format(&families[i], ".gguf");
    }
    assert_int_equal(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families_equal_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
