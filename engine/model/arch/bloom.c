/* bloom.c: BLOOM and BLOOMZ. GGUF's converter puts all of Q before all of K before all of V;
 * Hugging Face interleaves them by head. Positions are ALiBi slopes only (arXiv 2108.12409; the
 * maximum bias is 8, which files do not state). A norm follows the embedding. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_NORM, true, "token_embd_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_TOKEN_NORM_BIAS, true, "token_embd_norm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_ALIBI_BIAS, "attention.max_alibi_bias", ARCH_ABSENT_FALLBACK, 8, 0},
};

/* Models that were saved as BloomModel lack the prefix. */
#define AT(name)    "transformer." name "|" name
#define LAYER(name) AT("h.%u." name)
#define QKV         LAYER("self_attention.query_key_value.weight")
#define QKV_BIAS    LAYER("self_attention.query_key_value.bias")

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, AT("word_embeddings.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_TOKEN_NORM, true, AT("word_embeddings_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_TOKEN_NORM_BIAS, true, AT("word_embeddings_layernorm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, AT("ln_f.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, AT("ln_f.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER("input_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER("input_layernorm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_Q_BIAS, true, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K_BIAS, true, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V_BIAS, true, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_OUT, true, LAYER("self_attention.dense.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, true, LAYER("self_attention.dense.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("post_attention_layernorm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER("post_attention_layernorm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("mlp.dense_h_to_4h.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, LAYER("mlp.dense_h_to_4h.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("mlp.dense_4h_to_h.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, LAYER("mlp.dense_4h_to_h.bias"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "n_layer|num_hidden_layers", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "seq_length", ARCH_ABSENT_FALLBACK, 2048, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size|n_embed", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "n_head|num_attention_heads", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ALIBI_BIAS, NULL, ARCH_ABSENT_FALLBACK, 8, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("apply_residual_connection_post_layernorm", 0),
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_ANY_VALUE("pretraining_tp"),
    ARCH_ANY_VALUE("slow_but_exact"),
    ARCH_ANY_VALUE("attention_softmax_in_fp32"),
    ARCH_ANY_VALUE("bias_dropout_fusion"),
    ARCH_ANY_VALUE("masked_softmax_fusion"),
    ARCH_ANY_VALUE("offset_alibi"), /* a constant per row does not change a softmax */
    ARCH_ANY_VALUE("skip_bias_add"),
    ARCH_ANY_VALUE("skip_bias_add_qkv"),
    ARCH_ANY_VALUE("unk_token_id"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gpt_gguf,
        .format = "gguf",
        .aliases = "bloom",
        .rope_style = ROPE_NONE,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf_keys,
        .format = "hf",
        .aliases = "BloomForCausalLM|BloomModel|bloom",
        .rope_style = ROPE_NONE,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_bloom = {
    .name = "bloom",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
