/* stablelm.c: StableLM 2 and 3B. The Llama block with layer norms, and rope on a part of each head.
 * The 12B model has attention and FFN in parallel behind one norm. Each of its heads of Q and K has
 * a norm with its own weights. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, false, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, false, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_PARALLEL, "use_parallel_residual", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "model.norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, false, LAYER "post_attention_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, false, LAYER "self_attn.q_layernorm.norms.%u.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, LAYER "self_attn.k_layernorm.norms.%u.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_NORM_EPS, "layer_norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_PARALLEL, "use_parallel_residual", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.25, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_HAS_TENSOR("qk_layernorm", ARCH_ATTN_Q_NORM),
    ARCH_HAS_TENSOR("use_qkv_bias", ARCH_ATTN_Q_BIAS),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "stablelm",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "StableLmForCausalLM|stablelm",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_stablelm = {
    .name = "stablelm",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention",
                .rope = 0,
                .head_norm = ARCH_NORM_LAYER,
                .head_norm_scope = ARCH_SCOPE_OWN_HEAD}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
