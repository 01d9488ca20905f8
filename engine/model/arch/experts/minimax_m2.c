/* minimax_m2.c: MiniMax M2. All heads of Q, and of K, are normed together before a partial rope.
 * The router takes sigmoids; a bias changes the choice of experts only. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true, "blk.%u.exp_probs_b.bias|blk.%u.exp_probs_b", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, LAYER "self_attn.q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, LAYER "self_attn.k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true,
     LAYER "block_sparse_moe.e_score_correction_bias"
           "|" LAYER "mlp.e_score_correction_bias",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 5000000, 0},
    {ARCH_PARAM_ROT_DIM, "rotary_dim", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("use_qk_norm", 1),
    ARCH_ONE_TEXT("qk_norm_type", "per_layer"),
    ARCH_ONE_TEXT("scoring_func", "sigmoid"),
    ARCH_ONE_VALUE("use_routing_bias", 1),
    ARCH_ONE_VALUE("shared_intermediate_size", 0),
    ARCH_ANY_VALUE("shared_moe_mode"),
    ARCH_ONE_VALUE("attn_type_list", 1),
    ARCH_ONE_VALUE("layernorm_full_attention_beta", 1),
    ARCH_ONE_VALUE("layernorm_linear_attention_beta", 1),
    ARCH_ONE_VALUE("layernorm_mlp_beta", 1),
    ARCH_ANY_VALUE("mlp_intermediate_size"), /* for dense layers, which the model lacks */
    ARCH_ANY_VALUE("use_mtp"),
    ARCH_ANY_VALUE("num_mtp_modules"),
    ARCH_ANY_VALUE("mtp_transformer_layers"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "minimax-m2",
        .rope_style = ROPE_HALF,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_experts_mixtral_hf,
        .format = "hf",
        .aliases = "MiniMaxM2ForCausalLM|minimax_m2",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_minimax_m2 = {
    .name = "minimax_m2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention",
                .rope = 0,
                .head_norm = ARCH_NORM_RMS,
                .head_norm_scope = ARCH_SCOPE_WHOLE}},
    .ffns = {{.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SIGMOID}}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
