/* falcon_h1.c: Falcon-H1. Each layer has attention and Mamba-2 side by side: both read the same
 * norm. The config has factors of nearly every matrix. GGUF files hold the products. The norm of
 * the state's output is optional, and comes before the gate or after it. */
#include "engine/model/arch/hybrid/arch_mamba.h"

#define LAYER(name) "model.layers.%u." name

static const struct arch_tensor gguf_tensors[] = {
    ARCH_MAMBA_GGUF_TENSORS,
    {ARCH_STATE_NORM, false, "blk.%u.ssm_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm|blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    ARCH_MAMBA_GGUF_PARAMS,
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM, true, "model.final_layernorm.weight", ARCH_TRANSFORM_NONE},
    ARCH_MAMBA_HF_TENSORS(LAYER("mamba.")),
    {ARCH_STATE_NORM, false, LAYER("mamba.norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("pre_ff_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER("feed_forward.gate_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("feed_forward.up_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("feed_forward.down_proj.weight"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_STATE_WIDTH, "mamba_d_conv", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "mamba_d_state", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_STATE_HEAD_DIM, "mamba_d_head", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_HEADS, "mamba_n_heads", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "mamba_n_groups", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_STATE_NORM_FIRST, "mamba_norm_before_gate", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EMBED_SCALE, "embedding_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_LOGIT_SCALE, "lm_head_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_ATTN_IN, "attention_in_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_ATTN_OUT, "attention_out_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_KEY, "key_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_STATE_IN, "ssm_in_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_STATE_OUT, "ssm_out_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_STATE_PARTS, "ssm_multipliers", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_SCALE_FFN, "mlp_multipliers", ARCH_ABSENT_FALLBACK, 1, 0},
};

/* The factors of attention's input and of the FFN's output hold without biases only. */
static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_MAMBA_HF_KEYS,
    ARCH_ANY_VALUE("mamba_chunk_size"),
    ARCH_ANY_VALUE("mamba_expand"), /* the heads give the width */
    ARCH_ANY_VALUE("mamba_d_ssm"),
    ARCH_ANY_VALUE("mamba_use_mlp"), /* transformers does not read these two */
    ARCH_ANY_VALUE("mlp_expansion_factor"),
    ARCH_ANY_VALUE("num_logits_to_keep"),
    ARCH_ONE_VALUE("attention_bias", 0),
    ARCH_ONE_VALUE("mlp_bias", 0),
    ARCH_ONE_VALUE("mamba_proj_bias", 0),
    ARCH_ONE_VALUE("projectors_bias", 0),
    ARCH_HAS_TENSOR("mamba_conv_bias", ARCH_STATE_CONV_V_BIAS),
    ARCH_HAS_TENSOR("mamba_rms_norm", ARCH_STATE_NORM),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "falcon-h1",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "FalconH1ForCausalLM|falcon_h1",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_falcon_h1 = {
    .name = "falcon-h1",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "hybrid", .mixing = ARCH_MIXING_ATTENTION_MAMBA2, .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
