/* phi.c: Phi-1 and Phi-2, and Phi-3 to Phi-4. Phi-2 has attention and FFN in parallel behind one
 * layer norm, biases everywhere and a plain FFN. Old GGUF files have Q, K and V in one matrix.
 * Phi-3 is the Llama block with fused matrices; models of long contexts have longrope. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

/* --- Phi-2 --- */

#define GGUF_Q(part, end) "blk.%u.attn_" part "." end "|blk.%u.attn_qkv." end

static const struct arch_tensor phi2_gguf_tensors[] = {
    {ARCH_ATTN_Q, true, GGUF_Q("q", "weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, GGUF_Q("q", "bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, GGUF_Q("k", "weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, GGUF_Q("k", "bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, GGUF_Q("v", "weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, GGUF_Q("v", "bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_BIAS, true, "output.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
};

static const struct arch_param phi2_gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_tensor phi2_hf_tensors[] = {
    {ARCH_OUTPUT_BIAS, true, "lm_head.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "model.final_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "model.final_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, false, LAYER "self_attn.q_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM_BIAS, false, LAYER "self_attn.q_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, LAYER "self_attn.k_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM_BIAS, false, LAYER "self_attn.k_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER "self_attn.dense.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, true, LAYER "self_attn.dense.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.fc1.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, LAYER "mlp.fc1.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.fc2.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, LAYER "mlp.fc2.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param phi2_hf_params[] = {
    {ARCH_PARAM_NORM_EPS, "layer_norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.5, 0},
};

static const struct arch_fixed_key phi2_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("embd_pdrop"),
    ARCH_ANY_VALUE("resid_pdrop"),
    ARCH_HAS_TENSOR("qk_layernorm", ARCH_ATTN_Q_NORM),
};

static const struct arch_source phi2_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "phi2",
        .rope_style = ROPE_HALF,
        .params = phi2_gguf_params,
        .tensors = phi2_gguf_tensors,
        .n_params = ARCH_N_OF(phi2_gguf_params),
        .n_tensors = ARCH_N_OF(phi2_gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "PhiForCausalLM|phi",
        .rope_style = ROPE_HALF,
        .params = phi2_hf_params,
        .fixed_keys = phi2_hf_fixed_keys,
        .tensors = phi2_hf_tensors,
        .n_params = ARCH_N_OF(phi2_hf_params),
        .n_fixed_keys = ARCH_N_OF(phi2_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(phi2_hf_tensors),
    },
};

const struct arch arch_phi2 = {
    .name = "phi2",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_LAYER}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = phi2_sources,
    .n_sources = ARCH_N_OF(phi2_sources),
};

/* --- Phi-3 --- */

static const struct arch_tensor phi3_gguf_tensors[] = {
    {ARCH_ROPE_FREQS_LONG, false, "rope_factors_long.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROPE_FREQS_SHORT, false, "rope_factors_short.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param phi3_gguf_params[] = {
    {ARCH_PARAM_ROPE_ATTENTION, "rope.scaling.attn_factor", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor phi3_hf_tensors[] = {
    {ARCH_ATTN_Q, true, LAYER "self_attn.qkv_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER "self_attn.qkv_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER "self_attn.qkv_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER "mlp.gate_up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.gate_up_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param phi3_hf_params[] = {
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT,
     "original_max_position_embeddings|rope_parameters.original_max_position_embeddings|"
     "rope_scaling.original_max_position_embeddings",
     ARCH_ABSENT_FALLBACK, 4096, 0},
    {ARCH_PARAM_ROPE_SHORT_FACTORS, "rope_parameters.short_factor|rope_scaling.short_factor",
     ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_LONG_FACTORS, "rope_parameters.long_factor|rope_scaling.long_factor",
     ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key phi3_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("embd_pdrop"),       ARCH_ANY_VALUE("resid_pdrop"),
    ARCH_ONE_VALUE("full_attn_mod", 1), ARCH_ONE_VALUE("interpolate_factor", 1),
    ARCH_ONE_VALUE("lm_head_bias", 0),
};

static const struct arch_source phi3_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "phi3",
        .rope_style = ROPE_HALF,
        .params = phi3_gguf_params,
        .tensors = phi3_gguf_tensors,
        .n_params = ARCH_N_OF(phi3_gguf_params),
        .n_tensors = ARCH_N_OF(phi3_gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Phi3ForCausalLM|phi3",
        .rope_style = ROPE_HALF,
        .params = phi3_hf_params,
        .fixed_keys = phi3_hf_fixed_keys,
        .tensors = phi3_hf_tensors,
        .n_params = ARCH_N_OF(phi3_hf_params),
        .n_fixed_keys = ARCH_N_OF(phi3_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(phi3_hf_tensors),
    },
};

const struct arch arch_phi3 = {
    .name = "phi3",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .reach = ARCH_REACH_WINDOW, .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = phi3_sources,
    .n_sources = ARCH_N_OF(phi3_sources),
};
