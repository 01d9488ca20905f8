/* nemotron.c: Nemotron-3 and -4, Minitron. A plain FFN with relu², layer norms, and rope on half of
 * each head. Norms lack their 1 in Hugging Face's files; GGUF has it folded in. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM, true, "model.norm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "model.norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "input_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER "post_attention_layernorm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_NORM_EPS, "norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ROT_SHARE,
     "rope_parameters.partial_rotary_factor|partial_rotary_factor|rope_percent|rope_percentage",
     ARCH_ABSENT_FALLBACK, 0.5, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "nemotron",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "NemotronForCausalLM|nemotron",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_nemotron = {
    .name = "nemotron",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_RELU2}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
