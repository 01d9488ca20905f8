/* Logits of small random checkpoints of the families with experts against transformers
 * (tests/golden/make_experts.py). Both the folder and the GGUF are read. A prompt and 32 steps go
 * past window and original context. Ranks and pieces do not change a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_match.h"
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

static const struct variant {
    const char *kernels;
    uint32_t tp, chunk;
} variants[] = {
    {"f32", 1, 64}, {"f32", 1, 7},   {"f32", 1, 1},  {"f32", 2, 16},
    {"ref", 1, 16}, {"auto", 1, 64}, {"auto", 1, 7}, {"auto", 2, 16},
};

static struct match run_family(const struct family *family, const char *suffix,
                               const struct variant *v)
{
    struct executor_config cfg = model_run_config(v->kernels);
    cfg.tp = v->tp;
    cfg.n_threads = 1;
    return match_golden(family->name, suffix, &cfg, v->chunk);
}

static uint32_t check_format(const struct family *family, const char *suffix)
{
    uint32_t n_bad = 0;
    const char *kernels = "";
    uint64_t hash = 0;
    print_message("%-15s %-5s", family->name, *suffix ? suffix : "hf");
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const struct variant *v = &variants[i];
        bool f32 = strcmp(v->kernels, "f32") == 0;
        struct match r = run_family(family, suffix, v);
        if (strcmp(kernels, v->kernels) != 0)
            hash = r.hash;
        kernels = v->kernels;
        bool good = r.error <= (f32 ? F32_BOUND : CONTRACT_BOUND) && r.hash == hash;
        n_bad += !good;
        print_message(" %s/%u/%u %.1e%s%s", v->kernels, v->tp, v->chunk, r.error,
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
