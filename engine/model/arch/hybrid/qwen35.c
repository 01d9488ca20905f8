/* qwen35.c: Qwen3.5 and its successors with a dense FFN. Most layers have a gated delta net, every
 * fourth has attention with an output gate (arch_delta.c). */
#include "engine/model/arch/arch.h"

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ANY_VALUE("mlp_only_layers"), /* all layers are dense */
};

static const struct arch_source sources[] = {
    {
        .base = &arch_delta_gguf,
        .format = "gguf",
        .aliases = "qwen35",
        .rope_style = ROPE_HALF,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
    },
    {
        .base = &arch_delta_hf,
        .format = "hf",
        .aliases = "Qwen3_5ForCausalLM|qwen3_5_text|Qwen3_5ForConditionalGeneration|qwen3_5",
        .rope_style = ROPE_HALF,
        .fixed_keys = hf_fixed_keys,
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
    },
    {
        .base = &arch_delta_gguf,
        .format = "gguf",
        .aliases = "qwen35",
        .rope_style = ROPE_HALF,
        .params = arch_delta_ollama_params,
        .draft_layers = "blk.%u.",
        .counts_drafts = true,
        .dialect_keys = ARCH_DELTA_OLLAMA_KEY,
        .n_params = ARCH_N_OF(arch_delta_ollama_params),
    },
};

const struct arch arch_qwen35 = {
    .name = "qwen35",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "linear_attention", .mixing = ARCH_MIXING_DELTA, .rope = ARCH_NO_ROPE},
               {.name = "full_attention", .rope = 0, .head_norm = ARCH_NORM_RMS}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU}},
    .n_mixers = 2,
    .n_ffns = 1,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
