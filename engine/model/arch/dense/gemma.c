/* gemma.c: Gemma 2 and Gemma 3. The embedding is scaled, each branch is also normed before it is
 * added, and most layers have a window. Hugging Face's norms lack their 1; GGUF has it folded in.
 *
 * GGUF does not state the scale of the scores. The scale is 1/√k_dim; the 27B models take hidden /
 * heads in place of k_dim. */
#include "engine/model/arch/arch.h"

enum { SLIDING, FULL };
enum { GLOBAL, LOCAL }; /* rope sets of Gemma 3 */
enum { GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

#define LAYER "model.layers.%u."

/* --- Gemma 2 --- */

static const struct arch_tensor gemma2_gguf_tensors[] = {
    {ARCH_ATTN_POST_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, "blk.%u.post_ffw_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor gemma2_hf_tensors[] = {
    {ARCH_OUTPUT_NORM, true, "model.norm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_NORM, true, LAYER "input_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_POST_NORM, true, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_FFN_NORM, true, LAYER "pre_feedforward_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_FFN_POST_NORM, true, LAYER "post_feedforward_layernorm.weight", ARCH_TRANSFORM_PLUS_ONE},
};

static const struct arch_param gemma2_gguf_params[] = {
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 4096, 0},
    {ARCH_PARAM_ATTN_SOFTCAP, "attn_logit_softcapping", ARCH_ABSENT_FALLBACK, 50, 0},
    {ARCH_PARAM_FINAL_SOFTCAP, "final_logit_softcapping", ARCH_ABSENT_FALLBACK, 30, 0},
    {ARCH_PARAM_ATTN_SCALE_LAYERS, NULL, ARCH_ABSENT_FALLBACK, GEMMA2_27B_LAYERS, 0},
};

static const struct arch_param gemma2_hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_WINDOW, "sliding_window|sliding_window_size", ARCH_ABSENT_FALLBACK, 4096, 0},
    {ARCH_PARAM_ATTN_SOFTCAP, "attn_logit_softcapping", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_FINAL_SOFTCAP, "final_logit_softcapping", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ATTN_SCALE_DIM, "query_pre_attn_scalar", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_ACTIVATION, "hidden_activation", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_pattern gemma2_gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 2, FULL, 0},
};

static const struct arch_pattern gemma2_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 2, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

static const struct arch_fixed_key gemma_hf_fixed_keys[] = {
    ARCH_ANY_VALUE("hidden_act"), /* transformers reads hidden_activation only */
    ARCH_ONE_VALUE("use_bidirectional_attention", 0),
    ARCH_ANY_VALUE("cache_implementation"),
};

static const struct arch_source gemma2_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "gemma2",
        .rope_style = ROPE_HALF,
        .params = gemma2_gguf_params,
        .tensors = gemma2_gguf_tensors,
        .patterns = gemma2_gguf_patterns,
        .n_params = ARCH_N_OF(gemma2_gguf_params),
        .n_tensors = ARCH_N_OF(gemma2_gguf_tensors),
        .n_patterns = ARCH_N_OF(gemma2_gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Gemma2ForCausalLM|gemma2",
        .rope_style = ROPE_HALF,
        .params = gemma2_hf_params,
        .fixed_keys = gemma_hf_fixed_keys,
        .tensors = gemma2_hf_tensors,
        .patterns = gemma2_hf_patterns,
        .n_params = ARCH_N_OF(gemma2_hf_params),
        .n_fixed_keys = ARCH_N_OF(gemma_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(gemma2_hf_tensors),
        .n_patterns = ARCH_N_OF(gemma2_hf_patterns),
    },
};

const struct arch arch_gemma2 = {
    .name = "gemma2",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[SLIDING] = {.name = "sliding_attention", .reach = ARCH_REACH_WINDOW, .rope = 0},
               [FULL] = {.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = gemma2_sources,
    .n_sources = ARCH_N_OF(gemma2_sources),
};

/* --- Gemma 3: norms of Q and K, two rope sets, no softcaps --- */

static const struct arch_tensor gemma3_gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_POST_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, "blk.%u.post_ffw_norm.weight", ARCH_TRANSFORM_NONE},
};

/* The text model of a multimodal one lies below another prefix. */
#define AT(name)       "model." name "|model.language_model." name "|language_model.model." name
#define AT_LAYER(name) AT("layers.%u." name)

static const struct arch_tensor gemma3_hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, AT_LAYER("self_attn.q_norm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_K_NORM, true, AT_LAYER("self_attn.k_norm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_OUTPUT_NORM, true, AT("norm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_NORM, true, AT_LAYER("input_layernorm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_ATTN_POST_NORM, true, AT_LAYER("post_attention_layernorm.weight"),
     ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_FFN_NORM, true, AT_LAYER("pre_feedforward_layernorm.weight"), ARCH_TRANSFORM_PLUS_ONE},
    {ARCH_FFN_POST_NORM, true, AT_LAYER("post_feedforward_layernorm.weight"),
     ARCH_TRANSFORM_PLUS_ONE},
};

/* Files of Ollama name the bases of both sets, and lack the epsilon. */
static const struct arch_param gemma3_gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_rms_epsilon", ARCH_ABSENT_FALLBACK, 1e-6, 0},
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ATTN_SCALE_LAYERS, NULL, ARCH_ABSENT_FALLBACK, GEMMA3_27B_LAYERS, 0},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base|rope.global.freq_base", ARCH_ABSENT_FALLBACK, 1e6,
     GLOBAL},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base_swa|rope.local.freq_base", ARCH_ABSENT_FALLBACK, 1e4,
     LOCAL},
};

/* Models of 4B and more have linear scaling, which files of Ollama leave out. The 1B model and the
 * 270M model have a shorter context and no scaling. */
enum { GEMMA3_LONG_CONTEXT = 131072 };

static const struct arch_param gemma3_ollama_params[] = {
    {ARCH_PARAM_ROPE_FACTOR, "rope.scaling.factor", ARCH_ABSENT_FALLBACK, 8, GLOBAL},
};

static const struct arch_param gemma3_hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 4096, 0},
    {ARCH_PARAM_ATTN_SCALE_DIM, "query_pre_attn_scalar", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_KV_HEADS, "num_key_value_heads", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_FALLBACK, 131072, 0},
    {ARCH_PARAM_NORM_EPS, "rms_norm_eps", ARCH_ABSENT_FALLBACK, 1e-6, 0},
    {ARCH_PARAM_ACTIVATION, "hidden_activation", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_BASE,
     "rope_parameters.full_attention.rope_theta|rope_parameters.rope_theta|rope_theta",
     ARCH_ABSENT_FALLBACK, 1e6, GLOBAL},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq",
     ARCH_ABSENT_FALLBACK, 1e4, LOCAL},
};

static const struct arch_pattern gemma3_gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "attention.sliding_window_pattern", 6, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.sliding_window_pattern", 0, SLIDING, FULL},
};

static const struct arch_pattern gemma3_hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "sliding_window_pattern|_sliding_window_pattern", 6,
     FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

/* With the keys of the wrapper for images. */
static const struct arch_fixed_key gemma3_hf_fixed_keys[] = {
    ARCH_ONE_TEXT("rope_parameters.sliding_attention.rope_type", "default"),
    ARCH_ANY_VALUE("hidden_act"), /* transformers reads hidden_activation only */
    ARCH_ONE_VALUE("use_bidirectional_attention", 0),
    ARCH_ANY_VALUE("cache_implementation"),
    ARCH_ANY_VALUE("vision_config.*"),
    ARCH_ANY_VALUE("mm_tokens_per_image"),
    ARCH_ANY_VALUE("boi_token_index"),
    ARCH_ANY_VALUE("eoi_token_index"),
    ARCH_ANY_VALUE("image_token_index"),
    ARCH_ANY_VALUE("image_token_id"),
};

static const struct arch_source gemma3_sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "gemma3",
        .rope_style = ROPE_HALF,
        .params = gemma3_gguf_params,
        .tensors = gemma3_gguf_tensors,
        .patterns = gemma3_gguf_patterns,
        .n_params = ARCH_N_OF(gemma3_gguf_params),
        .n_tensors = ARCH_N_OF(gemma3_gguf_tensors),
        .n_patterns = ARCH_N_OF(gemma3_gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Gemma3ForCausalLM|Gemma3ForConditionalGeneration|gemma3_text|gemma3",
        .rope_style = ROPE_HALF,
        .params = gemma3_hf_params,
        .fixed_keys = gemma3_hf_fixed_keys,
        .tensors = gemma3_hf_tensors,
        .patterns = gemma3_hf_patterns,
        .n_params = ARCH_N_OF(gemma3_hf_params),
        .n_fixed_keys = ARCH_N_OF(gemma3_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(gemma3_hf_tensors),
        .n_patterns = ARCH_N_OF(gemma3_hf_patterns),
    },
    {
        .base = &gemma3_sources[0],
        .format = "gguf",
        .aliases = "gemma3",
        .dialect_keys = "mm.tokens_per_image|rope.global.freq_base|rope.local.freq_base",
        .dialect_context = GEMMA3_LONG_CONTEXT,
        .rope_style = ROPE_HALF,
        .params = gemma3_ollama_params,
        .n_params = ARCH_N_OF(gemma3_ollama_params),
    },
};

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[SLIDING] = {.name = "sliding_attention", .reach = ARCH_REACH_WINDOW, .rope = LOCAL},
               [FULL] = {.name = "full_attention", .rope = GLOBAL}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = gemma3_sources,
    .n_sources = ARCH_N_OF(gemma3_sources),
};
