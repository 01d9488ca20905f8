/* Tests of whole models in the formats that test_cuda_model.c leaves out. These are dense
 * weights stored as int8 and E4M3, super-blocks of 256, BF16, and wide heads. Results are near the
 * CPU's, and any cut of the rows into steps gives the same bits. A step can also compute all rows
 * by one path on request. Needs a GPU, or tests/simt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "tests/gpu/support/gpu_model.h"

struct format {
    const char *name;
    uint32_t type;
    enum weight_store store;
    bool prompts_f16;
    double bound; /* bound of the logits' distance from the CPU's, relative to the largest logit */
};

/* Stored forms hold the CPU's values (rounded_for), so what is left is their activations' rounding:
 * bf16's, E4M3's. Integers have the CPU's bits but where attention's order moves a rounding.
 * Prompts in 16 bit are compared with dequantized weights, because they are nearer to these than to
 * the CPU's integers. */
static const struct format formats[] = {
    {"int8", GGML_F32, WEIGHT_STORE_INT8, false, 0.1},
    {"fp8", GGML_F32, WEIGHT_STORE_F8, false, 0.5},
    {"bf16", GGML_BF16, WEIGHT_STORE_SOURCE, false, 0.1},
    {"q2_k", GGML_Q2_K, WEIGHT_STORE_SOURCE, false, 0.2},
    {"q3_k", GGML_Q3_K, WEIGHT_STORE_SOURCE, false, 0.2},
    {"q4_k", GGML_Q4_K, WEIGHT_STORE_SOURCE, false, 0.2},
    {"q5_k", GGML_Q5_K, WEIGHT_STORE_SOURCE, false, 0.2},
    {"q6_k", GGML_Q6_K, WEIGHT_STORE_SOURCE, false, 0.2},
    {"q8_0, prompts f16", GGML_Q8_0, WEIGHT_STORE_SOURCE, true, 0.05},
    {"q6_k, prompts f16", GGML_Q6_K, WEIGHT_STORE_SOURCE, true, 0.05},
};
enum { BF16 = 2, Q8_0_F16 = 8 };
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

static struct tiny_spec spec_of(const struct format *f)
{
    struct tiny_spec spec = tiny_spec_default();
    spec.matrix_type = f->type;
    spec.rounded_for = f->store;
    if (f->type >= GGML_Q2_K && f->type <= GGML_Q6_K)
        spec.hidden = 256;
    return spec;
}

static struct executor_config config_of(const struct format *f)
{
    struct executor_config cfg = gpu_config();
    cfg.store = f->store;
    cfg.prompt_arithmetic = f->prompts_f16 ? PROMPT_ARITHMETIC_F16 : PROMPT_ARITHMETIC_EXACT;
    return cfg;
}

static void test_logits_of_each_format_near_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        struct tiny_spec spec = spec_of(&formats[i]);
        struct executor_config cfg = config_of(&formats[i]);
        struct executor_config cpu = model_run_config(formats[i].prompts_f16 ? "f32" : "ref");
        float *got = run_alone(&spec, &cfg, 0, 16, false);
        float *expected = run_alone(&spec, &cpu, 0, 16, false);
        double error = model_relative_error(got, expected, N_TOKENS * VOCAB);
        print_message("%s: %.2e of the CPU's\n", formats[i].name, error);
        if (!(error < formats[i].bound))
            fail_msg("%s: %.3g exceeds %.3g", formats[i].name, error, formats[i].bound);
        free(got);
        free(expected);
    }
}

/* Tests heads of the widest size for the tiled kernels, and of the widest size that the reader
 * accepts. */
static void test_logits_of_wide_heads_near_the_cpu(void **state)
{
    static const uint32_t dims[] = {256, 512};
    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        struct tiny_spec spec = tiny_spec_default();
        struct executor_config cfg = gpu_config(), cpu = model_run_config("ref");
        spec.head_dim = dims[i];
        spec.n_heads = 2;
        spec.n_kv_heads = 1;
        cfg.kv_dtype = cpu.kv_dtype = DTYPE_F16;
        float *by_p = run_alone(&spec, &cfg, 0, 16, false);
        float *by_d = run_alone(&spec, &cfg, 0, 16, true);
        float *expected = run_alone(&spec, &cpu, 0, 16, false);
        double p = model_relative_error(by_p, expected, N_TOKENS * VOCAB);
        double d = model_relative_error(by_d, expected, N_TOKENS * VOCAB);
        print_message("head_dim %u: %.2e by P, %.2e by D\n", dims[i], p, d);
        assert_true(p < 0.05 && d < 0.05);
        free(by_p);
        free(by_d);
        free(expected);
    }
}

/* --- the contract --- */

static bool is_whole(void)
{
    const char *step = getenv("SLUICE_TEST_STEP");
    return !step || atoi(step) < 2;
}

/* Shortened: half of the formats leave out chunks of one row, and the others chunks of three. */
static void check_cuts(const struct format *f, enum dtype kv, bool generated)
{
    static const struct {
        uint32_t chunk, block;
    } cuts[] = {{1, 16}, {3, 4}, {128, 128}};
    struct tiny_spec spec = spec_of(f);
    struct executor_config cfg = config_of(f);
    cfg.kv_dtype = kv;
    float *expected = run_alone(&spec, &cfg, 0, 16, generated);
    for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
        char what[96];
        if (!is_whole() && c == (size_t)(f - formats) / 2 % 2)
            continue;
        cfg.kv_block_size = cuts[c].block;
        snprintf(what, sizeof(what), "%s, KV %s, path %s, chunks of %u, blocks of %u", f->name,
                 dtype_name(kv), generated ? "D" : "P", cuts[c].chunk, cuts[c].block);
        float *got = run_alone(&spec, &cfg, 0, cuts[c].chunk, generated);
        assert_same(got, expected, (size_t)N_TOKENS * VOCAB, what);
        free(got);
    }
    free(expected);
}

static void test_bits_of_each_format_do_not_depend_on_cuts(void **state)
{
    static const enum dtype kvs[] = {DTYPE_BF16, DTYPE_F16, DTYPE_I8, DTYPE_F8_E4M3};
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++)
        for (size_t generated = 0; generated < 2; generated++)
            if (is_whole() || (i + generated) % 2 == 0) /* shortened: of each format one path */
                check_cuts(&formats[i], kvs[i % 4], generated);
}

/* --- steps with both roles --- */

enum { PROMPT = 20, OTHER = 11 };

/* Computes logits of the token behind the first prompt, with role `generated`, and of a piece of
 * another prompt. Both are in one step (together) or in a step each. */
static void run_both(const struct format *f, bool mix_roles, bool generated, bool together,
                     float *out)
{
    struct tiny_spec spec = spec_of(f);
    struct executor_config cfg = config_of(f);
    struct model_run run;
    cfg.kv_dtype = DTYPE_BF16;
    cfg.mix_roles = mix_roles;
    model_run_open_ckpt(&run, tiny_open(&spec), &cfg);
    assert_true(!strstr(executor_numerics_id(run.ex), "-mixed") == !mix_roles);
    assert_true(!strstr(executor_numerics_id(run.ex), "-p16") == !f->prompts_f16);
    for (uint32_t s = 0; s < 2; s++)
        model_run_add(&run, ids[s], N_TOKENS);
    model_run_push(&run, 0, PROMPT, 1);
    model_run_step(&run);
    for (uint32_t s = 0; s < 2; s++) {
        run.generated = s == 0 && generated;
        model_run_push(&run, s, s == 0 ? 1 : OTHER, 1);
        if (together && s == 0)
            continue;
        model_run_step(&run);
        for (uint32_t i = together ? 0 : s; i <= s; i++)
            memcpy(out + (size_t)i * VOCAB, executor_logits(run.ex, together ? i : 0),
                   VOCAB * sizeof(float));
    }
    model_run_close(&run);
}

/* Separate: each role's rows have the bits of their own step. As one: all products take the
 * prompts' path, which has the same bits at this size. Attention goes by roles. Larger sizes
 * are in test_cuda_dense.c. */
static void test_bits_of_a_mixed_step_are_of_the_paths_that_were_chosen(void **state)
{
    static float by_d[2 * VOCAB], by_p[2 * VOCAB], apart[2 * VOCAB], as_one[2 * VOCAB],
        alone[2 * VOCAB];
    const struct format *f = &formats[BF16];
    (void)state;
    run_both(f, false, true, false, by_d);
    run_both(f, false, false, false, by_p);
    assert_memory_not_equal(by_d, by_p, VOCAB * sizeof(float));
    run_both(f, false, true, true, apart);
    assert_same(apart, by_d, VOCAB, "generated, apart");
    assert_same(apart + VOCAB, by_p + VOCAB, VOCAB, "prompt, apart");
    run_both(f, true, true, true, as_one);
    assert_same(as_one + VOCAB, by_p + VOCAB, VOCAB, "prompt, as one");
    assert_same(as_one, by_d, VOCAB, "generated, as one");
    run_both(f, true, true, false, alone); /* nothing to mix */
    assert_same(alone, by_d, VOCAB, "generated, alone");
}

/* The same for prompts in 16 bit. As one, the generated row's products are those of prompts. */
static void test_bits_of_a_mixed_step_with_prompts_in_16_bit(void **state)
{
    static float by_d[2 * VOCAB], by_p[2 * VOCAB], apart[2 * VOCAB], as_one[2 * VOCAB],
        exact[2 * VOCAB];
    const struct format *f = &formats[Q8_0_F16];
    struct format integers = *f;
    (void)state;
    integers.prompts_f16 = false;
    run_both(f, false, true, false, by_d);
    run_both(f, false, false, false, by_p);
    run_both(&integers, false, false, false, exact);
    assert_memory_not_equal(by_d, by_p, VOCAB * sizeof(float));
    assert_memory_not_equal(exact + VOCAB, by_p + VOCAB, VOCAB * sizeof(float));
    run_both(f, false, true, true, apart);
    assert_same(apart, by_d, VOCAB, "generated, apart");
    assert_same(apart + VOCAB, by_p + VOCAB, VOCAB, "prompt, apart");
    run_both(f, true, true, true, as_one);
    assert_same(as_one + VOCAB, by_p + VOCAB, VOCAB, "prompt, as one");
    assert_memory_not_equal(as_one, by_d, VOCAB * sizeof(float));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_of_each_format_near_the_cpu),
        cmocka_unit_test(test_logits_of_wide_heads_near_the_cpu),
        cmocka_unit_test(test_bits_of_each_format_do_not_depend_on_cuts),
        cmocka_unit_test(test_bits_of_a_mixed_step_are_of_the_paths_that_were_chosen),
        cmocka_unit_test(test_bits_of_a_mixed_step_with_prompts_in_16_bit),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, make_ids, NULL);
}
