/* mpt.c: MPT. Layer norms without biases, a plain FFN, and ALiBi slopes in place of positions. */
#include "engine/model/arch/arch.h"

#define LAYER "transformer.blocks.%u."

static const struct arch_tensor hf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "transformer.wte.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "transformer.norm_f.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "lm_head.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, LAYER "norm_1.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, LAYER "attn.Wqkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, LAYER "attn.Wqkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, LAYER "attn.Wqkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, LAYER "attn.out_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, LAYER "norm_2.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "ffn.up_proj.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "ffn.down_proj.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_LAYERS, "n_layers", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_CONTEXT, "max_seq_len", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_HIDDEN, "d_model", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_FFN, NULL, ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_HEADS, "n_heads", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KV_HEADS, "attn_config.kv_n_heads", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ALIBI_BIAS, "attn_config.alibi_bias_max", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_ATTN_SCALE, "attn_config.softmax_scale", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    {"attn_config.alibi", false, 1},
    {"attn_config.clip_qkv", false, 0},
    {"attn_config.prefix_lm", false, 0},
    {"attn_config.qk_ln", false, 0},
    {"attn_config.attn_uses_sequence_id", false, 0},
    {"attn_config.*", true, 0},
    {"expansion_ratio", false, 4},
    {"logit_scale", false, 1},
    {"no_bias", false, 1},
    {"emb_pdrop", true, 0},
    {"resid_pdrop", true, 0},
    {"embedding_fraction", true, 0},
    {"init_config.*", true, 0},
    {"init_device", true, 0},
    {"learned_pos_emb", true, 0}, /* without effect with ALiBi */
    {"norm_type", true, 0},
    {"tokenizer_name", true, 0},
    {"verbose", true, 0},
    {"auto_map.*", true, 0},
};

static const struct arch_source sources[] = {{
    .base = &arch_base_hf_keys,
    .format = "hf",
    .aliases = "MptForCausalLM|MPTForCausalLM|mpt",
    .rope_style = ROPE_NONE,
    .params = hf_params,
    .fixed_keys = hf_fixed_keys,
    .tensors = hf_tensors,
    .n_params = ARCH_N_OF(hf_params),
    .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    .n_tensors = ARCH_N_OF(hf_tensors),
}};

const struct arch arch_mpt = {
    .name = "mpt",
    .norm = ARCH_NORM_LAYER,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = ARCH_NO_ROPE}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_PLAIN, .activation = ACTIVATION_GELU_ERF}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
