/* mixtral.c: Mixtral. A GGUF has it under the name llama, with experts (llama.c leads here), and Q
 * and K permuted. The chosen weights are renormalised. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ROUTER, true,
     LAYER "block_sparse_moe.gate.weight"
           "|" LAYER "mlp.gate.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "block_sparse_moe.experts.%u.w1.weight"
           "|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER "block_sparse_moe.experts.%u.w3.weight"
           "|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER "block_sparse_moe.experts.%u.w2.weight"
           "|" LAYER "mlp.experts.down_proj",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 1000000, 0},
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("sliding_window", 0),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "mixtral",
        .rope_style = ROPE_INTERLEAVED,
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "MixtralForCausalLM|mixtral",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_mixtral = {
    .name = "mixtral",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SOFTMAX}}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
