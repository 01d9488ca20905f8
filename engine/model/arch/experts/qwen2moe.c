/* qwen2moe.c: Qwen2 with experts, and beside them a shared expert times the sigmoid of its own
 * gate. The chosen weights are not renormalised. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_ROUTER, true, "blk.%u.ffn_gate_inp_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_SHARED_FFN, "expert_shared_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "expert_weights_norm", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_SHARED_GATE, false, LAYER "mlp.shared_expert.gate_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER "mlp.shared_expert.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER "mlp.shared_expert.down_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_ROUTER, true, LAYER "mlp.shared_expert_gate.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_SHARED_FFN, "shared_expert_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("qkv_bias", ARCH_ATTN_Q_BIAS),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_qwen_gguf,
        .format = "gguf",
        .aliases = "qwen2moe",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_experts_qwen_hf,
        .format = "hf",
        .aliases = "Qwen2MoeForCausalLM|qwen2_moe",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_qwen2moe = {
    .name = "qwen2moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
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
