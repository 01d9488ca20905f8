/* qwen3moe.c: Qwen3 with experts. config.json may give some layers a dense FFN. A GGUF has experts
 * in all layers, and its router's weights are always renormalised. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "model.layers.%u.self_attn.q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "model.layers.%u.self_attn.k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_qwen_gguf,
        .format = "gguf",
        .aliases = "qwen3moe",
        .rope_style = ROPE_HALF,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_experts_qwen_hf,
        .format = "hf",
        .aliases = "Qwen3MoeForCausalLM|qwen3_moe",
        .rope_style = ROPE_HALF,
        .tensors = hf_tensors,
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_qwen3moe = {
    .name = "qwen3moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SOFTMAX}}},
    .n_mixers = 1,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
