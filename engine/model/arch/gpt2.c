/* gpt2.c: GPT-2 (124M to 1.5B, DistilGPT2 and models derived from them). GGUF has the Conv1D
 * matrices transposed to rows of outputs. Q, K and V are one matrix, one below the other. The
 * position embedding is a table with one row per position, so the context is the table's length. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_POSITION_EMBD, true, "position_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, true, "blk.%u.attn_output.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, "blk.%u.ffn_up.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, "blk.%u.ffn_down.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_LAYERS, "block_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "context_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "embedding_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HEADS, "attention.head_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, "attention.head_count_kv", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "attention.key_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    {"attention.causal", false, 1},
};

static const struct arch_source sources[] = {{
    .format = "gguf",
    .aliases = "gpt2",
    .rope_style = ROPE_NONE,
    .params = gguf_params,
    .fixed_keys = gguf_fixed_keys,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
    .n_tensors = ARCH_N_OF(gguf_tensors),
}};

const struct arch arch_gpt2 = {
    .name = "gpt2",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
