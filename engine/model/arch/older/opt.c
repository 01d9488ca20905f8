/* opt.c: OPT, from Hugging Face folders; GGUF has no such models. Layer norms, biases everywhere, a
 * plain FFN, and a table of positions whose first two rows no position uses. The 350M model has its
 * norms behind the residual sum and a narrower embedding, and is refused. */
#include "engine/model/arch/arch.h"

/* Models that were saved as OPTModel lack the prefix. */
#define AT(name)    "model.decoder." name "|decoder." name
#define LAYER(name) AT("layers.%u." name)

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, AT("embed_tokens.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_POSITION_EMBD, true, AT("embed_positions.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, AT("final_layer_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, AT("final_layer_norm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER("self_attn_layer_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER("self_attn_layer_norm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER("self_attn.q_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q_BIAS, false, LAYER("self_attn.q_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER("self_attn.k_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_BIAS, false, LAYER("self_attn.k_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER("self_attn.v_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V_BIAS, false, LAYER("self_attn.v_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER("self_attn.out_proj.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, LAYER("self_attn.out_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("final_layer_norm.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER("final_layer_norm.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("fc1.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, false, LAYER("fc1.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("fc2.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, false, LAYER("fc2.bias"), ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "num_hidden_layers", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_position_embeddings", ARCH_ABSENT_FALLBACK, 2048, 0},
    {ARCH_PARAM_POSITION_OFFSET, NULL, ARCH_ABSENT_FALLBACK, 2, 0},
    {ARCH_PARAM_HIDDEN, "hidden_size|word_embed_proj_dim", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "ffn_dim", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HEADS, "num_attention_heads", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, NULL, ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ACTIVATION, "activation_function", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("do_layer_norm_before", 1),
    ARCH_ONE_VALUE("_remove_final_layer_norm", 0),
    ARCH_ONE_VALUE("layer_norm_elementwise_affine", 1),
    ARCH_HAS_TENSOR("enable_bias", ARCH_ATTN_Q_BIAS),
    ARCH_ANY_VALUE("dropout"),
    ARCH_ANY_VALUE("activation_dropout"),
    ARCH_ANY_VALUE("layerdrop"),
    ARCH_ANY_VALUE("init_std"),
    ARCH_ANY_VALUE("prefix"), /* a text that pipelines put before prompts */
};

static const struct arch_source sources[] = {{
    .base = &arch_base_hf_keys,
    .format = "hf",
    .aliases = "OPTForCausalLM|opt",
    .rope_style = ROPE_NONE,
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
}};

const struct arch arch_opt = {
    .name = "opt",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_RELU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
