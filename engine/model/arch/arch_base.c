/* arch_base.c: what most architectures share in each format: the tensors and keys of the Llama
 * block. A table names these rows as its base and states the differences. Biases are optional in
 * the base; where a family has them always, its table requires them. */
#include "engine/model/arch/arch.h"

/* --- GGUF --- */

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_q.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, "blk.%u.attn_q.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_k.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, "blk.%u.attn_k.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_v.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, "blk.%u.attn_v.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, "blk.%u.attn_output.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, "blk.%u.ffn_gate.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE_BIAS, false, "blk.%u.ffn_gate.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, "blk.%u.ffn_up.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, "blk.%u.ffn_down.bias", ARCH_TRANSFORM_NONE},
};

/* Parameters that the GGUF file of every model has. */
static const struct arch_param gguf_key_params[] = {
    {ARCH_PARAM_LAYERS, "block_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "context_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "embedding_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HEADS, "attention.head_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, "attention.head_count_kv", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "attention.key_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VALUE_DIM, "attention.value_length", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key gguf_keys[] = {
    ARCH_ONE_VALUE("attention.causal", 1),
};

const struct arch_source arch_base_gguf_keys = {
    .format = "gguf",
    .params = gguf_key_params,
    .fixed_keys = gguf_keys,
    .n_params = ARCH_N_OF(gguf_key_params),
    .n_fixed_keys = ARCH_N_OF(gguf_keys),
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_rms_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROT_DIM, "rope.dimension_count", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope.freq_base", ARCH_ABSENT_FALLBACK, 10000, 0},
    {ARCH_PARAM_ROPE_SCALING, "rope.scaling.type", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_FACTOR, "rope.scaling.factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, "rope.scaling.original_context_length", ARCH_ABSENT_DERIVE,
     0, 0},
    {ARCH_PARAM_ROPE_ATTN_FACTOR, "rope.scaling.attn_factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_EXT_FACTOR, "rope.scaling.yarn_ext_factor", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BETA_FAST, "rope.scaling.yarn_beta_fast", ARCH_ABSENT_FALLBACK, 32, 0},
    {ARCH_PARAM_ROPE_BETA_SLOW, "rope.scaling.yarn_beta_slow", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ANY_VALUE("rope.scaling.finetuned"), /* describes training, not inference */
    ARCH_ANY_VALUE("tensor_data_layout"),     /* a remark by old converters */
    ARCH_ANY_VALUE("vision.*"),               /* files of Ollama hold the parts for images too */
    ARCH_ANY_VALUE("audio.*"),
    ARCH_ANY_VALUE("mm.*"),
};

const struct arch_source arch_base_gguf = {
    .base = &arch_base_gguf_keys,
    .format = "gguf",
    .params = gguf_params,
    .fixed_keys = gguf_fixed_keys,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .ignored_tensors = "v.|a.|mm.",
    .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
    .n_tensors = ARCH_N_OF(gguf_tensors),
};

/* --- GGUF, the GPT block --- */

static const struct arch_tensor gpt_gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, true, "blk.%u.attn_qkv.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, true, "blk.%u.attn_output.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.ffn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, "blk.%u.ffn_up.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, "blk.%u.ffn_down.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gpt_gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
};

const struct arch_source arch_base_gpt_gguf = {
    .base = &arch_base_gguf_keys,
    .format = "gguf",
    .params = gpt_gguf_params,
    .tensors = gpt_gguf_tensors,
    .n_params = ARCH_N_OF(gpt_gguf_params),
    .n_tensors = ARCH_N_OF(gpt_gguf_tensors),
};

/* --- Hugging Face --- */

/* Keys that describe the file, training or generation, and classes of other parts. */
static const struct arch_fixed_key hf_keys[] = {
    ARCH_ANY_VALUE("architectures"),
    ARCH_ANY_VALUE("model_type"),
    ARCH_ANY_VALUE("transformers_version"),
    ARCH_ANY_VALUE("dtype"),
    ARCH_ANY_VALUE("torch_dtype"),
    ARCH_ANY_VALUE("use_cache"),
    ARCH_ANY_VALUE("initializer_range"),
    ARCH_ANY_VALUE("attention_dropout"),
    ARCH_ANY_VALUE("bos_token_id"),
    ARCH_ANY_VALUE("eos_token_id"),
    ARCH_ANY_VALUE("pad_token_id"),
    ARCH_ANY_VALUE("generation_config.*"),
    ARCH_ANY_VALUE("_name_or_path"),
    ARCH_ANY_VALUE("auto_map.*"),
    ARCH_ANY_VALUE("text_config.*"), /* hf.h: only keys that the top level overrides stay there */
    ARCH_ANY_VALUE("llm_config.*"),
    ARCH_ANY_VALUE("unsloth_*"),
    ARCH_ANY_VALUE("transformers\\.js_config.*"),
    ARCH_ANY_VALUE("id2label.*"),
    ARCH_ANY_VALUE("label2id.*"),
    ARCH_ANY_VALUE("_num_labels"),
    ARCH_ANY_VALUE("task_specific_params.*"),
    ARCH_ANY_VALUE("tokenizer_class"),
    ARCH_ANY_VALUE("_attn_implementation_autoset"),
    ARCH_ANY_VALUE("attn_implementation"),
    ARCH_ANY_VALUE("output_attentions"),
    ARCH_ANY_VALUE("output_hidden_states"),
    ARCH_ANY_VALUE("return_dict"),
    ARCH_ANY_VALUE("chunk_size_feed_forward"),
    ARCH_ONE_VALUE("is_encoder_decoder", 0),
    ARCH_ANY_VALUE("gradient_checkpointing"),
    ARCH_ANY_VALUE("do_sample"),
    ARCH_ANY_VALUE("max_length"),
    ARCH_ANY_VALUE("temperature"),
    ARCH_ANY_VALUE("top_k"),
    ARCH_ANY_VALUE("top_p"),
};

static const struct arch_param hf_key_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
};

const struct arch_source arch_base_hf_keys = {
    .format = "hf",
    .params = hf_key_params,
    .fixed_keys = hf_keys,
    .n_params = ARCH_N_OF(hf_key_params),
    .n_fixed_keys = ARCH_N_OF(hf_keys),
};

/* A multimodal model has its text model below one of the other prefixes. */
#define MODEL(name) "model." name "|model.language_model." name "|language_model.model." name
#define LAYER(name) MODEL("layers.%u." name)

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, MODEL("embed_tokens.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, MODEL("norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight|language_model.lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER("input_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER("self_attn.q_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, LAYER("self_attn.q_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER("self_attn.k_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, LAYER("self_attn.k_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER("self_attn.v_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, LAYER("self_attn.v_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER("self_attn.o_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, LAYER("self_attn.o_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("post_attention_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER("mlp.gate_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE_BIAS, false, LAYER("mlp.gate_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("mlp.up_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, LAYER("mlp.up_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("mlp.down_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, LAYER("mlp.down_proj.bias"), ARCH_TRANSFORM_NONE},
};

#define ROPE_OR(key, old) "rope_parameters." key "|rope_parameters.full_attention." key "|" old
#define ROPE(key)         ROPE_OR(key, "rope_scaling." key)

/* transformers 5 writes rope_parameters, with an object per kind of layer where kinds differ; set 0
 * is that of full attention. Version 4 wrote rope_theta and rope_scaling. */
static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, "num_key_value_heads", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "rms_norm_eps", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ACTIVATION, "hidden_act", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 10000, 0},
    {ARCH_PARAM_ROPE_SCALING,
     ROPE_OR("rope_type", "rope_parameters.type|rope_scaling.rope_type|rope_scaling.type"),
     ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_FACTOR, ROPE("factor"), ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT, ROPE("original_max_position_embeddings"), ARCH_ABSENT_DERIVE,
     0, 0},
    {ARCH_PARAM_ROPE_ATTENTION, ROPE("attention_factor"), ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_BETA_FAST, ROPE("beta_fast"), ARCH_ABSENT_FALLBACK, 32, 0},
    {ARCH_PARAM_ROPE_BETA_SLOW, ROPE("beta_slow"), ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_TRUNCATE, ROPE("truncate"), ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_MSCALE, ROPE("mscale"), ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_MSCALE_ALL, ROPE("mscale_all_dim"), ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_ROPE_LOW_FREQ, ROPE("low_freq_factor"), ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_HIGH_FREQ, ROPE("high_freq_factor"), ARCH_ABSENT_FALLBACK, 4, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    /* Tables whose models rotate a part of each head have a parameter. transformers does not read
     * the key for the others. */
    ARCH_ONE_VALUE("partial_rotary_factor", 1),
    ARCH_ONE_VALUE("rope_parameters.partial_rotary_factor", 1),
    ARCH_ONE_VALUE("rope_parameters.full_attention.partial_rotary_factor", 1),
    ARCH_ONE_VALUE("rope_parameters.sliding_attention.partial_rotary_factor", 1),
    ARCH_HAS_TENSOR("attention_bias", ARCH_ATTN_Q_BIAS),
    ARCH_HAS_TENSOR("mlp_bias", ARCH_FFN_UP_BIAS),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

/* Parts for images and sound, drafts of several tokens, and frequencies that old files store. */
#define HF_IGNORED                                                                                 \
    "visual.|model.visual.|vision_tower.|model.vision_tower.|vision_model.|model.vision_model.|"   \
    "multi_modal_projector.|model.multi_modal_projector.|audio_tower.|model.audio_tower.|"         \
    "embed_vision.|model.embed_vision.|embed_audio.|model.embed_audio.|mtp.|model.mtp.|"           \
    "model.layers.%u.self_attn.rotary_emb.inv_freq"

const struct arch_source arch_base_hf = {
    .base = &arch_base_hf_keys,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .patterns = hf_patterns,
    .ignored_tensors = HF_IGNORED,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
    .n_patterns = ARCH_N_OF(hf_patterns),
};
