/* arch_experts.c: the rows that families with experts share in each format, on top of the Llama
 * block. The experts of a layer lie in one tensor, or in a tensor each (old GGUF files,
 * transformers 4). Gate and up may lie in one tensor (transformers 5). */
#include "engine/model/arch/arch.h"

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     "blk.%u.ffn_gate_exps.weight|blk.%u.ffn_gate.%u.weight|blk.%u.ffn_gate_up_exps.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     "blk.%u.ffn_up_exps.weight|blk.%u.ffn_up.%u.weight|blk.%u.ffn_gate_up_exps.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight|blk.%u.ffn_down.%u.weight",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "expert_feed_forward_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "expert_weights_norm", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "expert_weights_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCORE, "expert_gating_func", ARCH_ABSENT_DERIVE, 0, 0},
};

const struct arch_source arch_experts_gguf = {
    .base = &arch_base_gguf,
    .format = "gguf",
    .params = gguf_params,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .n_tensors = ARCH_N_OF(gguf_tensors),
};

/* --- Hugging Face --- */

#define LAYER "model.layers.%u."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ROUTER, true, LAYER "mlp.gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "mlp.experts.%u.gate_proj.weight|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, LAYER "mlp.experts.%u.up_proj.weight|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, LAYER "mlp.experts.%u.down_proj.weight|" LAYER "mlp.experts.down_proj",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EXPERTS, "num_experts|num_local_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "moe_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    /* These keys concern training. */
    ARCH_ANY_VALUE("output_router_logits"),
    ARCH_ANY_VALUE("router_aux_loss_coef"),
    ARCH_ANY_VALUE("router_jitter_noise"),
};

const struct arch_source arch_experts_hf = {
    .base = &arch_base_hf,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
};

/* --- Hugging Face, the names of Mixtral --- */

static const struct arch_tensor mixtral_tensors[] = {
    {ARCH_ROUTER, true, LAYER "block_sparse_moe.gate.weight|" LAYER "mlp.gate.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "block_sparse_moe.experts.%u.w1.weight|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER "block_sparse_moe.experts.%u.w3.weight|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER "block_sparse_moe.experts.%u.w2.weight|" LAYER "mlp.experts.down_proj",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param mixtral_params[] = {
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

const struct arch_source arch_experts_mixtral_hf = {
    .base = &arch_experts_hf,
    .format = "hf",
    .params = mixtral_params,
    .tensors = mixtral_tensors,
    .n_params = ARCH_N_OF(mixtral_params),
    .n_tensors = ARCH_N_OF(mixtral_tensors),
};

/* --- the patterns of Qwen: FFN 0 is dense, FFN 1 has experts --- */

static const struct arch_pattern qwen_gguf_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
};

const struct arch_source arch_experts_qwen_gguf = {
    .base = &arch_experts_gguf,
    .format = "gguf",
    .patterns = qwen_gguf_patterns,
    .n_patterns = ARCH_N_OF(qwen_gguf_patterns),
};

static const struct arch_param qwen_hf_params[] = {
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key qwen_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("use_sliding_window", 0),
    ARCH_ANY_VALUE("sliding_window"), /* without effect if use_sliding_window is false */
    ARCH_ANY_VALUE("max_window_layers"),
};

static const struct arch_pattern qwen_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, "decoder_sparse_step", 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LIST, "mlp_only_layers", 0, 0, 0},
};

const struct arch_source arch_experts_qwen_hf = {
    .base = &arch_experts_hf,
    .format = "hf",
    .params = qwen_hf_params,
    .fixed_keys = qwen_hf_fixed_keys,
    .patterns = qwen_hf_patterns,
    .n_params = ARCH_N_OF(qwen_hf_params),
    .n_fixed_keys = ARCH_N_OF(qwen_hf_fixed_keys),
    .n_patterns = ARCH_N_OF(qwen_hf_patterns),
};
