/* cohere.c: Command R and R+ (command-r), Command R7B and A (cohere2). Attention and FFN in
 * parallel behind one layer norm without bias; the logits are scaled. R+ norms each head of Q and K
 * with its own weights. Command R7B has windows in three of four layers, and no rope in the others.
 * Rope pairs are interleaved in both formats. */
#include "engine/model/arch/arch.h"

enum { SLIDING, FULL };

#define LAYER "model.layers.%u."

/* --- Command R --- */

static const struct arch_tensor command_r_gguf_tensors[] = {
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, false, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor command_r_hf_tensors[] = {
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, false, LAYER "self_attn.q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, false, LAYER "self_attn.k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param command_r_gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LOGIT_SCALE, "logit_scale", ARCH_ABSENT_FALLBACK, 0.0625, 0},
};

static const struct arch_param command_r_hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 500000, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_LOGIT_SCALE, "logit_scale", ARCH_ABSENT_FALLBACK, 0.0625, 0},
};

static const struct arch_fixed_key command_r_hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("use_qk_norm", ARCH_ATTN_Q_NORM),
    ARCH_ANY_VALUE("model_max_length"), /* concerns the tokenizer */
    ARCH_ANY_VALUE("pretraining_tp"),
};

static const struct arch_source command_r_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "command-r",
        .rope_style = ROPE_INTERLEAVED,
        .params = command_r_gguf_params,
        .tensors = command_r_gguf_tensors,
        .n_params = ARCH_N_OF(command_r_gguf_params),
        .n_tensors = ARCH_N_OF(command_r_gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "CohereForCausalLM|cohere",
        .rope_style = ROPE_INTERLEAVED,
        .params = command_r_hf_params,
        .fixed_keys = command_r_hf_fixed_keys,
        .tensors = command_r_hf_tensors,
        .n_params = ARCH_N_OF(command_r_hf_params),
        .n_fixed_keys = ARCH_N_OF(command_r_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(command_r_hf_tensors),
    },
};

const struct arch arch_command_r = {
    .name = "command-r",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention",
                .rope = 0,
                .head_norm = ARCH_NORM_LAYER,
                .head_norm_scope = ARCH_SCOPE_OWN_HEAD}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = command_r_sources,
    .n_sources = ARCH_N_OF(command_r_sources),
};

/* --- Command R7B --- */

static const struct arch_tensor cohere2_tensors[] = {
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
};

static const struct arch_param cohere2_gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_LOGIT_SCALE, "logit_scale", ARCH_ABSENT_FALLBACK, 0.0625, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 4096, 0},
};

static const struct arch_pattern cohere2_gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "attention.sliding_window_pattern", 4, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.sliding_window_pattern", 0, SLIDING, FULL},
};

static const struct arch_param cohere2_hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_eps", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_LOGIT_SCALE, "logit_scale", ARCH_ABSENT_FALLBACK, 0.0625, 0},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 4096, 0},
};

static const struct arch_pattern cohere2_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF,
     "sliding_window_pattern|_sliding_window_pattern|layer_switch", 4, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

/* Published configs describe the block again in words of other programs. */
static const struct arch_fixed_key cohere2_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("cache_implementation"),
    ARCH_ONE_TEXT("order_of_interleaved_layers", "local_attn_first"),
    ARCH_ONE_TEXT("position_embedding_type", "rope_gptj"),
    ARCH_ONE_VALUE("rotary_pct", 1),
    ARCH_ANY_VALUE("use_embedding_sharing"),
    ARCH_ONE_VALUE("use_gated_activation", 1),
    ARCH_ONE_VALUE("use_parallel_block", 1),
    ARCH_ANY_VALUE("use_parallel_embedding"),
    ARCH_ONE_VALUE("use_qk_norm", 0),
};

static const struct arch_source cohere2_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "cohere2",
        .rope_style = ROPE_INTERLEAVED,
        .params = cohere2_gguf_params,
        .tensors = cohere2_tensors,
        .patterns = cohere2_gguf_patterns,
        .n_params = ARCH_N_OF(cohere2_gguf_params),
        .n_tensors = ARCH_N_OF(cohere2_tensors),
        .n_patterns = ARCH_N_OF(cohere2_gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Cohere2ForCausalLM|cohere2",
        .rope_style = ROPE_INTERLEAVED,
        .params = cohere2_hf_params,
        .fixed_keys = cohere2_hf_fixed_keys,
        .tensors = cohere2_tensors,
        .patterns = cohere2_hf_patterns,
        .n_params = ARCH_N_OF(cohere2_hf_params),
        .n_fixed_keys = ARCH_N_OF(cohere2_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(cohere2_tensors),
        .n_patterns = ARCH_N_OF(cohere2_hf_patterns),
    },
};

const struct arch arch_cohere2 = {
    .name = "cohere2",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[SLIDING] = {.name = "sliding_attention", .reach = ARCH_REACH_WINDOW, .rope = 0},
               [FULL] = {.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = cohere2_sources,
    .n_sources = ARCH_N_OF(cohere2_sources),
};
