/* qwen35moe.c: Qwen3.5 and its successors with experts, and Qwen3-Next. Beside the experts of each
 * layer stands a shared expert, times the sigmoid of its own gate. Folders of Qwen3-Next store the
 * projections of a delta net by key head. GGUF files do so for two of them, and old files for all.
 * Its value heads lie side by side if they read one key head. Ollama gives Qwen3-Next the name of
 * Qwen3.5. */
#include "engine/model/arch/arch.h"

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, "blk.%u.ffn_gate_exps.weight|blk.%u.ffn_gate_up_exps.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, "blk.%u.ffn_up_exps.weight|blk.%u.ffn_gate_up_exps.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_ROUTER, true, "blk.%u.ffn_gate_inp_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "expert_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "expert_shared_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, "expert_weights_norm|norm_top_k_prob", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_source experts_gguf = {
    .base = &arch_delta_gguf,
    .format = "gguf",
    .params = gguf_params,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .n_tensors = ARCH_N_OF(gguf_tensors),
};

/* --- Hugging Face --- */

#define LAYER(name)                                                                                \
    "model.layers.%u." name "|model.language_model.layers.%u." name                                \
    "|language_model.model.layers.%u." name

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ROUTER, true, LAYER("mlp.gate.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER("mlp.experts.%u.gate_proj.weight") "|" LAYER("mlp.experts.gate_up_proj"),
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER("mlp.experts.%u.up_proj.weight") "|" LAYER("mlp.experts.gate_up_proj"),
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER("mlp.experts.%u.down_proj.weight") "|" LAYER("mlp.experts.down_proj"),
     ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, LAYER("mlp.shared_expert.gate_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, LAYER("mlp.shared_expert.up_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, LAYER("mlp.shared_expert.down_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_ROUTER, true, LAYER("mlp.shared_expert_gate.weight"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EXPERTS, "num_experts|num_local_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "moe_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "shared_expert_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("output_router_logits"), /* training */
    ARCH_ANY_VALUE("router_aux_loss_coef"),
};

static const struct arch_source experts_hf = {
    .base = &arch_delta_hf,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
};

/* --- Qwen3.5 --- */

/* A file of Ollama with Qwen3-Next. */
static const struct arch_variant gguf_variants[] = {
    {.tensor = "blk.0.ssm_ba.weight", .arch = "qwen3next"},
};

/* All layers have experts, and the weights of experts are always renormalised. */
static const struct arch_fixed_key qwen35_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("norm_topk_prob", 1), ARCH_ONE_VALUE("decoder_sparse_step", 1),
    ARCH_ANY_VALUE("mlp_only_layers"), /* transformers does not read the key */
};

static const struct arch_source sources[] = {
    {
        .base = &experts_gguf,
        .format = "gguf",
        .aliases = "qwen35moe",
        .rope_style = ROPE_HALF,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .variants = gguf_variants,
        .n_variants = ARCH_N_OF(gguf_variants),
    },
    {
        .base = &experts_hf,
        .format = "hf",
        .aliases = "Qwen3_5MoeForConditionalGeneration|qwen3_5_moe|Qwen3_5MoeForCausalLM|"
                   "qwen3_5_moe_text",
        .rope_style = ROPE_HALF,
        .fixed_keys = qwen35_hf_fixed_keys,
        .n_fixed_keys = ARCH_N_OF(qwen35_hf_fixed_keys),
    },
    {
        .base = &experts_gguf,
        .format = "gguf",
        .aliases = "qwen35moe",
        .rope_style = ROPE_HALF,
        .params = arch_delta_ollama_params,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .dialect_keys = ARCH_DELTA_OLLAMA_KEY,
        .n_params = ARCH_N_OF(arch_delta_ollama_params),
    },
};

#define DESCRIPTION                                                                                \
    .norm = ARCH_NORM_RMS, .residual = ARCH_RESIDUAL_SEQUENTIAL,                                   \
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,                                                          \
    .mixers = {{.name = "linear_attention", .mixing = ARCH_MIXING_DELTA, .rope = ARCH_NO_ROPE},    \
               {.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},                 \
    .ffns = {{.name = "sparse",                                                                    \
              .body = ARCH_FFN_EXPERTS,                                                            \
              .form = ARCH_FFN_GATED,                                                              \
              .activation = ACTIVATION_SILU,                                                       \
              .router = {.score = ROUTER_SOFTMAX}}},                                               \
    .n_mixers = 2, .n_ffns = 1

const struct arch arch_qwen35moe = {
    .name = "qwen35moe",
    DESCRIPTION,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};

/* --- Qwen3-Next --- */

static const struct arch_tensor next_gguf_tensors[] = {
    {ARCH_STATE_BETA, true, "blk.%u.ssm_ba.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_DT, true, "blk.%u.ssm_ba.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
};

static const struct arch_param next_gguf_params[] = {
    {ARCH_PARAM_STATE_TILED, NULL, ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor next_hf_tensors[] = {
    {ARCH_STATE_Q, true, LAYER("linear_attn.in_proj_qkvz.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_K, true, LAYER("linear_attn.in_proj_qkvz.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_V, true, LAYER("linear_attn.in_proj_qkvz.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_GATE, true, LAYER("linear_attn.in_proj_qkvz.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_BETA, true, LAYER("linear_attn.in_proj_ba.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_DT, true, LAYER("linear_attn.in_proj_ba.weight"), ARCH_TRANSFORM_BY_STATE_HEAD},
};

static const struct arch_param next_hf_params[] = {
    {ARCH_PARAM_EXPERT_RENORM, "norm_topk_prob", ARCH_ABSENT_FALLBACK, 1, 0},
};

/* The published models have experts in all layers: the list of dense layers is empty. */
static const struct arch_fixed_key next_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("decoder_sparse_step", 1),
    ARCH_ONE_VALUE("mlp_only_layers", -1),
    ARCH_ONE_VALUE("use_sliding_window", 0),
    ARCH_ANY_VALUE("sliding_window"), /* without effect if use_sliding_window is false */
    ARCH_ANY_VALUE("max_window_layers"),
};

/* A file of an old converter. */
static const struct arch_variant next_gguf_variants[] = {
    {.tensor = "blk.0.ssm_in.weight", .arch = "qwen3next_joined"},
};

static const struct arch_source next_sources[] = {
    {
        .base = &experts_gguf,
        .format = "gguf",
        .aliases = "qwen3next",
        .rope_style = ROPE_HALF,
        .params = next_gguf_params,
        .tensors = next_gguf_tensors,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .variants = next_gguf_variants,
        .n_params = ARCH_N_OF(next_gguf_params),
        .n_tensors = ARCH_N_OF(next_gguf_tensors),
        .n_variants = ARCH_N_OF(next_gguf_variants),
    },
    {
        .base = &experts_hf,
        .format = "hf",
        .aliases = "Qwen3NextForCausalLM|qwen3_next",
        .rope_style = ROPE_HALF,
        .params = next_hf_params,
        .fixed_keys = next_hf_fixed_keys,
        .tensors = next_hf_tensors,
        .n_params = ARCH_N_OF(next_hf_params),
        .n_fixed_keys = ARCH_N_OF(next_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(next_hf_tensors),
    },
};

const struct arch arch_qwen3next = {
    .name = "qwen3next",
    DESCRIPTION,
    .sources = next_sources,
    .n_sources = ARCH_N_OF(next_sources),
};

/* --- Qwen3-Next in old GGUF files --- */

static const struct arch_tensor joined_tensors[] = {
    {ARCH_STATE_Q, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_K, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_V, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
    {ARCH_STATE_GATE, true, "blk.%u.ssm_in.weight", ARCH_TRANSFORM_BY_STATE_HEAD},
};

static const struct arch_source joined_sources[] = {{
    .base = &next_sources[0],
    .format = "gguf",
    .aliases = "qwen3next_joined",
    .rope_style = ROPE_HALF,
    .tensors = joined_tensors,
    .draft_layers = "blk.%u.",
    .counts_drafts = true,
    .n_tensors = ARCH_N_OF(joined_tensors),
}};

const struct arch arch_qwen3next_joined = {
    .name = "qwen3next_joined",
    DESCRIPTION,
    .sources = joined_sources,
    .n_sources = ARCH_N_OF(joined_sources),
};
