/* glm4moe.c: GLM-4.5 to 4.7 with experts. The first layers are dense. The router takes sigmoids; a
 * bias changes the choice of experts only. Norms of query and key heads are optional. The last
 * layer of a GGUF only drafts tokens. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, false, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_DRAFT_LAYERS, "nextn_predict_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_SHARED_COUNT, "expert_shared_count", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERT_GROUPS, "expert_group_count", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "expert_group_used_count", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "leading_dense_block_count", 0, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, false, LAYER "self_attn.q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, LAYER "self_attn.k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, LAYER "mlp.gate.e_score_correction_bias", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, LAYER "mlp.shared_experts.gate_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER "mlp.shared_experts.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER "mlp.shared_experts.down_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.5, 0},
    {ARCH_PARAM_DRAFT_LAYERS, "num_nextn_predict_layers", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERTS, "n_routed_experts|num_experts|num_local_experts", ARCH_ABSENT_REFUSE, 0,
     0},
    {ARCH_PARAM_SHARED_COUNT, "n_shared_experts", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS, "n_group", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "topk_group", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "routed_scaling_factor", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("use_qk_norm", ARCH_ATTN_Q_NORM),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "first_k_dense_replace", 1, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "glm4moe",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "Glm4MoeForCausalLM|glm4_moe",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .draft_layers = "model.layers.%u.",
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_glm4moe = {
    .name = "glm4moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SIGMOID,
                         .group_score = ROUTER_GROUP_TOP_TWO,
                         .add_sum = 1e-20F}}},
    .n_mixers = 1,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
