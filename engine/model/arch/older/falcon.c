/* falcon.c: Falcon 7B. Attention and FFN in parallel behind one layer norm, all heads share one KV
 * head, a plain FFN without biases. Q, K and V are one matrix, in both formats in that order.
 * Falcon 40B (two norms, KV heads of groups) and Falcon RW (ALiBi) are refused. */
#include "engine/model/arch/arch.h"

#define AT(name) "transformer." name
#define LAYER    "transformer.h.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_OUTPUT_NORM_BIAS, true, "output_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, NULL, ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, AT("word_embeddings.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, AT("ln_f.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, AT("ln_f.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "input_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER "self_attention.query_key_value.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER "self_attention.query_key_value.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER "self_attention.query_key_value.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER "self_attention.dense.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.dense_h_to_4h.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.dense_4h_to_h.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers|n_layer", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_FALLBACK, 2048, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size|n_embed", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "ffn_hidden_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads|n_head", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ACTIVATION, "activation", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.rope_theta|rope_theta", ARCH_ABSENT_FALLBACK, 10000, 0},
    {ARCH_PARAM_ROPE_SCALING, "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type",
     ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("alibi", 0),
    ARCH_ONE_VALUE("multi_query", 1),
    ARCH_ONE_VALUE("new_decoder_architecture", 0),
    ARCH_ONE_VALUE("parallel_attn", 1),
    ARCH_ONE_VALUE("bias", 0),
    ARCH_ANY_VALUE("num_kv_heads"),
    ARCH_ANY_VALUE("intermediate_size"),
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_ONE_VALUE("apply_residual_connection_post_layernorm", 0),
    ARCH_ANY_VALUE("auto_map.*"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "falcon",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf_keys,
        .format = "hf",
        .aliases = "FalconForCausalLM|falcon",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_falcon = {
    .name = "falcon",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_ERF}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
