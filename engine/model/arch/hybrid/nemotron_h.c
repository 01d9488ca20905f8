/* nemotron_h.c: Nemotron-H and Nemotron 3. A block is a single part with a norm before it: Mamba-2,
 * attention without rope, a dense FFN, or experts. The norm of each has one name. Layers that only
 * draft tokens (mtp.) are not read. */
#include "engine/model/arch/hybrid/arch_mamba.h"

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    ARCH_MAMBA_GGUF_TENSORS,
    {ARCH_STATE_NORM, true, "blk.%u.ssm_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_q.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_k.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_v.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, "blk.%u.ffn_up_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, true, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, true, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_rms_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    ARCH_MAMBA_GGUF_PARAMS,
    {ARCH_PARAM_DRAFT_LAYERS, "nextn_predict_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "expert_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "expert_shared_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "expert_weights_norm", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "expert_weights_scale", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope.*"), /* attention has no rope */
    ARCH_ANY_VALUE("vision.*"),
    ARCH_ANY_VALUE("audio.*"),
    ARCH_ANY_VALUE("expert_shared_count"), /* the shared width is that of all */
    ARCH_ONE_VALUE("expert_group_count", 1),
    ARCH_ONE_VALUE("expert_group_used_count", 1),
    ARCH_ONE_VALUE("expert_gating_func", 2), /* sigmoid */
};

/* Layers with KV heads have attention. Those with an FFN have no mixer. */
static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_MARKED, "attention.head_count_kv", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_MARKED, "feed_forward_length", 0, 2, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_MARKED, "feed_forward_length", 0, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_SET, "expert_count", 0, 2, 1},
};

/* --- Hugging Face --- */

#define MIXER "backbone.layers.%u.mixer."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "backbone.embeddings.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "backbone.norm_f.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "backbone.layers.%u.norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "backbone.layers.%u.norm.weight", ARCH_TRANSFORM_NONE},
    ARCH_MAMBA_HF_TENSORS(MIXER),
    {ARCH_STATE_NORM, true, MIXER "norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, MIXER "q_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, MIXER "k_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, MIXER "v_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, MIXER "o_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, MIXER "up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, MIXER "down_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true, MIXER "gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, MIXER "gate.e_score_correction_bias", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, MIXER "experts.%u.up_proj.weight|" MIXER "experts.up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, MIXER "experts.%u.down_proj.weight|" MIXER "experts.down_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, true, MIXER "shared_experts.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, true, MIXER "shared_experts.down_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ACTIVATION, "mlp_hidden_act", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, "num_key_value_heads", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim|attention_head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_WIDTH, "conv_kernel|mamba_d_conv", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "ssm_state_size", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_HEAD_DIM, "mamba_head_dim", ARCH_ABSENT_FALLBACK, 64, 0},
    {ARCH_PARAM_STATE_HEADS, "mamba_num_heads", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "n_groups|mamba_n_groups", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_EXPERTS, "n_routed_experts", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_FALLBACK, 2, 0},
    {ARCH_PARAM_EXPERT_FFN, "moe_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "moe_shared_expert_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "routed_scaling_factor", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_MAMBA_HF_KEYS,
    ARCH_ANY_VALUE("chunk_size"),
    ARCH_ANY_VALUE("mamba_chunk_size"),
    ARCH_ANY_VALUE("expand"), /* the heads give the width */
    ARCH_ANY_VALUE("mamba_expand"),
    ARCH_ANY_VALUE("mamba_dt_*"), /* older spellings of the bounds of steps in training */
    ARCH_OPEN_RANGE("mamba_dt_limit"),
    ARCH_ANY_VALUE("use_mamba_kernels"),
    ARCH_ANY_VALUE("mamba_ssm_cache_dtype"), /* states are f32 */
    ARCH_ANY_VALUE("num_logits_to_keep"),
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_ANY_VALUE("output_router_logits"),
    ARCH_ANY_VALUE("n_shared_experts"), /* the shared width is that of all */
    ARCH_ANY_VALUE("moe_shared_expert_overlap"),
    ARCH_ANY_VALUE("num_nextn_predict_layers"),
    ARCH_ANY_VALUE("mtp_*"),
    ARCH_ANY_VALUE("rope_theta"), /* attention has no rope */
    ARCH_ANY_VALUE("rope_parameters.*"),
    ARCH_ANY_VALUE("rope_scaling*"),
    ARCH_ANY_VALUE("partial_rotary_factor"),
    ARCH_ANY_VALUE("rms_norm_eps"), /* layer_norm_epsilon is read in place of these two */
    ARCH_ANY_VALUE("norm_eps"),
    ARCH_ANY_VALUE("sliding_window"), /* transformers does not read the key */
    ARCH_ONE_VALUE("n_group", 1),
    ARCH_ONE_VALUE("topk_group", 1),
    ARCH_ONE_VALUE("moe_latent_size", 0),
    ARCH_ONE_VALUE("attention_bias", 0),
    ARCH_ONE_VALUE("mlp_bias", 0),
    ARCH_ONE_VALUE("use_bias", 0),
    ARCH_ONE_VALUE("mamba_proj_bias", 0),
    ARCH_ONE_TEXT("mamba_hidden_act", "silu|swish"),
    ARCH_HAS_TENSOR("use_conv_bias", ARCH_STATE_CONV_V_BIAS),
    ARCH_HAS_TENSOR("mamba_conv_bias", ARCH_STATE_CONV_V_BIAS),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layers_block_type|layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_NAMES, "layers_block_type|layer_types", 0, 0, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_CHARS, "hybrid_override_pattern", '*', 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_CHARS, "hybrid_override_pattern", '-', 2, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_CHARS, "hybrid_override_pattern", 'E', 2, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_CHARS, "hybrid_override_pattern", '-', 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_CHARS, "hybrid_override_pattern", 'E', 2, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf_keys,
        .format = "gguf",
        .aliases = "nemotron_h|nemotron_h_moe",
        .rope_style = ROPE_NONE,
        .params = gguf_params,
        .fixed_keys = gguf_fixed_keys,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .n_params = ARCH_N_OF(gguf_params),
        .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_base_hf_keys,
        .format = "hf",
        .aliases = "NemotronHForCausalLM|nemotron_h",
        .rope_style = ROPE_NONE,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .ignored_tensors = "mtp.",
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

/* The lists of kinds name mixers and FFNs alike. */
#define MAMBA     "linear_attention|mamba"
#define ATTENTION "full_attention|attention"

const struct arch arch_nemotron_h = {
    .name = "nemotron_h",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = MAMBA, .mixing = ARCH_MIXING_MAMBA2, .rope = ARCH_NO_ROPE},
               {.name = ATTENTION, .rope = ARCH_NO_ROPE},
               {.name = "mlp|moe", .mixing = ARCH_MIXING_NONE, .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = MAMBA "|" ATTENTION, .body = ARCH_FFN_NONE},
             {.name = "mlp", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_RELU2},
             {.name = "moe",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_PLAIN,
              .activation = ACTIVATION_RELU2,
              .router = {.score = ROUTER_SIGMOID, .add_sum = 1e-20F}}},
    .n_mixers = 3,
    .n_ffns = 3,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
