/* ernie4_5.c: ERNIE 4.5, dense. The Llama block with rope in interleaved pairs in both formats. */
#include "engine/model/arch/arch.h"

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_TIED, "tie_word_embeddings", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 500000, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 128, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_HAS_TENSOR("use_bias", ARCH_ATTN_Q_BIAS),
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "ernie4_5",
        .rope_style = ROPE_INTERLEAVED,
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "Ernie4_5ForCausalLM|Ernie4_5_ForCausalLM|ernie4_5",
        .rope_style = ROPE_INTERLEAVED,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    },
};

const struct arch arch_ernie4_5 = {
    .name = "ernie4_5",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
