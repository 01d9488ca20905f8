/* Tests that each choice in the tables of families counts. With another kind of norm, reach, rope
 * or FFN, a golden checkpoint of the family is refused or gives other logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_stats.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "tests/unit/engine/support/support_observe.h"

enum { MAX_GOLDENS = 4 };

/* Goldens that reach all kinds of an architecture together. */
static const struct family {
    const struct arch *arch;
    const char *goldens[MAX_GOLDENS];
    /* The files' keys replace the table's choice. A residual of layers with a single part does not
     * count, either. */
    bool states_residual, states_activation;
    uint32_t n_without_window; /* so many first kinds serve files without a window */
} families[] = {
    {&arch_llama, {"llama3.gguf", "mistral"}, false, false, 0},
    {&arch_qwen3, {"qwen3.gguf"}, false, false, 0},
    {&arch_qwen3vl, {"qwen3vl.gguf"}, false, false, 0},
    {&arch_qwen2, {"qwen2.gguf", "qwen2_window"}, false, false, 0},
    {&arch_seed_oss, {"seed_oss.gguf"}, false, false, 0},
    {&arch_smollm3, {"smollm3.gguf"}, false, false, 0},
    {&arch_gemma2, {"gemma2.gguf"}, false, false, 0},
    {&arch_gemma3, {"gemma3.gguf"}, false, false, 0},
    {&arch_phi2, {"phi2.gguf", "phi2_norms"}, false, false, 0},
    {&arch_phi3, {"phi3.gguf"}, false, false, 0},
    {&arch_granite, {"granite.gguf"}, false, false, 0},
    {&arch_olmo2, {"olmo3.gguf"}, false, false, 0},
    {&arch_exaone4, {"exaone4.gguf", "exaone4_small.gguf"}, false, false, 1},
    {&arch_command_r, {"cohere_norms.gguf"}, false, false, 0},
    {&arch_cohere2, {"cohere2.gguf"}, false, false, 0},
    {&arch_glm4, {"glm4.gguf"}, false, false, 0},
    {&arch_starcoder2, {"starcoder2.gguf", "starcoder2_window"}, false, false, 0},
    {&arch_gptneox, {"gptneox.gguf"}, true, false, 0},
    {&arch_nemotron, {"nemotron.gguf"}, false, false, 0},
    {&arch_ernie4_5, {"ernie4_5.gguf"}, false, false, 0},
    {&arch_hunyuan_dense, {"hunyuan.gguf"}, false, false, 0},
    {&arch_mistral3, {"ministral3.gguf"}, false, false, 0},
    {&arch_stablelm, {"stablelm.gguf", "stablelm_norms"}, true, false, 0},
    {&arch_gpt2, {"gpt2.gguf"}, false, false, 0},
    {&arch_bloom, {"bloom.gguf"}, false, false, 0},
    {&arch_falcon, {"falcon.gguf"}, false, false, 0},
    {&arch_falcon_40b, {"falcon_40b.gguf"}, false, false, 0},
    {&arch_falcon_rw, {"falcon_rw"}, true, true, 0},
    {&arch_opt, {"opt"}, false, true, 0},
    {&arch_gptj, {"gptj"}, false, true, 0},
    {&arch_mpt, {"mpt"}, false, false, 0},
    {&arch_qwen3moe, {"qwen3moe.gguf", "qwen3moe_fused"}, false, true, 0},
    {&arch_mixtral, {"mixtral.gguf"}, false, false, 0},
    {&arch_gpt_oss, {"gpt_oss.gguf", "gpt_oss"}, false, false, 0},
    {&arch_gpt_oss_mxfp4, {"gpt_oss_mxfp4"}, false, false, 0},
    {&arch_qwen2moe, {"qwen2moe.gguf", "qwen2moe_dense"}, false, true, 0},
    {&arch_granitemoe, {"granitemoe.gguf", "granitemoe"}, false, false, 0},
    {&arch_glm4moe, {"glm4moe.gguf", "glm4moe"}, false, false, 0},
    {&arch_ernie4_5_moe, {"ernie4_5_moe.gguf"}, false, false, 0},
    {&arch_minimax_m2, {"minimax_m2.gguf", "minimax_m2"}, false, false, 0},
    {&arch_mimo2, {"mimo2.gguf", "mimo2"}, false, false, 0},
    {&arch_qwen35, {"qwen35.gguf", "qwen35"}, false, true, 0},
    {&arch_qwen35moe, {"qwen35moe.gguf", "qwen35moe"}, false, true, 0},
    {&arch_qwen3next, {"qwen3next.gguf", "qwen3next"}, false, true, 0},
    {&arch_deepseek2, {"deepseek_v3.gguf", "deepseek_v2_lite"}, false, true, 0},
    {&arch_gemma4, {"gemma4.gguf", "gemma4"}, false, false, 0},
    {&arch_gemma4_moe, {"gemma4_moe.gguf", "gemma4_moe"}, false, false, 0},
    {&arch_llama4, {"llama4_8192.gguf", "llama4"}, false, false, 0},
    {&arch_lfm2, {"lfm2.gguf", "lfm2"}, false, false, 0},
    {&arch_lfm2moe, {"lfm2moe.gguf", "lfm2moe"}, false, false, 0},
    {&arch_mamba2, {"mamba2.gguf", "mamba2"}, true, false, 0},
    {&arch_granitehybrid, {"granitehybrid.gguf", "granitehybrid_moe.gguf"}, false, false, 0},
    {&arch_nemotron_h, {"nemotron_h.gguf", "nemotron_h_moe.gguf"}, true, false, 0},
    {&arch_falcon_h1, {"falcon_h1.gguf", "falcon_h1_bare"}, false, false, 0},
};

static struct checkpoint *ckpts[MAX_GOLDENS];
static struct observation expected[MAX_GOLDENS];
static uint32_t n_mutations;

static bool is_noticed(const struct family *f, const struct arch *arch)
{
    for (uint32_t i = 0; i < MAX_GOLDENS && f->goldens[i]; i++) {
        struct observation now;
        observe(arch, ckpts[i], &now);
        if (!observe_same(&now, &expected[i]))
            return true;
    }
    return false;
}

/* Tries every other value below n of an enum or bool field of the copy `arch`. */
#define EACH_OTHER(field, n, kind)                                                                 \
    for (int value_ = 0; value_ < (int)(n); value_++) {                                            \
        int good_ = (int)(field);                                                                  \
        if (value_ == good_)                                                                       \
            continue;                                                                              \
        (field) = value_;                                                                          \
        n_mutations++;                                                                             \
        if (!is_noticed(f, &arch)) {                                                               \
            print_message("%s %s: %s = %d: nothing noticed\n", arch.name, (kind), #field, value_); \
            n_bad++;                                                                               \
        }                                                                                          \
        (field) = good_;                                                                           \
    }

static uint32_t try_mixer(const struct family *f, uint32_t i)
{
    struct arch arch = *f->arch;
    struct arch_mixer *m = &arch.mixers[i];
    uint32_t n_bad = 0;
    EACH_OTHER(m->mixing, N_ARCH_MIXINGS, m->name);
    EACH_OTHER(m->reach, i < f->n_without_window ? 1 : 3, m->name);
    EACH_OTHER(m->rope, ARCH_MAX_ROPES, m->name);
    EACH_OTHER(m->head_norm, 2, m->name);
    EACH_OTHER(m->head_norm_scope, 3, m->name);
    EACH_OTHER(m->head_norms, 2, m->name);
    /* a norm without weights commutes with rope */
    if (m->rope != ARCH_NO_ROPE && m->head_norms != ARCH_HEAD_NORMS_BARE)
        EACH_OTHER(m->norm_after_rope, 2, m->name);
    EACH_OTHER(m->bare_value_norm, 2, m->name);
    EACH_OTHER(m->has_temperature, 2, m->name);
    if (m->keys_as_values) /* allows files without values, and changes no other */
        EACH_OTHER(m->keys_as_values, 2, m->name);
    if (m->mixing == ARCH_MIXING_MAMBA2 || m->mixing == ARCH_MIXING_ATTENTION_MAMBA2)
        EACH_OTHER(m->norm_before_gate, 2, m->name);
    return n_bad;
}

/* A softmax over the chosen experts equals one over all that is renormalised. */
static bool renormalises(const struct family *f)
{
    return f->arch == &arch_mixtral || f->arch == &arch_qwen35moe || f->arch == &arch_qwen3next;
}

static uint32_t try_router(const struct family *f, uint32_t i)
{
    struct arch arch = *f->arch;
    struct arch_router *r = &arch.ffns[i].router;
    uint32_t n_bad = 0;
    EACH_OTHER(r->score, renormalises(f) ? ROUTER_SIGMOID + 1 : ROUTER_SQRT_SOFTPLUS + 1, "router");
    /* Without groups, nothing reads the field. Both scores choose the same groups for the last
     * token of DeepSeek's goldens; test_latent_families.c compares 41. */
    if (r->group_score && f->arch != &arch_deepseek2)
        EACH_OTHER(r->group_score, 2, "router");
    EACH_OTHER(r->weight, 2, "router");
    return n_bad;
}

static uint32_t try_rest(const struct family *f)
{
    struct arch arch = *f->arch;
    uint32_t n_bad = 0;
    EACH_OTHER(arch.norm, 2, "");
    if (!f->states_residual)
        EACH_OTHER(arch.residual, 2, "");
    for (uint32_t i = 0; i < arch.n_ffns; i++) {
        struct arch_ffn *ffn = &arch.ffns[i];
        EACH_OTHER(ffn->body, ARCH_FFN_BOTH + 1, ffn->name);
        if (ffn->body == ARCH_FFN_NONE)
            continue;
        EACH_OTHER(ffn->form, 2, ffn->name);
        if (ffn->body == ARCH_FFN_EXPERTS)
            n_bad += try_router(f, i);
        if (!f->states_activation)
            EACH_OTHER(ffn->activation, N_ACTIVATIONS, ffn->name);
    }
    return n_bad;
}

static void test_every_choice_of_a_family_counts(void **state)
{
    uint32_t n_bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct family *f = &families[i];
        for (uint32_t g = 0; g < MAX_GOLDENS && f->goldens[g]; g++) {
            ckpts[g] = observe_open(f->goldens[g]);
            observe(f->arch, ckpts[g], &expected[g]);
            assert_string_equal(expected[g].error, "");
        }
        for (uint32_t m = 0; m < f->arch->n_mixers; m++)
            n_bad += try_mixer(f, m);
        n_bad += try_rest(f);
        for (uint32_t g = 0; g < MAX_GOLDENS && f->goldens[g]; g++)
            checkpoint_close(ckpts[g]);
    }
    print_message("%u mutations\n", n_mutations);
    assert_int_equal(n_bad, 0);
}

/* The manager estimates a KV cache by this number. Layers of MiMo-V2 differ in their KV heads, and
 * their values are narrower than their keys. */
static void test_facts_count_the_cache_of_a_token(void **state)
{
    struct checkpoint *ckpt = observe_open("mimo2");
    struct model_info info;
    struct error err;
    (void)state;
    assert_int_equal(engine_read_model_info(ckpt, &info, &err), 0);
    assert_int_equal(info.head_dim, 24);
    assert_int_equal(info.kv_elements, (1 + 2) * (24 + 16));
    checkpoint_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_choice_of_a_family_counts),
        cmocka_unit_test(test_facts_count_the_cache_of_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
