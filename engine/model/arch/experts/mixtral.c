/* mixtral.c: Mixtral. GGUF files name the architecture llama, so llama.c refers here if a file has
 * experts. Q and K are permuted in GGUF. The chosen weights are renormalised. */
#include "engine/model/arch/arch.h"

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 1000000, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "mixtral",
        .rope_style = ROPE_INTERLEAVED,
    },
    {
        .base = &arch_experts_mixtral_hf,
        .format = "hf",
        .aliases = "MixtralForCausalLM|mixtral",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .n_params = ARCH_N_OF(hf_params),
    },
};

const struct arch arch_mixtral = {
    .name = "mixtral",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .rope = 0}},
    .ffns = {{.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_SOFTMAX}}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
