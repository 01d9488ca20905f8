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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
