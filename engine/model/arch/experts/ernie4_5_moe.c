/* ernie4_5_moe.c: ERNIE 4.5 with experts in the layers from a first to a last number, at an
 * interval. The router takes a softmax; a bias changes the choice of experts only. Rope pairs are
 * interleaved in both formats. The shared width that GGUF files give is wrong: the number of shared
 * experts counts. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROUTER_SELECT, false, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_SHARED_COUNT, "expert_shared_count", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ANY_VALUE("expert_shared_feed_forward_length"),
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, "interleave_moe_layer_step", 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "leading_dense_block_count", 0, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ROUTER_SELECT, false,
     LAYER "mlp.moe_statics.e_score_correction_bias"
           "|" LAYER "mlp.gate.moe_statics.e_score_correction_bias",
     ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, LAYER "mlp.shared_experts.gate_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER "mlp.shared_experts.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER "mlp.shared_experts.down_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 500000, 0},
    {ARCH_PARAM_EXPERTS, "moe_num_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "moe_k", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_COUNT, "moe_num_shared_experts", ARCH_ABSENT_FALLBACK, 2, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("use_bias", ARCH_ATTN_Q_BIAS),
    ARCH_ONE_VALUE("moe_norm_min", 1e-12),
    ARCH_ANY_VALUE("moe_capacity"),
    ARCH_ONE_TEXT("moe_gate", "topk"),
    ARCH_ANY_VALUE("moe_use_aux_free"),
    ARCH_ANY_VALUE("num_nextn_predict_layers"),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, "moe_layer_interval", 1, 1, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LEADING, "moe_layer_start_index", 1, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_AFTER, "moe_layer_end_index", 0, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "ernie4_5-moe",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .fixed_keys = gguf_fixed_keys,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .n_params = ARCH_N_OF(gguf_params),
        .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "Ernie4_5_MoeForCausalLM|ernie4_5_moe",
        .rope_style = ROPE_INTERLEAVED,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .ignored_tensors = "model.mtp_",
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_ernie4_5_moe = {
    .name = "ernie4_5_moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SOFTMAX, .min_sum = 1e-12F}}},
    .n_mixers = 1,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
