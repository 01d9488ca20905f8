/* mpt.c: MPT. Layer norms without biases, a plain FFN, and ALiBi slopes in place of positions. */
#include "engine/model/arch/arch.h"

#define LAYER "transformer.blocks.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_TOKEN_EMBD, true, "token_embd.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT_NORM, true, "output_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_OUTPUT, false, "output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_NORM, true, "blk.%u.attn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_Q, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_V, true, "blk.%u.attn_qkv.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_output.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, "blk.%u.ffn_up.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, "blk.%u.ffn_down.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_NORM_EPS, "attention.layer_norm_epsilon", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ALIBI_BIAS, "attention.max_alibi_bias", ARCH_ABSENT_REFUSE, 0, 0},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ONE_VALUE("attention.clamp_kqv", 0),
};

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
    {ARCH_PARAM_VOCAB, "vocab_size", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_NORM_EPS, "layer_norm_epsilon", ARCH_ABSENT_FALLBACK, 1e-5, 0},
    {ARCH_PARAM_ALIBI_BIAS, "attn_config.alibi_bias_max", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_ATTN_SCALE, "attn_config.softmax_scale", ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_VALUE("attn_config.alibi", 1),
    ARCH_ONE_VALUE("attn_config.clip_qkv", 0),
    ARCH_ONE_VALUE("attn_config.prefix_lm", 0),
    ARCH_ONE_VALUE("attn_config.qk_ln", 0),
    ARCH_ONE_VALUE("attn_config.attn_uses_sequence_id", 0),
    ARCH_ONE_TEXT("attn_config.attn_type", "multihead_attention"),
    ARCH_ONE_VALUE("attn_config.qk_gn", 0),
    ARCH_ONE_VALUE("attn_config.rope", 0),
    ARCH_ONE_VALUE("attn_config.sliding_window_size", -1),
    ARCH_ANY_VALUE("attn_config.attn_impl"),
    ARCH_ANY_VALUE("attn_config.attn_pdrop"),
    ARCH_ANY_VALUE("attn_config.rope_*"), /* without effect without rope */
    /* transformers writes these keys into each object */
    ARCH_ANY_VALUE("attn_config._name_or_path"),
    ARCH_ANY_VALUE("attn_config.chunk_size_feed_forward"),
    ARCH_ANY_VALUE("attn_config.id2label.*"),
    ARCH_ONE_VALUE("attn_config.is_encoder_decoder", 0),
    ARCH_ANY_VALUE("attn_config.label2id.*"),
    ARCH_ANY_VALUE("attn_config.model_type"),
    ARCH_ANY_VALUE("attn_config.output_attentions"),
    ARCH_ANY_VALUE("attn_config.output_hidden_states"),
    ARCH_ANY_VALUE("attn_config.return_dict"),
    ARCH_ONE_VALUE("expansion_ratio", 4),
    ARCH_ONE_VALUE("logit_scale", 1),
    ARCH_ONE_VALUE("no_bias", 1),
    ARCH_ANY_VALUE("emb_pdrop"),
    ARCH_ANY_VALUE("resid_pdrop"),
    ARCH_ANY_VALUE("embedding_fraction"),
    ARCH_ANY_VALUE("init_config.*"),
    ARCH_ANY_VALUE("init_device"),
    ARCH_ANY_VALUE("learned_pos_emb"), /* without effect with ALiBi */
    ARCH_ONE_TEXT("norm_type", "low_precision_layernorm|layernorm"),
    ARCH_ANY_VALUE("tokenizer_name"),
    ARCH_ANY_VALUE("verbose"),
    ARCH_ANY_VALUE("auto_map.*"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf_keys,
        .format = "gguf",
        .aliases = "mpt",
        .rope_style = ROPE_NONE,
        .params = gguf_params,
        .fixed_keys = gguf_fixed_keys,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
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
    },
};

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
