/* gptneox.c: GPT-NeoX and Pythia. Layer norms, biases everywhere, a plain FFN, and rope on a part
 * of each head. Attention and FFN run in parallel, each behind its own norm. Hugging Face
 * interleaves Q, K and V by head; GGUF puts all of Q before all of K before all of V. */
#include "engine/model/arch/arch.h"

#define LAYER "gpt_neox.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_PARALLEL, "use_parallel_residual", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "gpt_neox.embed_in.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "gpt_neox.final_layer_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "gpt_neox.final_layer_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "embed_out.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "input_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER "attention.query_key_value.weight", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_Q_BIAS, false, LAYER "attention.query_key_value.bias", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K, true, LAYER "attention.query_key_value.weight", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K_BIAS, false, LAYER "attention.query_key_value.bias", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V, true, LAYER "attention.query_key_value.weight", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V_BIAS, false, LAYER "attention.query_key_value.bias", ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_OUT, true, LAYER "attention.dense.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, LAYER "attention.dense.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER "post_attention_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.dense_h_to_4h.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, LAYER "mlp.dense_h_to_4h.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.dense_4h_to_h.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, LAYER "mlp.dense_4h_to_h.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_NORM_EPS, "layer_norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_PARALLEL, "use_parallel_residual|gpt_j_residual", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|rotary_pct", ARCH_ABSENT_FALLBACK,
     0.25, 0},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.rope_theta|rotary_emb_base|rope_theta",
     ARCH_ABSENT_FALLBACK, 10000, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("classifier_dropout"),
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_ANY_VALUE("is_decoder"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "gptneox",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "GPTNeoXForCausalLM|gpt_neox",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .ignored_tensors = "gpt_neox.layers.%u.attention.bias|"
                           "gpt_neox.layers.%u.attention.masked_bias|"
                           "gpt_neox.layers.%u.attention.rotary_emb.inv_freq",
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_gptneox = {
    .name = "gptneox",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_ERF}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
