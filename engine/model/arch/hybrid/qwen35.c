/* qwen35.c: Qwen3.5 and its successors with a dense FFN. Most layers have a gated delta net, every
 * fourth has attention with an output gate. The weights of norms lack their 1, but for those of the
 * delta net's output. Layers that only draft tokens (mtp.) are not read. */
#include "engine/model/arch/arch.h"

#define LAYER(name)                                                                                \
    "model.layers.%u." name "|model.language_model.layers.%u." name                                \
    "|language_model.model.layers.%u." name

static const struct arch_tensor hf_tensors[] = {
    {ARCH_OUTPUT_NORM, true,
     "model.norm.weight|model.language_model.norm.weight|language_model.model.norm.weight",
     ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_NORM, true, LAYER("input_layernorm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_Q, true, LAYER("self_attn.q_proj.weight"), ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_ATTN_GATE, true, LAYER("self_attn.q_proj.weight"), ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_ATTN_Q_NORM, true, LAYER("self_attn.q_norm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_K_NORM, true, LAYER("self_attn.k_norm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_STATE_Q, true, LAYER("linear_attn.in_proj_qkv.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_K, true, LAYER("linear_attn.in_proj_qkv.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_V, true, LAYER("linear_attn.in_proj_qkv.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_GATE, true, LAYER("linear_attn.in_proj_z.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_DT, true, LAYER("linear_attn.in_proj_a.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_BETA, true, LAYER("linear_attn.in_proj_b.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_Q, true, LAYER("linear_attn.conv1d.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_K, true, LAYER("linear_attn.conv1d.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_V, true, LAYER("linear_attn.conv1d.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_DT_BIAS, true, LAYER("linear_attn.dt_bias"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_A, true, LAYER("linear_attn.A_log"), ARCH_TRANSFORM_MINUS_EXP},
    {ARCH_STATE_NORM, true, LAYER("linear_attn.norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_OUT, true, LAYER("linear_attn.out_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("post_attention_layernorm.weight"), ARCH_TRANSFORM_PLUS_ONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_STATE_WIDTH, "linear_conv_kernel_dim", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "linear_key_head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_HEAD_DIM, "linear_value_head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "linear_num_key_heads", ARCH_ABSENT_FALLBACK, 16, 0},
    {ARCH_PARAM_STATE_HEADS, "linear_num_value_heads", ARCH_ABSENT_FALLBACK, 32, 0},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.partial_rotary_factor|partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 0.25, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope_parameters.mrope_section"), /* for text, all sections are equal */
    ARCH_ANY_VALUE("rope_parameters.mrope_interleaved"), ARCH_ANY_VALUE("mtp_num_hidden_layers"),
    ARCH_ANY_VALUE("mtp_use_dedicated_embeddings"),      ARCH_ONE_VALUE("attn_output_gate", 1),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "full_attention_interval", 4, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Qwen3_5ForCausalLM|qwen3_5_text",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .ignored_tensors = "visual.|model.visual.|mtp.|model.mtp.",
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_qwen35 = {
    .name = "qwen35",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "linear_attention", .mixing = ARCH_MIXING_DELTA, .rope = ARCH_NO_ROPE},
               {.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
