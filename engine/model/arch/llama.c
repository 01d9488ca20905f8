/* llama.c: the Llama family (Llama 1 to 3, SmolLM, TinyLlama, Mistral 7B and Nemo, Yi, …). GGUF
 * files of this architecture have Q and K permuted, so rope pairs are interleaved. The frequency
 * scaling of Llama 3 is a tensor of divisors; linear and YaRN scaling are keys. */
#include "engine/model/arch/arch.h"

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ROPE_FREQS, false, "rope_freqs.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_fixed_key gguf_fixed_keys[] = {
    ARCH_ONE_VALUE("expert_count", 0), /* with experts, the file is of mixtral.c */
    ARCH_ONE_VALUE("expert_used_count", 0),
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("pretraining_tp"),      /* concerns the arithmetic only */
    ARCH_ONE_VALUE("rope_interleaved", 0), /* a remark of SmolLM2 */
    ARCH_ANY_VALUE("is_llama_config"),     /* the same */
};

static const struct arch_variant gguf_variants[] = {
    {.key = "expert_count", .arch = "mixtral"},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "llama",
        .variants = gguf_variants,
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .fixed_keys = gguf_fixed_keys,
        .tensors = gguf_tensors,
        .n_params = ARCH_N_OF(gguf_params),
        .n_fixed_keys = ARCH_N_OF(gguf_fixed_keys),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_variants = ARCH_N_OF(gguf_variants),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "LlamaForCausalLM|MistralForCausalLM|llama|mistral",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    },
};

const struct arch arch_llama = {
    .name = "llama",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "full_attention", .reach = ARCH_REACH_WINDOW, .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 1,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
