/* gptj.c: GPT-J, from Hugging Face folders; GGUF has no such models. Attention and FFN run in
 * parallel behind one layer norm. The FFN is plain and has biases. Rope pairs are interleaved, on a
 * part of each head. */
#include "engine/model/arch/arch.h"

#define LAYER "transformer.h.%u."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "transformer.wte.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "transformer.ln_f.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, "transformer.ln_f.bias", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, true, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_BIAS, true, "lm_head.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "ln_1.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER "ln_1.bias", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER "attn.q_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER "attn.k_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER "attn.v_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER "attn.out_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "mlp.fc_in.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP_BIAS, true, LAYER "mlp.fc_in.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "mlp.fc_out.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN_BIAS, true, LAYER "mlp.fc_out.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "n_layer", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "n_positions", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "n_embd", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, "n_inner", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "n_head", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ACTIVATION, "activation_function", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROT_DIM, "rotary_dim", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROPE_BASE, NULL, ARCH_ABSENT_FALLBACK, 10000, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("attn_pdrop"),
    ARCH_ANY_VALUE("embd_pdrop"),
    ARCH_ANY_VALUE("resid_pdrop"),
    ARCH_ANY_VALUE("n_ctx"), /* transformers does not read this key */
    ARCH_ONE_VALUE("rotary", 1),
    ARCH_ONE_VALUE("scale_attn_weights", 1),
    ARCH_ANY_VALUE("summary_*"), /* for another head */
};

static const struct arch_source sources[] = {{
    .base = &arch_base_hf_keys,
    .format = "hf",
    .aliases = "GPTJForCausalLM|gptj",
    .rope_style = ROPE_INTERLEAVED,
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .ignored_tensors = "transformer.h.%u.attn.bias|transformer.h.%u.attn.masked_bias",
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
}};

const struct arch arch_gptj = {
    .name = "gptj",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_PARALLEL,
    .output = ARCH_OUTPUT_OWN,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_TANH}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
