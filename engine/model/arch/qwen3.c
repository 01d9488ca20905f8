/* qwen3.c: Qwen3, dense, and the text part of Qwen3-VL. The Llama block with an RMS norm of each
 * head of Q and K before rope. Rope pairs are halves in both formats. Sliding windows are a key
 * that no published model uses.
 *
 * Qwen3-VL takes each frequency's position from one of three axes. All axes of a text have the same
 * position, so this is plain rope. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
};

/* The text model of a multimodal one lies below another prefix. */
#define LAYER(name)                                                                                \
    "model.layers.%u." name "|model.language_model.layers.%u." name                                \
    "|language_model.model.layers.%u." name

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, LAYER("self_attn.q_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, LAYER("self_attn.k_norm.weight"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("use_sliding_window", 0),
    ARCH_ANY_VALUE("sliding_window"), /* without effect if use_sliding_window is false */
    ARCH_ANY_VALUE("max_window_layers"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "qwen3",
        .rope_style = ROPE_HALF,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Qwen3ForCausalLM|qwen3",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};

/* --- the text part of Qwen3-VL --- */

static const struct arch_fixed_key vl_gguf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope.dimension_sections"),
    ARCH_ANY_VALUE("n_deepstack_layers"), /* concerns the tokens of images */
    ARCH_ANY_VALUE("vision.*"),
};

/* With the keys of the wrapper for images. */
static const struct arch_fixed_key vl_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope_parameters.mrope_section"),
    ARCH_ANY_VALUE("rope_parameters.mrope_interleaved"),
    ARCH_ANY_VALUE("rope_scaling.mrope_section"),
    ARCH_ANY_VALUE("rope_scaling.mrope_interleaved"),
    ARCH_ANY_VALUE("vision_config.*"),
    ARCH_ANY_VALUE("image_token_id"),
    ARCH_ANY_VALUE("video_token_id"),
    ARCH_ANY_VALUE("vision_start_token_id"),
    ARCH_ANY_VALUE("vision_end_token_id"),
};

static const struct arch_param vl_hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 500000, 0},
};

static const struct arch_source vl_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "qwen3vl",
        .rope_style = ROPE_HALF,
        .fixed_keys = vl_gguf_fixed_keys,
        .tensors = gguf_tensors,
        .ignored_tensors = "v.|mm.", /* images, in one file with the text model */
        .n_fixed_keys = ARCH_N_OF(vl_gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Qwen3VLForConditionalGeneration|qwen3_vl",
        .rope_style = ROPE_HALF,
        .params = vl_hf_params,
        .fixed_keys = vl_hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(vl_hf_params),
        .n_fixed_keys = ARCH_N_OF(vl_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_qwen3vl = {
    .name = "qwen3vl",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = vl_sources,
    .n_sources = ARCH_N_OF(vl_sources),
};
