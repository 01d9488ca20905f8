/* lfm2.c: LFM2, dense and with experts. Most layers have a gated short convolution, the others
 * attention with norms of heads. The output norm of a GGUF file has the name of an embedding norm.
 * Folders of dense models give the FFN's width before an adjustment, GGUF files the width itself.
 * With experts, the first layers are dense; a bias changes the choice of experts only. */
#include "engine/model/arch/arch.h"

#define LAYER(name) "model.layers.%u." name

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM, true, "token_embd_norm.weight|output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_CONV_GATE_IN, true, "blk.%u.shortconv.in_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_CONV_GATE_OUT, true, "blk.%u.shortconv.in_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_V, true, "blk.%u.shortconv.in_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_V, true, "blk.%u.shortconv.conv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_OUT, true, "blk.%u.shortconv.out_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_STATE_WIDTH, "shortconv.l_cache", ARCH_ABSENT_REFUSE, 0, 0},
};

/* A layer without KV heads has a convolution. */
static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_MARKED, "attention.head_count_kv", 0, 1, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM, true, "model.embedding_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER("operator_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, LAYER("self_attn.q_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, LAYER("self_attn.k_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER("self_attn.out_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_CONV_GATE_IN, true, LAYER("conv.in_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_CONV_GATE_OUT, true, LAYER("conv.in_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_V, true, LAYER("conv.in_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_V, true, LAYER("conv.conv.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_OUT, true, LAYER("conv.out_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("ffn_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER("feed_forward.w1.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("feed_forward.w3.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("feed_forward.w2.weight"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_NORM_EPS, "norm_eps", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_WIDTH, "conv_L_cache", ARCH_ABSENT_FALLBACK, 3, 0},
    {ARCH_PARAM_TIED, "tie_word_embeddings|tie_embedding", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 1000000, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("conv_bias", 0),
    /* numbers of the original code, which transformers does not read */
    ARCH_ANY_VALUE("block_dim"),
    ARCH_ANY_VALUE("block_mlp_init_scale"),
    ARCH_ANY_VALUE("block_norm_eps"),
    ARCH_ANY_VALUE("block_out_init_scale"),
    ARCH_ANY_VALUE("block_use_swiglu"),
    ARCH_ANY_VALUE("block_use_xavier_init"),
    ARCH_ANY_VALUE("conv_dim"),
    ARCH_ANY_VALUE("conv_dim_out"),
    ARCH_ANY_VALUE("conv_use_xavier_init"),
    ARCH_ANY_VALUE("num_heads"),
    ARCH_ANY_VALUE("theta"),
    ARCH_ANY_VALUE("use_pos_enc"),
};

/* Old folders number the layers with attention. A folder without either key has no other layers. */
static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_WITHOUT, "layer_types|full_attn_idxs", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_LIST, "full_attn_idxs", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

/* The rows that both tables share. */
static const struct arch_source gguf_rows = {
    .base = &arch_base_gguf,
    .format = "gguf",
    .params = gguf_params,
    .tensors = gguf_tensors,
    .patterns = gguf_patterns,
    .n_params = ARCH_N_OF(gguf_params),
    .n_tensors = ARCH_N_OF(gguf_tensors),
    .n_patterns = ARCH_N_OF(gguf_patterns),
};

static const struct arch_source hf_rows = {
    .base = &arch_base_hf,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .patterns = hf_patterns,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
    .n_patterns = ARCH_N_OF(hf_patterns),
};

/* --- dense --- */

static const struct arch_param dense_hf_params[] = {
    {ARCH_PARAM_FFN, "block_ff_dim|intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN_ADJUST, "block_auto_adjust_ff_dim", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FFN_FACTOR, "block_ffn_dim_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FFN_MULTIPLE, "block_multiple_of", ARCH_ABSENT_FALLBACK, 256, 0},
};

static const struct arch_source dense_sources[] = {
    {
        .base = &gguf_rows,
        .format = "gguf",
        .aliases = "lfm2",
        .rope_style = ROPE_HALF,
    },
    {
        .base = &hf_rows,
        .format = "hf",
        .aliases = "Lfm2ForCausalLM|lfm2",
        .rope_style = ROPE_HALF,
        .params = dense_hf_params,
        .n_params = ARCH_N_OF(dense_hf_params),
    },
};

#define MIXERS                                                                                     \
    {                                                                                              \
        {.name = "conv", .mixing = ARCH_MIXING_CONV, .rope = ARCH_NO_ROPE},                        \
        {                                                                                          \
            .name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS                        \
        }                                                                                          \
    }

const struct arch arch_lfm2 = {
    .name = "lfm2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = MIXERS,
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = dense_sources,
    .n_sources = ARCH_N_OF(dense_sources),
};

/* --- experts --- */

static const struct arch_tensor moe_gguf_tensors[] = {
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, "blk.%u.ffn_gate_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, "blk.%u.ffn_up_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param moe_gguf_params[] = {
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "expert_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key moe_gguf_fixed_keys[] = {
    ARCH_ONE_VALUE("expert_gating_func", 2), /* sigmoid */
};

static const struct arch_pattern moe_gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_MARKED, "attention.head_count_kv", 0, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "leading_dense_block_count", 0, 0, 0},
};

static const struct arch_tensor moe_hf_tensors[] = {
    {ARCH_ROUTER, true, LAYER("feed_forward.gate.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, false, LAYER("feed_forward.expert_bias"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER("feed_forward.experts.%u.w1.weight|") LAYER("feed_forward.experts.gate_up_proj"),
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER("feed_forward.experts.%u.w3.weight|") LAYER("feed_forward.experts.gate_up_proj"),
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER("feed_forward.experts.%u.w2.weight|") LAYER("feed_forward.experts.down_proj"),
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param moe_hf_params[] = {
    {ARCH_PARAM_EXPERTS, "num_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "moe_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_SCALE, "routed_scaling_factor", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key moe_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("output_router_logits"),
    ARCH_HAS_TENSOR("use_expert_bias", ARCH_ROUTER_SELECT),
};

static const struct arch_pattern moe_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LIST, "full_attn_idxs", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, NULL, 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "num_dense_layers", 2, 0, 0},
};

static const struct arch_source moe_sources[] = {
    {
        .base = &gguf_rows,
        .format = "gguf",
        .aliases = "lfm2moe",
        .rope_style = ROPE_HALF,
        .params = moe_gguf_params,
        .fixed_keys = moe_gguf_fixed_keys,
        .tensors = moe_gguf_tensors,
        .patterns = moe_gguf_patterns,
        .n_params = ARCH_N_OF(moe_gguf_params),
        .n_fixed_keys = ARCH_N_OF(moe_gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(moe_gguf_tensors),
        .n_patterns = ARCH_N_OF(moe_gguf_patterns),
    },
    {
        .base = &hf_rows,
        .format = "hf",
        .aliases = "Lfm2MoeForCausalLM|lfm2_moe",
        .rope_style = ROPE_HALF,
        .params = moe_hf_params,
        .fixed_keys = moe_hf_fixed_keys,
        .tensors = moe_hf_tensors,
        .patterns = moe_hf_patterns,
        .n_params = ARCH_N_OF(moe_hf_params),
        .n_fixed_keys = ARCH_N_OF(moe_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(moe_hf_tensors),
        .n_patterns = ARCH_N_OF(moe_hf_patterns),
    },
};

const struct arch arch_lfm2moe = {
    .name = "lfm2moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = MIXERS,
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SIGMOID, .add_sum = 1e-6F}}},
    .n_mixers = 2,
    .n_ffns = 2,
    .sources = moe_sources,
    .n_sources = ARCH_N_OF(moe_sources),
};
