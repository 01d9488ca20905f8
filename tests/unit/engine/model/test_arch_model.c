/* Tests of checkpoints that are refused. Every refusal names the key or tensor, its value and the
 * expected value. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_tiny.h"

struct refusal {
    const char *change; /* field of tiny_spec that `apply` sets */
    void (*apply)(struct tiny_spec *spec);
    int status;
    const char *text;
    bool absent; /* the key or tensor is not in the file: there is no offset */
};

#define APPLY(name, ...)                                                                           \
    static void name(struct tiny_spec *s)                                                          \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

APPLY(no_architecture, s->skip = "general.architecture")
APPLY(other_architecture, s->architecture = "mamba")
APPLY(no_layers, s->skip = "llama.block_count")
APPLY(zero_layers, s->set_key = "llama.block_count"; s->set_value = 0)
APPLY(many_layers, s->set_key = "llama.block_count"; s->set_value = 4000000000U)
APPLY(one_layer_more, s->set_key = "llama.block_count"; s->set_value = 3)
APPLY(one_layer_less, s->set_key = "llama.block_count"; s->set_value = 1)
APPLY(zero_context, s->set_key = "llama.context_length"; s->set_value = 0)
APPLY(wrong_hidden, s->set_key = "llama.embedding_length"; s->set_value = 96)
APPLY(huge_hidden, s->set_key = "llama.embedding_length"; s->set_value = 1 << 30)
APPLY(wrong_ffn, s->set_key = "llama.feed_forward_length"; s->set_value = 128)
APPLY(zero_heads, s->set_key = "llama.attention.head_count"; s->set_value = 0)
APPLY(kv_not_dividing, s->set_key = "llama.attention.head_count_kv"; s->set_value = 3)
APPLY(kv_more_than_heads, s->set_key = "llama.attention.head_count_kv"; s->set_value = 16)
APPLY(odd_head_dim, s->set_key = "llama.attention.key_length"; s->set_value = 33)
APPLY(value_dim, s->set_key = "llama.attention.value_length"; s->set_value = 64)
APPLY(huge_value_dim, s->set_key = "llama.attention.value_length"; s->set_value = 577)
APPLY(odd_rot, s->set_key = "llama.rope.dimension_count"; s->set_value = 31)
APPLY(wide_rot, s->set_key = "llama.rope.dimension_count"; s->set_value = 34)
APPLY(wrong_vocab, s->set_key = "llama.vocab_size"; s->set_value = 299)
APPLY(huge_eps, s->real_key = "llama.attention.layer_norm_rms_epsilon"; s->real_value = 3)
APPLY(zero_eps, s->real_key = "llama.attention.layer_norm_rms_epsilon"; s->real_value = 0)
APPLY(nan_eps, s->real_key = "llama.attention.layer_norm_rms_epsilon"; s->real_value = NAN)
APPLY(no_eps, s->skip = "llama.attention.layer_norm_rms_epsilon")
APPLY(negative_base, s->real_key = "llama.rope.freq_base"; s->real_value = -1)
APPLY(unknown_key, s->set_key = "llama.attention.chunk_size"; s->set_value = 4096)
APPLY(experts, s->set_key = "llama.expert_count"; s->set_value = 8)
APPLY(scaling, s->text_key = "llama.rope.scaling.type"; s->text_value = "longrope")
APPLY(scaling_type, s->set_key = "llama.rope.scaling.type"; s->set_value = 1)
APPLY(no_embedding, s->skip = "token_embd.weight")
APPLY(no_norm, s->skip = "output_norm.weight")
APPLY(no_query, s->skip = "blk.1.attn_q.weight")
APPLY(wide_query, s->wide = "blk.1.attn_q.weight")
APPLY(wide_norm, s->wide = "blk.0.ffn_norm.weight")
APPLY(wide_output, s->untied = true; s->wide = "output.weight")
APPLY(gpt2, s->form = TINY_GPT2; s->n_kv_heads = s->n_heads)
APPLY(bloom, s->form = TINY_BLOOM; s->n_kv_heads = s->n_heads)
APPLY(gpt2_long, gpt2(s); s->set_key = "gpt2.context_length"; s->set_value = 512)
APPLY(gpt2_no_table, gpt2(s); s->skip = "position_embd.weight")
APPLY(gpt2_wide, gpt2(s); s->wide = "blk.1.attn_qkv.weight")
APPLY(gpt2_short_bias, gpt2(s); s->wide = "blk.1.attn_qkv.bias")
APPLY(gpt2_no_bias, gpt2(s); s->skip = "blk.0.attn_qkv.bias")
APPLY(gpt2_rope, gpt2(s); s->real_key = "gpt2.rope.freq_base"; s->real_value = 10000)
APPLY(gpt2_alibi, gpt2(s); s->real_key = "gpt2.attention.max_alibi_bias"; s->real_value = 8)
APPLY(bloom_no_norm, bloom(s); s->skip = "token_embd_norm.weight")
APPLY(bloom_alibi, bloom(s); s->real_key = "bloom.attention.max_alibi_bias"; s->real_value = 0)
APPLY(leftover, s->extra_tensor = "blk.0.attn_sinks.weight")

static const struct refusal refusals[] = {
    {"no architecture", no_architecture, STATUS_INVALID_ARGUMENT, "general.architecture", true},
    {"other architecture", other_architecture, STATUS_UNIMPLEMENTED, "general.architecture|mamba",
     false},
    {"no layers", no_layers, STATUS_INVALID_ARGUMENT, "llama.block_count", true},
    {"0 layers", zero_layers, STATUS_INVALID_ARGUMENT, "0|1..1024", false},
    {"4e9 layers", many_layers, STATUS_INVALID_ARGUMENT, "4000000000|1..1024", false},
    {"a layer more", one_layer_more, STATUS_INVALID_ARGUMENT, "blk.2.attn_norm.weight", true},
    {"a layer less", one_layer_less, STATUS_UNIMPLEMENTED, "blk.1", false},
    {"no context", zero_context, STATUS_INVALID_ARGUMENT, "llama.context_length", false},
    {"wrong hidden", wrong_hidden, STATUS_INVALID_ARGUMENT, "[64, 300]|2|[96, 300]", false},
    {"huge hidden", huge_hidden, STATUS_INVALID_ARGUMENT, "1073741824|1..65536", false},
    {"wrong MLP", wrong_ffn, STATUS_INVALID_ARGUMENT, "blk.0.ffn_gate.weight", false},
    {"0 heads", zero_heads, STATUS_INVALID_ARGUMENT, "llama.attention.head_count", false},
    {"3 KV heads", kv_not_dividing, STATUS_INVALID_ARGUMENT, "3|8", false},
    {"16 KV heads", kv_more_than_heads, STATUS_INVALID_ARGUMENT, "16|1..8", false},
    {"odd head", odd_head_dim, STATUS_INVALID_ARGUMENT, "33", false},
    {"value dim", value_dim, STATUS_INVALID_ARGUMENT, "blk.0.attn_v.weight|[64, 128]|2|[64, 256]",
     false},
    {"huge value dim", huge_value_dim, STATUS_INVALID_ARGUMENT,
     "llama.attention.value_length|577|1..576", false},
    {"odd rot", odd_rot, STATUS_INVALID_ARGUMENT, "31", false},
    {"wide rot", wide_rot, STATUS_INVALID_ARGUMENT, "34|1..32", false},
    {"vocab", wrong_vocab, STATUS_INVALID_ARGUMENT, "[64, 299]", false},
    {"huge eps", huge_eps, STATUS_INVALID_ARGUMENT, "3|[1e-12, 0.1]", false},
    {"zero eps", zero_eps, STATUS_INVALID_ARGUMENT, "0|[1e-12, 0.1]", false},
    {"NaN eps", nan_eps, STATUS_INVALID_ARGUMENT, "llama.attention.layer_norm_rms_epsilon", false},
    {"no eps", no_eps, STATUS_INVALID_ARGUMENT, "layer_norm_rms_epsilon", true},
    {"negative base", negative_base, STATUS_INVALID_ARGUMENT, "llama.rope.freq_base", false},
    {"unknown key", unknown_key, STATUS_UNIMPLEMENTED, "llama.attention.chunk_size", false},
    {"experts without their number per token", experts, STATUS_INVALID_ARGUMENT,
     "llama.expert_used_count", true},
    {"scaling", scaling, STATUS_UNIMPLEMENTED, "llama.rope.scaling.type", false},
    {"scaling's type", scaling_type, STATUS_INVALID_ARGUMENT, "llama.rope.scaling.type", false},
    {"no embedding", no_embedding, STATUS_INVALID_ARGUMENT, "token_embd.weight", true},
    {"no norm", no_norm, STATUS_INVALID_ARGUMENT, "output_norm.weight", true},
    {"no query", no_query, STATUS_INVALID_ARGUMENT, "blk.1.attn_q.weight", true},
    {"wide query", wide_query, STATUS_INVALID_ARGUMENT, "blk.1.attn_q.weight|[96, 256]|2|[64, 256]",
     false},
    {"wide norm", wide_norm, STATUS_INVALID_ARGUMENT, "[96, 1]|1|[64, 1]", false},
    {"wide output", wide_output, STATUS_INVALID_ARGUMENT, "output.weight", false},
    {"GPT-2 beyond its table", gpt2_long, STATUS_INVALID_ARGUMENT,
     "position_embd.weight|[64, 256]|2|[64, 512]", false},
    {"GPT-2 without a table", gpt2_no_table, STATUS_INVALID_ARGUMENT, "position_embd.weight", true},
    {"GPT-2, wide QKV", gpt2_wide, STATUS_INVALID_ARGUMENT,
     "blk.1.attn_qkv.weight|[96, 768]|2|[64, 768]", false},
    {"GPT-2, long QKV bias", gpt2_short_bias, STATUS_INVALID_ARGUMENT, "[800, 1]|1|[768, 1]",
     false},
    {"GPT-2, no QKV bias", gpt2_no_bias, STATUS_INVALID_ARGUMENT, "blk.0.attn_qkv.bias", true},
    {"GPT-2 with rope", gpt2_rope, STATUS_UNIMPLEMENTED, "gpt2.rope.freq_base", false},
    {"GPT-2 with ALiBi", gpt2_alibi, STATUS_UNIMPLEMENTED, "gpt2.attention.max_alibi_bias", false},
    {"BLOOM, no embedding norm", bloom_no_norm, STATUS_INVALID_ARGUMENT, "token_embd_norm.weight",
     true},
    {"BLOOM, no bias", bloom_alibi, STATUS_INVALID_ARGUMENT, "0|[0.001, 1000]", false},
    {"leftover", leftover, STATUS_UNIMPLEMENTED, "blk.0.attn_sinks.weight", false},
};

static void test_init_bad_file_says_what_and_where(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct refusal *r = &refusals[i];
        struct tiny_spec spec = tiny_spec_default();
        struct error err = {0};
        struct model model;
        r->apply(&spec);
        struct checkpoint *ckpt = tiny_open(&spec);
        int rc = model_init(&model, ckpt, NULL, &err);
        model_fini(&model);
        checkpoint_close(ckpt);
        if (rc != r->status || !names_all(err.message, r->text))
            fail_msg("%s: %s \"%s\", expected %s \"%s\"", r->change, status_name(rc), err.message,
                     status_name(r->status), r->text);
        if (rc == STATUS_INVALID_ARGUMENT)
            assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        if (!r->absent && !strstr(err.message, ": offset "))
            fail_msg("%s: \"%s\" names no offset", r->change, err.message);
        /* The sentence names the value and the known values, then the remedy. Symptom: "... is not
         * known is not supported" named neither. */
        const char *what_to_do = strstr(err.message, "; ");
        if (!what_to_do || strlen(what_to_do) < 20 || strstr(what_to_do + 1, "; "))
            fail_msg("%s: \"%s\" is not one sentence that says what to do", r->change, err.message);
    }
}

static void test_init_derives_absent_keys(void **state)
{
    static const char *const keys[] = {
        "llama.attention.key_length", "llama.attention.value_length",  "llama.rope.dimension_count",
        "llama.vocab_size",           "llama.attention.head_count_kv", "llama.rope.freq_base"};
    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct tiny_spec spec = tiny_spec_default();
        struct error err = {0};
        struct model model;
        spec.hidden = 256; /* = heads · head_dim, so that the head's width follows */
        spec.n_kv_heads = spec.n_heads;
        spec.skip = keys[i];
        struct checkpoint *ckpt = tiny_open(&spec);
        if (model_init(&model, ckpt, NULL, &err) != 0)
            fail_msg("without %s: %s", keys[i], err.message);
        const struct model_layer *layer = &model.shape.layers[1];
        assert_int_equal(layer->k_dim, 32);
        assert_int_equal(layer->v_dim, 32);
        assert_int_equal(model.shape.ropes[0].n_rot, 32);
        assert_int_equal(model.shape.vocab_size, 300);
        assert_int_equal(layer->n_kv_heads, 8);
        assert_true(model.shape.ropes[0].base == 10000);
        assert_true(model.tied_output);
        model_fini(&model);
        checkpoint_close(ckpt);
    }
}

static void test_find_unknown_is_null(void **state)
{
    (void)state;
    const struct arch_source *source = NULL;
    assert_ptr_equal(arch_find("gguf", "llama", &source), &arch_llama);
    assert_ptr_equal(source, &arch_llama.sources[0]);
    assert_ptr_equal(arch_find("gguf", "gpt2", NULL), &arch_gpt2);
    assert_ptr_equal(arch_find("gguf", "bloom", NULL), &arch_bloom);
    assert_null(arch_find("gguf", "Llama", NULL));
    assert_null(arch_find("gguf", "", NULL));
    assert_null(arch_find("safetensors", "llama", NULL));
    assert_null(arch_find_source(&arch_llama, "safetensors", "llama"));
    assert_non_null(arch_find_source(&arch_llama, "gguf", "other"));
}

static void test_ignored_names_begin_with_a_pattern(void **state)
{
    static const char names[] = "visual.|model.layers.%u.rotary_emb.inv_freq";
    (void)state;
    assert_true(arch_names_begin(names, "visual.blocks.0.weight"));
    assert_true(arch_names_begin(names, "model.layers.17.rotary_emb.inv_freq"));
    assert_false(arch_names_begin(names, "model.layers..rotary_emb.inv_freq"));
    assert_false(arch_names_begin(names, "model.layers.1x.rotary_emb.inv_freq"));
    assert_false(arch_names_begin(names, "model.layers.17.rotary"));
    assert_false(arch_names_begin(NULL, "visual."));
}

static void test_name_bad_pattern_refused(void **state)
{
    char name[16];
    (void)state;
    assert_true(arch_name_at("blk.%u.x", 0, 17, 0, name, sizeof(name)));
    assert_string_equal(name, "blk.17.x");
    assert_false(arch_name_at("blk.%u.x", 0, 17, 0, name, 8));
    assert_true(arch_name_at("b.%u.e.%u", 0, 17, 3, name, sizeof(name)));
    assert_string_equal(name, "b.17.e.3");
    assert_false(arch_name_at("b.%u.%u.%u", 0, 1, 1, name, sizeof(name)));
    assert_false(arch_name_at("blk.%s", 0, 1, 0, name, sizeof(name)));
    assert_false(arch_name_at("blk.%", 0, 1, 0, name, sizeof(name)));
    assert_true(arch_name_at("plain", 0, 1, 0, name, sizeof(name)));
    assert_string_equal(name, "plain");
    assert_true(arch_name_at("one|two.%u", 1, 4, 0, name, sizeof(name)));
    assert_string_equal(name, "two.4");
    assert_false(arch_name_at("one|two", 2, 0, 0, name, sizeof(name)));
}

static void test_names_are_found_whole(void **state)
{
    (void)state;
    assert_true(arch_names_have("one|two|three", "two"));
    assert_true(arch_names_have("one|two|three", "three"));
    assert_false(arch_names_have("one|two", "tw"));
    assert_false(arch_names_have("one|two", "two|"));
    assert_false(arch_names_have("one|two", ""));
    assert_true(arch_names_begin("v.|mm.", "mm.0.weight"));
    assert_false(arch_names_begin("v.|mm.", "blk.0"));
    assert_false(arch_names_begin(NULL, "blk.0"));
}

/* By hand from the formulas of arXiv 2309.00071, for 8 dimensions and base 10000. */
static void test_rope_freqs_scalings(void **state)
{
    struct rope_set s = {.n_rot = 8,
                         .base = 10000,
                         .factor = 4,
                         .original_context = 1024,
                         .attn_factor = 1,
                         .ext_factor = 1,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .low_freq = 1,
                         .high_freq = 4,
                         .truncate = true};
    const double plain[4] = {1, 0.1, 0.01, 0.001};
    const float divisors[4] = {1, 2, 4, 8};
    float f[4];
    (void)state;
    assert_true(shape_rope_freqs(&s, NULL, f) == 1);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] / plain[i] - 1) < 1e-6);
    shape_rope_freqs(&s, divisors, f);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] * (double)divisors[i] / plain[i] - 1) < 1e-6);
    s.scaling = ROPE_SCALING_LINEAR;
    assert_true(shape_rope_freqs(&s, NULL, f) == 1);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] * 4 / plain[i] - 1) < 1e-6);
    /* YaRN: dimensions floor(0.706) = 0 to ceil(2.211) = 3: the ramp is i / 3. */
    s.scaling = ROPE_SCALING_YARN;
    const double yarn[4] = {1, 0.1 * (2.0 / 3 + 1.0 / 3 / 4), 0.01 * (1.0 / 3 + 2.0 / 3 / 4),
                            0.001 / 4};
    double attention = (double)shape_rope_freqs(&s, NULL, f);
    assert_true(fabs(attention - 1.1386294) < 1e-6);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)f[i] / yarn[i] - 1) < 1e-6);
}

/* Symptom: rope.scaling.attn_factor had no effect except in YaRN without its mscale pair. */
static void test_rope_attn_factor_counts_in_every_scaling(void **state)
{
    static const struct {
        enum rope_scaling scaling;
        double factor, ext_factor, mscale, attention, expected;
    } cases[] = {
        {ROPE_SCALING_NONE, 1, 1, 0, 0, 1.5},
        {ROPE_SCALING_LINEAR, 4, 1, 0, 0, 1.5},
        {ROPE_SCALING_LLAMA3, 4, 1, 0, 0, 1.5},
        {ROPE_SCALING_DYNAMIC, 4, 1, 0, 0, 1.5},
        {ROPE_SCALING_YARN, 4, 1, 0, 0, 1.5 * 1.13862944},
        {ROPE_SCALING_YARN, 4, 1, 1, 0, 1.5},
        {ROPE_SCALING_YARN, 4, 0, 0, 0, 1.5}, /* without the ramp: as linear */
        {ROPE_SCALING_YARN, 0.5, 1, 0, 0, 1.5},
        {ROPE_SCALING_YARN, 4, 1, 1, 1.25, 1.25},
        {ROPE_SCALING_LONGROPE, 4, 1, 0, 0, 1.5 * 1.09544512},
        {ROPE_SCALING_LONGROPE, 4, 1, 0, 1.25, 1.25},
        {ROPE_SCALING_LINEAR, 4, 1, 0, 1.25, 1.5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rope_set s = {.n_rot = 8,
                             .base = 10000,
                             .scaling = cases[i].scaling,
                             .factor = cases[i].factor,
                             .original_context = 1024,
                             .attn_factor = 1.5,
                             .attention = cases[i].attention,
                             .ext_factor = cases[i].ext_factor,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .mscale = cases[i].mscale,
                             .mscale_all = cases[i].mscale,
                             .low_freq = 1,
                             .high_freq = 4};
        float f[4];
        double found = (double)shape_rope_freqs(&s, NULL, f);
        if (fabs(found - cases[i].expected) > 1e-6)
            fail_msg("case %zu: factor %g, expected %g", i, found, cases[i].expected);
    }
}

/* Symptom: messages printed the number of a slot, which says nothing to a stranger. */
static void test_slots_have_names_of_their_own(void **state)
{
    (void)state;
    for (int i = 0; i < N_ARCH_SLOTS; i++) {
        const char *name = arch_slot_name((enum arch_slot)i);
        assert_non_null(name);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(name, arch_slot_name((enum arch_slot)k));
    }
}

/* arXiv 2108.12409: 8 heads have the slopes 1/2, 1/4, … 1/256. For other numbers of heads, the
 * authors' code takes the slopes of the power of two below. The code then takes every second slope
 * of the power above. */
static void test_alibi_slopes(void **state)
{
    float eight[8], f[112];
    (void)state;
    shape_alibi_slopes(8, 8, eight);
    for (int h = 0; h < 8; h++)
        assert_true(eight[h] == 1.0F / (float)(2 << h));
    shape_alibi_slopes(8, 12, f);
    assert_memory_equal(f, eight, sizeof(eight));
    for (int h = 8; h < 12; h++) /* factors of 16 heads: 2^-0.5, 2^-1.5, … */
        assert_true(f[h] == (float)(0.70710678118654752 / (1 << (h - 8))));
    shape_alibi_slopes(8, 112,
                       f); /* BLOOM 176B: slopes of 64 heads, then 48 of the slopes of 128 */
    assert_true(f[63] == 1.0F / 256 && f[7] == 0.5F);
    assert_true(fabs((double)f[64] - pow(2, -1.0 / 16)) < 1e-7);
    assert_true(fabs((double)f[111] - pow(2, -95.0 / 16)) < 1e-9);
    shape_alibi_slopes(8, 1, f);
    assert_true(f[0] == 1.0F / 256);
}

/* The models of 27B have 46 and 62 layers, and take hidden / heads in place of the head's width.
 * Here the models of 2 and 6 layers of the goldens do. */
static void test_attn_scale_follows_from_the_number_of_layers(void **state)
{
    static const struct {
        const char *golden;
        const struct arch *arch;
        uint32_t own_layers, n_layers;
        double hidden_per_head;
    } cases[] = {
        {"gemma2.gguf", &arch_gemma2, 46, 2, 4},
        {"gemma3.gguf", &arch_gemma3, 62, 6, 6},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct checkpoint *ckpt = NULL;
        struct error err = {0};
        struct arch_source source;
        struct model_shape shape;
        char path[512];
        snprintf(path, sizeof(path), SLUICE_SOURCE_DIR "/tests/golden/tiny/%s", cases[i].golden);
        assert_int_equal(checkpoint_open(path, &ckpt, &err), 0);
        assert_true(arch_source_init(&source, &cases[i].arch->sources[0]));
        struct arch_param *row = (struct arch_param *)(uintptr_t)arch_find_param(
            &source, ARCH_PARAM_ATTN_SCALE_LAYERS, 0);
        assert_true(row->fallback == cases[i].own_layers);
        const char *prefix = i ? "gemma3." : "gemma2.";
        assert_int_equal(shape_read(ckpt, cases[i].arch, &source, prefix, &shape, &err), 0);
        assert_true(shape.attn_scale == 0); /* 1/√k_dim */
        shape_fini(&shape);
        row->fallback = cases[i].n_layers;
        assert_int_equal(shape_read(ckpt, cases[i].arch, &source, prefix, &shape, &err), 0);
        assert_true(fabs((double)shape.attn_scale - 1 / sqrt(cases[i].hidden_per_head)) < 1e-6);
        shape_fini(&shape);
        arch_source_fini(&source);
        checkpoint_close(ckpt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_bad_file_says_what_and_where),
        cmocka_unit_test(test_init_derives_absent_keys),
        cmocka_unit_test(test_find_unknown_is_null),
        cmocka_unit_test(test_name_bad_pattern_refused),
        cmocka_unit_test(test_names_are_found_whole),
        cmocka_unit_test(test_rope_freqs_scalings),
        cmocka_unit_test(test_rope_attn_factor_counts_in_every_scaling),
        cmocka_unit_test(test_alibi_slopes),
        cmocka_unit_test(test_slots_have_names_of_their_own),
        cmocka_unit_test(test_attn_scale_follows_from_the_number_of_layers),
        cmocka_unit_test(test_ignored_names_begin_with_a_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
