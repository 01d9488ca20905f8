"""The rows of cases.py for families with experts."""

from common import BIAS, GELU, ORIGINAL, ROPES, STATES, TIED, Case, Change, delta, dense, dense_square, kinds, pick, rope, window


def experts(sizes, width="moe_intermediate_size", number="num_experts", **more):
    def make(rng):
        c = sizes(rng)
        n = int(rng.integers(3, 9))
        c |= {number: n, "num_experts_per_tok": int(rng.integers(1, min(n, 4))), width: int(rng.integers(5, 60))}
        return c | {key: value(rng, c) if callable(value) else value for key, value in more.items()}
    return make


def shared(rng, c):
    return int(rng.integers(5, 60))


RENORM = {"renormalised": Change(dict(norm_topk_prob=True)), "as they are": Change(dict(norm_topk_prob=False))}
SPARSE = {"every second": Change(dict(decoder_sparse_step=2)), "some dense": Change(lambda rng, c: dict(
    mlp_only_layers=[int(rng.integers(c["num_hidden_layers"]))]))}
ALL = {"all experts": Change(lambda rng, c: dict(num_experts_per_tok=c.get("num_experts") or c["num_local_experts"]))}
LOCAL = dict(number="num_local_experts")
GRANITE = dict(embedding_multiplier=2.5, logits_scaling=4.0, residual_multiplier=0.3, attention_multiplier=0.2)
# As many KV heads as heads, which transformers demands.
LATENT = dict(
    num_key_value_heads=lambda rng, c: c["num_attention_heads"], q_lora_rank=lambda rng, c: int(rng.integers(3, 30)),
    kv_lora_rank=lambda rng, c: int(rng.integers(3, 40)), qk_nope_head_dim=lambda rng, c: int(rng.integers(1, 30)),
    qk_rope_head_dim=lambda rng, c: 2 * int(rng.integers(1, 9)), v_head_dim=lambda rng, c: int(rng.integers(1, 40)),
    n_shared_experts=1, first_k_dense_replace=1, num_hidden_layers=3, routed_scaling_factor=1.5)
# transformers computes the rope of V2 in complex numbers, and demands that they lie at even places.
EVEN = dict(kv_lora_rank=lambda rng, c: 2 * int(rng.integers(2, 20)), qk_nope_head_dim=lambda rng, c: 2 * int(rng.integers(1, 15)))
LATENTS = {
    "full rank": Change(dict(q_lora_rank=None)), "two shared": Change(dict(n_shared_experts=2)),
    "no dense": Change(dict(first_k_dense_replace=0)),
    "yarn": Change(dict(rope_parameters=rope(9000.0, "yarn", factor=4.0, mscale=0.7, mscale_all_dim=0.9, **ORIGINAL)))}
EXPERT_CASES = {
    "mixtral": Case("MixtralForCausalLM", experts(dense, "intermediate_size", **LOCAL), TIED | ALL | ROPES | GELU | {
        "window": Change(window, "sliding_window"), "noise": Change(dict(router_jitter_noise=0.1))}),
    "qwen2moe": Case("Qwen2MoeForCausalLM", experts(dense_square, shared_expert_intermediate_size=shared), TIED | ALL | RENORM | SPARSE | GELU | {
        "no biases": Change(dict(qkv_bias=False)), "kinds": Change(lambda rng, c: kinds(rng, c) | dict(
            use_sliding_window=True, sliding_window=9), "use_sliding_window|layer_types")}),
    "qwen3moe": Case("Qwen3MoeForCausalLM", experts(dense), TIED | ALL | RENORM | SPARSE | GELU | BIAS | ROPES | {
        "window": Change(dict(use_sliding_window=True, sliding_window=9), "sliding_window")}),
    "qwen35moe": Case("Qwen3_5MoeForCausalLM", experts(lambda rng: delta(rng, dense(rng)), shared_expert_intermediate_size=shared),
                      TIED | ALL | STATES, plus_one=True),
    "qwen3next": Case("Qwen3NextForCausalLM", experts(lambda rng: delta(rng, dense(rng)), shared_expert_intermediate_size=shared),
                      TIED | ALL | RENORM | STATES | {
        "every second": Change(dict(decoder_sparse_step=2), "decoder_sparse_step"),
        "some dense": Change(dict(mlp_only_layers=[0]), "mlp_only_layers")}, plus_one=True),
    "gpt_oss": Case("GptOssForCausalLM", experts(dense, "intermediate_size", rope_parameters=rope(
        9000.0, "yarn", factor=4.0, truncate=False, beta_fast=32.0, beta_slow=1.0, **ORIGINAL), sliding_window=16, **LOCAL), TIED | ALL | {
            "kinds": Change(kinds), "plain rope": Change(dict(rope_parameters=rope(9000.0)), "rope_type"),
            "no biases": Change(dict(attention_bias=False)), "limit": Change(dict(swiglu_limit=3.0), "swiglu_limit"),
            "alpha": Change(dict(swiglu_alpha=1.0), "swiglu_alpha")}),
    "granitemoe": Case("GraniteMoeForCausalLM", experts(dense_square, "intermediate_size", **LOCAL, **GRANITE), TIED | ALL | GELU | BIAS),
    "granitemoe_shared": Case("GraniteMoeSharedForCausalLM", experts(
        dense_square, "intermediate_size", shared_intermediate_size=shared, **LOCAL, **GRANITE), TIED | ALL | GELU | BIAS | {
            "none shared": Change(dict(shared_intermediate_size=0))}),
    "glm4moe": Case("Glm4MoeForCausalLM", experts(
        dense, "moe_intermediate_size", "n_routed_experts", head_dim=lambda rng, c: int(pick(rng, 8, 16)), n_shared_experts=1,
        first_k_dense_replace=1, num_hidden_layers=3, n_group=1, topk_group=1, routed_scaling_factor=1.5,
        rope_parameters=lambda rng, c: c["rope_parameters"] | dict(partial_rotary_factor=0.5)), TIED | RENORM | BIAS | GELU | {
            "norms": Change(dict(use_qk_norm=True)), "two shared": Change(dict(n_shared_experts=2)),
            "groups": Change(dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3)),
            "no dense": Change(dict(first_k_dense_replace=0))}),
    "deepseek_v2": Case("DeepseekV2ForCausalLM", experts(
        dense_square, "moe_intermediate_size", "n_routed_experts", **(LATENT | EVEN | dict(q_lora_rank=None)), topk_method="greedy"),
        TIED | LATENTS | {
            "groups": Change(dict(topk_method="group_limited_greedy", n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3))}),
    "deepseek_v3": Case("DeepseekV3ForCausalLM", experts(
        dense_square, "moe_intermediate_size", "n_routed_experts", **LATENT, norm_topk_prob=True, n_group=1, topk_group=1),
        TIED | RENORM | LATENTS | {"groups": Change(dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3))}),
    "ernie4_5_moe": Case("Ernie4_5_MoeForCausalLM", experts(
        dense_square, "moe_intermediate_size", "moe_num_experts", moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1,
        moe_layer_end_index=-1, moe_layer_interval=1, num_hidden_layers=4), TIED | GELU | {
            "biases": Change(dict(use_bias=True), "lm_head.bias"), "two shared": Change(dict(moe_num_shared_experts=2)),
            "none shared": Change(dict(moe_num_shared_experts=0)), "every second": Change(dict(moe_layer_interval=2)),
            "to the third": Change(dict(moe_layer_end_index=2))}),
    "minimax_m2": Case("MiniMaxM2ForCausalLM", experts(dense, "intermediate_size", "num_local_experts", head_dim=lambda rng, c: int(
        pick(rng, 8, 16)), rope_parameters=lambda rng, c: c["rope_parameters"] | dict(partial_rotary_factor=0.5)), TIED | GELU | ALL),
    "mimo2": Case("MiMoV2FlashForCausalLM", experts(
        dense, "moe_intermediate_size", "n_routed_experts", num_attention_heads=4, num_key_value_heads=lambda rng, c: int(pick(rng, 1, 2)),
        head_dim=lambda rng, c: int(pick(rng, 16, 24, 48)), v_head_dim=lambda rng, c: int(pick(rng, 8, 15, 32)), num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"], mlp_layer_types=["dense", "sparse"],
        sliding_window=9, n_group=1, topk_group=1, rope_parameters=lambda rng, c: {
            kind: rope(theta, partial_rotary_factor=0.5) for kind, theta in (("full_attention", 9000.0), ("sliding_attention", 300.0))}),
        TIED | RENORM | GELU | BIAS | {
            "scaled": Change(dict(routed_scaling_factor=2.5)), "values as they are": Change(dict(attention_value_scale=1.0)),
            "all slide": Change(dict(layer_types=["sliding_attention"] * 2)), "all dense": Change(dict(mlp_layer_types=["dense"] * 2)),
            "groups": Change(dict(n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3))}),
}
