/* smollm3.c: SmolLM3. The Llama block; every fourth layer has no rope. GGUF files have Q and K
 * permuted, so rope pairs are interleaved there. */
#include "engine/model/arch/arch.h"

enum { ROTATED, NOT_ROTATED };

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 4, NOT_ROTATED, 0},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 2000000, 0},
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "no_rope_layer_interval", 4, NOT_ROTATED, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "no_rope_layers", 0, ROTATED, NOT_ROTATED},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("use_sliding_window", 0),
    ARCH_ANY_VALUE("sliding_window"), /* without effect if use_sliding_window is false */
    ARCH_ONE_TEXT("layer_types", "full_attention"),
    ARCH_ANY_VALUE("max_window_layers"),
    ARCH_ANY_VALUE("pretraining_tp"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "smollm3",
        .rope_style = ROPE_INTERLEAVED,
        .patterns = gguf_patterns,
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "SmolLM3ForCausalLM|smollm3",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .n_params = ARCH_N_OF(hf_params),
        .patterns = hf_patterns,
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_smollm3 = {
    .name = "smollm3",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[ROTATED] = {.name = "rotated", .rope = 0},
               [NOT_ROTATED] = {.name = "not_rotated", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
