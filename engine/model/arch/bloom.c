/* bloom.c: BLOOM and BLOOMZ. GGUF's converter puts all of Q before all of K before all of V;
 * Hugging Face interleaves them by head. Positions are ALiBi slopes only (arXiv 2108.12409; the
 * maximum bias is 8, which files do not state). A norm follows the embedding. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, ARCH_DIM_VOCAB, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true, "token_embd.weight"},
    {ARCH_TOKEN_NORM, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "token_embd_norm.weight"},
    {ARCH_TOKEN_NORM_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "token_embd_norm.bias"},
    {ARCH_OUTPUT_NORM, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true, "output_norm.weight"},
    {ARCH_OUTPUT_NORM_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "output_norm.bias"},
    {ARCH_OUTPUT, ARCH_DIM_VOCAB, ARCH_DIM_HIDDEN, ARCH_SPLIT_COLUMN, false, "output.weight"},
    {ARCH_ATTN_NORM, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "blk.%u.attn_norm.weight"},
    {ARCH_ATTN_NORM_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "blk.%u.attn_norm.bias"},
    {ARCH_ATTN_Q, ARCH_DIM_HEADS, ARCH_DIM_HIDDEN, ARCH_SPLIT_COLUMN, true,
     "blk.%u.attn_qkv.weight"},
    {ARCH_ATTN_Q_BIAS, ARCH_DIM_ONE, ARCH_DIM_HEADS, ARCH_SPLIT_COLUMN, true,
     "blk.%u.attn_qkv.bias"},
    {ARCH_ATTN_K, ARCH_DIM_KV, ARCH_DIM_HIDDEN, ARCH_SPLIT_COLUMN, true, "blk.%u.attn_qkv.weight"},
    {ARCH_ATTN_K_BIAS, ARCH_DIM_ONE, ARCH_DIM_KV, ARCH_SPLIT_COLUMN, true, "blk.%u.attn_qkv.bias"},
    {ARCH_ATTN_V, ARCH_DIM_KV, ARCH_DIM_HIDDEN, ARCH_SPLIT_COLUMN, true, "blk.%u.attn_qkv.weight"},
    {ARCH_ATTN_V_BIAS, ARCH_DIM_ONE, ARCH_DIM_KV, ARCH_SPLIT_COLUMN, true, "blk.%u.attn_qkv.bias"},
    {ARCH_ATTN_OUT, ARCH_DIM_HIDDEN, ARCH_DIM_HEADS, ARCH_SPLIT_ROW, true,
     "blk.%u.attn_output.weight"},
    {ARCH_ATTN_OUT_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "blk.%u.attn_output.bias"},
    {ARCH_FFN_NORM, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true, "blk.%u.ffn_norm.weight"},
    {ARCH_FFN_NORM_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "blk.%u.ffn_norm.bias"},
    {ARCH_FFN_UP, ARCH_DIM_FFN, ARCH_DIM_HIDDEN, ARCH_SPLIT_COLUMN, true, "blk.%u.ffn_up.weight"},
    {ARCH_FFN_UP_BIAS, ARCH_DIM_ONE, ARCH_DIM_FFN, ARCH_SPLIT_COLUMN, true, "blk.%u.ffn_up.bias"},
    {ARCH_FFN_DOWN, ARCH_DIM_HIDDEN, ARCH_DIM_FFN, ARCH_SPLIT_ROW, true, "blk.%u.ffn_down.weight"},
    {ARCH_FFN_DOWN_BIAS, ARCH_DIM_ONE, ARCH_DIM_HIDDEN, ARCH_SPLIT_NONE, true,
     "blk.%u.ffn_down.bias"},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_LAYERS, "block_count", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_CONTEXT, "context_length", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_HIDDEN, "embedding_length", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_FFN, "feed_forward_length", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_HEADS, "attention.head_count", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_KV_HEADS, "attention.head_count_kv", ARCH_ABSENT_DERIVE, 0},
    {ARCH_PARAM_KEY_DIM, "attention.key_length", ARCH_ABSENT_DERIVE, 0},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length", ARCH_ABSENT_DERIVE, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0},
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0},
    {ARCH_PARAM_ALIBI_BIAS, "attention.max_alibi_bias", ARCH_ABSENT_FALLBACK, 8},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    {"attention.causal", false, 1},
};

#define N_OF(array) (uint32_t)(sizeof(array) / sizeof((array)[0]))

static const struct arch_source sources[] = {{
    .format = "gguf",
    .rope_style = ROPE_NONE,
    .params = gguf_params,
    .fixed_keys = gguf_fixed_keys,
    .tensors = gguf_tensors,
    .n_params = N_OF(gguf_params),
    .n_fixed_keys = N_OF(gguf_fixed_keys),
    .n_tensors = N_OF(gguf_tensors),
}};

const struct arch arch_bloom = {
    .name = "bloom",
    .norm = ARCH_NORM_LAYER,
    .position = ARCH_POSITION_ALIBI,
    .attention = ARCH_ATTENTION_MULTI_HEAD,
    .ffn = ARCH_FFN_PLAIN,
    .activation = ACTIVATION_GELU_TANH,
    .residual = ARCH_RESIDUAL_PRE_NORM,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .sources = sources,
    .n_sources = N_OF(sources),
};
