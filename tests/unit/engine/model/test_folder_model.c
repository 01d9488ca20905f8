/* Folders whose config.json and tensors disagree, or whose layers do. Each is refused by the key or
 * the tensor. The folders are copies of golden ones with one change. */
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

static int open_model(const struct test_folder *folder, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct model model = {0};
    int rc = checkpoint_open(folder->path, &ckpt, err);
    if (!rc) {
        rc = model_init(&model, ckpt, NULL, err);
        model_fini(&model);
    }
    checkpoint_close(ckpt);
    return rc;
}

struct change {
    const char *golden, *old, *now;
    int status;
    const char *named;
};

/* Makes a folder with a changed config.json or model.safetensors, which must be refused. */
static void check_changes(const char *file, const struct change *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct change *c = &rows[i];
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, c->golden, "config.json", "", "");
        folder_copy_golden(&folder, c->golden, "model.safetensors", "", "");
        if (open_model(&folder, &err) != 0)
            fail_msg("%s: the copy is refused: %s", c->golden, err.message);
        folder_copy_golden(&folder, c->golden, file, c->old, c->now);
        int rc = open_model(&folder, &err);
        if (rc != c->status || !names_all(err.message, c->named))
            fail_msg("%s with %s: %d, want %d and \"%s\": %s", c->golden, c->now, rc, c->status,
                     c->named, err.message);
        if (rc == STATUS_INVALID_ARGUMENT)
            assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        folder_remove(&folder);
    }
}

static void test_numbers_that_contradict_the_tensors_are_refused(void **state)
{
    static const struct change rows[] = {
        {"qwen3", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", STATUS_INVALID_ARGUMENT,
         "model.layers.2.input_layernorm.weight"},
        {"qwen3", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", STATUS_UNIMPLEMENTED,
         "model.layers.1.input_layernorm.weight"},
        {"qwen3", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4294967295",
         STATUS_INVALID_ARGUMENT, "num_hidden_layers|4294967295"},
        {"qwen3", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0", STATUS_INVALID_ARGUMENT,
         "num_hidden_layers"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": 40", STATUS_INVALID_ARGUMENT,
         "model.embed_tokens.weight|40"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": -36", STATUS_INVALID_ARGUMENT,
         "hidden_size"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": 36.5", STATUS_INVALID_ARGUMENT,
         "hidden_size"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": 1e400", STATUS_INVALID_ARGUMENT,
         "hidden_size"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": \"36\"", STATUS_INVALID_ARGUMENT,
         "hidden_size"},
        {"qwen3", "\"hidden_size\": 36", "\"hidden_size\": 18446744073709551652",
         STATUS_INVALID_ARGUMENT, "hidden_size"},
        {"qwen3", "\"intermediate_size\": 100", "\"intermediate_size\": 101",
         STATUS_INVALID_ARGUMENT, "model.layers.0.mlp.gate_proj.weight|101"},
        {"qwen3", "\"num_key_value_heads\": 3", "\"num_key_value_heads\": 2",
         STATUS_INVALID_ARGUMENT, "2|9"},
        {"qwen3", "\"num_key_value_heads\": 3", "\"num_key_value_heads\": 9",
         STATUS_INVALID_ARGUMENT, "model.layers.0.self_attn.k_proj.weight"},
        {"qwen3", "\"head_dim\": 16", "\"head_dim\": 15", STATUS_INVALID_ARGUMENT, "15"},
        {"qwen3", "\"vocab_size\": 283", "\"vocab_size\": 284", STATUS_INVALID_ARGUMENT,
         "model.embed_tokens.weight|284"},
        {"qwen3", "\"vocab_size\": 283", "\"vocab_size\": 2147483648", STATUS_INVALID_ARGUMENT,
         "vocab_size|2147483648"},
        {"qwen3moe", "\"num_local_experts\": 5", "\"num_local_experts\": 6",
         STATUS_INVALID_ARGUMENT, "model.layers.0.mlp.gate.weight|6"},
        {"qwen3moe", "\"num_local_experts\": 5", "\"num_local_experts\": 4294967295",
         STATUS_INVALID_ARGUMENT, "num_local_experts"},
        {"qwen3moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 6",
         STATUS_INVALID_ARGUMENT, "num_experts_per_tok|6"},
        {"qwen3moe", "\"moe_intermediate_size\": 40", "\"moe_intermediate_size\": 36",
         STATUS_INVALID_ARGUMENT, "model.layers.0.mlp.experts.0"},
        {"qwen3moe_fused", "\"num_local_experts\": 5", "\"num_local_experts\": 4",
         STATUS_INVALID_ARGUMENT, "model.layers.0"},
    };
    check_changes("config.json", rows, sizeof(rows) / sizeof(rows[0]));
    (void)state;
}

/* The factors of queries have a table with an entry for each period of positions. A period of 1.9
 * made the table shorter than the positions that ops looked up: they read beyond its end. */
static void test_scaling_of_queries_by_fractions_of_a_position_is_refused(void **state)
{
    static const struct change rows[] = {
        {"llama4", "\"floor_scale\": 8", "\"floor_scale\": 1.9", STATUS_INVALID_ARGUMENT,
         "floor_scale|1.9"},
        {"llama4", "\"floor_scale\": 8", "\"floor_scale\": 0", STATUS_INVALID_ARGUMENT,
         "floor_scale"},
        {"ministral3", "\"original_max_position_embeddings\": 16",
         "\"original_max_position_embeddings\": 16.5", STATUS_INVALID_ARGUMENT,
         "original_max_position_embeddings|16.5"},
    };
    check_changes("config.json", rows, sizeof(rows) / sizeof(rows[0]));
    (void)state;
}

/* Sizes of recurrent layers that contradict the tensors or each other, and kinds that are not
 * known. */
static void test_recurrent_layers_that_disagree_are_refused(void **state)
{
    static const char *const limit = "{\n      \"__float__\": \"Infinity\"\n    }";
    const struct change rows[] = {
        {"lfm2", "\"conv_L_cache\": 3", "\"conv_L_cache\": 4", STATUS_INVALID_ARGUMENT,
         "model.layers.0.conv.conv.weight"},
        {"lfm2", "\"conv_L_cache\": 3", "\"conv_L_cache\": 0", STATUS_INVALID_ARGUMENT,
         "conv_L_cache"},
        {"lfm2", "\"conv_L_cache\": 3", "\"conv_L_cache\": 1000", STATUS_INVALID_ARGUMENT,
         "conv_L_cache|1000"},
        {"lfm2", "\"block_multiple_of\": 3", "\"block_multiple_of\": 64", STATUS_INVALID_ARGUMENT,
         "model.layers.0.feed_forward.w1.weight|64"},
        {"lfm2", "\"block_multiple_of\": 3", "\"block_multiple_of\": 0", STATUS_INVALID_ARGUMENT,
         "block_multiple_of"},
        {"lfm2", "\"block_ffn_dim_multiplier\": 1.25", "\"block_ffn_dim_multiplier\": -1",
         STATUS_INVALID_ARGUMENT, "block_ffn_dim_multiplier"},
        {"lfm2", "\"conv_bias\": false", "\"conv_bias\": true", STATUS_UNIMPLEMENTED, "conv_bias"},
        {"lfm2", "    \"conv\",\n    \"full_attention\"\n",
         "    \"full_attention\",\n    \"conv\"\n", STATUS_INVALID_ARGUMENT, "model.layers.0"},
        {"lfm2", "    \"conv\",\n", "    \"mamba\",\n", STATUS_UNIMPLEMENTED, "layer_types|mamba"},
        {"lfm2", "    \"conv\",\n", "", STATUS_INVALID_ARGUMENT, "layer_types|1|2"},
        {"mamba2", "\"n_groups\": 2", "\"n_groups\": 3", STATUS_INVALID_ARGUMENT, "n_groups|3|14"},
        {"mamba2", "\"n_groups\": 2", "\"n_groups\": 7", STATUS_INVALID_ARGUMENT,
         "backbone.layers.0.mixer.in_proj.weight"},
        {"mamba2", "\"state_size\": 8", "\"state_size\": 9", STATUS_INVALID_ARGUMENT,
         "backbone.layers.0.mixer.in_proj.weight"},
        {"mamba2", "\"state_size\": 8", "\"state_size\": 100000", STATUS_INVALID_ARGUMENT,
         "state_size|100000"},
        {"mamba2", "\"num_heads\": 14", "\"num_heads\": 4294967295", STATUS_INVALID_ARGUMENT,
         "num_heads|4294967295"},
        {"mamba2", "\"head_dim\": 8", "\"head_dim\": 0", STATUS_INVALID_ARGUMENT, "head_dim"},
        {"mamba2", "\"conv_kernel\": 4", "\"conv_kernel\": 1", STATUS_INVALID_ARGUMENT,
         "conv_kernel"},
        {"mamba2", "\"use_bias\": false", "\"use_bias\": true", STATUS_UNIMPLEMENTED, "use_bias"},
        {"mamba2", "\"use_conv_bias\": true", "\"use_conv_bias\": false", STATUS_INVALID_ARGUMENT,
         "use_conv_bias"},
        {"mamba2", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", STATUS_UNIMPLEMENTED,
         "hidden_act|gelu"},
        {"mamba2", limit, "0.1", STATUS_UNIMPLEMENTED, "time_step_limit"},
        {"mamba2", "\"Infinity\"", "\"NaN\"", STATUS_UNIMPLEMENTED, "time_step_limit"},
        {"granitehybrid", "\"mamba_n_heads\": 3", "\"mamba_n_heads\": 2", STATUS_INVALID_ARGUMENT,
         "model.layers.0.mamba.in_proj.weight"},
        {"granitehybrid", "\"num_local_experts\": 0", "\"num_local_experts\": 4",
         STATUS_INVALID_ARGUMENT, "block_sparse_moe"},
        {"nemotron_h", "\"M*-\"", "\"M*\"", STATUS_INVALID_ARGUMENT, "hybrid_override_pattern|2|3"},
        {"nemotron_h", "\"M*-\"", "\"MM-\"", STATUS_INVALID_ARGUMENT,
         "backbone.layers.1.mixer.in_proj.weight"},
        {"nemotron_h", "\"M*-\"", "\"M*?\"", STATUS_INVALID_ARGUMENT,
         "backbone.layers.2.mixer.in_proj.weight"},
        {"nemotron_h_moe", "\"moe_latent_size\": null", "\"moe_latent_size\": 8",
         STATUS_UNIMPLEMENTED, "moe_latent_size"},
        {"nemotron_h_moe", "\"n_group\": 1", "\"n_group\": 2", STATUS_UNIMPLEMENTED, "n_group"},
        {"nemotron_h_moe", "    \"moe\",\n    \"full_attention\"\n  ],\n  \"mamba",
         "    \"full_attention\"\n  ],\n  \"mamba", STATUS_INVALID_ARGUMENT, "backbone.layers.1"},
        {"falcon_h1", "\"ssm_multipliers\": [", "\"ssm_multipliers\": [\n    1.0,",
         STATUS_INVALID_ARGUMENT, "ssm_multipliers|6|5"},
        {"falcon_h1", "\"mlp_multipliers\": [", "\"mlp_multipliers\": [\n    1.0,",
         STATUS_INVALID_ARGUMENT, "mlp_multipliers|3|2"},
        {"falcon_h1", "\"attention_bias\": false", "\"attention_bias\": true", STATUS_UNIMPLEMENTED,
         "attention_bias"},
        {"falcon_h1", "\"mamba_rms_norm\": true", "\"mamba_rms_norm\": false",
         STATUS_INVALID_ARGUMENT, "mamba_rms_norm"},
    };
    check_changes("config.json", rows, sizeof(rows) / sizeof(rows[0]));
    (void)state;
}

/* Folders that transformers 4 wrote have infinity as a number. */
static void test_an_open_range_of_steps_is_taken(void **state)
{
    struct test_folder folder;
    struct error err = {0};
    (void)state;
    folder_create(&folder);
    folder_copy_golden(&folder, "mamba2", "model.safetensors", "", "");
    folder_copy_golden(&folder, "mamba2", "config.json",
                       "{\n      \"__float__\": \"Infinity\"\n    }", "Infinity");
    if (open_model(&folder, &err) != 0)
        fail_msg("%s", err.message);
    folder_remove(&folder);
}

/* Layers that disagree with each other or with the list of their kinds. */
static void test_layers_that_disagree_are_refused(void **state)
{
    static const struct change config[] = {
        {"gemma3", "    \"full_attention\"\n  ],",
         "    \"full_attention\",\n    \"full_attention\"\n  ],", STATUS_INVALID_ARGUMENT,
         "layer_types"},
        {"gemma3", "    \"sliding_attention\",\n    \"full_attention\"\n  ],",
         "    \"full_attention\"\n  ],", STATUS_INVALID_ARGUMENT, "layer_types"},
        {"gemma3", "    \"full_attention\"\n  ],", "    \"linear_attention\"\n  ],",
         STATUS_UNIMPLEMENTED, "layer_types|linear_attention"},
    };
    static const struct change tensors[] = {
        {"qwen3", "model.layers.1.self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[144,36]",
         "model.layers.1.self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[36,144]",
         STATUS_INVALID_ARGUMENT, "model.layers.1.self_attn.q_proj.weight"},
        {"qwen3", "model.layers.1.input_layernorm.weight", "model.layers.3.input_layernorm.weight",
         STATUS_INVALID_ARGUMENT, "model.layers.1.input_layernorm.weight"},
        {"qwen3", "model.layers.0.mlp.up_proj.weight\":{\"dtype\":\"BF16\"",
         "model.layers.0.mlp.up_proj.weight\":{\"dtype\": \"I16\"", STATUS_UNIMPLEMENTED,
         "model.layers.0.mlp.up_proj.weight|I16"},
    };
    (void)state;
    check_changes("config.json", config, sizeof(config) / sizeof(config[0]));
    check_changes("model.safetensors", tensors, sizeof(tensors) / sizeof(tensors[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_that_contradict_the_tensors_are_refused),
        cmocka_unit_test(test_layers_that_disagree_are_refused),
        cmocka_unit_test(test_scaling_of_queries_by_fractions_of_a_position_is_refused),
        cmocka_unit_test(test_recurrent_layers_that_disagree_are_refused),
        cmocka_unit_test(test_an_open_range_of_steps_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
