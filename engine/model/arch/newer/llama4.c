/* llama4.c: Llama 4. Most layers attend to a chunk of positions, with rope and then norms of heads
 * without weights. Every fourth layer attends to all, without rope, and scales queries by position.
 * The router's sigmoid multiplies the input of an expert; a shared expert runs beside it. */
#include "engine/model/arch/arch.h"

enum { CHUNKED, FULL };
enum { DENSE, SPARSE };

/* --- GGUF: the format lacks the numbers of chunks and of temperature, which all models share ---
 */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROPE_FREQS, false, "rope_freqs.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, true, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, true, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, true, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_CHUNK, NULL, ARCH_ABSENT_FALLBACK, 8192, 0},
    {ARCH_PARAM_TEMPERATURE, NULL, ARCH_ABSENT_FALLBACK, 0.1, 0},
    {ARCH_PARAM_TEMPERATURE_LENGTH, NULL, ARCH_ABSENT_FALLBACK, 8192, 0},
    {ARCH_PARAM_TEMPERATURE_OFFSET, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_NO_BARE_NORMS_EXPERTS, NULL, ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_SHARED_COUNT, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_RENORM, NULL, ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    /* 0 marks models whose layers all have rope. */
    ARCH_ONE_VALUE("attention.sliding_window", 8192),
    ARCH_ONE_VALUE("expert_weights_norm", 0),
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, NULL, 4, FULL, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, "interleave_moe_layer_step", 1, SPARSE, 0},
};

/* --- Hugging Face --- */

#define LAYER(name)                                                                                \
    "model.layers.%u." name "|model.language_model.layers.%u." name                                \
    "|language_model.model.layers.%u." name
#define FFN(name) LAYER("feed_forward." name)

static const struct arch_tensor hf_tensors[] = {
    {ARCH_FFN_GATE, true, FFN("gate_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, FFN("up_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, FFN("down_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true, FFN("router.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, FFN("experts.gate_up_proj"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_EXPERT_UP, true, FFN("experts.gate_up_proj"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_EXPERT_DOWN, true, FFN("experts.down_proj"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_SHARED_GATE, true, FFN("shared_expert.gate_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, true, FFN("shared_expert.up_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, true, FFN("shared_expert.down_proj.weight"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_KV_HEADS, "num_key_value_heads", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_CHUNK, "attention_chunk_size", ARCH_ABSENT_FALLBACK, 8192, 0},
    {ARCH_PARAM_USE_TEMPERATURE, "attn_temperature_tuning", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_TEMPERATURE, "attn_scale", ARCH_ABSENT_FALLBACK, 0.1, 0},
    {ARCH_PARAM_TEMPERATURE_LENGTH, "floor_scale", ARCH_ABSENT_FALLBACK, 8192, 0},
    {ARCH_PARAM_TEMPERATURE_OFFSET, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_BARE_NORMS, "use_qk_norm", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FFN, "intermediate_size_mlp", ARCH_ABSENT_FALLBACK, 16384, 0},
    {ARCH_PARAM_EXPERTS, "num_local_experts", ARCH_ABSENT_FALLBACK, 16, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_COUNT, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 500000, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("for_llm_compressor"), ARCH_ANY_VALUE("vision_config.*"),
    ARCH_ANY_VALUE("boi_token_index"),    ARCH_ANY_VALUE("eoi_token_index"),
    ARCH_ANY_VALUE("image_token_index"),
};

/* The kinds of layers follow from the layers with rope; a list of kinds may only repeat them. */
static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_LAST_OF, "no_rope_layer_interval", 4, FULL, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_FLAGS, "no_rope_layers", 0, CHUNKED, FULL},
    {ARCH_PART_MIXER, ARCH_PATTERN_SAME_NAMES, "layer_types", 0, 0, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_LAST_OF, "interleave_moe_layer_step", 1, SPARSE, 0},
    {ARCH_PART_FFN, ARCH_PATTERN_ONLY, "moe_layers", 0, SPARSE, DENSE},
};

static const struct arch_source llama4_sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "llama4",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .fixed_keys = gguf_fixed_keys,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .n_params = ARCH_N_OF(gguf_params),
        .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "Llama4ForCausalLM|Llama4ForConditionalGeneration|llama4_text|llama4",
        .rope_style = ROPE_INTERLEAVED,
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

const struct arch arch_llama4 = {
    .name = "llama4",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {[CHUNKED] = {.name = "chunked_attention",
                            .reach = ARCH_REACH_CHUNK,
                            .rope = 0,
                            .head_norms = ARCH_HEAD_NORMS_BARE,
                            .norm_after_rope = true},
               [FULL] = {.name = "full_attention", .rope = ARCH_NO_ROPE, .has_temperature = true}},
    .ffns = {[DENSE] = {.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             [SPARSE] = {.name = "sparse",
                         .body = ARCH_FFN_EXPERTS,
                         .form = ARCH_FFN_GATED,
                         .activation = ACTIVATION_SILU,
                         .router = {.score = ROUTER_SIGMOID, .weight = ARCH_EXPERT_WEIGHT_INPUT}}},
    .n_mixers = 2,
    .n_ffns = 2,
    .sources = llama4_sources,
    .n_sources = ARCH_N_OF(llama4_sources),
};
