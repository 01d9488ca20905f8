/* olmo2.c: OLMo 2 and OLMo 3. No norms before attention and FFN; each branch is normed before it is
 * added. Q and K are normed over all heads together. OLMo 3 has windows in three of four layers;
 * YaRN scales the rope of its full layers only. */
#include "engine/model/arch/arch.h"

enum { FULL, SLIDING };
enum { SCALED, UNSCALED }; /* rope sets */

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_POST_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, "blk.%u.post_ffw_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base", ARCH_ABSENT_FALLBACK, 10000, UNSCALED},
    /* The converter writes attention_factor of config.json there. */
    {ARCH_PARAM_ROPE_ATTENTION, "rope.scaling.yarn_attn_factor", ARCH_ABSENT_FALLBACK, 0, SCALED},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.sliding_window_pattern", 0, SLIDING, FULL},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, LAYER "self_attn.q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, LAYER "self_attn.k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_POST_NORM, true, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, LAYER "post_feedforward_layernorm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_REFUSE, 0, SCALED},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 4096, 0},
    {ARCH_PARAM_ROPE_BASE,
     "rope_parameters.sliding_attention.rope_theta|rope_parameters.rope_theta|rope_theta",
     ARCH_ABSENT_REFUSE, 0, UNSCALED},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_TEXT("rope_parameters.sliding_attention.rope_type", "default"),
};

/* Models without a window are of OLMo 2. */
static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FIRST_OF, NULL, 1, SLIDING, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 4, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_WITHOUT, "sliding_window", 0, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "olmo2|olmo3",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Olmo2ForCausalLM|Olmo3ForCausalLM|olmo2|olmo3",
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

const struct arch arch_olmo2 = {
    .name = "olmo2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[FULL] = {.name = "full_attention",
                         .rope = SCALED,
                         .head_norm_scope = ARCH_SCOPE_WHOLE},
               [SLIDING] = {.name = "sliding_attention",
                            .reach = ARCH_REACH_WINDOW,
                            .rope = UNSCALED,
                            .head_norm_scope = ARCH_SCOPE_WHOLE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
