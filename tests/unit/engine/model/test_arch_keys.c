/* Tests of the keys of config.json. A value that the tables do not build is refused by its key.
 * Symptom: such keys were accepted with any value, or in any form, and the answers were those of
 * another model. The folders are golden ones with a change in config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

/* Opens a copy of the golden folder where `old` in config.json is `now`. The caller calls
 * close_copy() in any case. */
struct copy {
    struct test_folder folder;
    struct checkpoint *ckpt;
    struct model model;
    struct error err;
};

static int open_copy(struct copy *c, const char *golden, const char *old, const char *now)
{
    memset(c, 0, sizeof(*c));
    folder_create(&c->folder);
    folder_copy_golden(&c->folder, golden, "model.safetensors", "", "");
    folder_copy_golden(&c->folder, golden, "config.json", old, now);
    int rc = checkpoint_open(c->folder.path, &c->ckpt, &c->err);
    return rc ? rc : model_init(&c->model, c->ckpt, NULL, &c->err);
}

static void close_copy(struct copy *c)
{
    model_fini(&c->model);
    checkpoint_close(c->ckpt);
    folder_remove(&c->folder);
}

/* Adds keys to the top level. */
#define ALSO(keys) "\"architectures\": [", keys ", \"architectures\": ["

struct change {
    const char *golden, *old, *now;
    int status;
    const char *named; /* by the error */
};

static void expect_refusals(const struct change *changes, size_t n)
{
    uint32_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        const struct change *c = &changes[i];
        struct copy copy;
        int rc = open_copy(&copy, c->golden, c->old, c->now);
        if (rc != c->status || !names_all(copy.err.message, c->named)) {
            print_message("%s with %s: %s \"%s\"\n", c->golden, c->now, status_name(rc),
                          copy.err.message);
            n_bad++;
        }
        close_copy(&copy);
    }
    assert_int_equal(n_bad, 0);
}

static const struct change other_values[] = {
    {"minimax_m2", ALSO("\"scoring_func\": \"softmax\""), UNBUILT, "scoring_func|\"softmax\""},
    {"minimax_m2", ALSO("\"qk_norm_type\": \"per_head\""), UNBUILT, "qk_norm_type|per_head"},
    {"minimax_m2", ALSO("\"attn_type_list\": [1, 0]"), UNBUILT, "attn_type_list|0"},
    {"minimax_m2", ALSO("\"scoring_func\": 1"), UNBUILT, "scoring_func|1|sigmoid"},
    {"hunyuan", ALSO("\"norm_type\": \"fused\""), UNBUILT, "norm_type|fused"},
    {"starcoder2", ALSO("\"norm_type\": \"rms_norm\""), UNBUILT, "norm_type|rms_norm"},
    {"starcoder2", ALSO("\"mlp_type\": \"gated\""), UNBUILT, "mlp_type|gated"},
    {"cohere2", ALSO("\"position_embedding_type\": \"alibi\""), UNBUILT, "position_embedding_type"},
    {"cohere2", ALSO("\"order_of_interleaved_layers\": \"global_attn_first\""), UNBUILT,
     "order_of_interleaved_layers|global_attn_first"},
    {"mpt", "\"low_precision_layernorm\"", "\"rmsnorm\"", UNBUILT, "norm_type|rmsnorm"},
    {"mpt", "\"multihead_attention\"", "\"multiquery_attention\"", UNBUILT,
     "attn_config.attn_type|multiquery_attention"},
    {"mpt", "\"qk_ln\": false", "\"qk_ln\": false, \"qk_gn\": true", UNBUILT, "attn_config.qk_gn"},
    {"mpt", "\"qk_ln\": false", "\"qk_ln\": false, \"new\": 1", UNBUILT, "attn_config.new"},
    {"smollm3", "\"full_attention\",\n    \"full_attention\",\n    \"full_attention\"",
     "\"full_attention\", \"sliding_attention\", \"full_attention\"", UNBUILT,
     "layer_types|sliding_attention"},
    {"gptj", ALSO("\"rotary\": false"), UNBUILT, "rotary"},
    {"exaone4", "\"sliding_window_pattern\": 4", "\"sliding_window_pattern\": \"LLLL\"", UNBUILT,
     "sliding_window_pattern|LLLL|LLLG"},
    {"gpt_oss", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", UNBUILT, "hidden_act|gelu"},
    {"opt", "\"do_layer_norm_before\": true", "\"do_layer_norm_before\": false", UNBUILT,
     "do_layer_norm_before"},
    {"opt", "\"word_embed_proj_dim\": 40", "\"word_embed_proj_dim\": 8", BAD,
     "word_embed_proj_dim|hidden_size"},
    {"falcon", "\"multi_query\": true", "\"multi_query\": false", UNBUILT, "multi_query"},
    {"falcon_rw", "\"multi_query\": false", "\"multi_query\": true", UNBUILT, "multi_query"},
    {"falcon_40b", "\"alibi\": false", "\"alibi\": true", UNBUILT, "alibi"},
    /* Symptom: a half rope, where transformers ignores the key and turns whole heads. */
    {"llama_linear", ALSO("\"partial_rotary_factor\": 0.5"), UNBUILT, "partial_rotary_factor"},
    {"qwen3vl", "\"mrope_section\"", "\"partial_rotary_factor\": 0.5, \"mrope_section\"", UNBUILT,
     "partial_rotary_factor"},
    /* Symptom: scores were capped, and transformers does not read the key. */
    {"gemma3", "\"attn_logit_softcapping\": null", "\"attn_logit_softcapping\": 30.0", UNBUILT,
     "attn_logit_softcapping"},
    /* The published config of MiMo-V2-Flash has the model's own spelling. A key of
     * this spelling must not be ignored in favour of a default. */
    {"mimo2", "\"layer_types\": [", "\"hybrid_layer_pattern\": [0, 1], \"layer_types\": [", UNBUILT,
     "hybrid_layer_pattern"},
    {"mimo2", ALSO("\"moe_layer_freq\": [0, 1]"), UNBUILT, "moe_layer_freq"},
    {"mimo2", ALSO("\"swa_num_key_value_heads\": 2"), UNBUILT, "swa_num_key_value_heads"},
    {"mimo2", ALSO("\"swa_num_attention_heads\": 8"), UNBUILT, "swa_num_attention_heads"},
    {"mimo2", ALSO("\"swa_head_dim\": 24"), UNBUILT, "swa_head_dim"},
    {"mimo2", ALSO("\"swa_v_head_dim\": 16"), UNBUILT, "swa_v_head_dim"},
    {"mimo2", ALSO("\"swa_rope_theta\": 700.0"), UNBUILT, "swa_rope_theta"},
    {"mimo2", ALSO("\"add_swa_attention_sink_bias\": true"), UNBUILT,
     "add_swa_attention_sink_bias"},
    {"mimo2", ALSO("\"add_full_attention_sink_bias\": false"), UNBUILT,
     "add_full_attention_sink_bias"},
    {"mimo2", ALSO("\"attention_chunk_size\": 16"), UNBUILT, "attention_chunk_size"},
    {"mimo2", ALSO("\"sliding_window_size\": 16"), UNBUILT, "sliding_window_size"},
    {"mimo2", ALSO("\"partial_rotary_factor\": 0.334"), UNBUILT, "partial_rotary_factor"},
    {"mimo2", ALSO("\"scoring_func\": \"softmax\""), UNBUILT, "scoring_func"},
    {"mimo2", ALSO("\"topk_method\": \"greedy\""), UNBUILT, "topk_method"},
    {"mimo2", ALSO("\"layernorm_epsilon\": 0.1"), UNBUILT, "layernorm_epsilon"},
    {"gemma4", "\"use_bidirectional_attention\": null", "\"use_bidirectional_attention\": \"all\"",
     UNBUILT, "use_bidirectional_attention|all|vision"},
    {"gemma4", "\"per_layer_config\": {", "\"per_layer_config\": {\"0\": {\"sliding_window\": 8},",
     UNBUILT, "per_layer_config.0.sliding_window"},
    /* Layers may not share the K and V of layers that are not there, or of another kind. */
    {"gemma4", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 3", BAD,
     "num_kv_shared_layers|layer 2|full_attention"},
    {"gemma4", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 5", BAD,
     "num_kv_shared_layers|5"},
    {"llama4", "\"layer_types\": [\n    \"chunked_attention\"",
     "\"layer_types\": [\n    \"full_attention\"", UNBUILT,
     "layer_types|layer 0|full_attention|chunked_attention"},
    /* biases of short convolutions: no published model has them */
    {"lfm2", "\"conv_bias\": false", "\"conv_bias\": true", UNBUILT, "conv_bias|1|0"},
    {"lfm2moe", "\"conv_bias\": false", "\"conv_bias\": true", UNBUILT, "conv_bias|1|0"},
    /* ALiBi slopes are those of layer 0. */
    {"mpt", "\"n_heads\": 3", "\"n_heads\": [3, 1]", UNBUILT, "n_heads|3|1"},
};

static void test_other_values_are_refused_by_key_and_value(void **state)
{
    (void)state;
    expect_refusals(other_values, sizeof(other_values) / sizeof(other_values[0]));
}

#define NO_ROPE "\"no_rope_layers\": [\n    1,\n    1,\n    1,\n    0\n  ]"

static const struct change other_forms[] = {
    {"smollm3", NO_ROPE, "\"no_rope_layers\": [1.5, 1.5, 1.5, 0.5]", BAD, "no_rope_layers"},
    {"smollm3", NO_ROPE, "\"no_rope_layers\": \"1110\"", BAD, "no_rope_layers"},
    {"smollm3", NO_ROPE, "\"no_rope_layers\": [1, 1, 1]", BAD, "no_rope_layers|3|4"},
    {"smollm3", NO_ROPE, "\"no_rope_layers\": [1, 1, 1, 0, 1]", BAD, "no_rope_layers|5|4"},
    {"smollm3", "\"no_rope_layer_interval\": 4", "\"no_rope_layer_interval\": true", BAD,
     "no_rope_layer_interval"},
    {"qwen2_window", "\"layer_types\": [\n    \"full_attention\",\n    \"sliding_attention\"\n  ]",
     "\"layer_types\": \"sliding_attention\"", BAD, "layer_types"},
    {"qwen2_window", "\"layer_types\": [\n    \"full_attention\",\n    \"sliding_attention\"\n  ]",
     "\"layer_types\": [0, 1]", BAD, "layer_types"},
    {"qwen2_window", "\"layer_types\": [\n    \"full_attention\",", "\"layer_types\": [", BAD,
     "layer_types|1|2"},
    {"qwen2_window", "\"layer_types\": [\n    \"full_attention\",",
     "\"layer_types\": [\"full_attention\", \"full_attention\",", BAD, "layer_types|3|2"},
    {"qwen3moe_fused", "\"mlp_only_layers\": [\n    1\n  ]", "\"mlp_only_layers\": 1", BAD,
     "mlp_only_layers"},
    {"cohere2", ALSO("\"sliding_window_pattern\": \"LLLG\""), BAD, "sliding_window_pattern"},
    {"ernie4_5_moe", "\"moe_layer_interval\": 2", "\"moe_layer_interval\": \"2\"", BAD,
     "moe_layer_interval"},
    {"glm4moe", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": [1, 0]", BAD,
     "first_k_dense_replace"},
};

static void test_patterns_of_another_form_are_refused_by_key(void **state)
{
    (void)state;
    expect_refusals(other_forms, sizeof(other_forms) / sizeof(other_forms[0]));
}

static const struct change contradictions[] = {
    {"qwen3moe", ALSO("\"num_experts\": 6"), BAD, "num_experts|num_local_experts"},
    {"llama3", ALSO("\"rope_theta\": 800.0"), BAD, "rope_theta|rope_parameters.rope_theta"},
    {"llama3", ALSO("\"rope_scaling\": {\"factor\": 4.0}"), BAD,
     "rope_scaling.factor|rope_parameters.factor"},
    {"llama3", ALSO("\"rope_scaling\": {\"rope_type\": \"yarn\"}"), BAD,
     "rope_scaling.rope_type|rope_parameters.rope_type"},
    {"gpt_oss", ALSO("\"experts_per_token\": 2"), BAD, "experts_per_token|num_experts_per_tok"},
    {"gpt_oss", ALSO("\"initial_context_length\": 64"), BAD,
     "initial_context_length|rope_parameters.original_max_position_embeddings"},
    {"minimax_m2", ALSO("\"rotary_dim\": 4"), BAD, "rope_parameters.partial_rotary_factor|8|4"},
    {"gptneox", ALSO("\"gpt_j_residual\": false"), BAD, "gpt_j_residual|use_parallel_residual"},
    {"cohere2", ALSO("\"sliding_window_pattern\": 4, \"layer_switch\": 2"), BAD,
     "sliding_window_pattern|layer_switch"},
    {"gemma2", ALSO("\"sliding_window_size\": 8"), BAD, "sliding_window_size|sliding_window"},
    {"ministral3", "\"rope_type\": \"yarn\"", "\"rope_type\": \"yarn\", \"type\": \"linear\"", BAD,
     "rope_parameters.type|rope_parameters.rope_type"},
    {"ministral3", "\"rope_type\": \"yarn\"",
     "\"rope_type\": \"yarn\", \"max_position_embeddings\": 64", BAD,
     "rope_parameters.max_position_embeddings|max_position_embeddings"},
};

static void test_spellings_with_different_values_are_refused_by_both(void **state)
{
    (void)state;
    expect_refusals(contradictions, sizeof(contradictions) / sizeof(contradictions[0]));
}

/* The keys that say which tensors the file has. Symptom: a folder without its lm_head was served
 * with the embedding in its place. */
static const struct change other_tensors[] = {
    {"llama_linear", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", BAD,
     "lm_head.weight"},
    {"llama_linear", "  \"tie_word_embeddings\": true,\n", "", BAD, "lm_head.weight"},
    {"llama3", "\"attention_bias\": true", "\"attention_bias\": false", BAD,
     "attention_bias|false"},
    {"llama3", "\"mlp_bias\": true", "\"mlp_bias\": false", BAD, "mlp_bias|false"},
    {"qwen3", "\"attention_bias\": false", "\"attention_bias\": true", BAD, "attention_bias|true"},
    {"cohere_norms", "\"use_qk_norm\": true", "\"use_qk_norm\": false", BAD, "use_qk_norm|false"},
    {"cohere", "\"use_qk_norm\": false", "\"use_qk_norm\": true", BAD, "use_qk_norm|true"},
    {"ernie4_5", "\"use_bias\": true", "\"use_bias\": false", BAD, "use_bias"},
    {"starcoder2", "\"use_bias\": true", "\"use_bias\": false", BAD, "use_bias"},
    {"stablelm", "\"use_qkv_bias\": true", "\"use_qkv_bias\": false", BAD, "use_qkv_bias"},
    {"qwen2moe", "\"qkv_bias\": true", "\"qkv_bias\": false", BAD, "qkv_bias"},
    {"glm4moe", "\"use_qk_norm\": true", "\"use_qk_norm\": false", BAD, "use_qk_norm"},
    {"falcon", "\"bias\": false", "\"bias\": true", BAD, "bias|true"},
    {"opt", "\"enable_bias\": true", "\"enable_bias\": false", BAD, "enable_bias"},
    {"stablelm_norms", "\"qk_layernorm\": true", "\"qk_layernorm\": false", BAD, "qk_layernorm"},
    {"phi2_norms", "\"qk_layernorm\": true", "\"qk_layernorm\": false", BAD, "qk_layernorm"},
    {"seed_oss", "\"attention_out_bias\": false", "\"attention_out_bias\": true", BAD,
     "attention_out_bias"},
    {"gemma4", "\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false", BAD,
     "layers.2.self_attn.v_proj.weight"},
    {"gemma4", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 1", BAD,
     "layers.3.self_attn.k_proj.weight"},
    {"gemma4", "\"hidden_size_per_layer_input\": 3", "\"hidden_size_per_layer_input\": 4", BAD,
     "embed_tokens_per_layer.weight"},
};

static void test_keys_that_contradict_the_tensors_are_refused(void **state)
{
    (void)state;
    expect_refusals(other_tensors, sizeof(other_tensors) / sizeof(other_tensors[0]));
}

/* Keys as published models have them, and spellings that agree. */
static const struct {
    const char *golden, *old, *now;
} agreeing[] = {
    {"minimax_m2", ALSO("\"scoring_func\": \"sigmoid\", \"qk_norm_type\": \"per_layer\", "
                        "\"attn_type_list\": [1, 1], \"rotary_dim\": 8, "
                        "\"layernorm_mlp_beta\": 1.0, \"mlp_intermediate_size\": 64")},
    {"hunyuan", ALSO("\"norm_type\": \"rms\", \"use_qk_norm\": true")},
    {"starcoder2", ALSO("\"norm_type\": \"layer_norm\", \"mlp_type\": \"default\", "
                        "\"activation_function\": \"gelu\"")},
    {"cohere2", ALSO("\"position_embedding_type\": \"rope_gptj\", \"layer_switch\": 4, "
                     "\"order_of_interleaved_layers\": \"local_attn_first\"")},
    {"mpt", "\"low_precision_layernorm\"", "\"layernorm\""},
    {"exaone4", "\"sliding_window_pattern\": 4", "\"sliding_window_pattern\": \"LLLG\""},
    {"gpt_oss", ALSO("\"experts_per_token\": 3, \"initial_context_length\": 32")},
    {"qwen3moe", ALSO("\"num_experts\": 5")},
    {"llama3", ALSO("\"rope_theta\": 700, \"rope_scaling\": {\"factor\": 8}")},
    {"gemma4", "\"use_bidirectional_attention\": null",
     "\"use_bidirectional_attention\": \"vision\""},
    /* published models of Gemma 4 have the numbers of full layers once */
    {"gemma4",
     "\"per_layer_config\": {\n    \"2\": {\n      \"head_dim\": 32,\n      "
     "\"num_key_value_heads\": 1\n    "
     "},\n    \"4\": {\n      \"head_dim\": 32,\n      \"num_key_value_heads\": 1\n    }\n  }",
     "\"global_head_dim\": 32, \"num_global_key_value_heads\": 1"},
    {"llama4", NO_ROPE, "\"no_rope_layers\": []"},
    /* Symptom: the two keys of published LFM2 folders counted as two values of one key. */
    {"lfm2", "\"full_attn_idxs\": null", "\"full_attn_idxs\": [1]"},
    {"llama4", "\"attn_temperature_tuning\": true", "\"attn_temperature_tuning\": 4"},
    {"gemma2", ALSO("\"sliding_window_size\": 16, \"hidden_act\": \"gelu\"")},
    {"gemma2", "  \"tie_word_embeddings\": true,\n", ""},
    {"gpt2", "  \"tie_word_embeddings\": true,\n", ""},
    /* transformers 5 takes the file's own output matrix, too */
    {"llama3", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"},
    {"ministral3", "\"rope_type\": \"yarn\"",
     "\"rope_type\": \"yarn\", \"type\": \"yarn\", \"max_position_embeddings\": 256"},
};

static void test_published_keys_and_agreeing_spellings_load(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(agreeing) / sizeof(agreeing[0]); i++) {
        struct copy copy;
        if (open_copy(&copy, agreeing[i].golden, agreeing[i].old, agreeing[i].now) != 0)
            fail_msg("%s with %s: %s", agreeing[i].golden, agreeing[i].now, copy.err.message);
        close_copy(&copy);
    }
}

/* --- defaults, those of transformers' config classes --- */

/* A key of this name is known and has no effect. */
#define HIDE(key) "\"" key "\"", "\"unsloth_" key "\""

/* Goldens whose lists have the default kinds. */
static const struct {
    const char *golden, *old, *now;
} listed[] = {
    {"cohere2", HIDE("layer_types")},
    {"exaone4", HIDE("layer_types")},
    {"olmo3", HIDE("layer_types")},
    {"gemma2", HIDE("layer_types")},
    {"gemma3", HIDE("layer_types")},
    {"gpt_oss", HIDE("layer_types")},
    {"qwen2_window", HIDE("layer_types")},
    {"smollm3", HIDE("no_rope_layers")},
    {"glm4moe", HIDE("first_k_dense_replace")},
};

static void test_layers_have_default_kinds_without_a_list(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(listed) / sizeof(listed[0]); i++) {
        struct copy with, without;
        if (open_copy(&with, listed[i].golden, "", "") != 0 ||
            open_copy(&without, listed[i].golden, listed[i].old, listed[i].now) != 0)
            fail_msg("%s: %s", listed[i].golden, without.err.message);
        for (uint32_t layer = 0; layer < with.model.shape.n_layers; layer++)
            if (with.model.shape.layers[layer].mixer != without.model.shape.layers[layer].mixer ||
                with.model.shape.layers[layer].ffn != without.model.shape.layers[layer].ffn)
                fail_msg("%s: layer %u is of another kind", listed[i].golden, layer);
        close_copy(&with);
        close_copy(&without);
    }
}

static const struct {
    const char *golden;
    double base;
} bases[] = {
    {"llama3", 1e4},       {"smollm3", 2e6}, {"cohere", 5e5},   {"ernie4_5", 5e5},
    {"ernie4_5_moe", 5e5}, {"mixtral", 1e6}, {"gpt_oss", 15e4}, {"minimax_m2", 5e6},
};

static void test_rope_base_has_the_family_default_without_a_key(void **state)
{
    struct copy copy;
    (void)state;
    for (size_t i = 0; i < sizeof(bases) / sizeof(bases[0]); i++) {
        if (open_copy(&copy, bases[i].golden, "    \"rope_theta\": 700.0,\n", "") != 0)
            fail_msg("%s: %s", bases[i].golden, copy.err.message);
        if (copy.model.shape.ropes[0].base != bases[i].base)
            fail_msg("%s: base %g", bases[i].golden, copy.model.shape.ropes[0].base);
        close_copy(&copy);
    }
    /* The table is that of two classes with different defaults. */
    assert_int_equal(open_copy(&copy, "olmo2", "  \"rope_theta\": 700.0,\n", ""), BAD);
    assert_true(names_all(copy.err.message, "rope_parameters.rope_theta"));
    close_copy(&copy);
    assert_int_equal(open_copy(&copy, "ministral3", "    \"rope_theta\": 700.0,\n", ""), BAD);
    assert_true(names_all(copy.err.message, "rope_parameters.rope_theta"));
    close_copy(&copy);
    assert_int_equal(open_copy(&copy, "qwen3vl", "      \"rope_theta\": 500.0,\n", ""), 0);
    assert_true(copy.model.shape.ropes[0].base == 5e5);
    close_copy(&copy);
    /* Half of each head rotates. */
    assert_int_equal(open_copy(&copy, "glm4moe", "    \"partial_rotary_factor\": 0.5,\n", ""), 0);
    assert_int_equal(copy.model.shape.ropes[0].n_rot, 8);
    close_copy(&copy);
}

/* StableLM 2 12B has a tensor for the norm of each head. */
static void test_a_head_without_its_norm_is_refused_by_name(void **state)
{
    struct copy c = {0};
    (void)state;
    folder_create(&c.folder);
    folder_copy_golden(&c.folder, "stablelm_norms", "config.json", "", "");
    folder_copy_golden(&c.folder, "stablelm_norms", "model.safetensors", "k_layernorm.norms.2.",
                       "k_layernorm.norms.9.");
    assert_int_equal(checkpoint_open(c.folder.path, &c.ckpt, &c.err), 0);
    assert_int_equal(model_init(&c.model, c.ckpt, NULL, &c.err), BAD);
    assert_true(names_all(c.err.message, "model.layers.0.self_attn.k_layernorm.norms.2.weight"));
    close_copy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_values_are_refused_by_key_and_value),
        cmocka_unit_test(test_patterns_of_another_form_are_refused_by_key),
        cmocka_unit_test(test_spellings_with_different_values_are_refused_by_both),
        cmocka_unit_test(test_keys_that_contradict_the_tensors_are_refused),
        cmocka_unit_test(test_published_keys_and_agreeing_spellings_load),
        cmocka_unit_test(test_layers_have_default_kinds_without_a_list),
        cmocka_unit_test(test_rope_base_has_the_family_default_without_a_key),
        cmocka_unit_test(test_a_head_without_its_norm_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
