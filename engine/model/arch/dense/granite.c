/* granite.c: Granite 3 and 4, dense. The Llama block with factors of the embedding, of each branch
 * and of the scores, and a divisor of the logits. GGUF files have Q and K permuted, so rope pairs
 * are interleaved there. */
#include "engine/model/arch/arch.h"

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_EMBED_SCALE, "embedding_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention.scale", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logit_scale", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EMBED_SCALE, "embedding_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logits_scaling", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "granite",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .n_params = ARCH_N_OF(gguf_params),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "GraniteForCausalLM|granite",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .n_params = ARCH_N_OF(hf_params),
    },
};

const struct arch arch_granite = {
    .name = "granite",
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
