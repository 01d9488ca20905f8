/* gpt_oss.c: gpt-oss. Even layers have a window, each head has a sink, and all linears have biases.
 * The router's weights are a softmax over the chosen experts. YaRN's ramp has fractional ends; a
 * GGUF has no key for that. A folder stores experts as [in, out], where the columns of gate and up
 * alternate. In MXFP4 they are [out, in], where the rows of gate and up alternate. Files of Ollama
 * have some names of their own, and lack the type of the rope's scaling. */
#include "engine/model/arch/arch.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    {ARCH_ATTN_SINKS, true, "blk.%u.attn_sinks.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.post_attention_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_BIAS, true, "blk.%u.ffn_gate_inp.bias", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE_BIAS, true, "blk.%u.ffn_gate_exps.bias", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP_BIAS, true, "blk.%u.ffn_up_exps.bias", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN_BIAS, true, "blk.%u.ffn_down_exps.bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    {ARCH_PARAM_WINDOW, "attention.sliding_window", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROPE_TRUNCATE, NULL, ARCH_ABSENT_FALLBACK, 0, 0},
};

static const struct arch_tensor ollama_tensors[] = {
    {ARCH_ATTN_SINKS, true, "blk.%u.attn_sinks", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT, true, "blk.%u.attn_out.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ATTN_OUT_BIAS, false, "blk.%u.attn_out.bias", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_NORM, true, "blk.%u.ffn_norm.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param ollama_params[] = {
    {ARCH_PARAM_ROPE_SCALING, "rope.scaling.type", ARCH_ABSENT_FALLBACK, ROPE_SCALING_YARN, 0},
};

static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FIRST_OF, NULL, 2, 1, 0},
};

static const struct arch_tensor hf_tensors[] = {
    {ARCH_ATTN_SINKS, true, LAYER "self_attn.sinks", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true, LAYER "mlp.router.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER_BIAS, true, LAYER "mlp.router.bias", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, LAYER "mlp.experts.gate_up_proj", ARCH_TRANSFORM_TRANSPOSE_BY_ROW},
    {ARCH_EXPERT_UP, true, LAYER "mlp.experts.gate_up_proj", ARCH_TRANSFORM_TRANSPOSE_BY_ROW},
    {ARCH_EXPERT_GATE_BIAS, true, LAYER "mlp.experts.gate_up_proj_bias", ARCH_TRANSFORM_BY_ROW},
    {ARCH_EXPERT_UP_BIAS, true, LAYER "mlp.experts.gate_up_proj_bias", ARCH_TRANSFORM_BY_ROW},
    {ARCH_EXPERT_DOWN, true, LAYER "mlp.experts.down_proj", ARCH_TRANSFORM_TRANSPOSE},
    {ARCH_EXPERT_DOWN_BIAS, true, LAYER "mlp.experts.down_proj_bias", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok|experts_per_token", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_KEY_DIM, "head_dim", ARCH_ABSENT_FALLBACK, 64, 0},
    {ARCH_PARAM_ROPE_BASE, ARCH_HF_ROPE_BASE, ARCH_ABSENT_FALLBACK, 150000, 0},
    {ARCH_PARAM_ROPE_SCALING,
     "rope_parameters.rope_type|rope_parameters.type|rope_scaling.rope_type|rope_scaling.type",
     ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ROPE_ORIGINAL_CONTEXT,
     "rope_parameters.original_max_position_embeddings|"
     "rope_scaling.original_max_position_embeddings|initial_context_length",
     ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_WINDOW, "sliding_window", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_ACTIVATION, NULL, ARCH_ABSENT_DERIVE, 0, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_ONE_TEXT("hidden_act", "silu"), /* the activation is gpt-oss's own */
    ARCH_ONE_VALUE("swiglu_alpha", 1.702),
    ARCH_ONE_VALUE("swiglu_limit", 7),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_FIRST_OF, NULL, 2, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types", 0, 0, 0},
};

static const struct arch_variant hf_variants[] = {
    {.key = "quantization_config.quant_method", .arch = "gpt_oss_mxfp4"},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_experts_gguf,
        .format = "gguf",
        .aliases = "gpt-oss",
        .rope_style = ROPE_HALF,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_experts_hf,
        .format = "hf",
        .aliases = "GptOssForCausalLM|gpt_oss",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .variants = hf_variants,
        .n_variants = ARCH_N_OF(hf_variants),
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
    {
        .base = &sources[0],
        .format = "gguf",
        .aliases = "gptoss",
        .rope_style = ROPE_HALF,
        .params = ollama_params,
        .tensors = ollama_tensors,
        .n_params = ARCH_N_OF(ollama_params),
        .n_tensors = ARCH_N_OF(ollama_tensors),
    },
};

static const struct arch_tensor mxfp4_tensors[] = {
    {ARCH_EXPERT_GATE, true, LAYER "mlp.experts.gate_up_proj_blocks", ARCH_TRANSFORM_BY_ROW},
    {ARCH_EXPERT_UP, true, LAYER "mlp.experts.gate_up_proj_blocks", ARCH_TRANSFORM_BY_ROW},
    {ARCH_EXPERT_DOWN, true, LAYER "mlp.experts.down_proj_blocks", ARCH_TRANSFORM_NONE},
};

static const struct arch_fixed_key mxfp4_fixed_keys[] = {
    ARCH_ANY_VALUE("quantization_config.*"), /* the tensors' types decide */
};

static const struct arch_source mxfp4_sources[] = {{
    .base = &sources[1],
    .format = "hf",
    .aliases = "gpt_oss_mxfp4",
    .rope_style = ROPE_HALF,
    .fixed_keys = mxfp4_fixed_keys,
    .tensors = mxfp4_tensors,
    .n_fixed_keys = ARCH_N_OF(mxfp4_fixed_keys),
    .n_tensors = ARCH_N_OF(mxfp4_tensors),
}};

#define DESCRIPTION                                                                                \
    .norm = ARCH_NORM_RMS, .residual = ARCH_RESIDUAL_SEQUENTIAL,                                   \
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,                                                          \
    .mixers = {{.name = "full_attention", .rope = 0},                                              \
               {.name = "sliding_attention", .reach = ARCH_REACH_WINDOW, .rope = 0}},              \
    .ffns = {{.name = "sparse",                                                                    \
              .body = ARCH_FFN_EXPERTS,                                                            \
              .form = ARCH_FFN_GATED,                                                              \
              .activation = ACTIVATION_GATED_OAI,                                                  \
              .router = {.score = ROUTER_TOPK_SOFTMAX}}},                                          \
    .n_mixers = 2, .n_ffns = 1

const struct arch arch_gpt_oss = {
    .name = "gpt_oss",
    DESCRIPTION,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};

const struct arch arch_gpt_oss_mxfp4 = {
    .name = "gpt_oss_mxfp4",
    DESCRIPTION,
    .sources = mxfp4_sources,
    .n_sources = ARCH_N_OF(mxfp4_sources),
};
