/* starcoder2.c: StarCoder 2. Layer norms, biases everywhere, a plain FFN, and rope. GGUF does not
 * state the window that some models have. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "model.norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER "post_attention_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.c_fc.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, LAYER "mlp.c_fc.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.c_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, LAYER "mlp.c_proj.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_NORM_EPS, "norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("embedding_dropout"),
    ARCH_ANY_VALUE("residual_dropout"),
    ARCH_HAS_TENSOR("use_bias", ARCH_ATTN_Q_BIAS),
    ARCH_ONE_TEXT("norm_type", "layer_norm"),
    ARCH_ONE_TEXT("mlp_type", "default"),
    ARCH_ANY_VALUE("activation_function"), /* transformers reads hidden_act only */
    ARCH_ANY_VALUE("attention_softmax_in_fp32"),
    ARCH_ANY_VALUE("scale_attention_softmax_in_fp32"),
    ARCH_ONE_VALUE("scale_attn_weights", 1),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "starcoder2",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Starcoder2ForCausalLM|starcoder2",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_starcoder2 = {
    .name = "starcoder2",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .reach = ARCH_REACH_WINDOW, .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
