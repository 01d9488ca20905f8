/* mistral3.c: Mistral Small 3.1 and 3.2, Ministral 3, Devstral 2. The Llama block; Ministral scales
 * queries by their position. YaRN's two mscale factors cancel. GGUF files have Q and K permuted, so
 * rope pairs are interleaved there. */
#include "engine/model/arch/arch.h"

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_TEMPERATURE, "attention.temperature_scale", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_TEMPERATURE_LENGTH, "rope.scaling.original_context_length", ARCH_ABSENT_DERIVE, 0,
     0},
    {ARCH_PARAM_ROPE_MSCALE, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_MSCALE_ALL, "rope.scaling.yarn_log_multiplier", ARCH_ABSENT_FALLBACK, 0, 0},
};

/* Files of Ollama hold the parts for images, and have other names for the scaling. */
static const struct arch_param ollama_params[] = {
    {ARCH_PARAM_TEMPERATURE, "attention.temperature_scale|rope.scaling_beta", ARCH_ABSENT_FALLBACK,
     0, 0},
    {ARCH_PARAM_ROPE_MSCALE, "rope.scaling.mscale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_MSCALE_ALL, "rope.scaling.yarn_log_multiplier|rope.scaling.mscale_all_dim",
     ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_BETA_FAST, "rope.scaling.yarn_beta_fast|rope.scaling.beta_fast",
     ARCH_ABSENT_FALLBACK, 32, 0},
    {ARCH_PARAM_ROPE_BETA_SLOW, "rope.scaling.yarn_beta_slow|rope.scaling.beta_slow",
     ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key ollama_fixed_keys[] = {
    ARCH_ANY_VALUE("image_token_index"),
    ARCH_ANY_VALUE("spatial_merge_size"),
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings|rope_parameters.max_position_embeddings",
     ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_TEMPERATURE,
     "rope_parameters.llama_4_scaling_beta|rope_scaling.llama_4_scaling_beta", ARCH_ABSENT_FALLBACK,
     0, 0},
    {ARCH_PARAM_TEMPERATURE_LENGTH,
     "rope_parameters.original_max_position_embeddings|"
     "rope_scaling.original_max_position_embeddings",
     ARCH_ABSENT_DERIVE, 0, 0},
};

/* With the keys of the wrapper for images. */
static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("vision_config.*"),      ARCH_ANY_VALUE("image_token_index"),
    ARCH_ANY_VALUE("image_token_id"),       ARCH_ANY_VALUE("projector_hidden_act"),
    ARCH_ANY_VALUE("spatial_merge_size"),   ARCH_ANY_VALUE("multimodal_projector_bias"),
    ARCH_ANY_VALUE("vision_feature_layer"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "mistral3",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .n_params = ARCH_N_OF(gguf_params),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Mistral3ForConditionalGeneration|Ministral3ForCausalLM|ministral3|mistral3",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    },
    {
        .base = &sources[0],
        .format = "gguf",
        .aliases = "mistral3",
        .dialect_keys = "vision.block_count|mm.projector_bias|image_token_index|"
                        "rope.scaling.beta_fast|rope.scaling.mscale_all_dim|rope.scaling_beta",
        .rope_style = ROPE_INTERLEAVED,
        .params = ollama_params,
        .fixed_keys = ollama_fixed_keys,
        .n_params = ARCH_N_OF(ollama_params),
        .n_fixed_keys = ARCH_N_OF(ollama_fixed_keys),
    },
};

const struct arch arch_mistral3 = {
    .name = "mistral3",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .has_temperature = true}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
