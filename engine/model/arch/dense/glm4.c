/* glm4.c: GLM-4-0414 (9B and 32B). The Llama block with biases of Q, K and V, a fused gate and up
 * matrix, and norms also behind each branch. Half of each head rotates, in interleaved pairs. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_POST_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, "blk.%u.post_ffw_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_POST_NORM, true, LAYER "post_self_attn_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER "mlp.gate_up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.gate_up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, LAYER "post_mlp_layernorm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.5, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "glm4",
        .rope_style = ROPE_INTERLEAVED,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Glm4ForCausalLM|glm4",
        .rope_style = ROPE_INTERLEAVED,
        .params = hf_params,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_glm4 = {
    .name = "glm4",
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
