/* Bad files of families with Mamba-2 or a short convolution: folders and GGUF files of each family
 * with a change. Each error names the key and the value. A layer that disagrees with its tensors is
 * named with the tensor, and with the key of its kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "tests/unit/engine/support/support_bad.h"
#include "tests/unit/engine/support/support_gguf.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --- folders --- */

#define KINDS(a, b) "\"layer_types\": [\n    \"" a "\",\n    \"" b "\"\n  ]"
#define BLOCKS(a, b, c)                                                                            \
    "\"layers_block_type\": [\n    \"" a "\",\n    \"" b "\",\n    \"" c "\"\n  ]"
#define MAMBA   "linear_attention"
#define FULL    "full_attention"
#define LIST    KINDS(MAMBA, FULL)
#define CONVS   KINDS("conv", FULL)
#define PATTERN "\"hybrid_override_pattern\": \"M*-\""
#define PARTS   BLOCKS(MAMBA, "moe", FULL)

/* A number of config.json. */
#define NUMBER(key, old, now) "\"" key "\": " old ",", "\"" key "\": " now ","

static const struct bad_folder folders[] = {
    /* lists of layers that disagree with the tensors */
    {"granitehybrid", LIST, KINDS(FULL, MAMBA), BAD,
     "layer_types|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    {"granitehybrid", LIST, KINDS(MAMBA, MAMBA), BAD,
     "layer_types|1|linear_attention|model.layers.1.mamba.in_proj.weight"},
    {"granitehybrid_moe", LIST, KINDS(MAMBA, MAMBA), BAD,
     "layer_types|1|linear_attention|model.layers.1.mamba.in_proj.weight"},
    {"granitehybrid", LIST, KINDS(MAMBA, "conv"), UNBUILT, "layer_types|1|conv"},
    {"granitehybrid", LIST, "\"layer_types\": [\"mamba\"]", BAD, "layer_types|1|2"},
    {"granitehybrid", LIST, "\"layer_types\": [\"mamba\", \"attention\", \"mamba\"]", BAD,
     "layer_types|3|2"},
    {"granitehybrid", NUMBER("num_local_experts", "0", "3"), BAD,
     "model.layers.0.block_sparse_moe.router.layer.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"*M-\"", BAD,
     "hybrid_override_pattern|1|linear_attention|backbone.layers.1.mixer.in_proj.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"**-\"", BAD,
     "hybrid_override_pattern|0|full_attention|backbone.layers.0.mixer.q_proj.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"MM-\"", BAD,
     "hybrid_override_pattern|1|linear_attention|backbone.layers.1.mixer.in_proj.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"-*-\"", BAD,
     "hybrid_override_pattern|0|mlp|backbone.layers.0.mixer.up_proj.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"M*E\"", BAD,
     "hybrid_override_pattern|2|moe|backbone.layers.2.mixer.gate.weight"},
    {"nemotron_h", PATTERN, "\"hybrid_override_pattern\": \"M*\"", BAD,
     "hybrid_override_pattern|2|3"},
    {"nemotron_h_moe", PARTS, BLOCKS(MAMBA, "mlp", FULL), BAD,
     "layers_block_type|1|mlp|backbone.layers.1.mixer.up_proj.weight"},
    {"nemotron_h_moe", PARTS, BLOCKS(FULL, "moe", FULL), BAD,
     "layers_block_type|0|full_attention|backbone.layers.0.mixer.q_proj.weight"},
    {"nemotron_h_moe", PARTS, BLOCKS(MAMBA, "moe", "moe"), BAD,
     "layers_block_type|2|moe|backbone.layers.2.mixer.gate.weight"},
    {"nemotron_h_moe", PARTS, BLOCKS(MAMBA, "moe", "rwkv"), UNBUILT, "layers_block_type|2|rwkv"},
    {"lfm2", CONVS, KINDS(FULL, "conv"), BAD,
     "layer_types|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    {"lfm2", CONVS, KINDS("conv", "conv"), BAD,
     "layer_types|1|conv|model.layers.1.conv.in_proj.weight"},
    {"lfm2moe", CONVS, KINDS(FULL, FULL), BAD,
     "layer_types|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    {"lfm2moe", NUMBER("num_dense_layers", "1", "0"), BAD,
     "num_dense_layers|0|sparse|model.layers.0.feed_forward.gate.weight"},
    {"lfm2moe", NUMBER("num_dense_layers", "1", "2"), BAD,
     "num_dense_layers|1|dense|model.layers.1.feed_forward.w1.weight"},
    /* taps of the convolution */
    {"mamba2", NUMBER("conv_kernel", "4", "0"), BAD, "conv_kernel|0|2|16"},
    {"mamba2", NUMBER("conv_kernel", "4", "1000"), BAD, "conv_kernel|1000|16"},
    {"mamba2", NUMBER("conv_kernel", "4", "3"), BAD, "backbone.layers.0.mixer.conv1d.weight"},
    {"granitehybrid", NUMBER("mamba_d_conv", "4", "0"), BAD, "mamba_d_conv|0|2|16"},
    {"granitehybrid", NUMBER("mamba_d_conv", "4", "1000"), BAD, "mamba_d_conv|1000|16"},
    {"granitehybrid", NUMBER("mamba_d_conv", "4", "5"), BAD, "model.layers.0.mamba.conv1d.weight"},
    {"nemotron_h", NUMBER("conv_kernel", "4", "0"), BAD, "conv_kernel|0|2|16"},
    {"nemotron_h", NUMBER("conv_kernel", "4", "1000"), BAD, "conv_kernel|1000|16"},
    {"nemotron_h", NUMBER("conv_kernel", "4", "-4"), BAD, "conv_kernel|-4"},
    {"falcon_h1", NUMBER("mamba_d_conv", "4", "0"), BAD, "mamba_d_conv|0|2|16"},
    {"falcon_h1", NUMBER("mamba_d_conv", "4", "1000"), BAD, "mamba_d_conv|1000|16"},
    {"lfm2moe", NUMBER("conv_L_cache", "3", "0"), BAD, "conv_L_cache|0|2|16"},
    {"lfm2moe", NUMBER("conv_L_cache", "3", "1000"), BAD, "conv_L_cache|1000|16"},
    {"lfm2moe", NUMBER("conv_L_cache", "3", "2"), BAD, "model.layers.0.conv.conv.weight"},
    /* sizes that would overflow, and heads that do not divide */
    {"mamba2", NUMBER("head_dim", "8", "4294967296"), BAD, "head_dim|4294967296|1024"},
    {"mamba2", NUMBER("state_size", "8", "4294967295"), BAD, "state_size|4294967295|1024"},
    {"mamba2", NUMBER("n_groups", "2", "0"), BAD, "n_groups|0"},
    {"granitehybrid", NUMBER("mamba_d_state", "8", "4294967295"), BAD,
     "mamba_d_state|4294967295|1024"},
    {"granitehybrid", NUMBER("mamba_n_heads", "3", "4294967294"), BAD,
     "mamba_n_heads|4294967294|1024"},
    {"granitehybrid", NUMBER("mamba_d_head", "12", "2147483648"), BAD,
     "mamba_d_head|2147483648|1024"},
    {"granitehybrid", NUMBER("mamba_n_groups", "1", "2"), BAD, "mamba_n_groups|2|3|mamba_n_heads"},
    {"granitehybrid", NUMBER("mamba_n_groups", "1", "0"), BAD, "mamba_n_groups|0"},
    {"nemotron_h", NUMBER("ssm_state_size", "6", "2147483648"), BAD,
     "ssm_state_size|2147483648|1024"},
    {"nemotron_h", NUMBER("mamba_num_heads", "16", "4294967292"), BAD,
     "mamba_num_heads|4294967292|1024"},
    {"nemotron_h", NUMBER("mamba_head_dim", "7", "4294967295"), BAD,
     "mamba_head_dim|4294967295|1024"},
    {"nemotron_h", NUMBER("n_groups", "4", "3"), BAD, "n_groups|3|16|mamba_num_heads"},
    {"nemotron_h", NUMBER("n_groups", "4", "2"), BAD, "backbone.layers.0.mixer.in_proj.weight"},
    {"falcon_h1", NUMBER("mamba_d_state", "6", "4294967295"), BAD, "mamba_d_state|4294967295|1024"},
    {"falcon_h1", NUMBER("mamba_n_heads", "6", "4294967295"), BAD, "mamba_n_heads|4294967295|1024"},
    {"falcon_h1", NUMBER("mamba_d_head", "6", "4294967295"), BAD, "mamba_d_head|4294967295|1024"},
    {"falcon_h1", NUMBER("mamba_n_groups", "2", "4"), BAD, "mamba_n_groups|4|6|mamba_n_heads"},
    {"falcon_h1", NUMBER("mamba_d_head", "6", "7"), BAD, "model.layers.0.mamba.in_proj.weight"},
};

static void test_bad_folders_are_refused_by_key_layer_and_tensor(void **state)
{
    (void)state;
    bad_folders_check(folders, COUNT(folders));
}

/* --- GGUF --- */

/* Bytes of an array of numbers per layer. */
#define I32S(n, ...) (const uint32_t[]){GGUF_I32, (n), 0, __VA_ARGS__}, 4 * (3 + (n))
#define U32(value)   &(const uint32_t){value}, 4

/* A key keeps its name and gets this value. */
#define SET(golden, arch, key, value)                                                              \
    golden, arch,                                                                                  \
    {                                                                                              \
        key, key, value                                                                            \
    }
#define KV   "attention.head_count_kv"
#define FFNS "feed_forward_length"

static const struct bad_gguf files[] = {
    /* lists of layers that disagree with the tensors */
    {SET("granitehybrid", "granitehybrid", KV, I32S(2, 1, 0)), BAD,
     "granitehybrid.attention.head_count_kv|0|blk.0.attn_q.weight"},
    {SET("granitehybrid", "granitehybrid", KV, I32S(2, 0, 0)), BAD,
     "granitehybrid.attention.head_count_kv|1|linear_attention|blk.1.ssm_in.weight"},
    {SET("granitehybrid", "granitehybrid", KV, I32S(1, 0)), BAD,
     "granitehybrid.attention.head_count_kv|1|2"},
    {SET("nemotron_h", "nemotron_h", KV, I32S(3, 1, 1, 0)), BAD,
     "nemotron_h.attention.head_count_kv|0|full_attention|blk.0.attn_q.weight"},
    {SET("nemotron_h", "nemotron_h", KV, I32S(3, 0, 0, 0)), BAD,
     "nemotron_h.attention.head_count_kv|1|linear_attention|blk.1.ssm_in.weight"},
    {SET("nemotron_h", "nemotron_h", FFNS, I32S(3, 100, 0, 100)), BAD,
     "nemotron_h.feed_forward_length|0|mlp|blk.0.ffn_up.weight"},
    {SET("nemotron_h", "nemotron_h", FFNS, I32S(2, 0, 100)), BAD,
     "nemotron_h.feed_forward_length|2|3"},
    {SET("nemotron_h_moe", "nemotron_h_moe", FFNS, I32S(3, 0, 36, 36)), BAD,
     "nemotron_h_moe.feed_forward_length|2|moe|blk.2.ffn_gate_inp.weight"},
    {SET("lfm2", "lfm2", KV, I32S(2, 1, 1)), BAD,
     "lfm2.attention.head_count_kv|0|full_attention|blk.0.attn_q.weight"},
    {SET("lfm2", "lfm2", KV, I32S(2, 0, 0)), BAD,
     "lfm2.attention.head_count_kv|1|conv|blk.1.shortconv.in_proj.weight"},
    {SET("lfm2moe", "lfm2moe", "leading_dense_block_count", U32(0)), BAD,
     "lfm2moe.leading_dense_block_count|0|sparse|blk.0.ffn_gate_inp.weight"},
    /* taps of the convolution */
    {SET("mamba2", "mamba2", "ssm.conv_kernel", U32(0)), BAD, "mamba2.ssm.conv_kernel|0|2|16"},
    {SET("mamba2", "mamba2", "ssm.conv_kernel", U32(1000)), BAD, "mamba2.ssm.conv_kernel|1000|16"},
    {SET("mamba2", "mamba2", "ssm.conv_kernel", U32(3)), BAD, "blk.0.ssm_conv1d.weight"},
    {SET("granitehybrid", "granitehybrid", "ssm.conv_kernel", U32(0)), BAD,
     "granitehybrid.ssm.conv_kernel|0|2|16"},
    {SET("granitehybrid", "granitehybrid", "ssm.conv_kernel", U32(1000)), BAD,
     "granitehybrid.ssm.conv_kernel|1000|16"},
    {SET("nemotron_h", "nemotron_h", "ssm.conv_kernel", U32(1000)), BAD,
     "nemotron_h.ssm.conv_kernel|1000|16"},
    {SET("falcon_h1", "falcon-h1", "ssm.conv_kernel", U32(0)), BAD,
     "falcon-h1.ssm.conv_kernel|0|2|16"},
    {SET("lfm2", "lfm2", "shortconv.l_cache", U32(0)), BAD, "lfm2.shortconv.l_cache|0|2|16"},
    {SET("lfm2", "lfm2", "shortconv.l_cache", U32(1000)), BAD, "lfm2.shortconv.l_cache|1000|16"},
    {SET("lfm2", "lfm2", "shortconv.l_cache", U32(4)), BAD, "blk.0.shortconv.conv.weight"},
    /* sizes that would overflow, and heads that do not divide */
    {SET("mamba2", "mamba2", "ssm.state_size", U32(UINT32_MAX)), BAD,
     "mamba2.ssm.state_size|4294967295|1024"},
    {SET("mamba2", "mamba2", "ssm.inner_size", U32(UINT32_MAX)), BAD,
     "mamba2.ssm.inner_size|4294967295"},
    {SET("mamba2", "mamba2", "ssm.inner_size", U32(113)), BAD,
     "mamba2.ssm.inner_size|113|14|mamba2.ssm.time_step_rank"},
    {SET("mamba2", "mamba2", "ssm.time_step_rank", U32(UINT32_MAX)), BAD,
     "mamba2.ssm.time_step_rank|4294967295|1024"},
    {SET("mamba2", "mamba2", "ssm.group_count", U32(4)), BAD,
     "mamba2.ssm.group_count|4|14|mamba2.ssm.time_step_rank"},
    {SET("mamba2", "mamba2", "ssm.group_count", U32(0)), BAD, "mamba2.ssm.group_count|0"},
    {SET("granitehybrid", "granitehybrid", "ssm.inner_size", U32(UINT32_MAX)), BAD,
     "granitehybrid.ssm.inner_size|4294967295"},
    {SET("nemotron_h", "nemotron_h", "ssm.state_size", U32(UINT32_MAX)), BAD,
     "nemotron_h.ssm.state_size|4294967295|1024"},
    {SET("falcon_h1", "falcon-h1", "ssm.time_step_rank", U32(UINT32_MAX)), BAD,
     "falcon-h1.ssm.time_step_rank|4294967295|1024"},
    {"mamba2", "mamba2", {"ssm.state_size", NULL, NULL, 0}, BAD, "mamba2.ssm.state_size"},
    {"lfm2", "lfm2", {"shortconv.l_cache", NULL, NULL, 0}, BAD, "lfm2.shortconv.l_cache"},
};

static void test_bad_gguf_files_are_refused_by_key_layer_and_tensor(void **state)
{
    (void)state;
    bad_ggufs_check(files, COUNT(files));
}

/* A layer lacks a tensor of its kind. */
static void test_layers_without_a_tensor_are_refused_by_key_and_tensor(void **state)
{
    static const struct bad_tensor tensors[] = {
        {"mamba2", "mamba2", "blk.1.ssm_d", "blk.1.ssm_d"},
        {"granitehybrid", "granitehybrid", "blk.0.ssm_dt.bias",
         "granitehybrid.attention.head_count_kv|0|linear_attention|blk.0.ssm_dt.bias"},
        {"nemotron_h", "nemotron_h", "blk.2.ffn_down.weight",
         "nemotron_h.feed_forward_length|2|mlp|blk.2.ffn_down.weight"},
        {"falcon_h1", "falcon-h1", "blk.1.ssm_a", "blk.1.ssm_a"},
        {"lfm2", "lfm2", "blk.0.shortconv.conv.weight",
         "lfm2.attention.head_count_kv|0|conv|blk.0.shortconv.conv.weight"},
    };
    (void)state;
    bad_tensors_check(tensors, COUNT(tensors));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_folders_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_bad_gguf_files_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_layers_without_a_tensor_are_refused_by_key_and_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
