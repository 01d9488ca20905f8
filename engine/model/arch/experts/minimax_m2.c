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
    {ARCH_ROUTER, true,
     LAYER "block_sparse_moe.gate.weight"
           "|" LAYER "mlp.gate.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_SELECT, true,
     LAYER "block_sparse_moe.e_score_correction_bias"
           "|" LAYER "mlp.e_score_correction_bias",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "block_sparse_moe.experts.%u.w1.weight"
           "|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER "block_sparse_moe.experts.%u.w3.weight"
           "|" LAYER "mlp.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER "block_sparse_moe.experts.%u.w2.weight"
           "|" LAYER "mlp.experts.down_proj",
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROT_DIM, "rotary_dim", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    {"use_qk_norm", false, 1},
    {"qk_norm_type", true, 0},
    {"scoring_func", true, 0},
    {"use_routing_bias", false, 1},
    {"shared_intermediate_size", false, 0},
    {"shared_moe_mode", true, 0},
    {"sliding_window", false, 0},
    {"attn_type_list", true, 0},
    {"use_mtp", true, 0},
    {"num_mtp_modules", true, 0},
    {"mtp_transformer_layers", true, 0},
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
        .base = &arch_experts_hf,
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
