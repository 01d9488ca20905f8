/* deepseek2.c: latent attention: DeepSeek V2 to R1, Kimi K2 and GLM-4.7-Flash. The first layers are
 * dense. V2's router takes the softmax of all experts, and a group's score is that of its best
 * expert. V3's takes sigmoids with a bias for the choice, and sums a group's two best. */
#include "engine/model/arch/arch.h"

/* transformers norms low-rank vectors with this, whatever the file says. */
#define LATENT_EPS                                                                                 \
    {                                                                                              \
        ARCH_PARAM_LATENT_EPS, NULL, ARCH_ABSENT_FALLBACK, 1e-6, 0                                 \
    }

/* --- GGUF: old files have the up projections of keys and values in one matrix --- */

#define BLK "blk.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_LATENT_Q_DOWN, false, BLK "attn_q_a.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_Q_NORM, false, BLK "attn_q_a_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_Q_NOPE, true, BLK "attn_q.weight|" BLK "attn_q_b.weight",
     ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_LATENT_Q_ROPE, true, BLK "attn_q.weight|" BLK "attn_q_b.weight",
     ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_LATENT_KV_DOWN, true, BLK "attn_kv_a_mqa.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_K_ROPE, true, BLK "attn_kv_a_mqa.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_KV_NORM, true, BLK "attn_kv_a_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_K_UP, true, BLK "attn_kv_b.weight", ARCH_TRANSFORM_HEADS_TRANSPOSED},
    {ARCH_LATENT_V_UP, true, BLK "attn_kv_b.weight", ARCH_TRANSFORM_HEADS},
    {ARCH_ROUTER_SELECT, false, BLK "exp_probs_b.bias|" BLK "exp_probs_b", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, BLK "ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, BLK "ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, BLK "ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

/* The first files of GLM-4.7-Flash, with 154,880 tokens, do not name the router's score. */
static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_DRAFT_LAYERS, "nextn_predict_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_LATENT_Q, "attention.q_lora_rank", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_LATENT_KV, "attention.kv_lora_rank", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_ROT, "rope.dimension_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_KEY, "attention.key_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_VALUE, "attention.value_length", ARCH_ABSENT_REFUSE, 0, 0},
    LATENT_EPS,
    {ARCH_PARAM_KEY_DIM, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VALUE_DIM, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_LOG_FACTOR, "rope.scaling.yarn_log_multiplier", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_SHARED_COUNT, "expert_shared_count", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERT_GROUPS, "expert_group_count", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "expert_group_used_count", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_RENORM, "expert_weights_norm", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERT_SIGMOID_VOCAB, NULL, ARCH_ABSENT_FALLBACK, 154880, 0},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "leading_dense_block_count", 0, 0, 0},
};

/* --- GGUF: new files have a matrix per head, and the cache's widths as those of a head --- */

static const struct arch_tensor new_gguf_tensors[] = {
    {ARCH_LATENT_K_UP, true, BLK "attn_k_b.weight", ARCH_TRANSFORM_HEADS},
    {ARCH_LATENT_V_UP, true, BLK "attn_v_b.weight", ARCH_TRANSFORM_HEADS},
};

static const struct arch_param new_gguf_params[] = {
    {ARCH_PARAM_LATENT_KEY, "attention.key_length_mla", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_VALUE, "attention.value_length_mla", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "attention.key_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length", ARCH_ABSENT_DERIVE, 0, 0},
};

/* --- Hugging Face --- */

#define LAYER "model.layers.%u."
#define ATTN  LAYER "self_attn."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_LATENT_Q_DOWN, false, ATTN "q_a_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_Q_NORM, false, ATTN "q_a_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_Q_NOPE, true, ATTN "q_proj.weight|" ATTN "q_b_proj.weight",
     ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_LATENT_Q_ROPE, true, ATTN "q_proj.weight|" ATTN "q_b_proj.weight",
     ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_LATENT_KV_DOWN, true, ATTN "kv_a_proj_with_mqa.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_K_ROPE, true, ATTN "kv_a_proj_with_mqa.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_KV_NORM, true, ATTN "kv_a_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LATENT_K_UP, true, ATTN "kv_b_proj.weight", ARCH_TRANSFORM_HEADS_TRANSPOSED},
    {ARCH_LATENT_V_UP, true, ATTN "kv_b_proj.weight", ARCH_TRANSFORM_HEADS},
    {ARCH_SHARED_GATE, false, LAYER "mlp.shared_experts.gate_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER "mlp.shared_experts.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER "mlp.shared_experts.down_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LATENT_Q, "q_lora_rank", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_LATENT_KV, "kv_lora_rank", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_ROT, "qk_rope_head_dim", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_NOPE, "qk_nope_head_dim", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LATENT_KEY, "qk_head_dim", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_LATENT_VALUE, "v_head_dim", ARCH_ABSENT_REFUSE, 0, 0},
    LATENT_EPS,
    {ARCH_PARAM_KEY_DIM, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_EXPERTS, "n_routed_experts|num_experts|num_local_experts", ARCH_ABSENT_REFUSE, 0,
     0},
    {ARCH_PARAM_SHARED_COUNT, "n_shared_experts", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERT_SCALE, "routed_scaling_factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS, "n_group", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_GROUPS_USED, "topk_group", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("attention_bias", 0),
    ARCH_ONE_VALUE("mlp_bias", 0),
    ARCH_ONE_VALUE("moe_layer_freq", 1),
    ARCH_ANY_VALUE("head_dim"), /* transformers replaces it by qk_rope_head_dim */
    /* These keys concern training. */
    ARCH_ANY_VALUE("ep_size"),
    ARCH_ANY_VALUE("aux_loss_alpha"),
    ARCH_ANY_VALUE("seq_aux"),
    ARCH_ANY_VALUE("pretraining_tp"),
};

static const struct arch_source hf_source = {
    .base = &arch_experts_hf,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
};

/* V2 */
static const struct arch_param v2_params[] = {
    {ARCH_PARAM_EXPERT_METHOD, "topk_method", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key v2_fixed_keys[] = {
    ARCH_ONE_TEXT("scoring_func", "softmax"),
    ARCH_ANY_VALUE("norm_topk_prob"), /* transformers does not read the key in this family */
};

static const struct arch_pattern v2_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "first_k_dense_replace", 0, 0, 0},
};

/* V3 */
static const struct arch_tensor v3_tensors[] = {
    {ARCH_ROUTER_SELECT, true, LAYER "mlp.gate.e_score_correction_bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param v3_params[] = {
    {ARCH_PARAM_DRAFT_LAYERS, "num_nextn_predict_layers", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCORE, NULL, ARCH_ABSENT_FALLBACK, ROUTER_SIGMOID + 1, 0},
};

static const struct arch_fixed_key v3_fixed_keys[] = {
    ARCH_ONE_TEXT("scoring_func", "sigmoid"),
    ARCH_ONE_TEXT("topk_method", "noaux_tc"),
    ARCH_ONE_VALUE("rope_interleave", 1),
};

static const struct arch_pattern v3_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "first_k_dense_replace", 3, 0, 0},
};

/* GLM-4.7-Flash is V3 with another number of dense layers, or their list. */
static const struct arch_pattern glm_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "first_k_dense_replace", 1, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_NAMES, "mlp_layer_types", 0, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "deepseek2",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .draft_layers = BLK,
        .counts_drafts = true,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &sources[0],
        .format = "gguf",
        .aliases = "deepseek2",
        .rope_style = ROPE_INTERLEAVED,
        .params = new_gguf_params,
        .tensors = new_gguf_tensors,
        .patterns = gguf_patterns,
        .draft_layers = BLK,
        .counts_drafts = true,
        .dialect_keys = "attention.key_length_mla",
        .n_params = ARCH_N_OF(new_gguf_params),
        .n_tensors = ARCH_N_OF(new_gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &hf_source,
        .format = "hf",
        .aliases = "DeepseekV2ForCausalLM|deepseek_v2",
        .rope_style = ROPE_INTERLEAVED,
        .params = v2_params,
        .fixed_keys = v2_fixed_keys,
        .patterns = v2_patterns,
        .n_params = ARCH_N_OF(v2_params),
        .n_fixed_keys = ARCH_N_OF(v2_fixed_keys),
        .n_patterns = ARCH_N_OF(v2_patterns),
    },
    {
        .base = &hf_source,
        .format = "hf",
        .aliases = "DeepseekV3ForCausalLM|deepseek_v3|kimi_k2",
        .rope_style = ROPE_INTERLEAVED,
        .params = v3_params,
        .fixed_keys = v3_fixed_keys,
        .tensors = v3_tensors,
        .patterns = v3_patterns,
        .draft_layers = LAYER,
        .n_params = ARCH_N_OF(v3_params),
        .n_fixed_keys = ARCH_N_OF(v3_fixed_keys),
        .n_tensors = ARCH_N_OF(v3_tensors),
        .n_patterns = ARCH_N_OF(v3_patterns),
    },
    {
        .base = &sources[3],
        .format = "hf",
        .aliases = "Glm4MoeLiteForCausalLM|glm4_moe_lite",
        .rope_style = ROPE_INTERLEAVED,
        .patterns = glm_patterns,
        .draft_layers = LAYER,
        .n_patterns = ARCH_N_OF(glm_patterns),
    },
};

const struct arch arch_deepseek2 = {
    .name = "deepseek2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .mixing = ARCH_MIXING_LATENT, .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SOFTMAX,
                         .group_score = ROUTER_GROUP_TOP_TWO,
                         .softmax_by_max = true,
                         .add_sum = 1e-20F}}},
    .n_mixers = 1,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
