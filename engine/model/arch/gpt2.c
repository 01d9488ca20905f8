/* gpt2.c: GPT-2 (124M to 1.5B, DistilGPT2 and models derived from them). Hugging Face has matrices
 * of [inputs, outputs], GGUF has them transposed to rows of outputs. Q, K and V are one matrix, one
 * below the other. The position embedding is a table with one row per position, so the context is
 * the table's length. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_POSITION_EMBD, true, "position_embd.weight", ARCH_TRANSFORM_NONE},
};

/* Models that were saved as GPT2Model lack the prefix. */
#define AT(name)    "transformer." name "|" name
#define LAYER(name) AT("h.%u." name)

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, AT("wte.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_POSITION_EMBD, true, AT("wpe.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, AT("ln_f.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM_BIAS, true, AT("ln_f.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER("ln_1.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM_BIAS, true, LAYER("ln_1.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER("attn.c_attn.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_ATTN_Q_BIAS, true, LAYER("attn.c_attn.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER("attn.c_attn.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_ATTN_K_BIAS, true, LAYER("attn.c_attn.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER("attn.c_attn.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_ATTN_V_BIAS, true, LAYER("attn.c_attn.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER("attn.c_proj.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_ATTN_OUT_BIAS, true, LAYER("attn.c_proj.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER("ln_2.weight"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM_BIAS, true, LAYER("ln_2.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER("mlp.c_fc.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_FFN_UP_BIAS, true, LAYER("mlp.c_fc.bias"), ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER("mlp.c_proj.weight"), ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_FFN_DOWN_BIAS, true, LAYER("mlp.c_proj.bias"), ARCH_TRANSFORM_NONE},
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
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("add_cross_attention", 0),
    ARCH_ANY_VALUE("attn_pdrop"),
    ARCH_ANY_VALUE("embd_pdrop"),
    ARCH_ANY_VALUE("resid_pdrop"),
    ARCH_ANY_VALUE("n_ctx"),                   /* transformers does not read this key */
    ARCH_ANY_VALUE("reorder_and_upcast_attn"), /* concerns the arithmetic only */
    ARCH_ONE_VALUE("scale_attn_by_inverse_layer_idx", 0),
    ARCH_ONE_VALUE("scale_attn_weights", 1),
    ARCH_ANY_VALUE("summary_*"), /* for another head */
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gpt_gguf,
        .format = "gguf",
        .aliases = "gpt2",
        .rope_style = ROPE_NONE,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf_keys,
        .format = "hf",
        .aliases = "GPT2LMHeadModel|gpt2",
        .rope_style = ROPE_NONE,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .ignored_tensors = AT("h.%u.attn.bias") "|" AT("h.%u.attn.masked_bias"), /* masks */
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_gpt2 = {
    .name = "gpt2",
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
