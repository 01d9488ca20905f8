/* Logits of quantized GGUF files of the families against transformers on the dequantized weights
 * (tests/golden/make_quantized.py). Four ranks can divide each of them. Ranks and pieces do not
 * change a bit. */
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
/* The contract's activations have 8 bits a token. On these widths the rounding alone changes a row
 * by 2 %, and a near tie of two experts changes a row by more. So the mean over the rows has the
 * contract's bound, and the worst row a wider one. */
static const double MEAN_BOUND = 3e-2, WORST_BOUND = 0.1;

static const char *const names[] = {
    "llama3_q8_0",        "stablelm_iq4_nl", "gpt2_iq4_nl", "gemma2_q8_0",      "qwen3moe_iq4_nl",
    "gpt_oss_gguf_mxfp4", "qwen35_q8_0",     "mamba2_q8_0", "deepseek_v2_q8_0",
};
enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

static const struct variant {
    const char *kernels;
    uint32_t tp, chunk;
} variants[] = {
    {"f32", 1, 64}, {"f32", 1, 7},   {"f32", 2, 16}, {"f32", 4, 16},  {"ref", 1, 16},
    {"auto", 1, 1}, {"auto", 1, 16}, {"auto", 2, 7}, {"auto", 4, 16},
};

static bool is_within(const struct variant *v, const char *name, uint64_t *hash, bool is_first)
{
    struct executor_config cfg = model_run_config(v->kernels);
    cfg.tp = v->tp;
    struct match m = match_golden(name, ".gguf", &cfg, v->chunk);
    if (is_first)
        *hash = m.hash;
    bool f32 = strcmp(v->kernels, "f32") == 0;
    double mean = m.sum / m.n_rows;
    bool near =
        m.error <= (f32 ? F32_BOUND : WORST_BOUND) && mean <= (f32 ? F32_BOUND : MEAN_BOUND);
    print_message(" %s/%u/%u %.1e, %.1e%s%s", v->kernels, v->tp, v->chunk, m.error, mean,
                  near ? "" : " (!)", m.hash == *hash ? "" : " (other bits)");
    return near && m.n_rows >= 16 && m.hash == *hash;
}

static void test_quantized_files_equal_transformers_in_any_pieces_and_ranks(void **state)
{
    const char *only = getenv("FAMILY");
    uint32_t n_bad = 0;
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        if (only && strcmp(only, names[i]) != 0)
            continue;
        uint64_t hash = 0;
        const char *kernels = "";
        print_message("%-24s", names[i]);
        for (size_t v = 0; v < sizeof(variants) / sizeof(variants[0]); v++) {
            n_bad += !is_within(&variants[v], names[i], &hash,
                                strcmp(kernels, variants[v].kernels) != 0);
            kernels = variants[v].kernels;
        }
        print_message("\n");
    }
    assert_int_equal(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantized_files_equal_transformers_in_any_pieces_and_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
