/* arch_delta.c: the rows that families with a gated delta net share in each format, on top of the
 * Llama block. The heads of queries have gates beside them. The weights of norms lack their 1 in
 * folders, but for those of the delta net's output. In GGUF, value head h reads key head h % key
 * heads; files of Ollama have a key for that. These files of Ollama have keys for images, and mark
 * layers with attention by the number of their KV heads. Layers that only draft tokens are not
 * read. */
#include "engine/model/arch/arch.h"

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q, true, "blk.%u.attn_q.weight", ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_ATTN_GATE, true, "blk.%u.attn_q.weight", ARCH_TRANSFORM_BY_QUERY_HEAD},
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_GATE, true, "blk.%u.attn_gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_BETA, true, "blk.%u.ssm_beta.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_DT, true, "blk.%u.ssm_alpha.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_Q, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_K, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_CONV_V, true, "blk.%u.ssm_conv1d.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_DT_BIAS, true, "blk.%u.ssm_dt.bias|blk.%u.ssm_dt", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_A, true, "blk.%u.ssm_a", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_NORM, true, "blk.%u.ssm_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_STATE_OUT, true, "blk.%u.ssm_out.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_DRAFT_LAYERS, "nextn_predict_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_STATE_WIDTH, "ssm.conv_kernel", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "ssm.state_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_INNER, "ssm.inner_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "ssm.group_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_HEADS, "ssm.time_step_rank", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_TILED, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope.dimension_sections"), /* for text, all sections are equal */
    ARCH_ANY_VALUE("rope.mrope_section"),      /* this and the following: Ollama */
    ARCH_ANY_VALUE("rope.mrope_interleaved"),  ARCH_ANY_VALUE("mrope_sections"),
    ARCH_ANY_VALUE("image_token_id"),          ARCH_ANY_VALUE("vision_start_token_id"),
    ARCH_ANY_VALUE("vision_end_token_id"),
};

/* The list of the layers with a state wins, where a file has several of the keys. */
static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "full_attention_interval", 4, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.head_count_kv", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.recurrent_layers", 0, 0, 1},
};

const struct arch_source arch_delta_gguf = {
    .base = &arch_base_gguf,
    .format = "gguf",
    .params = gguf_params,
    .fixed_keys = gguf_fixed_keys,
    .tensors = gguf_tensors,
    .patterns = gguf_patterns,
    .ignored_tensors = "v.|mm.|mtp.",
    .n_params = ARCH_N_OF(gguf_params),
    .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
    .n_tensors = ARCH_N_OF(gguf_tensors),
    .n_patterns = ARCH_N_OF(gguf_patterns),
};

const struct arch_param arch_delta_ollama_params[] = {
    {ARCH_PARAM_STATE_TILED, ARCH_DELTA_OLLAMA_KEY, ARCH_ABSENT_FALLBACK, 1, 0},
};

/* --- Hugging Face --- */

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
    {ARCH_STATE_BETA, true, LAYER("linear_attn.in_proj_b.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_STATE_DT, true, LAYER("linear_attn.in_proj_a.weight"), ARCH_TRANSFORM_NONE},
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

/* With the keys of the wrapper for images. */
static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope_parameters.mrope_section"), /* for text, all sections are equal */
    ARCH_ANY_VALUE("rope_parameters.mrope_interleaved"),
    ARCH_ANY_VALUE("rope_scaling.mrope_section"),
    ARCH_ANY_VALUE("rope_scaling.mrope_interleaved"),
    ARCH_ANY_VALUE("mamba_ssm_dtype"), /* states here are F32 */
    ARCH_ANY_VALUE("mtp_num_hidden_layers"),
    ARCH_ANY_VALUE("mtp_use_dedicated_embeddings"),
    ARCH_ONE_VALUE("attention_bias", 0), /* a gate's bias has no slot */
    ARCH_ONE_VALUE("attn_output_gate", 1),
    ARCH_ONE_TEXT("output_gate_type", "swish"),
    ARCH_ANY_VALUE("language_model_only"),
    ARCH_ANY_VALUE("vision_config.*"),
    ARCH_ANY_VALUE("image_token_id"),
    ARCH_ANY_VALUE("video_token_id"),
    ARCH_ANY_VALUE("vision_start_token_id"),
    ARCH_ANY_VALUE("vision_end_token_id"),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "full_attention_interval", 4, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

const struct arch_source arch_delta_hf = {
    .base = &arch_base_hf,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .patterns = hf_patterns,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
    .n_patterns = ARCH_N_OF(hf_patterns),
};
