/* mimo2.c: MiMo-V2-Flash. Keys are wider than values, which are scaled before attention. Layers
 * with a window have twice the KV heads, a rope of their own, and a sink per head. The first layer
 * is dense. The router takes sigmoids; a bias changes the choice of experts only. A GGUF counts the
 * layers that only draft tokens among its own. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

enum { FULL, SLIDING };

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_SINKS, false, "blk.%u.attn_sinks.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_DRAFT_LAYERS, "nextn_predict_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VALUE_SCALE, "attention.value_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base_swa", ARCH_ABSENT_FALLBACK, 10000, SLIDING},
    {ARCH_PARAM_ROT_DIM, "rope.dimension_count", ARCH_ABSENT_DERIVE, 0, SLIDING},
    {ARCH_PARAM_EXPERT_GROUPS, "expert_group_count", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "expert_group_used_count", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.sliding_window_pattern", 0, SLIDING, FULL},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "leading_dense_block_count", 1, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_SINKS, false, LAYER "self_attn.sinks|" LAYER "self_attn.attention_sink_bias",
     ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, LAYER "mlp.gate.e_score_correction_bias", ARCH_TRANSFORM_NONE},
};

/* The spelling of transformers 5. config.json in the model's own spelling has other keys. */
static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 192, 0},
    {ARCH_PARAM_VALUE_DIM, "v_head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_KV_FACTOR, NULL, ARCH_ABSENT_FALLBACK, 2, SLIDING},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VALUE_SCALE, "attention_value_scale", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.full_attention.rope_theta", ARCH_ABSENT_REFUSE, 0,
     FULL},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.sliding_attention.rope_theta", ARCH_ABSENT_REFUSE, 0,
     SLIDING},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.full_attention.partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.334, FULL},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.sliding_attention.partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.334, SLIDING},
    {ARCH_PARAM_EXPERTS, "n_routed_experts|num_local_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_GROUPS, "n_group", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "topk_group", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "routed_scaling_factor", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_TEXT("rope_parameters.sliding_attention.rope_type", "default"),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_NAMES, "mlp_layer_types", 0, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "mimo2",
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
        .aliases = "MiMoV2FlashForCausalLM|mimo_v2_flash",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_mimo2 = {
    .name = "mimo2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[FULL] = {.name = "full_attention", .rope = FULL},
               [SLIDING] = {.name = "sliding_attention",
                            .reach = ARCH_REACH_WINDOW,
                            .rope = SLIDING}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SIGMOID,
                         .group_score = ROUTER_GROUP_TOP_TWO,
                         .add_sum = 1e-20F}}},
    .n_mixers = 2,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
