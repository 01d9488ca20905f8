/* Compares the sample model with transformers (tests/golden/sample_logits.bin). Kernels of f32
 * agree to 2e-5 of a row's largest magnitude, the contract's integer kernels to 5e-2. All cuts into
 * steps give the same bits. Also checks the model's memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "tests/unit/engine/support/support_golden.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const double F32_BOUND = 2e-5, CONTRACT_BOUND = 5e-2;

struct worst {
    double error;
    uint32_t n_rows;
};

static double log_sum_exp(const float *x, uint32_t n)
{
    double top = (double)x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        top = fmax(top, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

/* Every row's 64 largest logits and logsumexp, a prompt's last row whole. */
static struct worst compare_sample(const struct executor_config *cfg)
{
    struct worst worst = {0};
    struct golden g;
    struct model_run run;
    golden_open(&g, "sample_logits.bin", "SLLR");
    uint32_t n_prompts = golden_u32(&g), n_top = golden_u32(&g), n_whole = 0;
    for (uint32_t p = 0; p < n_prompts; p++) {
        uint32_t n_bytes = golden_u32(&g), n_ids = golden_u32(&g), vocab = golden_u32(&g);
        uint32_t whole = golden_u32(&g);
        golden_take(&g, n_bytes);
        uint32_t *ids = golden_copy(&g, n_ids);
        float *all = malloc((size_t)n_ids * vocab * sizeof(float));
        assert_non_null(all);
        model_run_open(&run, model_sample_path(), cfg);
        assert_int_equal(vocab, executor_model_info(run.ex)->vocab_size);
        model_run_all(&run, ids, n_ids, cfg->max_seqs, false, all);
        model_run_close(&run);
        for (uint32_t r = 0; r < n_ids; r++) {
            const float *row = all + (size_t)r * vocab;
            double expected = (double)golden_f32(&g), scale = (double)golden_f32(&g);
            double off = fabs(log_sum_exp(row, vocab) - expected);
            worst.error = match_worse(worst.error, off / scale);
            uint16_t *top_ids = golden_copy(&g, n_top / 2);
            float *top = golden_copy(&g, n_top);
            for (uint32_t i = 0; i < n_top; i++) {
                double d = fabs((double)row[top_ids[i]] - (double)top[i]);
                worst.error = match_worse(worst.error, d / scale);
            }
            worst.n_rows++;
            free(top_ids);
            free(top);
        }
        if (whole) {
            float *last = golden_row(&g, vocab);
            double e = model_relative_error(all + (size_t)(n_ids - 1) * vocab, last, vocab);
            worst.error = match_worse(worst.error, e);
            n_whole++;
            free(last);
        }
        free(all);
        free(ids);
    }
    assert_true(n_whole >= 1);
    golden_close(&g);
    return worst;
}

static void test_sample_f32_kernels_equal_transformers(void **state)
{
    struct executor_config cfg = model_run_config("f32");
    (void)state;
    struct worst worst = compare_sample(&cfg);
    print_message("sample, f32: %.2e over %u rows\n", worst.error, worst.n_rows);
    if (!(worst.error <= F32_BOUND))
        fail_msg("relative error %.3g exceeds %.3g", worst.error, F32_BOUND);
}

static void test_sample_contract_kernels_near_transformers(void **state)
{
    struct executor_config cfg = model_run_config("auto");
    (void)state;
    cfg.kv_dtype = DTYPE_BF16;
    struct worst worst = compare_sample(&cfg);
    print_message("sample, auto: %.2e over %u rows\n", worst.error, worst.n_rows);
    if (!(worst.error <= CONTRACT_BOUND))
        fail_msg("relative error %.3g exceeds %.3g", worst.error, CONTRACT_BOUND);
}

enum { N_CUT_TOKENS = 24 };

static void run_cut(const struct executor_config *cfg, const uint32_t *ids, uint32_t chunk,
                    float *out)
{
    struct model_run run;
    model_run_open(&run, model_sample_path(), cfg);
    model_run_all(&run, ids, N_CUT_TOKENS, chunk, false, out);
    model_run_close(&run);
}

static void check_cuts(const char *kernels)
{
    static const struct {
        uint32_t tp, n_threads, chunk;
    } cuts[] = {{1, 1, 16}, {1, 2, 5}, {2, 2, 16}, {4, 2, 7}};
    uint32_t ids[N_CUT_TOKENS];
    size_t n = (size_t)N_CUT_TOKENS * 49152;
    float *expected = malloc(n * sizeof(float)), *got = malloc(n * sizeof(float));
    assert_true(expected && got);
    for (uint32_t i = 0; i < N_CUT_TOKENS; i++)
        ids[i] = (i * 7919 + 17) % 49152;
    struct executor_config cfg = model_run_config(kernels);
    run_cut(&cfg, ids, 16, expected);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        cfg.tp = cuts[i].tp;
        cfg.n_threads = cuts[i].n_threads;
        run_cut(&cfg, ids, cuts[i].chunk, got);
        if (memcmp(got, expected, n * sizeof(float)) != 0)
            fail_msg("%s kernels: tp %u, %u threads, chunks of %u differ", kernels, cuts[i].tp,
                     cuts[i].n_threads, cuts[i].chunk);
    }
    free(expected);
    free(got);
}

static void test_sample_any_cut_same_bits(void **state)
{
    (void)state;
    check_cuts("f32");
    check_cuts("auto");
}

static uint64_t status_bytes(const char *key)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t kib = 0;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoull(line + strlen(key), NULL, 10);
    fclose(file);
    return kib * 1024;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* RssAnon + RssShmem grow by at most packed bytes × 1.15 + KV pool + 64 MiB. The plan agrees within
 * 2 % with the mapped memory. Closing the model returns the memory. */
static void test_sample_memory_within_limit(void **state)
{
    struct executor_config cfg = model_run_config("auto");
    struct executor_plan plan;
    struct model_run run;
    struct error err = {0};
    uint32_t ids[128];
    (void)state;
    for (uint32_t i = 0; i < 128; i++)
        ids[i] = i * 311 + 3;
    cfg.kv_dtype = DTYPE_BF16;
    cfg.kv_tokens = 8192;
    uint64_t before = status_bytes("RssAnon:") + status_bytes("RssShmem:");
    model_run_open(&run, model_sample_path(), &cfg);
    model_run_push(&run, model_run_add(&run, ids, 128), 128, 1);
    model_run_step(&run);
    uint64_t during = status_bytes("RssAnon:") + status_bytes("RssShmem:");
    const struct executor_plan *actual = executor_actual(run.ex);
    assert_int_equal(executor_plan(run.ckpt, &cfg, &plan, &err), 0);
    uint64_t planned = plan.weights_bytes + plan.kv_bytes + plan.workspace_bytes;
    uint64_t taken = actual->weights_bytes + actual->kv_bytes + actual->workspace_bytes;
    double limit = (double)actual->weights_bytes * 1.15 + (double)actual->kv_bytes + (64 << 20);
    print_message("packed %.1f MB (%.1f in huge pages), KV %.1f, workspace %.1f; resident +%.1f, "
                  "limit %.1f\n",
                  (double)actual->weights_bytes / 1e6, (double)actual->huge_page_bytes / 1e6,
                  (double)actual->kv_bytes / 1e6, (double)actual->workspace_bytes / 1e6,
                  (double)(during - before) / 1e6, limit / 1e6);
    assert_true(fabs((double)planned - (double)taken) <= 0.02 * (double)taken);
    /* All the weights are there, and little else is. */
    if (!SANITIZED) {
        assert_true(during - before >= actual->weights_bytes);
        assert_true((double)(during - before) <= limit);
    }
    model_run_close(&run);
    uint64_t after = status_bytes("RssAnon:") + status_bytes("RssShmem:");
    if (!SANITIZED)
        assert_true(after < before + (16 << 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sample_memory_within_limit),
        cmocka_unit_test(test_sample_f32_kernels_equal_transformers),
        cmocka_unit_test(test_sample_contract_kernels_near_transformers),
        cmocka_unit_test(test_sample_any_cut_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
