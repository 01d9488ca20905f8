/* Logits of small random checkpoints of the families with experts against transformers
 * (tests/golden/make_experts.py). Both the folder and the GGUF are read. A prompt and 32 steps go
 * past window and original context. Ranks and pieces do not change a bit. */
#include <math.h>
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

/* Golden files: NAME/ is the folder, NAME.gguf has the same weights, NAME.bin the logits. Four
 * ranks divide the wide models. These were not chosen among seeds, so the contract's kernels may
 * choose other experts than f32. The error of these kernels has no bound here
 * (docs/log/2026-11-27-routes.md). */
static const struct family {
    const char *name;
    bool has_gguf, is_wide;
} families[] = {
    {"qwen3moe", true, false},          {"qwen3moe_fused", false, false},
    {"mixtral", true, false},           {"gpt_oss", true, false},
    {"gpt_oss_mxfp4", false, false},    {"qwen2moe", true, false},
    {"qwen2moe_dense", false, false},   {"granitemoe", true, false},
    {"granitemoe_shared", true, false}, {"glm4moe", true, false},
    {"ernie4_5_moe", true, false},      {"ernie4_5_moe_end", false, false},
    {"minimax_m2", true, false},        {"qwen3moe_wide", false, true},
    {"mixtral_wide", false, true},      {"gpt_oss_wide", false, true},
    {"qwen2moe_wide", false, true},     {"granitemoe_wide", false, true},
    {"glm4moe_wide", false, true},      {"ernie4_5_moe_wide", false, true},
    {"minimax_m2_wide", false, true},   {"mimo2", true, false},
    {"mimo2_wide", false, true},
};

static const struct variant {
    const char *kernels;
    uint32_t tp, chunk;
} variants[] = {
    {"f32", 1, 64}, {"f32", 1, 7},   {"f32", 1, 1},  {"f32", 2, 16},  {"f32", 4, 9},
    {"ref", 1, 16}, {"auto", 1, 64}, {"auto", 1, 7}, {"auto", 2, 16}, {"auto", 4, 9},
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
        double bound = f32 ? F32_BOUND : family->is_wide ? HUGE_VAL : CONTRACT_BOUND;
        if (v->tp > (family->is_wide ? 4 : 2))
            continue;
        struct match r = run_family(family, suffix, v);
        if (strcmp(kernels, v->kernels) != 0)
            hash = r.hash;
        kernels = v->kernels;
        bool good = r.error <= bound && r.hash == hash;
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
