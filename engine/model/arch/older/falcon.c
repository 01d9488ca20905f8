/* falcon.c: Falcon, in three forms. Layer norms, a plain FFN, Q, K and V as one matrix.
 *
 * The table falcon is that of 7B. Attention and FFN run in parallel behind one norm, and all heads
 * share one KV head.
 *
 * The table falcon-40b is that of 40B, 180B and Falcon 2. Groups of heads share KV heads, and
 * mostly each branch has its norm.
 *
 * The table falcon-rw is that of RW. Positions are ALiBi slopes, each head has its KV head, and
 * mostly the FFN follows the attention.
 *
 * A Hugging Face file has the query heads of a KV head, then its key and value, then the next
 * group. GGUF puts all of Q before all of K before all of V. */
#include "engine/model/arch/arch.h"

#define AT(name) "transformer." name
#define LAYER    "transformer.h.%u."
#define QKV      LAYER "self_attention.query_key_value.weight"
#define QKV_BIAS LAYER "self_attention.query_key_value.bias"

/* --- rows of all forms --- */

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

static const struct arch_source gguf = {
    .base = &arch_base_gguf,
    .format = "gguf",
    .params = gguf_params,
    .tensors = gguf_tensors,
    .n_params = ARCH_N_OF(gguf_params),
    .n_tensors = ARCH_N_OF(gguf_tensors),
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, AT("word_embeddings.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, AT("ln_f.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, AT("ln_f.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "input_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "input_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_Q_BIAS, false, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_K_BIAS, false, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V, true, QKV, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_V_BIAS, false, QKV_BIAS, ARCH_TRANSFORM_BY_HEAD},
    {ARCH_ATTN_OUT, true, LAYER "self_attention.dense.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, LAYER "self_attention.dense.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, LAYER "post_attention_layernorm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, false, LAYER "post_attention_layernorm.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.dense_h_to_4h.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, LAYER "mlp.dense_h_to_4h.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.dense_4h_to_h.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, LAYER "mlp.dense_4h_to_h.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers|n_layer", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_FALLBACK, 2048, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size|n_embed", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "ffn_hidden_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads|n_head", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ACTIVATION, "activation", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("bias", ARCH_ATTN_Q_BIAS),
    ARCH_ANY_VALUE("intermediate_size"),       /* ffn_hidden_size decides */
    ARCH_ANY_VALUE("ff_factor"),               /* the same */
    ARCH_ANY_VALUE("num_ln_in_parallel_attn"), /* the file's tensors decide */
    ARCH_ANY_VALUE("hidden_dropout"),
    ARCH_ONE_VALUE("apply_residual_connection_post_layernorm", 0),
};

static const struct arch_source hf = {
    .base = &arch_base_hf_keys,
    .format = "hf",
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
};

static const struct arch_param rope_params[] = {
    {ARCH_PARAM_ROPE_BASE, "rope_parameters.rope_theta|rope_theta", ARCH_ABSENT_FALLBACK, 10000, 0},
    {ARCH_PARAM_ROPE_SCALING, "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type",
     ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_FACTOR, "rope_parameters.factor|rope_scaling.factor", ARCH_ABSENT_FALLBACK, 1,
     0},
};

static const struct arch_fixed_key rope_fixed_keys[] = {
    ARCH_ONE_VALUE("alibi", 0),
};

static const struct arch_source hf_rope = {
    .base = &hf,
    .format = "hf",
    .params = rope_params,
    .fixed_keys = rope_fixed_keys,
    .n_params = ARCH_N_OF(rope_params),
    .n_fixed_keys = ARCH_N_OF(rope_fixed_keys),
};

/* --- 7B --- */

static const struct arch_variant falcon_gguf_variants[] = {
    {.tensor = "blk.0.attn_norm_2.weight", .arch = "falcon-40b"},
};

static const struct arch_param falcon_hf_params[] = {
    {ARCH_PARAM_KV_HEADS, NULL, ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key falcon_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("multi_query", 1),
    ARCH_ONE_VALUE("parallel_attn", 1),
    ARCH_ANY_VALUE("num_kv_heads"), /* without effect if multi_query is true */
    ARCH_ONE_VALUE("new_decoder_architecture", 0),
};

static const struct arch_variant falcon_hf_variants[] = {
    {.key = "new_decoder_architecture", .arch = "falcon-40b"},
    {.key = "alibi", .arch = "falcon-rw"},
};

static const struct arch_source falcon_sources[] = {
    {
        .base = &gguf,
        .format = "gguf",
        .aliases = "falcon",
        .rope_style = ROPE_HALF,
        .variants = falcon_gguf_variants,
        .n_variants = ARCH_N_OF(falcon_gguf_variants),
    },
    {
        .base = &hf_rope,
        .format = "hf",
        .aliases = "FalconForCausalLM|falcon",
        .rope_style = ROPE_HALF,
        .params = falcon_hf_params,
        .fixed_keys = falcon_hf_fixed_keys,
        .variants = falcon_hf_variants,
        .n_params = ARCH_N_OF(falcon_hf_params),
        .n_fixed_keys = ARCH_N_OF(falcon_hf_fixed_keys),
        .n_variants = ARCH_N_OF(falcon_hf_variants),
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
    .sources = falcon_sources,
    .n_sources = ARCH_N_OF(falcon_sources),
};

/* --- 40B; GGUF calls the FFN's norm attn_norm --- */

static const struct arch_tensor falcon_40b_gguf_tensors[] = {
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm_2.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, "blk.%u.attn_norm_2.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, "blk.%u.attn_norm.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor falcon_40b_hf_tensors[] = {
    {ARCH_ATTN_NORM, true,
     LAYER "ln_attn.weight"
           "|" LAYER "input_layernorm.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true,
     LAYER "ln_attn.bias"
           "|" LAYER "input_layernorm.bias",
     ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, false, LAYER "ln_mlp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, false, LAYER "ln_mlp.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param falcon_40b_hf_params[] = {
    {ARCH_PARAM_KV_HEADS, "num_kv_heads|n_head_kv", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key falcon_40b_hf_fixed_keys[] = {
    ARCH_ONE_VALUE("parallel_attn", 1),
    ARCH_ANY_VALUE("multi_query"), /* without effect in this form */
    ARCH_ONE_VALUE("new_decoder_architecture", 1),
};

static const struct arch_source falcon_40b_sources[] = {
    {
        .base = &gguf,
        .format = "gguf",
        .aliases = "falcon-40b",
        .rope_style = ROPE_HALF,
        .tensors = falcon_40b_gguf_tensors,
        .n_tensors = ARCH_N_OF(falcon_40b_gguf_tensors),
    },
    {
        .base = &hf_rope,
        .format = "hf",
        .aliases = "falcon-40b",
        .rope_style = ROPE_HALF,
        .params = falcon_40b_hf_params,
        .fixed_keys = falcon_40b_hf_fixed_keys,
        .tensors = falcon_40b_hf_tensors,
        .n_params = ARCH_N_OF(falcon_40b_hf_params),
        .n_fixed_keys = ARCH_N_OF(falcon_40b_hf_fixed_keys),
        .n_tensors = ARCH_N_OF(falcon_40b_hf_tensors),
    },
};

const struct arch arch_falcon_40b = {
    .name = "falcon-40b",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_ERF}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = falcon_40b_sources,
    .n_sources = ARCH_N_OF(falcon_40b_sources),
};

/* --- RW: the biases of ALiBi are scaled as the scores are --- */

static const struct arch_param falcon_rw_params[] = {
    {ARCH_PARAM_PARALLEL, "parallel_attn", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ALIBI_BIAS, NULL, ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_ALIBI_SCALE, NULL, ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key falcon_rw_fixed_keys[] = {
    ARCH_ONE_VALUE("alibi", 1),
    ARCH_ONE_VALUE("multi_query", 0),
    ARCH_ANY_VALUE("num_kv_heads"), /* without effect if multi_query is false */
    ARCH_ONE_VALUE("new_decoder_architecture", 0),
    ARCH_ANY_VALUE("rope_theta"), /* without effect if alibi is true */
    ARCH_ANY_VALUE("rope_scaling.*"),
    ARCH_ANY_VALUE("rope_parameters.*"),
};

static const struct arch_source falcon_rw_sources[] = {{
    .base = &hf,
    .format = "hf",
    .aliases = "falcon-rw",
    .rope_style = ROPE_NONE,
    .params = falcon_rw_params,
    .fixed_keys = falcon_rw_fixed_keys,
    .n_params = ARCH_N_OF(falcon_rw_params),
    .n_fixed_keys = ARCH_N_OF(falcon_rw_fixed_keys),
}};

const struct arch arch_falcon_rw = {
    .name = "falcon-rw",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_ERF}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = falcon_rw_sources,
    .n_sources = ARCH_N_OF(falcon_rw_sources),
};
