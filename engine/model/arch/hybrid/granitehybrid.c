/* granitehybrid.c: Granite 4. Most layers have Mamba-2, the others attention, which has rope in a
 * part of the models. The FFN is dense, or it has experts with a shared MLP beside them. Folders
 * have gate and up of the MLP in one tensor, which is the dense FFN without experts. In a GGUF, Q
 * and K are permuted. */
#include "engine/model/arch/hybrid/arch_mamba.h"

#define LAYER "model.layers.%u."

static const struct arch_tensor gguf_tensors[] = {
    ARCH_MAMBA_GGUF_TENSORS,
    {ARCH_STATE_NORM, true, "blk.%u.ssm_norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true, "blk.%u.ffn_gate_inp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true, "blk.%u.ffn_gate_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true, "blk.%u.ffn_up_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true, "blk.%u.ffn_down_exps.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, false, "blk.%u.ffn_gate_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, false, "blk.%u.ffn_up_shexp.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, false, "blk.%u.ffn_down_shexp.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param gguf_params[] = {
    ARCH_MAMBA_GGUF_PARAMS,
    {ARCH_PARAM_EXPERTS, "expert_count", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EXPERTS_USED, "expert_used_count", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_EXPERT_FFN, "feed_forward_length", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "expert_shared_feed_forward_length", ARCH_ABSENT_FALLBACK, 0, 0},
    {ARCH_PARAM_EMBED_SCALE, "embedding_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_scale", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention.scale", ARCH_ABSENT_DERIVE, 0, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logit_scale", ARCH_ABSENT_FALLBACK, 1, 0},
};

/* Layers with KV heads have attention. The key of fine-tuned rope says whether attention has rope;
 * without the key, attention has rope. */
static const struct arch_pattern gguf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_MARKED, "attention.head_count_kv", 0, 1, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_SET, "rope.scaling.finetuned", 1, 2, 1},
    {ARCH_PART_FFN, ARCH_PATTERN_SET, "expert_count", 0, 1, 0},
};

static const struct arch_tensor hf_tensors[] = {
    ARCH_MAMBA_HF_TENSORS(LAYER "mamba."),
    {ARCH_STATE_NORM, true, LAYER "mamba.norm.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_GATE, true, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_UP, true, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_FFN_DOWN, true, LAYER "shared_mlp.output_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_ROUTER, true,
     LAYER "block_sparse_moe.router.layer.weight|" LAYER "block_sparse_moe.router.weight",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_GATE, true,
     LAYER "block_sparse_moe.input_linear.weight|" LAYER "block_sparse_moe.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_UP, true,
     LAYER "block_sparse_moe.input_linear.weight|" LAYER "block_sparse_moe.experts.gate_up_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_EXPERT_DOWN, true,
     LAYER "block_sparse_moe.output_linear.weight|" LAYER "block_sparse_moe.experts.down_proj",
     ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_GATE, true, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_UP, true, LAYER "shared_mlp.input_linear.weight", ARCH_TRANSFORM_NONE},
    {ARCH_SHARED_DOWN, true, LAYER "shared_mlp.output_linear.weight", ARCH_TRANSFORM_NONE},
};

static const struct arch_param hf_params[] = {
    {ARCH_PARAM_STATE_WIDTH, "mamba_d_conv", ARCH_ABSENT_FALLBACK, 4, 0},
    {ARCH_PARAM_STATE_KEY_DIM, "mamba_d_state", ARCH_ABSENT_FALLBACK, 256, 0},
    {ARCH_PARAM_STATE_HEAD_DIM, "mamba_d_head", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_STATE_HEADS, "mamba_n_heads", ARCH_ABSENT_FALLBACK, 128, 0},
    {ARCH_PARAM_STATE_KEY_HEADS, "mamba_n_groups", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_FFN, "shared_intermediate_size", ARCH_ABSENT_FALLBACK, 1024, 0},
    {ARCH_PARAM_EXPERTS, "num_local_experts", ARCH_ABSENT_FALLBACK, 8, 0},
    {ARCH_PARAM_EXPERTS_USED, "num_experts_per_tok", ARCH_ABSENT_FALLBACK, 2, 0},
    {ARCH_PARAM_EXPERT_FFN, "intermediate_size", ARCH_ABSENT_REFUSE, 0, 0},
    {ARCH_PARAM_SHARED_FFN, "shared_intermediate_size", ARCH_ABSENT_FALLBACK, 1024, 0},
    {ARCH_PARAM_EMBED_SCALE, "embedding_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_RESIDUAL_SCALE, "residual_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_ATTN_SCALE, "attention_multiplier", ARCH_ABSENT_FALLBACK, 1, 0},
    {ARCH_PARAM_LOGIT_DIVISOR, "logits_scaling", ARCH_ABSENT_FALLBACK, 1, 0},
};

static const struct arch_fixed_key hf_fixed_keys[] = {
    ARCH_MAMBA_HF_KEYS,
    ARCH_ANY_VALUE("mamba_chunk_size"),
    ARCH_ANY_VALUE("mamba_expand"), /* the heads give the same width */
    ARCH_ANY_VALUE("output_router_logits"),
    ARCH_ANY_VALUE("init_method"),
    ARCH_ONE_TEXT("normalization_function", "rmsnorm"),
    ARCH_ANY_VALUE("router_aux_loss_coef"),
    ARCH_ONE_VALUE("mamba_proj_bias", 0),
    ARCH_HAS_TENSOR("mamba_conv_bias", ARCH_STATE_CONV_V_BIAS),
};

static const struct arch_pattern hf_patterns[] = {
    {ARCH_PART_MIXER, ARCH_PATTERN_NAMES, "layer_types|layers_block_type", 0, 0, 0},
    {ARCH_PART_MIXER, ARCH_PATTERN_TEXT, "position_embedding_type", 0, 2, 1},
    {ARCH_PART_FFN, ARCH_PATTERN_SET, "num_local_experts", 1, 1, 0},
};

static const struct arch_source sources[] = {
    {
        .base = &arch_base_gguf,
        .format = "gguf",
        .aliases = "granitehybrid",
        .rope_style = ROPE_INTERLEAVED,
        .params = gguf_params,
        .tensors = gguf_tensors,
        .patterns = gguf_patterns,
        .n_params = ARCH_N_OF(gguf_params),
        .n_tensors = ARCH_N_OF(gguf_tensors),
        .n_patterns = ARCH_N_OF(gguf_patterns),
    },
    {
        .base = &arch_base_hf,
        .format = "hf",
        .aliases = "GraniteMoeHybridForCausalLM|granitemoehybrid",
        .rope_style = ROPE_HALF,
        .params = hf_params,
        .fixed_keys = hf_fixed_keys,
        .tensors = hf_tensors,
        .patterns = hf_patterns,
        .n_params = ARCH_N_OF(hf_params),
        .n_fixed_keys = ARCH_N_OF(hf_fixed_keys),
        .n_tensors = ARCH_N_OF(hf_tensors),
        .n_patterns = ARCH_N_OF(hf_patterns),
    },
};

const struct arch arch_granitehybrid = {
    .name = "granitehybrid",
    .norm = ARCH_NORM_RMS,
    .residual = ARCH_RESIDUAL_SEQUENTIAL,
    .output = ARCH_OUTPUT_TIED_IF_ABSENT,
    .mixers = {{.name = "linear_attention|mamba",
                .mixing = ARCH_MIXING_MAMBA2,
                .rope = ARCH_NO_ROPE},
               {.name = "full_attention|attention", .rope = ARCH_NO_ROPE},
               {.name = "rope", .rope = 0}},
    .ffns = {{.name = "dense", .form = ARCH_FFN_GATED, .activation = ACTIVATION_SILU},
             {.name = "sparse",
              .body = ARCH_FFN_EXPERTS,
              .form = ARCH_FFN_GATED,
              .activation = ACTIVATION_SILU,
              .router = {.score = ROUTER_TOPK_SOFTMAX}}},
    .n_mixers = 3,
    .n_ffns = 2,
    .sources = sources,
    .n_sources = ARCH_N_OF(sources),
};
