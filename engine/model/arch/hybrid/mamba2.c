/* mamba2.c: Mamba-2. Every layer is a mixer alone: no attention, no FFN, no positions. So a
 * sequence takes a state and no KV. Neither format gives a context; that of llama.cpp's converter
 * serves. */
#include "engine/model/arch/hybrid/arch_mamba.h"

#define MIXER "backbone.layers.%u.mixer."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    ARCH_MAMBA_GGUF_TENSORS,
    {ARCH_STATE_NORM, true, "blk.%u.ssm_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_rms_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    ARCH_MAMBA_GGUF_PARAMS,
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "backbone.embeddings.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "backbone.norm_f.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "backbone.layers.%u.norm.weight", ARCH_TRANSFORM_NONE},
    ARCH_MAMBA_HF_TENSORS(MIXER),
    {ARCH_STATE_NORM, true, MIXER "norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, NULL, ARCH_ABSENT_FALLBACK, 1 << 20, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_STATE_WIDTH, "conv_kernel", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "state_size", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_HEAD_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 64, 0},
    {ARCH_PARAM_STATE_HEADS, "num_heads", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "n_groups", ARCH_ABSENT_FALLBACK, 8, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_MAMBA_HF_KEYS,
    ARCH_ANY_VALUE("chunk_size"),
    ARCH_ANY_VALUE("expand"), /* the heads give the same width */
    /* transformers does not read these two */
    ARCH_ANY_VALUE("norm_before_gate"),
    ARCH_ANY_VALUE("rms_norm"),
    ARCH_ONE_TEXT("hidden_act", "silu|swish"),
    ARCH_ONE_VALUE("use_bias", 0),
    ARCH_HAS_TENSOR("use_conv_bias", ARCH_STATE_CONV_V_BIAS),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf_keys,
        .format = "gguf",
        .aliases = "mamba2",
        .rope_style = ROPE_NONE,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf_keys,
        .format = "hf",
        .aliases = "Mamba2ForCausalLM|mamba2",
        .rope_style = ROPE_NONE,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_mamba2 = {
    .name = "mamba2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "linear_attention", .mixing = ARCH_MIXING_MAMBA2, .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "none", .body = ARCH_FFN_NONE}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
