/* granitemoe.c: Granite with experts, with or without a shared MLP beside them. Embedding,
 * branches, scores and logits have scales. In a GGUF, Q and K are permuted. transformers stores
 * gate and up of all experts in one tensor. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_SHARED_FFN, "expert_shared_feed_forward_length", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EMBED_SCALE, "embedding_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention.scale", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logit_scale", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ROUTER, true,
     LAYER "block_sparse_moe.router.layer.weight"
           "|" LAYER "block_sparse_moe.router.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "block_sparse_moe.input_linear.weight"
           "|" LAYER "block_sparse_moe.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER "block_sparse_moe.input_linear.weight"
           "|" LAYER "block_sparse_moe.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER "block_sparse_moe.output_linear.weight"
           "|" LAYER "block_sparse_moe.experts.down_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER "shared_mlp.output_linear.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "shared_intermediate_size", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EMBED_SCALE, "embedding_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logits_scaling", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "granitemoe",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "GraniteMoeForCausalLM|granitemoe|GraniteMoeSharedForCausalLM|granitemoeshared",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_granitemoe = {
    .name = "granitemoe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_TOPK_SOFTMAX}}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
