/* Bad files of Gemma 4 and Llama 4: folders and GGUF files with a change. Each error names the key
 * and the value. A layer that disagrees with its tensors is named with the tensor, and with the key
 * of its kind. Cuts between devices may not part layers that share K and V. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "engine/model/rank.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_bad.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/engine/support/support_observe.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A number of config.json. */
#define NUMBER(key, old, now) "\"" key "\": " old ",", "\"" key "\": " now ","
#define SLIDING               "\"sliding_attention\""
#define FULL                  "\"full_attention\""
#define GEMMA_KINDS                                                                                \
    "\"layer_types\": [\n    " SLIDING ",\n    " SLIDING ",\n    " FULL ",\n    " SLIDING          \
    ",\n    " FULL "\n  ]"
#define KINDS(list) "\"layer_types\": [" list "]"
#define MOE_LAYERS  "\"moe_layers\": [\n    1,\n    3\n  ]"
#define LLAMA4_NOPE "\"no_rope_layers\": [\n    1,\n    1,\n    1,\n    0\n  ]"
#define LLAMA4_KINDS                                                                               \
    "\"layer_types\": [\n    \"chunked_attention\",\n    \"chunked_attention\",\n    "             \
    "\"chunked_attention\",\n    \"full_attention\"\n  ]"

static const struct bad_folder folders[] = {
    /* lists of layers that disagree with the tensors: heads of full layers are wider */
    {"gemma4", GEMMA_KINDS, KINDS(SLIDING ", " SLIDING ", " SLIDING ", " SLIDING ", " FULL), BAD,
     "num_kv_shared_layers|layer 3|layer 2|16|32"},
    {"gemma4_moe", "\"layer_types\": [\n    " SLIDING ",\n    " FULL "\n  ]", KINDS(FULL ", " FULL),
     UNBUILT, "layer_types|layer 1|full_attention|32|16"},
    {"gemma4_moe", "\"layer_types\": [\n    " SLIDING ",\n    " FULL "\n  ]",
     KINDS(SLIDING ", " SLIDING), UNBUILT, "layer_types|layer 1|sliding_attention|32|16"},
    {"gemma4_moe", "\"layer_types\": [\n    " SLIDING ",\n    " FULL "\n  ]",
     KINDS(SLIDING ", \"chunked_attention\""), UNBUILT, "layer_types|layer 1|chunked_attention"},
    {"gemma4_moe", "\"layer_types\": [\n    " SLIDING ",\n    " FULL "\n  ]", KINDS(FULL), BAD,
     "layer_types|1|2"},
    {"gemma4", GEMMA_KINDS, KINDS(SLIDING ", " SLIDING ", " FULL ", " SLIDING ", " FULL ", " FULL),
     BAD, "layer_types|6|5"},
    /* layers without the source of their K and V */
    {"gemma4", NUMBER("num_kv_shared_layers", "2", "3"), BAD,
     "num_kv_shared_layers|layer 2|full_attention"},
    {"gemma4", NUMBER("num_kv_shared_layers", "2", "4"), BAD,
     "num_kv_shared_layers|full_attention|layer 2"},
    {"gemma4", NUMBER("num_kv_shared_layers", "2", "4294967295"), BAD,
     "num_kv_shared_layers|4294967295|4"},
    {"gemma4", NUMBER("num_kv_shared_layers", "2", "-1"), BAD, "num_kv_shared_layers|-1"},
    {"gemma4", NUMBER("num_kv_shared_layers", "2", "0"), BAD,
     "model.layers.3.self_attn.k_proj.weight"},
    {"gemma4", "\"4\": {\n      \"head_dim\": 32,", "\"4\": {\n      \"head_dim\": 16,", BAD,
     "num_kv_shared_layers|layer 4|layer 2|32|16"},
    /* Symptom: full layers without a number of their own had heads of 512. */
    {"gemma4",
     "\"per_layer_config\": {\n    \"2\": {\n      \"head_dim\": 32,\n      "
     "\"num_key_value_heads\": 1\n    },\n    \"4\": {\n      \"head_dim\": 32,\n      "
     "\"num_key_value_heads\": 1\n    }\n  }",
     "\"per_layer_config\": {}", BAD,
     "layer_types|layer 2|model.layers.2.self_attn.q_proj.weight|128|64"},
    /* Symptom: the number of layer 0 and that of all layers counted as spellings of one key. */
    {"gemma4", "\"per_layer_config\": {", "\"per_layer_config\": {\"0\": {\"head_dim\": 32},",
     UNBUILT, "layer_types|layer 1|sliding_attention|16|32"},
    /* sizes */
    {"gemma4", "\"head_dim\": 32", "\"head_dim\": 4294967295", BAD, "head_dim|4294967295"},
    {"gemma4", "\"head_dim\": 16", "\"head_dim\": 0", BAD, "head_dim|0"},
    {"gemma4", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", BAD,
     "num_key_value_heads|3|4"},
    {"gemma4", NUMBER("sliding_window", "16", "-1"), BAD, "sliding_window|-1"},
    {"gemma4", NUMBER("hidden_size_per_layer_input", "3", "4294967295"), BAD,
     "hidden_size_per_layer_input|4294967295"},
    {"gemma4", NUMBER("hidden_size_per_layer_input", "3", "2"), BAD,
     "embed_tokens_per_layer.weight"},
    {"gemma4", NUMBER("use_double_wide_mlp", "true", "false"), BAD,
     "model.layers.3.mlp.gate_proj.weight"},
    {"gemma4", NUMBER("enable_moe_block", "false", "true"), BAD, "num_experts"},
    {"gemma4", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\": 1.5", BAD,
     "rope_parameters.full_attention.partial_rotary_factor|1.5"},
    {"gemma4", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor\": -0.5", BAD,
     "rope_parameters.full_attention.partial_rotary_factor|-0.5"},
    {"gemma4_moe", NUMBER("top_k_experts", "2", "5"), BAD, "top_k_experts|5"},
    {"gemma4_moe", NUMBER("top_k_experts", "2", "0"), BAD, "top_k_experts|0"},
    {"gemma4_moe", NUMBER("num_experts", "4", "5"), BAD, "model.layers.0.router.proj.weight|5"},
    {"gemma4_moe", NUMBER("num_experts", "4", "4294967295"), BAD, "num_experts|4294967295"},
    {"gemma4_moe", NUMBER("moe_intermediate_size", "36", "35"), BAD,
     "model.layers.0.experts.gate_up_proj"},
    {"gemma4_moe", NUMBER("enable_moe_block", "true", "false"), UNBUILT, "model.layers.0"},
    /* Llama 4 */
    {"llama4", LLAMA4_NOPE, "\"no_rope_layers\": [1, 1, 0, 0]", UNBUILT,
     "layer_types|layer 2|chunked_attention|full_attention"},
    {"llama4", LLAMA4_NOPE, "\"no_rope_layers\": [1, 1, 1]", BAD, "no_rope_layers|3|4"},
    {"llama4", LLAMA4_KINDS, "\"layer_types\": [\"chunked_attention\", \"full_attention\"]", BAD,
     "layer_types|2|4"},
    {"llama4", MOE_LAYERS, "\"moe_layers\": [1, 4]", BAD, "moe_layers|4|3"},
    {"llama4", MOE_LAYERS, "\"moe_layers\": [1, -1]", BAD, "moe_layers|-1"},
    {"llama4", MOE_LAYERS, "\"moe_layers\": [0, 3]", BAD,
     "moe_layers|layer 1|dense|model.layers.1.feed_forward.gate_proj.weight"},
    {"llama4", MOE_LAYERS, "\"moe_layers\": []", BAD,
     "moe_layers|layer 1|dense|model.layers.1.feed_forward.gate_proj.weight"},
    {"llama4", NUMBER("attention_chunk_size", "16", "-16"), BAD, "attention_chunk_size|-16"},
    {"llama4", NUMBER("floor_scale", "8", "0"), BAD, "floor_scale|0"},
    {"llama4", NUMBER("attn_scale", "0.4", "-1"), BAD, "attn_scale|-1"},
    {"llama4", NUMBER("num_experts_per_tok", "1", "5"), BAD, "num_experts_per_tok|5"},
    {"llama4", NUMBER("num_local_experts", "4", "3"), BAD,
     "model.layers.1.feed_forward.router.weight"},
    {"llama4", NUMBER("intermediate_size", "36", "35"), BAD, "model.layers.1.feed_forward"},
    {"llama4", NUMBER("intermediate_size_mlp", "34", "35"), BAD,
     "model.layers.0.feed_forward.gate_proj.weight"},
};

static void test_bad_folders_are_refused_by_key_layer_and_tensor(void **state)
{
    (void)state;
    bad_folders_check(folders, COUNT(folders));
}

/* --- GGUF --- */

/* Bytes of an array of a number or bool per layer. */
#define I32S(n, ...) (const uint32_t[]){GGUF_I32, (n), 0, __VA_ARGS__}, 4 * (3 + (n))
#define BOOLS(n, ...)                                                                              \
    (const unsigned char[]){GGUF_BOOL, 0, 0, 0, (n), 0, 0, 0, 0, 0, 0, 0, __VA_ARGS__}, 12 + (n)
#define U32(value) &(const uint32_t){value}, 4

/* A key keeps its name and gets this value. */
#define GEMMA(key, value)                                                                          \
    "gemma4", "gemma4",                                                                            \
    {                                                                                              \
        "attention." key, "attention." key, value                                                  \
    }
#define LLAMA4(key, value)                                                                         \
    "llama4_8192", "llama4",                                                                       \
    {                                                                                              \
        key, key, value                                                                            \
    }
#define KINDS_KEY "gemma4.attention.sliding_window_pattern"

static const struct bad_gguf files[] = {
    {GEMMA("sliding_window_pattern", BOOLS(5, 0, 1, 0, 1, 0)), BAD,
     KINDS_KEY "|layer 0|full_attention|blk.0.attn_q.weight"},
    {GEMMA("sliding_window_pattern", BOOLS(5, 1, 1, 1, 1, 0)), BAD,
     "gemma4.attention.shared_kv_layers|layer 3|layer 2"},
    {GEMMA("sliding_window_pattern", BOOLS(4, 1, 1, 0, 1)), BAD, KINDS_KEY "|4|5"},
    {GEMMA("sliding_window_pattern", BOOLS(6, 1, 1, 0, 1, 0, 0)), BAD, KINDS_KEY "|6|5"},
    {GEMMA("shared_kv_layers", U32(3)), BAD,
     "gemma4.attention.shared_kv_layers|layer 2|full_attention"},
    {GEMMA("shared_kv_layers", U32(5)), BAD, "gemma4.attention.shared_kv_layers|5|4"},
    {GEMMA("shared_kv_layers", U32(UINT32_MAX)), BAD,
     "gemma4.attention.shared_kv_layers|4294967295|4"},
    {GEMMA("shared_kv_layers", U32(1)), BAD, "blk.3.attn_k.weight"},
    {GEMMA("head_count_kv", I32S(5, 2, 2, 1, 2, 2)), BAD,
     "gemma4.attention.shared_kv_layers|layer 4|layer 2"},
    {GEMMA("head_count_kv", I32S(4, 2, 2, 1, 2)), BAD, "gemma4.attention.head_count_kv|4"},
    {GEMMA("key_length_swa", U32(UINT32_MAX)), BAD, "gemma4.attention.key_length_swa|4294967295"},
    {GEMMA("key_length", U32(0)), BAD, "gemma4.attention.key_length|0"},
    {"gemma4",
     "gemma4",
     {"attention.key_length", NULL, NULL, 0},
     BAD,
     "gemma4.attention.key_length"},
    {"gemma4",
     "gemma4",
     {"embedding_length_per_layer_input", NULL, NULL, 0},
     BAD,
     "per_layer_token_embd.weight"},
    {LLAMA4("interleave_moe_layer_step", U32(1)), BAD,
     "llama4.interleave_moe_layer_step|layer 0|sparse|blk.0.ffn_gate_inp.weight"},
    {LLAMA4("interleave_moe_layer_step", U32(0)), BAD,
     "llama4.interleave_moe_layer_step|layer 1|dense|blk.1.ffn_gate.weight"},
    {LLAMA4("expert_count", U32(5)), BAD, "blk.1.ffn_gate_inp.weight|5"},
    {LLAMA4("expert_count", U32(UINT32_MAX)), BAD, "llama4.expert_count|4294967295"},
    {LLAMA4("expert_used_count", U32(9)), BAD, "llama4.expert_used_count|9"},
    {LLAMA4("rope.dimension_count", U32(7)), BAD, "llama4.rope.dimension_count|7"},
};

static void test_bad_gguf_files_are_refused_by_key_layer_and_tensor(void **state)
{
    (void)state;
    bad_ggufs_check(files, COUNT(files));
}

static void test_layers_without_a_tensor_are_refused_by_tensor(void **state)
{
    static const struct bad_tensor tensors[] = {
        {"gemma4", "gemma4", "blk.1.attn_v.weight", "blk.1.attn_v.weight"},
        {"gemma4", "gemma4", "blk.2.inp_gate.weight", "blk.2.inp_gate.weight"},
        {"gemma4_moe", "gemma4", "blk.1.ffn_gate_inp.scale", "blk.1.ffn_gate_inp.scale"},
        {"llama4_8192", "llama4", "blk.3.ffn_down_exps.weight",
         "llama4.interleave_moe_layer_step|layer 3|sparse|blk.3.ffn_down_exps.weight"},
    };
    (void)state;
    bad_tensors_check(tensors, COUNT(tensors));
}

/* --- cuts between devices --- */

/* Layers 3 and 4 of the golden read the K and V of layers 1 and 2. Without per-layer inputs, a cut
 * before layer 1 keeps the readers beside their sources. */
static void test_cuts_through_shared_layers_are_refused_by_both_layers(void **state)
{
    struct checkpoint *ckpt = observe_open("gemma4.gguf");
    struct model model = {0};
    struct error err = {0};
    char named[64];
    (void)state;
    assert_int_equal(model_init(&model, ckpt, NULL, &err), 0);
    uint32_t n_layers = model.shape.n_layers;
    for (uint32_t inputs = 0; inputs < 2; inputs++) {
        model.shape.layer_embd_dim = inputs ? 0 : 3;
        for (uint32_t cut = 1; cut < n_layers; cut++) {
            const struct rank last = {
                .tp = 1, .n_stages = 2, .stage = 1, .layer_begin = cut, .n_layers = n_layers - cut};
            struct rank_split split;
            int rc = rank_split_init(&split, &last, &model.shape, &err);
            rank_split_fini(&split);
            assert_int_equal(rc == 0, rank_may_cut(&model.shape, cut));
            assert_int_equal(rc, inputs && cut == 1 ? 0 : BAD);
            if (!rc)
                continue;
            uint32_t reader = cut < 3 ? 3 : cut;
            if (inputs)
                snprintf(named, sizeof(named), "gpu_layers|layer %u|layer %u|layer %u", reader,
                         reader - 2, cut);
            else
                snprintf(named, sizeof(named), "gpu_layers|layer %u", cut);
            if (!names_all(err.message, named))
                fail_msg("cut before layer %u: %s", cut, err.message);
        }
    }
    model_fini(&model);
    checkpoint_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_folders_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_bad_gguf_files_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_layers_without_a_tensor_are_refused_by_tensor),
        cmocka_unit_test(test_cuts_through_shared_layers_are_refused_by_both_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
