/* Logits of the tiny checkpoints, one per kind of weight, against transformers (tests/golden/tiny):
 * f32 kernels to 2e-5 of the row's largest magnitude. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_logits.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5;

static const char *const tiny_names[] = {"f32",       "f16",       "bf16",       "q8_0",
                                         "q4_0",      "q4_1",      "q5_0",       "q5_1",
                                         "q4_k",      "gpt2_f32",  "gpt2_f16",   "gpt2_q8_0",
                                         "gpt2_q4_0", "bloom_f32", "bloom_bf16", "bloom_q4_1"};

static void check_tiny(const char *kernels, double bound, double mean_bound)
{
    for (size_t i = 0; i < sizeof(tiny_names) / sizeof(tiny_names[0]); i++) {
        struct executor_config cfg = model_run_config(kernels);
        struct match worst = match_golden(tiny_names[i], ".gguf", &cfg, 16);
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
        double bf16 = match_golden(names[i], ".gguf", &cfg, 16).error;
        cfg.kv_dtype = DTYPE_F16;
        double f16 = match_golden(names[i], ".gguf", &cfg, 16).error;
        print_message("%-10s bf16 cache %.2e, f16 cache %.2e\n", names[i], bf16, f16);
        assert_true(bf16 < (i == 0 ? 2e-2 : 3e-2) && f16 < (i == 0 ? 3e-3 : 5e-3));
    }
}

/* Symptom: a NaN was forgotten as soon as a finite error came after it, so a model that gave NaN
 * could pass. */
static void test_a_nan_is_an_error_wherever_it_stands(void **state)
{
    enum { N = 5 };
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        float good[N] = {1, -2, 3, -4, 5}, bad[N] = {1, -2, 3, -4, 5};
        bad[i] = NAN;
        assert_true(isnan(model_relative_error(bad, good, N)));
        assert_true(isnan(model_relative_error(good, bad, N)));
        assert_true(model_relative_error(good, good, N) == 0);
    }
    assert_true(isnan(match_worse((double)NAN, 0.5)));
    assert_true(isnan(match_worse(0.5, (double)NAN)));
    assert_true(match_worse(0.25, 0.5) == 0.5 && match_worse(0.5, 0.25) == 0.5);
}

/* A list of columns: u32 n | u16 columns[n], of rows of 6 columns. */
static void test_a_list_of_columns_that_is_cut_or_malformed_is_refused(void **state)
{
    enum { N_ALL = 6, HEAD = 4 };
    static const struct {
        uint16_t list[4];
        uint32_t n;
        size_t n_bytes;
    } bad[] = {
        {{0, 2, 5}, 3, HEAD + 5},          /* cut */
        {{0, 2, 5}, 3, HEAD},              /* cut */
        {{0, 2, 5}, 3, 3},                 /* cut */
        {{0, 2, 5}, 3, 0},                 /* cut */
        {{0, 2, 6}, 3, HEAD + 6},          /* no such column */
        {{0, 2, UINT16_MAX}, 3, HEAD + 6}, /* no such column */
        {{0, 2, 2}, 3, HEAD + 6},          /* twice */
        {{2, 0, 5}, 3, HEAD + 6},          /* not ascending */
        {{0, 2, 5}, 0, HEAD + 6},          /* empty */
        {{0, 2, 5}, N_ALL + 1, HEAD + 8},
        {{0, 2, 5}, UINT32_MAX, HEAD + 8}, /* too many */
    };
    struct logits_columns columns = {0};
    unsigned char bytes[HEAD + sizeof(bad[0].list)];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(bytes, &bad[i].n, HEAD);
        memcpy(bytes + HEAD, bad[i].list, sizeof(bad[i].list));
        assert_int_equal(logits_read_columns(bytes, bad[i].n_bytes, N_ALL, &columns), 0);
        assert_null(columns.list);
    }
    uint32_t n = 3;
    memcpy(bytes, &n, HEAD);
    memcpy(bytes + HEAD, (uint16_t[]){0, 2, 5}, 6);
    assert_int_equal(logits_read_columns(bytes, sizeof(bytes), N_ALL, &columns), HEAD + 6);
    assert_true(columns.n == 3 && columns.n_all == N_ALL && columns.list[2] == 5);
    free(columns.list);
}

/* The files do not list each column: a wrong logit of any column must show. */
static void test_a_fault_of_any_logit_is_an_error(void **state)
{
    struct executor_config cfg = model_run_config("f32");
    struct logits_file file;
    struct logits_sequence seq;
    struct model_run run;
    char path[512];
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/f32.gguf", golden_source_dir());
    model_run_open(&run, path, &cfg);
    uint32_t vocab = executor_model_info(run.ex)->vocab_size;
    logits_open(&file, "f32");
    assert_true(file.columns.n < file.columns.n_all && file.columns.n_all == vocab);
    logits_next(&file, &seq);
    float *all = malloc((size_t)seq.n_ids * vocab * sizeof(float));
    assert_non_null(all);
    model_run_all(&run, seq.ids, seq.n_ids, 16, false, all);
    float *got = all + (size_t)logits_row(&file) * vocab;
    assert_true(logits_row_error(&file, got, vocab) <= F32_BOUND);
    for (uint32_t c = 0; c < vocab; c++) {
        float good = got[c];
        got[c] = good + file.scale / 1000;
        assert_true(logits_row_error(&file, got, vocab) > 2 * F32_BOUND);
        got[c] = NAN;
        assert_true(isnan(logits_row_error(&file, got, vocab)));
        got[c] = good;
    }
    model_run_close(&run);
    golden_close(&file.golden); /* logits_close() expects that all rows were read */
    free(file.columns.list);
    free(file.row);
    free(all);
    free(seq.ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_nan_is_an_error_wherever_it_stands),
        cmocka_unit_test(test_a_list_of_columns_that_is_cut_or_malformed_is_refused),
        cmocka_unit_test(test_a_fault_of_any_logit_is_an_error),
        cmocka_unit_test(test_tiny_f32_kernels_equal_transformers),
        cmocka_unit_test(test_tiny_contract_kernels_near_transformers),
        cmocka_unit_test(test_tiny_bf16_cache_near_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
