/* gemma4.c: Gemma 4. Norms have no 1 to add, scores have no scale, and values
 * are normed without weights. Most layers have a window; the others have wider heads, and may have
 * no matrix for values. The last layers read the K and V of the last layer of their kind. Models
 * with experts run them beside the dense FFN. */
#include "engine/model/arch/arch.h"

enum { SLIDING, FULL };
enum { GLOBAL, LOCAL }; /* rope sets; tensors of divisors belong to set 0 */

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROPE_FREQS, false, "rope_freqs.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_EMBD, false, "per_layer_token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_EMBD_PROJ, false, "per_layer_model_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_EMBD_NORM, false, "per_layer_proj_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_POST_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, "blk.%u.post_ffw_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_GATE, false, "blk.%u.inp_gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_PROJ, false, "blk.%u.proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_POST_NORM, false, "blk.%u.post_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_SCALE, false, "blk.%u.layer_output_scale.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ATTN_SCALE, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FINAL_SOFTCAP, "final_logit_softcapping", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_KV_LAYERS, "attention.shared_kv_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_LAYER_EMBD, "embedding_length_per_layer_input", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_KEY_DIM, "attention.key_length", ARCH_ABSENT_REFUSE, 0, FULL},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length", ARCH_ABSENT_DERIVE, 0, FULL},
    {ARCH_PARAM_KEY_DIM, "attention.key_length_swa", ARCH_ABSENT_REFUSE, 0, SLIDING},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length_swa", ARCH_ABSENT_DERIVE, 0, SLIDING},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base", ARCH_ABSENT_FALLBACK, 1e6, GLOBAL},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base_swa", ARCH_ABSENT_FALLBACK, 1e4, LOCAL},
    {ARCH_PARAM_ROT_DIM, "rope.dimension_count", ARCH_ABSENT_DERIVE, 0, GLOBAL},
    {ARCH_PARAM_ROT_DIM, "rope.dimension_count_swa", ARCH_ABSENT_DERIVE, 0, LOCAL},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "attention.sliding_window_pattern", 6, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "attention.sliding_window_pattern", 0, SLIDING, FULL},
};

/* --- Hugging Face --- */

/* The text model of a multimodal one lies below another prefix. */
#define AT(name)       "model." name "|model.language_model." name "|language_model.model." name
#define AT_LAYER(name) AT("layers.%u." name)

static const struct arch_tensor hf_tensors[] = {
    {ARCH_LAYER_EMBD, false, AT("embed_tokens_per_layer.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_EMBD_PROJ, false, AT("per_layer_model_projection.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_EMBD_NORM, false, AT("per_layer_projection_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_NORM, true, AT_LAYER("self_attn.q_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, AT_LAYER("self_attn.k_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_POST_NORM, true, AT_LAYER("post_attention_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, AT_LAYER("pre_feedforward_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_POST_NORM, true, AT_LAYER("post_feedforward_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_GATE, false, AT_LAYER("per_layer_input_gate.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_PROJ, false, AT_LAYER("per_layer_projection.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_POST_NORM, false, AT_LAYER("post_per_layer_input_norm.weight"),
     ARCH_TRANSFORM_NONE},
    {ARCH_LAYER_SCALE, false, AT_LAYER("layer_scalar"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EMBED_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ATTN_SCALE, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FINAL_SOFTCAP, "final_logit_softcapping", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 512, 0},
    {ARCH_PARAM_ACTIVATION, "hidden_activation", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_SHARED_KV_LAYERS, "num_kv_shared_layers", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_FFN_DOUBLE, "use_double_wide_mlp", ARCH_ABSENT_FALLBACK, 0, 0},
    /* null: none; transformers' default of 256 is that of models with these tensors */
    {ARCH_PARAM_LAYER_EMBD, "hidden_size_per_layer_input", ARCH_ABSENT_DERIVE, 0, 0},
    /* Newer versions of transformers write the numbers of full layers by layer, and none where all
     * layers are equal. Older files always have a key for full layers. */
    {ARCH_PARAM_KEY_DIM, "per_layer_config.%u.head_dim|head_dim", ARCH_ABSENT_FALLBACK, 256,
     SLIDING},
    {ARCH_PARAM_KEY_DIM, "per_layer_config.%u.head_dim|global_head_dim", ARCH_ABSENT_MIXER_0, 0,
     FULL},
    {ARCH_PARAM_KV_HEADS, "per_layer_config.%u.num_key_value_heads|num_key_value_heads",
     ARCH_ABSENT_FALLBACK, 4, SLIDING},
    {ARCH_PARAM_KV_HEADS, "per_layer_config.%u.num_key_value_heads|num_global_key_value_heads",
     ARCH_ABSENT_MIXER_0, 0, FULL},
    {ARCH_PARAM_KEYS_AS_VALUES, "attention_k_eq_v", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.full_attention.rope_theta", ARCH_ABSENT_FALLBACK, 1e6,
     GLOBAL},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.sliding_attention.rope_theta", ARCH_ABSENT_FALLBACK,
     1e4, LOCAL},
    {ARCH_PARAM_ROPE_SCALING, "rope_parameters.full_attention.rope_type", ARCH_ABSENT_REFUSE, 0,
     GLOBAL},
    {ARCH_PARAM_ROT_SHARE, "rope_parameters.full_attention.partial_rotary_factor",
     ARCH_ABSENT_FALLBACK, 1, GLOBAL},
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 6, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

/* With the keys of the wrapper for images and sound. */
static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_TEXT("rope_parameters.sliding_attention.rope_type", "default"),
    ARCH_ANY_VALUE("vocab_size_per_layer_input"),           /* the shape of the tensor is checked */
    ARCH_ONE_TEXT("use_bidirectional_attention", "vision"), /* tokens of images alone */
    ARCH_ANY_VALUE("vision_config.*"),
    ARCH_ANY_VALUE("audio_config.*"),
    ARCH_ANY_VALUE("image_token_id"),
    ARCH_ANY_VALUE("video_token_id"),
    ARCH_ANY_VALUE("audio_token_id"),
    ARCH_ANY_VALUE("boi_token_id"),
    ARCH_ANY_VALUE("eoi_token_id"),
    ARCH_ANY_VALUE("boa_token_id"),
    ARCH_ANY_VALUE("eoa_token_id"),
    ARCH_ANY_VALUE("eoa_token_index"),
    ARCH_ANY_VALUE("vision_soft_tokens_per_image"),
};

static const struct arch_source base_gguf = {
    .base = &arch_base_gguf,
    .format = "gguf",
    .params = gguf_params,
    .tensors = gguf_tensors,
    .patterns = gguf_patterns,
    .n_params = ARCH_N_OF(gguf_params),
    .n_tensors = ARCH_N_OF(gguf_tensors),
    .n_patterns = ARCH_N_OF(gguf_patterns),
};

static const struct arch_source base_hf = {
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

/* --- dense models --- */

static const struct arch_variant gguf_variants[] = {{.key = "expert_count", .arch = "gemma4-moe"}};

static const struct arch_fixed_key dense_gguf_fixed_keys[] = {
    ARCH_ONE_VALUE("expert_count", 0),
    ARCH_ANY_VALUE("expert_used_count"), /* without effect without experts */
    ARCH_ANY_VALUE("expert_feed_forward_length"),
};

static const struct arch_variant hf_variants[] = {
    {.key = "enable_moe_block", .arch = "gemma4-moe"}};

static const struct arch_fixed_key dense_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("enable_moe_block", 0),
    ARCH_ANY_VALUE("num_experts"), /* without effect if enable_moe_block is false */
    ARCH_ANY_VALUE("top_k_experts"),
    ARCH_ANY_VALUE("moe_intermediate_size"),
};

static const struct arch_source gemma4_sources[] = {
    {
        .base = &base_gguf,
        .format = "gguf",
        .aliases = "gemma4",
        .rope_style = ROPE_HALF,
        .fixed_keys = dense_gguf_fixed_keys,
        .variants = gguf_variants,
        .n_fixed_keys = ARCH_N_OF(dense_gguf_fixed_keys),
        .n_variants = ARCH_N_OF(gguf_variants),
    },
    {
        .base = &base_hf,
        .format = "hf",
        .aliases = "Gemma4ForCausalLM|Gemma4ForConditionalGeneration|gemma4_text|gemma4",
        .rope_style = ROPE_HALF,
        .fixed_keys = dense_hf_fixed_keys,
        .variants = hf_variants,
        .n_fixed_keys = ARCH_N_OF(dense_hf_fixed_keys),
        .n_variants = ARCH_N_OF(hf_variants),
    },
};

#define MIXERS                                                                                     \
    {                                                                                              \
        [SLIDING] = {.name = "sliding_attention",                                                  \
                     .reach = ARCH_REACH_WINDOW,                                                   \
                     .rope = LOCAL,                                                                \
                     .bare_value_norm = true},                                                     \
        [FULL] = {                                                                                 \
            .name = "full_attention",                                                              \
            .rope = GLOBAL,                                                                        \
            .bare_value_norm = true,                                                               \
            .keys_as_values = true                                                                 \
        }                                                                                          \
    }

const struct arch arch_gemma4 = {
    .name = "gemma4",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = MIXERS,
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = gemma4_sources,
    .n_sources = ARCH_N_OF(gemma4_sources),
};

/* --- dense and experts side by side --- */

static const struct arch_tensor moe_gguf_tensors[] = {
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_NORM, true, "blk.%u.ffn_gate_inp.scale", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_EXPERT_SCALE, true, "blk.%u.ffn_down_exps.scale", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, "blk.%u.ffn_gate_up_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, "blk.%u.ffn_gate_up_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_NORM, true, "blk.%u.pre_ffw_norm_2.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_POST_NORM, true, "blk.%u.post_ffw_norm_2.weight", ARCH_TRANSFORM_NONE},
    {ARCH_DENSE_POST_NORM, true, "blk.%u.post_ffw_norm_1.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param moe_gguf_params[] = {
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "expert_feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_tensor moe_hf_tensors[] = {
    {ARCH_ROUTER, true, AT_LAYER("router.proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_NORM, true, AT_LAYER("router.scale"), ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_EXPERT_SCALE, true, AT_LAYER("router.per_expert_scale"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, AT_LAYER("experts.gate_up_proj"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, AT_LAYER("experts.gate_up_proj"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, AT_LAYER("experts.down_proj"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_NORM, true, AT_LAYER("pre_feedforward_layernorm_2.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_POST_NORM, true, AT_LAYER("post_feedforward_layernorm_2.weight"),
     ARCH_TRANSFORM_NONE},
    {ARCH_DENSE_POST_NORM, true, AT_LAYER("post_feedforward_layernorm_1.weight"),
     ARCH_TRANSFORM_NONE},
};

static const struct arch_param moe_hf_params[] = {
    {ARCH_PARAM_EXPERTS, "num_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "top_k_experts", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "moe_intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key moe_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("enable_moe_block", 1),
};

static const struct arch_source moe_sources[] = {
    {
        .base = &base_gguf,
        .format = "gguf",
        .aliases = "gemma4-moe",
        .rope_style = ROPE_HALF,
        .params = moe_gguf_params,
        .tensors = moe_gguf_tensors,
        .n_params = ARCH_N_OF(moe_gguf_params),
        .n_tensors = ARCH_N_OF(moe_gguf_tensors),
    },
    {
        .base = &base_hf,
        .format = "hf",
        .aliases = "gemma4-moe",
        .rope_style = ROPE_HALF,
        .params = moe_hf_params,
        .fixed_keys = moe_hf_fixed_keys,
        .tensors = moe_hf_tensors,
        .n_params = ARCH_N_OF(moe_hf_params),
        .n_fixed_keys = ARCH_N_OF(moe_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(moe_hf_tensors),
    },
};

const struct arch arch_gemma4_moe = {
    .name = "gemma4-moe",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = MIXERS,
    .ffns = {{.name = "dense and sparse",
              .body = ARCH_FFN_BOTH,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_GELU_TANH,
              .router = {.score = ROUTER_SOFTMAX}}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = moe_sources,
    .n_sources = ARCH_N_OF(moe_sources),
};
