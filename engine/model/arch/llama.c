/* llama.c: the Llama family (Llama 1 to 3, SmolLM, TinyLlama, Mistral 7B without a window, …). GGUF
 * files of this architecture have Q and K permuted, so rope pairs are interleaved. The frequency
 * scaling of Llama 3 is a tensor of divisors; linear and YaRN scaling are keys. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROPE_FREQS, false, "rope_freqs.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_q.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, "blk.%u.attn_q.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_k.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, "blk.%u.attn_k.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_v.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, "blk.%u.attn_v.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, "blk.%u.attn_output.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, "blk.%u.ffn_gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE_BIAS, false, "blk.%u.ffn_gate.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, "blk.%u.ffn_up.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, "blk.%u.ffn_down.bias", ARCH_TRANSFORM_NONE},
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
    {ARCH_PARAM_ROT_DIM, "rope.dimension_count", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_rms_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base", ARCH_ABSENT_FALLBACK, 10000, 0},
    {ARCH_PARAM_ROPE_SCALING, "rope.scaling.type", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_FACTOR, "rope.scaling.factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, "rope.scaling.original_context_length", ARCH_ABSENT_DERIVE,
     0, 0},
    {ARCH_PARAM_ROPE_ATTN_FACTOR, "rope.scaling.attn_factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_EXT_FACTOR, "rope.scaling.yarn_ext_factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BETA_FAST, "rope.scaling.yarn_beta_fast", ARCH_ABSENT_FALLBACK, 32, 0},
    {ARCH_PARAM_ROPE_BETA_SLOW, "rope.scaling.yarn_beta_slow", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    {"rope.scaling.finetuned", true, 0}, /* describes training, not inference */
    {"tensor_data_layout", true, 0},     /* a remark by old converters */
    {"expert_count", false, 0},          /* mixtures of experts are not supported */
    {"expert_used_count", false, 0},     {"attention.causal", false, 1},
};

static const struct arch_source sources[] = {{
    .format = "gguf",
    .aliases = "llama",
    .rope_style = ROPE_INTERLEAVED,
    .params = gguf_params,
    .fixed_keys = gguf_fixed_keys,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
    .n_tensors = ARCH_N_OF(gguf_tensors),
}};

const struct arch arch_llama = {
    .name = "llama",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
