/* qwen2.c: Qwen2 and Qwen2.5, and Seed-OSS. The Llama block with biases of Q, K and V. Qwen2's
 * config has a window even where use_sliding_window turns the window off. */
#include "engine/model/arch/arch.h"

enum { SLIDING, FULL };

/* --- Qwen2 --- */

static const struct arch_param qwen2_gguf_params[] = {
    {ARCH_PARAM_WINDOW, NULL, ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_pattern qwen2_gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FIRST_OF, NULL, 1, FULL, 0},
};

static const struct arch_param qwen2_hf_params[] = {
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_USE_WINDOW, "use_sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_pattern qwen2_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LEADING, "max_window_layers", 28, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

static const struct arch_fixed_key qwen2_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("use_mrope", 0),
};

static const struct arch_source qwen2_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "qwen2",
        .rope_style = ROPE_HALF,
        .params = qwen2_gguf_params,
        .patterns = qwen2_gguf_patterns,
        .n_params = ARCH_N_OF(qwen2_gguf_params),
        .n_patterns = ARCH_N_OF(qwen2_gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Qwen2ForCausalLM|qwen2",
        .rope_style = ROPE_HALF,
        .params = qwen2_hf_params,
        .fixed_keys = qwen2_hf_fixed_keys,
        .patterns = qwen2_hf_patterns,
        .n_params = ARCH_N_OF(qwen2_hf_params),
        .n_fixed_keys = ARCH_N_OF(qwen2_hf_fixed_keys),
        .n_patterns = ARCH_N_OF(qwen2_hf_patterns),
    },
};

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[SLIDING] = {.name = "sliding_attention", .reach = ARCH_REACH_WINDOW, .rope = 0},
               [FULL] = {.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = qwen2_sources,
    .n_sources = ARCH_N_OF(qwen2_sources),
};

/* --- Seed-OSS --- */

static const struct arch_tensor seed_oss_gguf_tensors[] = {
    {ARCH_FFN_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param seed_oss_hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
};

static const struct arch_fixed_key seed_oss_hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("attention_out_bias", ARCH_ATTN_OUT_BIAS),
    ARCH_ANY_VALUE("residual_dropout"),
    ARCH_ANY_VALUE("pretraining_tp"),
};

static const struct arch_source seed_oss_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "seed_oss",
        .rope_style = ROPE_HALF,
        .tensors = seed_oss_gguf_tensors,
        .n_tensors = ARCH_N_OF(seed_oss_gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "SeedOssForCausalLM|seed_oss",
        .rope_style = ROPE_HALF,
        .params = seed_oss_hf_params,
        .fixed_keys = seed_oss_hf_fixed_keys,
        .n_params = ARCH_N_OF(seed_oss_hf_params),
        .n_fixed_keys = ARCH_N_OF(seed_oss_hf_fixed_keys),
    },
};

const struct arch arch_seed_oss = {
    .name = "seed_oss",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = seed_oss_sources,
    .n_sources = ARCH_N_OF(seed_oss_sources),
};
