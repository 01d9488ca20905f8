/* hunyuan_dense.c: Hunyuan, dense. The Llama block with a norm of each head of Q and K after rope.
 * `alpha` stretches the rope base; GGUF has the stretched base. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "blk.%u.attn_q_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "blk.%u.attn_k_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_Q_NORM, true, "model.layers.%u.self_attn.query_layernorm.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_K_NORM, true, "model.layers.%u.self_attn.key_layernorm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_KEY_DIM, "head_dim|attention_head_dim", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_ROPE_ALPHA, "rope_parameters.alpha|rope_scaling.alpha", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("eod_token_id"),          ARCH_ANY_VALUE("pretraining_tp"),
    ARCH_ONE_VALUE("use_qk_norm", 1),        ARCH_ONE_VALUE("use_cla", 0),
    ARCH_ANY_VALUE("cla_share_factor"), /* without effect if use_cla is false */
    ARCH_ONE_VALUE("use_rotary_pos_emb", 1), ARCH_ONE_TEXT("norm_type", "rms|hf_rms"),
    ARCH_ANY_VALUE("org_vocab_size"),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "hunyuan-dense",
        .rope_style = ROPE_HALF,
        .tensors = gguf_tensors,
        .n_tensors = ARCH_N_OF(gguf_tensors),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "HunYuanDenseV1ForCausalLM|hunyuan_v1_dense",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
    },
};

const struct arch arch_hunyuan_dense = {
    .name = "hunyuan-dense",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0, .norm_after_rope = true}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
