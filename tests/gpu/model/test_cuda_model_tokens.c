/* Compares greedy tokens of the GPU with the CPU's, over whole models. Along the CPU's own answers,
 * the GPU's likeliest token must be the CPU's. Exception: the CPU's first two tokens are nearer
 * than the margin of docs/house/gpu.md. Needs a GPU, or tests/simt. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/gpu/support/gpu_model.h"

enum { N_PROMPTS = 4, N_STEPS = 24 };

static const uint32_t prompt_tokens[N_PROMPTS] = {3, 9, 17, 21};

struct model {
    const char *name;
    uint32_t type;
    enum weight_store store;
    enum dtype kv;
    double margin; /* margin between the first two logits, relative to the row's largest */
};

/* An error e of logits can swap two tokens within 2·e. F32 with an F32 cache rounds as the CPU
 * does, except for the order of sums. With a cache of 16 bits, prompts' attention has its products
 * in 16 bits. */
static const struct model models[] = {
    {"f32, KV f32", GGML_F32, WEIGHT_STORE_SOURCE, DTYPE_F32, 1e-4},
    {"f32", GGML_F32, WEIGHT_STORE_SOURCE, DTYPE_BF16, 0.05},
    {"bf16", GGML_BF16, WEIGHT_STORE_SOURCE, DTYPE_BF16, 0.05},
    {"int8", GGML_F32, WEIGHT_STORE_INT8, DTYPE_BF16, 0.05},
    {"q8_0", GGML_Q8_0, WEIGHT_STORE_SOURCE, DTYPE_BF16, 0.05},
    {"q4_1", GGML_Q4_1, WEIGHT_STORE_SOURCE, DTYPE_BF16, 0.05},
    {"q4_k", GGML_Q4_K, WEIGHT_STORE_SOURCE, DTYPE_BF16, 0.05},
};

/* Prompts with their generated tokens, and the logits from which each token was chosen. */
struct answers {
    uint32_t ids[N_PROMPTS][N_TOKENS];
    float logits[N_STEPS][N_PROMPTS][VOCAB];
};

static uint32_t likeliest(const float *logits)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void run_step(struct model_run *run, uint32_t i_step, struct answers *a)
{
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        model_run_push(run, p, i_step ? 1 : prompt_tokens[p], 1);
    model_run_step(run);
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        memcpy(a->logits[i_step][p], executor_logits(run->ex, p), sizeof(a->logits[0][0]));
}

/* Continues all prompts side by side, token by token, with the tokens of `a`. With `chooses`, first
 * chooses each token and stores it in `a`. */
static void answer(const struct model *m, const struct executor_config *cfg, bool chooses,
                   struct answers *a)
{
    struct tiny_spec spec = tiny_spec_default();
    struct model_run run;
    spec.matrix_type = m->type;
    spec.rounded_for = m->store;
    spec.untied = true; /* else a token's likeliest successor is itself */
    if (m->type == GGML_Q4_K)
        spec.hidden = 256;
    model_run_open_ckpt(&run, tiny_open(&spec), cfg);
    for (uint32_t p = 0; p < N_PROMPTS; p++)
        model_run_add(&run, a->ids[p], prompt_tokens[p] + N_STEPS);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        run_step(&run, i, a);
        run.generated = true;
        for (uint32_t p = 0; chooses && p < N_PROMPTS; p++)
            a->ids[p][prompt_tokens[p] + i] = likeliest(a->logits[i][p]);
    }
    model_run_close(&run);
}

/* Returns the margin between a row's two largest logits, relative to the row's largest magnitude.
 */
static double margin_of(const float *logits)
{
    uint32_t best = likeliest(logits);
    float next = -FLT_MAX, largest = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        if (i != best && logits[i] > next)
            next = logits[i];
        largest = fmaxf(largest, fabsf(logits[i]));
    }
    return (double)(logits[best] - next) / (double)largest;
}

static void compare(const struct model *m, const struct answers *cpu, const struct answers *gpu)
{
    uint32_t n_other = 0, n_sure = 0;
    double widest = 0, error = 0;
    for (uint32_t i = 0; i < N_STEPS; i++)
        for (uint32_t p = 0; p < N_PROMPTS; p++) {
            const float *expected = cpu->logits[i][p], *got = gpu->logits[i][p];
            double margin = margin_of(expected);
            error = fmax(error, model_relative_error(got, expected, VOCAB));
            n_sure += margin > m->margin;
            if (likeliest(got) == likeliest(expected))
                continue;
            n_other++;
            widest = fmax(widest, margin);
            if (margin > m->margin)
                fail_msg("%s: token %u behind prompt %u is %u, the CPU's is %u by %.3g of the "
                         "largest logit, more than %.3g",
                         m->name, i, p, likeliest(got), likeliest(expected), margin, m->margin);
        }
    print_message("%s: %u of %u tokens are others, at most %.2e apart; logits %.2e\n", m->name,
                  n_other, N_STEPS * N_PROMPTS, widest, error);
    /* enough tokens have a margin that allows a comparison */
    assert_true(n_sure >= N_STEPS * N_PROMPTS / 2);
}

static void test_tokens_are_the_cpus_within_the_margin(void **state)
{
    static struct answers cpu, gpu;
    (void)state;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        const struct model *m = &models[i];
        struct executor_config on_cpu = model_run_config("ref"), on_gpu = gpu_config();
        on_cpu.kv_dtype = on_gpu.kv_dtype = m->kv;
        on_gpu.store = m->store;
        on_gpu.prompt_arithmetic = PROMPT_ARITHMETIC_EXACT; /* the CPU has no other */
        memcpy(cpu.ids, ids, sizeof(cpu.ids));
        answer(m, &on_cpu, true, &cpu);
        memcpy(gpu.ids, cpu.ids, sizeof(gpu.ids));
        answer(m, &on_gpu, false, &gpu);
        compare(m, &cpu, &gpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_are_the_cpus_within_the_margin),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, make_ids, NULL);
}
